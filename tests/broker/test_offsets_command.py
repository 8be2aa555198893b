"""`penstock offsets` with a broker at hand: times and ends, groups, and topics that were made anew."""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main
from penstock.core.model import TopicPartition
from penstock.core.stream_offsets import StreamPosition
from penstock.kafka.admin import create_topic, delete_topic
from penstock.kafka.control import KafkaLogView
from penstock.stores.offsets.file import FileOffsetStore
from tests.broker.test_group_offsets import settings_of
from tests.filling import produce

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
    name = topic(2, retention_ms=-1)
    for partition, times in ((0, range(1_000, 11_000, 1_000)), (1, range(1_000, 4_000, 1_000))):
        for time_ms in times:
            produce(kafka.bootstrap, name, ["x"], partition=partition, timestamp_ms=time_ms)
    at = ["--at", str(tmp_path), "visits", "--bootstrap-server", kafka.bootstrap]
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    FileOffsetStore(tmp_path).save("visits", StreamPosition({first: 8, second: 1}))
    shown = penstock("show", *at)
    assert shown["ends"] == {str(first): 10, str(second): 3}
    assert offsets_after(penstock("plan", *at, "--to-time", "5000"), name) == [4, 3]
    assert offsets_after(penstock("rewind", *at, "--to-time", "5000"), name) == [4, 1]
    assert offsets_after(penstock("plan", *at, "--to-start"), name) == [0, 0]
    assert offsets_after(penstock("skip", *at, "--by", "5"), name) == [10, 3]
    told = penstock("skip", *at, "--to-end", "--only", str(second), "--yes", "--watch", "0s")
    assert (told["applied"], offsets_after(told, name)) == (True, [8, 3])


def test_a_group_is_moved_and_remembers_who_did_it(
    penstock: Run, kafka: Any, topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C3: an ordinary consumer group, as a lag tool shows it."""
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
    """The same records under a new id: the stream goes on, and knows the new one from then on."""
    name = topic()
    view = KafkaLogView(settings_of(kafka))
    old = view.describe([name])[name].topic_id
    assert old is not None
    each = TopicPartition(name, 0)
    FileOffsetStore(tmp_path).save("visits", StreamPosition({each: 3}, {name: old}, {each: 5}))
    delete_topic(settings_of(kafka), name)
    at = ["--at", str(tmp_path), "visits", "--bootstrap-server", kafka.bootstrap]
    assert "[TOPIC_NOT_FOUND]" in penstock("adopt", *at, "--topic", name, code=1)
    create_topic(settings_of(kafka), name)
    produce(kafka.bootstrap, name, ["a", "b", "c", "d"])
    new = view.describe([name])[name].topic_id
    assert new is not None
    assert new != old
    assert not penstock("adopt", *at, "--topic", name)["applied"]
    told = penstock("adopt", *at, "--topic", name, "--yes", "--watch", "0s")
    assert told["notes"][0].startswith(f"Topic {name}: id {old.hex()} -> {new.hex()}. Right only if")
    assert FileOffsetStore(tmp_path).load("visits") == StreamPosition({each: 3}, {name: new})
