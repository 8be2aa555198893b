"""`penstock offsets` with a reachable broker: times and ends, groups, and topics that were recreated."""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from penstock.cli import main
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.kafka.metadata.topic_admin import create_topic, delete_topic
from penstock.kafka.reading.kafka_log_view import KafkaLogView
from penstock.stores.offsets.file_store import FileOffsetStore
from tests.support.kafka.client_settings import settings_of
from tests.support.kafka.topic_filling import delete_before, produce
from tests.support.waiting import wait_until

Run = Callable[..., Any]


@pytest.fixture
def penstock(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str, code: int = 0) -> Any:
        assert main(["offsets", *arguments, "--json"]) == code, capsys.readouterr()
        told = capsys.readouterr()
        return json.loads(told.out) if code == 0 else told.err

    return run


def offsets_after(told: Any, topic: str) -> list[int]:
    return list(told["after"]["offsets"][topic].values())


def test_a_stream_moves_to_times_and_ends_but_never_outside_the_log(
    penstock: Run, kafka: Any, topic: Any, tmp_path: Path
) -> None:
    name = topic(2)
    for partition, times in ((0, range(1_000, 11_000, 1_000)), (1, range(1_000, 4_000, 1_000))):
        for time_ms in times:
            produce(kafka.bootstrap, name, ["x"], partition=partition, timestamp_ms=time_ms)
    at = ["--at", str(tmp_path), "visits", "--bootstrap-server", kafka.bootstrap]
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    FileOffsetStore(tmp_path).save("visits", StreamPosition({first: 8, second: 1}))
    shown = penstock("show", *at)
    assert shown["ends"] == {str(first): 10, str(second): 3}
    assert offsets_after(penstock("plan", *at, "--to-time", "1970-01-01T00:00:05Z"), name) == [4, 3]
    assert offsets_after(penstock("rewind", *at, "--to-time", "1970-01-01T00:00:05Z"), name) == [4, 1]
    assert offsets_after(penstock("plan", *at, "--to-start"), name) == [0, 0]
    assert offsets_after(penstock("skip", *at, "--by", "5"), name) == [10, 3]
    told = penstock("skip", *at, "--to-end", "--only", str(second), "--yes", "--watch", "0s")
    assert (told["applied"], offsets_after(told, name)) == (True, [8, 3])


def test_the_local_cluster_is_asked_where_no_brokers_are_named_unless_its_topic_is_another(
    penstock: Run, kafka: Any, topic: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is what the help says. A topic that has the right name but another id moves no stream."""
    name = topic(1)
    produce(kafka.bootstrap, name, ["x"] * 9)
    delete_before(kafka.bootstrap, name, 4)
    monkeypatch.setattr("penstock.cli.shared.kafka_arguments._find_local_cluster", lambda: kafka.bootstrap)
    each = TopicPartition(name, 0)
    store = FileOffsetStore(tmp_path)
    known = KafkaLogView(settings_of(kafka.bootstrap)).describe([name])[name].topic_id
    assert known is not None
    at = ["--at", str(tmp_path), "visits"]
    store.save("visits", StreamPosition({each: 8}, {name: known}))
    assert penstock("show", *at)["ends"] == {str(each): 9}
    told = penstock("rewind", *at, "--by", "6")
    assert (offsets_after(told, name), told["notes"]) == ([4], [])

    store.save("visits", StreamPosition({each: 8}, {name: b"\x07" * 16}), may_go_back=True)
    assert penstock("show", *at)["ends"] == {}
    told = penstock("rewind", *at, "--by", "6")
    assert offsets_after(told, name) == [2]
    assert "The log was not looked at" in told["notes"][0]
    refused = penstock("rewind", *at, "--to-start", code=1)
    assert "[LOG_OF_ANOTHER_TOPIC]" in refused
    assert "No brokers were named: this is the local cluster" in refused
    named = ("--bootstrap-server", kafka.bootstrap)
    assert offsets_after(penstock("rewind", *at, "--to-start", *named), name) == [4]
    assert "[LOG_OF_ANOTHER_TOPIC]" in penstock("rewind", *at, "--by", "6", *named, code=1)


def test_a_dry_run_knows_that_a_group_has_members(penstock: Run, kafka: Any, topic: Any) -> None:
    name, group = topic(1), f"group-{secrets.token_hex(4)}"
    produce(kafka.bootstrap, name, ["x"] * 9)
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    asked = ["rewind", "--at", f"kafka://{kafka.bootstrap}/{group}", group, "--by", "3"]
    try:
        consumer.subscribe([name])
        wait_until(lambda: consumer.poll(0.2) is not None, "the consumer has a record", timeout_s=60)
        consumer.commit(offsets=[KafkaPartition(name, 0, 7)], asynchronous=False)
        for more in ([], ["--yes", "--watch", "0"]):
            assert "[GROUP_HAS_MEMBERS]" in penstock(*asked, *more, code=1)
    finally:
        consumer.close()
    assert offsets_after(penstock(*asked), name) == [4]


def test_a_group_is_moved_and_remembers_who_did_it(
    penstock: Run, kafka: Any, topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C3: it is an ordinary consumer group, as a lag tool shows it."""
    name, group = topic(), f"group-{secrets.token_hex(4)}"
    produce(kafka.bootstrap, name, ["x"] * 9)
    at = ["--at", f"kafka://{kafka.bootstrap}/{group}", group]
    file = {"position": {"version": 1, "offsets": {name: {"0": 7}}}}
    assert "[STREAM_NOT_FOUND]" in penstock("show", *at, code=1)
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(file)))
    penstock("import", *at, "--yes", "--watch", "0s")
    told = penstock("rewind", *at, "--by", "3", "--yes", "--watch", "0s")
    assert offsets_after(told, name) == [4]
    shown = penstock("show", *at, "--changes")
    assert shown["position"]["offsets"] == {name: {"0": 4}}
    assert shown["ends"] == {f"{name}-0": 9}
    (change,) = shown["changes"]
    assert (change["verb"], change["before"]["offsets"], change["after"]["offsets"]) == (
        "rewind",
        {name: {"0": 7}},
        {name: {"0": 4}},
    )


def test_a_topic_that_was_restored_under_its_name_is_adopted(
    penstock: Run, kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """The same records have a new topic id: the stream continues, and remembers the new id from then on."""
    name = topic()
    view = KafkaLogView(settings_of(kafka.bootstrap))
    old = view.describe([name])[name].topic_id
    assert old is not None
    each = TopicPartition(name, 0)
    FileOffsetStore(tmp_path).save("visits", StreamPosition({each: 3}, {name: old}, {each: 5}))
    delete_topic(settings_of(kafka.bootstrap), name)
    at = ["--at", str(tmp_path), "visits", "--bootstrap-server", kafka.bootstrap]
    assert "[TOPIC_NOT_FOUND]" in penstock("adopt", *at, "--topic", name, code=1)
    create_topic(settings_of(kafka.bootstrap), name)
    produce(kafka.bootstrap, name, ["a", "b", "c", "d"])
    new = view.describe([name])[name].topic_id
    assert new is not None
    assert new != old
    assert not penstock("adopt", *at, "--topic", name)["applied"]
    told = penstock("adopt", *at, "--topic", name, "--yes", "--watch", "0s")
    assert told["notes"][0].startswith(f"Topic {name}: id {old.hex()} -> {new.hex()}. Right only if")
    assert FileOffsetStore(tmp_path).load("visits") == StreamPosition({each: 3}, {name: new})


def test_a_position_from_elsewhere_stays_within_the_log_and_of_its_topic(
    penstock: Run, kafka: Any, topic: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for dry and real runs. A position beyond the end is not reported as having no lag."""
    name = topic(2)
    for partition in (0, 1):
        produce(kafka.bootstrap, name, ["x"] * 9, partition=partition)
    delete_before(kafka.bootstrap, name, 4, partition=1)
    known = KafkaLogView(settings_of(kafka.bootstrap)).describe([name])[name].topic_id
    assert known is not None
    brokers = ("--bootstrap-server", kafka.bootstrap)
    at = ["--at", str(tmp_path / "offsets"), "visits", *brokers]

    def write(topic_id: bytes) -> list[str]:
        position = {"offsets": {name: {"0": 99, "1": 2}}, "topicIds": {name: topic_id.hex()}}
        (tmp_path / "p.json").write_text(json.dumps({"position": {"version": 1, **position}}))
        return ["--file", str(tmp_path / "p.json")]

    for more in ((), ("--yes", "--watch", "0s")):
        refused = penstock("import", *at, *write(b"\x07" * 16), *more, code=1)
        assert "[LOG_OF_ANOTHER_TOPIC]" in refused
        told = penstock("import", *at, *write(known), *more)
        assert offsets_after(told, name) == [9, 4]
        assert [each["note"] for each in told["moves"]] == [
            "the log ends there, not at 99",
            "the log begins there, not at 2",
        ]
    assert FileOffsetStore(tmp_path / "offsets").load("visits") == StreamPosition(
        {TopicPartition(name, 0): 9, TopicPartition(name, 1): 4}, {name: known}
    )
    beyond = {TopicPartition(name, 0): 99, TopicPartition(name, 1): 9}
    FileOffsetStore(tmp_path / "far").save("visits", StreamPosition(beyond))
    far = ["--at", str(tmp_path / "far"), "visits", *brokers]
    assert f"{name}-0 at 99 of 9" in penstock("show", *far, code=1)
    monkeypatch.setattr("penstock.cli.shared.kafka_arguments._find_local_cluster", lambda: kafka.bootstrap)
    assert penstock("show", *far[:3])["beyond_end"] == [f"{name}-0"]
    copied = penstock(
        "copy", "--from", str(tmp_path / "far"), "visits", "--to", str(tmp_path / "o"), *brokers
    )
    assert offsets_after(copied, name) == [9, 9]


def test_a_topic_made_anew_with_fewer_partitions_is_read_whole_or_not_at_all(
    penstock: Run, kafka: Any, topic: Any, tmp_path: Path
) -> None:
    name = topic(1)
    produce(kafka.bootstrap, name, ["x"] * 9)
    delete_before(kafka.bootstrap, name, 4)
    new = KafkaLogView(settings_of(kafka.bootstrap)).describe([name])[name].topic_id
    assert new is not None
    first, second, third = (TopicPartition(name, number) for number in range(3))
    before = StreamPosition({first: 2, second: 7}, {name: b"\x07" * 16}, {first: 5}, {first: 0}, {third: 3})
    FileOffsetStore(tmp_path).save("visits", before)
    at = ["--at", str(tmp_path), "visits", "--bootstrap-server", kafka.bootstrap, "--to-start"]
    assert "name whole topics" in penstock("rewind", *at, "--only", str(first), code=1)
    told = penstock("rewind", *at, "--yes", "--watch", "0s")
    assert [(each["before"], each["after"]) for each in told["moves"]] == [(2, 4), (7, None)]
    assert FileOffsetStore(tmp_path).load("visits") == StreamPosition({first: 4}, {name: new})
