"""`penstock why` on topics with more partitions than the stream's position, and the age of records."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.cli import main
from penstock.cli.commands import why
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.stores.offsets.offset_store_addresses import open_offset_store
from tests.sql.sinks import make_numbers, make_sink
from tests.support.console import ask_why
from tests.support.kafka.topic_filling import produce


def test_partitions_that_a_position_lacks_are_listed_and_never_called_read(
    tmp_path: Path, kafka: Any, topic: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A topic is widened under a stream that keeps its position in a checkpoint, in a sink or in a store."""
    source = topic(1)
    produce(kafka.bootstrap, source, ["a"] * 5)
    read = StreamPosition({TopicPartition(source, 0): 5})
    planned = f'v1\n{{}}\n{{"{source}":{{"0":5}}}}'
    for folder, text in (("offsets", planned), ("commits", "v1\n{}")):
        (tmp_path / "cp" / folder).mkdir(parents=True)
        (tmp_path / "cp" / folder / "0").write_text(text)
    open_offset_store(f"{tmp_path}/store").save("0", read)
    empty = StreamPosition({TopicPartition(source, 0): 0})
    sink = make_sink(f"sqlite://{tmp_path}/results.db")
    with closing(sink.open("0")) as writer:
        writer.write(make_numbers(empty, read), empty, read)
    places = (
        ("--offsets", f"checkpoint:{tmp_path}/cp"),
        ("--offsets", f"{tmp_path}/store"),
        ("--sink", f"sqlite://{tmp_path}/results.db"),
    )
    brokers = ("--bootstrap-server", kafka.bootstrap)
    for place in places:
        ended, told = ask_why(capsys, "0", *place, *brokers, "--watch", "0s")
        assert (ended, told["condition"], told["state"]) == (0, "NO_DATA", "idle")
    assert main(["topics", "widen", source, "--partitions", "2", "--yes", *brokers]) == 0
    ended, told = ask_why(capsys, "0", *places[0], *brokers, "--watch", "0s")
    assert (ended, told["condition"]) == (0, "NO_DATA")  # the partition is empty
    assert [each["position"] for each in told["partitions"]] == [5, None]
    produce(kafka.bootstrap, source, ["b"] * 10, partition=1)
    for place in places:
        ended, told = ask_why(capsys, "0", *place, *brokers, "--watch", "0s")
        assert (ended, told["condition"], told["state"]) == (4, "PARTITIONS_UNREAD", "unknown")
        assert f"it has no position of {source}-1 (10 offsets)." in told["what"]
        assert "all there is" not in told["what"]
        assert "subscribes" in told["hint"]
        assert "assigns partitions does not" in told["hint"]
        assert [(each["position"], each["log_end"]) for each in told["partitions"]] == [(5, 5), (None, 10)]
    assert main(["why", "0", *places[0], *brokers, "--watch", "0s"]) == 4
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{source}-1"))
    assert row.split()[1:] == ["-", "0", "10", "10"]


def test_a_stream_that_finds_a_new_partition_while_we_look_moves(
    tmp_path: Path,
    kafka: Any,
    topic: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = topic(2)
    parts = [TopicPartition(source, number) for number in range(2)]
    produce(kafka.bootstrap, source, ["b"] * 10, partition=1)
    store = open_offset_store(f"{tmp_path}/store")
    store.save("s", StreamPosition({parts[0]: 0}))
    passed_s = [0.0]

    def sleep(seconds: float) -> None:
        passed_s[0] += seconds
        store.save("s", StreamPosition({parts[0]: 0, parts[1]: 4}))

    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: passed_s[0], time_ns=time.time_ns)
    monkeypatch.setattr(why, "time", clock)
    asked = ("s", "--offsets", f"{tmp_path}/store", "--bootstrap-server", kafka.bootstrap)
    assert main(["why", *asked, "--watch", "5s"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("[IT_MOVES] It does move; 6 offsets wait.")
    assert "no position" not in told


def test_the_age_of_the_last_records_is_that_of_the_newest_of_them(
    tmp_path: Path, kafka: Any, topic: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """One batch spans more than an hour, and its first record is the oldest of them."""
    source = topic(1)
    lines = "".join(
        json.dumps({"value": "v", "timestamp_ms": 1_700_000_000_000 + number * 1_000_000}) + "\n"
        for number in range(5)
    )
    (tmp_path / "lines").write_text(lines)
    brokers = ("--bootstrap-server", kafka.bootstrap)
    assert main(["produce", source, "--json", "--file", f"{tmp_path}/lines", *brokers]) == 0
    open_offset_store(f"{tmp_path}/store").save("s", StreamPosition({TopicPartition(source, 0): 5}))
    _, told = ask_why(capsys, "s", "--offsets", f"{tmp_path}/store", *brokers, "--watch", "0s")
    assert [each["last_written_ms"] for each in told["partitions"]] == [1_700_004_000_000]
    assert "the newest of the last records is" in told["what"]
