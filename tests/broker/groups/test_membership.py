"""Members of a group on a real broker: what each is assigned, reads and commits."""

from __future__ import annotations

import secrets
import threading
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import BrokerError
from penstock.core.model import TopicPartition
from penstock.core.planning.partition_selection import Selection, SelectPattern, SelectTopics
from penstock.core.planning.topic_pattern import TopicPattern
from penstock.kafka.console.group_member import GroupMember
from penstock.kafka.reading.kafka_log_view import KafkaLogView
from tests.support.kafka.topic_filling import produce
from tests.support.waiting import wait_until


def join(settings: ClientSettings, group: str, selection: Selection) -> GroupMember:
    return GroupMember(settings, group, selection, from_beginning=True)


def recreate(bootstrap: str, name: str) -> None:
    client = AdminClient({"bootstrap.servers": bootstrap})
    client.delete_topics([name], operation_timeout=30)[name].result(timeout=30)

    def is_made() -> bool:
        failed = client.create_topics([NewTopic(name, 1, 1)], operation_timeout=30)[name].exception(
            timeout=30
        )
        return failed is None

    wait_until(is_made, f"{name} is made again")


class Other(threading.Thread):
    """A second member in its own thread, which reads everything it is assigned and commits nothing."""

    def __init__(self, settings: ClientSettings, group: str, selection: Selection) -> None:
        super().__init__()
        self.values: list[bytes | None] = []
        self.assigned: frozenset[TopicPartition] = frozenset()
        self._ends = threading.Event()
        self._arguments = (settings, group, selection)

    def run(self) -> None:
        with join(*self._arguments) as member:
            while not self._ends.is_set():
                self.values += [each.value for each in member.poll(20)]
                self.assigned = member.assigned

    def __enter__(self) -> Other:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ends.set()
        self.join()


def test_what_a_member_keeps_goes_on_and_what_it_gives_away_begins_at_the_commit(
    kafka: Any, settings: ClientSettings, topic: Any, group: str
) -> None:
    """A15, I27: nothing is skipped, and only what was shown and not committed is shown again."""
    name = topic(2)
    values = {number: [b"%d%d" % (number, each) for each in range(9)] for number in (0, 1)}
    for number, some in values.items():
        produce(kafka.bootstrap, name, some, partition=number)
    both = [TopicPartition(name, 0), TopicPartition(name, 1)]
    view = KafkaLogView(settings)
    with join(settings, group, SelectTopics((name,))) as first:
        shown: list[bytes | None] = []

        def show(count: int) -> bool:
            shown.extend(each.value for each in first.poll(20, 1))
            return len(shown) >= count

        wait_until(lambda: show(3), "three are shown")
        first.commit()
        # Which partition comes first is up to the broker, and nobody promises an order.
        committed = {each: len({*shown} & {*values[each.partition]}) for each in both}
        wait_until(lambda: show(12), "nine more are shown, and not committed")
        assert view.committed(group, both) == committed
        with Other(settings, group, SelectTopics((name,))) as second:

            def is_shared() -> bool:
                show(18)
                return len(first.assigned) == len(second.assigned) == 1 and len(second.values) >= 6

            wait_until(is_shared, "the second member has read one of the partitions")
            (kept,), (given,) = first.assigned, second.assigned
            assert {kept, given} == {*both}
            kept_values = values[kept.partition]
            wait_until(lambda: (show(18), kept_values[-1] in shown)[1], "the first has read the other one")
            first.commit()
            assert view.committed(group, [kept]) == {kept: 9}
            assert [each for each in shown if each in kept_values] == kept_values  # each once
            rest = values[given.partition][committed[given] :]
            wait_until(lambda: len(second.values) >= len(rest), "the second has read all of its own")
            assert second.values == rest


def test_a_group_whose_first_member_saw_nothing_has_its_place_all_the_same(
    kafka: Any, settings: ClientSettings, topic: Any, group: str
) -> None:
    """Records that arrive while no member runs are shown to the next one, although the first read nothing."""
    name = topic()
    produce(kafka.bootstrap, name, ["before"])

    def begin() -> GroupMember:
        return GroupMember(settings, group, SelectTopics((name,)), from_beginning=False)

    with begin() as first:
        wait_until(lambda: first.poll(20) or first.assigned, "the first has its partition")
        first.commit()
    produce(kafka.bootstrap, name, ["0", "1"])
    found: list[Any] = []
    with begin() as second:
        wait_until(lambda: found.extend(second.poll(20)) or len(found) >= 2, "what came meanwhile is shown")
        second.commit()
        assert [each.value for each in found] == [b"0", b"1"]
    partition = TopicPartition(name, 0)
    assert KafkaLogView(settings).committed(group, [partition]) == {partition: 3}


def test_what_is_made_after_a_member_began_is_read_from_its_start(
    kafka: Any, settings: ClientSettings, topic: Any, group: str
) -> None:
    """A recreated topic: the offsets belong to the old one, and all its records came after the start."""
    name = topic()
    produce(kafka.bootstrap, name, ["before"])
    shown: list[bytes | None] = []
    with GroupMember(settings, group, SelectTopics((name,)), from_beginning=False) as member:

        def show(*expected: bytes) -> bool:
            shown.extend(each.value for each in member.poll(50))
            member.commit()
            return shown == [*expected]

        wait_until(lambda: show() and member.assigned, "it has its partition")
        produce(kafka.bootstrap, name, ["old"])
        wait_until(lambda: show(b"old"), "what came since is shown")
        recreate(kafka.bootstrap, name)
        produce(kafka.bootstrap, name, ["new 0", "new 1"])
        wait_until(lambda: show(b"old", b"new 0", b"new 1"), "all of the new topic is shown")
        committed = KafkaLogView(settings).committed(group, [TopicPartition(name, 0)])
        assert list(committed.values()) == [2]


def test_a_deleted_topic_ends_a_member_that_named_it_and_no_other(
    kafka: Any, settings: ClientSettings, topic: Any, group: str
) -> None:
    stem = f"some{secrets.token_hex(4)}"
    gone, left = topic(name=stem), topic(name=stem)
    by_pattern = SelectPattern(TopicPattern(f"{stem}.*", option="--pattern"))
    with (
        join(settings, group, SelectTopics((gone,))) as named,
        join(settings, f"{group}-2", by_pattern) as other,
    ):
        wait_until(lambda: named.poll(20) or named.assigned, "the first has its partition")
        wait_until(lambda: other.poll(20) or len(other.assigned) == 2, "the other has both")
        client = AdminClient({"bootstrap.servers": kafka.bootstrap})
        client.delete_topics([gone])[gone].result(timeout=30)
        with pytest.raises(BrokerError, match=rf"\[UNKNOWN_TOPIC\] .*{gone}"):
            wait_until(lambda: named.poll(20), "it is told that the topic is gone")
        wait_until(
            lambda: other.poll(20) or other.assigned == {TopicPartition(left, 0)}, "only one topic is left"
        )
        produce(kafka.bootstrap, left, ["here"])
        found: list[Any] = []
        wait_until(lambda: found.extend(other.poll(20)) or found, "the other goes on")
        assert [each.value for each in found] == [b"here"]
