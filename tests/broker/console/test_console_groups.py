"""`penstock groups` against a real broker and the members of another client."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as At

from penstock.kafka.console.offset_records import TOPIC, partition_of_group
from tests.support.console import Run, read_json, read_lines
from tests.support.kafka.topic_filling import commit_offsets, produce
from tests.support.waiting import wait_until


@contextmanager
def members(
    bootstrap: str, group: str, topic: str, count: int, protocol: str = "classic"
) -> Iterator[list[Consumer]]:
    """Yield `count` consumers of one group, once each has been told its partitions."""
    told: dict[int, list[Any]] = {}
    joined = []
    for number in range(count):
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "client.id": f"client-{number}",
                "group.protocol": protocol,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([topic], on_assign=lambda _, given, number=number: told.update({number: given}))
        joined.append(consumer)

    def settled() -> bool:
        for consumer in joined:
            consumer.poll(0.05)
        # The newer protocol tells a member only what it gets; a member that gets nothing hears nothing.
        all_told = protocol == "consumer" or len(told) == count
        return all_told and sum(len(consumer.assignment()) for consumer in joined) == 3

    try:
        wait_until(settled, "every member has its partitions")
        yield joined
    finally:
        for consumer in joined:
            consumer.close()


def rows_of(printed: str) -> list[list[str]]:
    head, columns, *rows = read_lines(printed)
    assert head[0] == "Group:"
    assert " ".join(columns) == (
        "topic partition current offset log end offset lag consumer id host client id"
    )
    return rows


def test_one_member_owns_all_and_has_committed_nothing(kafka: Any, penstock: Run, topic: Any) -> None:
    """A15, A16, C3: a dash before the first commit, a number after it; lag against the log's end."""
    name, group = topic(3), f"g-{secrets.token_hex(4)}"
    for partition in (1, 2):
        produce(kafka.bootstrap, name, [b"greeting"], partition=partition)
    with members(kafka.bootstrap, group, name, 1) as (consumer,):
        assert [group, "Stable"] in read_lines(penstock("groups", "list"))
        printed = penstock("groups", "describe", group)
        assert f"Group: {group}  State: Stable  Members: 1" in printed
        rows = rows_of(printed)
        assert [row[:5] for row in rows] == [
            [name, "0", "-", "0", "-"],
            [name, "1", "-", "1", "-"],
            [name, "2", "-", "1", "-"],
        ]
        (consumer_id,) = {row[5] for row in rows}
        assert consumer_id.startswith("client-0-")
        assert {(row[6], row[7]) for row in rows} == {("127.0.0.1", "client-0")}
        consumer.commit(offsets=[At(name, 1, 1), At(name, 2, 0)], asynchronous=False)
        assert [row[:5] for row in rows_of(penstock("groups", "describe", group))] == [
            [name, "0", "-", "0", "-"],
            [name, "1", "1", "1", "0"],
            [name, "2", "0", "1", "1"],
        ]
    # The members are gone; what they committed is not.
    wait_until(lambda: "Members: 0" in penstock("groups", "describe", group), "the member has left")
    assert [row[1:] for row in rows_of(penstock("groups", "describe", group))] == [
        ["1", "1", "1", "0", "-", "-", "-"],
        ["2", "0", "1", "1", "-", "-", "-"],
    ]
    (described,) = read_json(penstock("groups", "describe", group, "--json"))["groups"]
    assert (described["state"], described["members"]) == ("Empty", 0)
    assert described["partitions"][1]["lag"] == 1
    assert described["partitions"][1]["consumer_id"] is None


def test_a_member_without_partitions_is_shown(kafka: Any, penstock: Run, topic: Any) -> None:
    """B9: of four members on three partitions one is idle, and no partition has two."""
    name, group = topic(3), f"g-{secrets.token_hex(4)}"
    with members(kafka.bootstrap, group, name, 4):
        rows = rows_of(penstock("groups", "describe", group))
    assert [row[:2] for row in rows] == [[name, "0"], [name, "1"], [name, "2"], ["-", "-"]]
    assert {row[7] for row in rows} == {f"client-{number}" for number in range(4)}


def test_what_a_group_committed_for_a_topic_that_is_gone_has_no_end(
    kafka: Any, penstock: Run, topic: Any
) -> None:
    kept, gone, group = topic(), topic(), f"g-{secrets.token_hex(4)}"
    commit_offsets(kafka.bootstrap, group, kept, 0)
    commit_offsets(kafka.bootstrap, group, gone, 0)
    penstock("topics", "delete", gone, "--yes")
    # The coordinator forgets such a commit some time later. Until then it is shown without an end.
    rows = {row[0]: row for row in rows_of(penstock("groups", "describe", group))}
    assert rows[kept][:5] == [kept, "0", "0", "0", "0"]
    assert rows.get(gone, [gone, "0", "0", "-", "-"])[:5] == [gone, "0", "0", "-", "-"]


def test_a_group_that_nobody_knows_is_an_error(penstock: Run) -> None:
    assert penstock("groups", "describe", "never-seen", code=1).startswith("[GROUP_NOT_FOUND] ")


def test_a_hostile_group_name_cannot_touch_the_terminal(kafka: Any, penstock: Run, topic: Any) -> None:
    group = f"g-\x1b[31m-{secrets.token_hex(4)}"
    commit_offsets(kafka.bootstrap, group, topic(), 0)
    for printed in (penstock("groups", "list"), penstock("groups", "describe", group)):
        assert "\x1b" not in printed
        assert group.replace("\x1b", "\\x1b") in printed


def test_a_group_of_the_newer_protocol_is_shown_with_its_members(
    kafka: Any, penstock: Run, topic: Any
) -> None:
    """A16: `group.protocol=consumer` has a request of its own; the fourth member has no partition."""
    name, group = topic(3), f"g-{secrets.token_hex(4)}"
    commit_offsets(kafka.bootstrap, group, name, 0, 0)
    rows: list[list[str]] = []
    with members(kafka.bootstrap, group, name, 4, protocol="consumer") as joined:

        def settled() -> bool:
            for consumer in joined:
                consumer.poll(0.05)  # gives up partitions that others are to get
            printed = penstock("groups", "describe", group)
            rows[:] = rows_of(printed)
            in_order = f"Group: {group}  State: Stable  Members: 4" in printed
            return in_order and len({row[5] for row in rows} - {"-"}) == 4

        wait_until(settled, "all four are shown")
    assert [row[:5] for row in rows] == [
        [name, "0", "0", "0", "0"],
        [name, "1", "0", "0", "0"],
        [name, "2", "-", "0", "-"],
        ["-"] * 5,
    ]
    assert {(row[6], row[7]) for row in rows} == {("127.0.0.1", f"client-{number}") for number in range(4)}


def test_the_records_of_the_offsets_topic_are_readable(kafka: Any, penstock: Run, topic: Any) -> None:
    """A18: group, topic, partition, offset, metadata and time of every commit, older ones included."""
    name, group = topic(2), f"g-{secrets.token_hex(4)}"
    commit_offsets(kafka.bootstrap, group, name, 0, 0)
    commit_offsets(kafka.bootstrap, group, name, 7)
    head, *rows = read_lines(penstock("groups", "offsets", "--group", group))
    assert head == ["group", "topic", "partition", "offset", "metadata", "committed", "at"]
    assert [row[:5] for row in rows] == [
        [group, name, "0", "0", "-"],
        [group, name, "1", "0", "-"],
        [group, name, "0", "7", "-"],
    ]
    told = [json.loads(line) for line in penstock("groups", "offsets", "--json", "--all").splitlines()]
    mine = [each for each in told if each["group"] == group and each["kind"] == "offset"]
    assert [(each["partition"], each["offset"]) for each in mine] == [(0, 0), (1, 0), (0, 7)]
    assert {each["log_partition"] for each in mine} == {partition_of_group(group, 50)}
    assert all(abs(each["commit_time_ms"] - each["timestamp_ms"]) < 60_000 for each in mine)
    assert penstock("groups", "offsets", "--group", "never-seen") == f"{TOPIC} holds no such records.\n"
