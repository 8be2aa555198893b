"""What a checkpoint holds and what a restart makes of it: positions, repeated batches, other options."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow.parquet as pq
import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame

from tests.spark.conftest import Load, MakeFlow
from tests.spark.streaming import Flow, add_partitions, expect, now_ms
from tests.support.kafka.topic_filling import delete_before, produce

GOLDEN = Path(__file__).parents[2] / "golden"


def topic_id(bootstrap: str, topic: str) -> str:
    """Return the id as hexadecimal digits, requested with another client."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    high_low = admin.describe_topics(TopicCollection([topic]))[topic].result(timeout=30).topic_id
    high, low = high_low.get_most_significant_bits(), high_low.get_least_significant_bits()
    return UUID(int=(high % 2**64 << 64) | low % 2**64).hex


def read_golden(name: str, bootstrap: str, topic: str) -> str:
    """Return a stored text, exact to the letter, adapted to the id of the current topic."""
    text = (GOLDEN / name).read_text().rstrip("\n")
    return text.replace("TOPIC", topic).replace(
        "00112233445566778899aabbccddeeff", topic_id(bootstrap, topic)
    )


def fail_in(number: int) -> Callable[[int], None]:
    """Return a function that makes this batch fail after its rows were read."""

    def fail(running: int) -> None:
        if running == number:
            raise RuntimeError(f"batch {number} is made to fail")

    return fail


# --- positions -------------------------------------------------------------------------------------------


def test_a_start_is_stored_once_even_if_nothing_was_read(flow: Flow, kafka: Any, topic: Any) -> None:
    """B021, F23, I24: only the first run's start option counts; a later run's has no effect."""
    name = topic()
    produce(kafka.bootstrap, name, ["a"])
    assert flow.run(name, startingOffsets="latest") == []
    produce(kafka.bootstrap, name, ["b"])
    assert flow.run(name, startingOffsets="earliest") == expect(name, 0, ["b"], start=1)


def test_the_stored_text_is_the_golden_one_and_is_read_again(
    flow: Flow, make_flow: MakeFlow, kafka: Any, topic: Any
) -> None:
    """B022, B023, B030, F22: versions, ids and epochs are equal byte for byte.

    Every later version reads a text of version 1, and it outranks the requested start.
    """
    name = topic(2)
    produce(kafka.bootstrap, name, ["a", "b"])
    produce(kafka.bootstrap, name, ["x"], partition=1)
    flow.run(name, startingOffsets="earliest")
    golden = read_golden("stream-offset-v1.json", kafka.bootstrap, name)
    assert flow.stored(0) == golden
    produce(kafka.bootstrap, name, ["c"])
    later = make_flow(flow)
    later.replace_stored(0, golden)
    assert later.run(name, startingOffsets="earliest") == expect(name, 0, ["c"], start=2)


def test_a_checkpoint_of_sparks_own_connector_is_gone_on_with(
    flow: Flow, make_flow: MakeFlow, kafka: Any, topic: Any
) -> None:
    """B030: its text is offsets alone; this works even if the last planned batch was not finished."""
    name = topic(2)
    produce(kafka.bootstrap, name, ["0", "1", "2", "3"])
    produce(kafka.bootstrap, name, ["x", "y"], partition=1)
    flow.run(name, startingOffsets="latest")
    theirs = make_flow(flow)
    theirs.replace_stored(0, f'{{"{name}":{{"1":1,"0":2}}}}')
    rows = expect(name, 0, ["2", "3"], start=2) + expect(name, 1, ["y"], start=1)
    assert theirs.run(name, failOnDataLoss="true") == rows
    unfinished = make_flow(flow)
    unfinished.replace_stored(0, f'{{"{name}":{{"0":2}}}}')
    unfinished.offset_file(1).write_text(
        "\n".join(
            [
                *unfinished.offset_file(0).read_text().splitlines()[:2],
                f'{{"{name}":{{"0":3,"1":1}}}}',  # partition 1 is new in this batch
            ]
        )
    )
    unfinished.start(name)
    assert unfinished.drain() == expect(name, 0, ["2", "3"], start=2) + expect(name, 1, ["x", "y"])
    repeated = next(batch for batch in unfinished.batches if batch.number == 1)
    assert repeated.rows == [(name, 0, 2, "2"), (name, 1, 0, "x")]


def test_a_newer_format_and_damaged_files_stop_the_query_with_a_reason(
    flow: Flow, make_flow: MakeFlow, kafka: Any, topic: Any
) -> None:
    """B024, B291, T46: nothing is guessed, and nothing starts over."""
    name = topic()
    produce(kafka.bootstrap, name, ["a"])
    flow.run(name, startingOffsets="earliest")

    def restart_with(text: str) -> str:
        damaged = make_flow(flow)
        damaged.replace_stored(0, text)
        failure = damaged.start(name, startingOffsets="earliest").failure()
        assert damaged.batches == []
        return failure

    newer = flow.stored(0).replace('"version": 1', '"version": 2')
    failed = restart_with(newer)
    assert "[CHECKPOINT_TOO_NEW]" in failed
    assert "version 2; this Penstock reads up to 1" in failed
    assert "[CHECKPOINT_UNREADABLE]" in restart_with('{"version": 1, "offsets": {"t": {"0": -1}}}')
    assert "[CHECKPOINT_UNREADABLE]" in restart_with('["another", "source"]')

    for text, said in (("", "Incomplete log file"), ("v1\n", "[STREAM_FAILED]")):  # a file torn by a crash
        torn = make_flow(flow)
        torn.rewrite(0, text)
        assert said in torn.start(name).failure()
        assert torn.batches == []
    missing = make_flow(flow)
    missing.offset_file(0).rename(missing.checkpoint / "elsewhere")
    missing.offset_file(1).write_text(flow.offset_file(0).read_text())
    assert "batch 0 not found in offset log" in missing.start(name).failure()
    assert missing.batches == []


# --- repeated batches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["earliest", "offsets", "time"])
def test_a_repeated_first_batch_has_the_same_rows_after_data_and_partitions_came(
    flow: Flow, kafka: Any, topic: Any, start: str
) -> None:
    """G11, B292, F23, F25, F48: it was planned but not finished; its start is not resolved again."""
    name, base = topic(2), now_ms() - 60_000
    produce(kafka.bootstrap, name, ["a"], timestamp_ms=base)
    produce(kafka.bootstrap, name, ["b", "c"])
    produce(kafka.bootstrap, name, ["x"], partition=1)
    starts = {
        "earliest": {"startingOffsets": "earliest"},
        "offsets": {"startingOffsets": json.dumps({name: {"0": 1, "1": -2}})},
        "time": {"startingOffsetsByTimestamp": json.dumps({name: {"0": base + 1, "1": 1}})},
    }[start]
    failed = flow.start(name, during=fail_in(0), **starts).failure()
    assert "batch 0 is made to fail" in failed
    begin = 0 if start == "earliest" else 1
    planned = expect(name, 0, ["a", "b", "c"][begin:], start=begin) + expect(name, 1, ["x"])
    assert flow.take() == planned
    add_partitions(kafka.bootstrap, name, 3)
    produce(kafka.bootstrap, name, ["d"])
    produce(kafka.bootstrap, name, ["n"], partition=2)
    flow.run(name, **starts)
    first, again, after = flow.batches
    assert (first.number, first.rows) == (again.number, again.rows) == (0, planned)
    assert after.rows == expect(name, 0, ["d"], start=3) + expect(name, 2, ["n"])


def test_a_repeated_batch_keeps_its_range_under_other_limits(flow: Flow, kafka: Any, topic: Any) -> None:
    """G11, B292, F25, F47, F48: ends are on disk before the work, and the commit comes after it.

    The rows are the same when cut into other tasks, and after new data and a new partition arrived.
    """
    name = topic(1)
    produce(kafka.bootstrap, name, [str(n) for n in range(3)])
    flow.run(name, startingOffsets="earliest")
    add_partitions(kafka.bootstrap, name, 2)
    produce(kafka.bootstrap, name, [str(n) for n in range(3, 9)])
    produce(kafka.bootstrap, name, ["x", "y", "z"], partition=1)

    def fail(number: int) -> None:
        assert flow.offset_file(number).exists()
        assert not (flow.checkpoint / "commits" / str(number)).exists()
        fail_in(1)(number)

    assert "batch 1 is made to fail" in flow.start(name, during=fail, maxOffsetsPerTrigger=6).failure()
    produce(kafka.bootstrap, name, ["late"])
    flow.run(name, minPartitions=5, failOnDataLoss="false")
    (_, first, again, after) = flow.batches
    planned = expect(name, 0, ["3", "4", "5", "6"], start=3) + expect(name, 1, ["x", "y"])
    assert (first.number, first.rows) == (again.number, again.rows) == (1, planned)
    assert after.rows == expect(name, 0, ["7", "8", "late"], start=7) + expect(name, 1, ["z"], start=2)


def test_a_repeated_batch_whose_rows_have_aged_out_is_an_error_that_names_them(
    flow: Flow, make_flow: MakeFlow, kafka: Any, topic: Any
) -> None:
    """G12: it never returns other rows silently; without loss checking, those that are left come once."""
    name = topic()
    produce(kafka.bootstrap, name, ["a", "b", "c"])
    flow.start(name, during=fail_in(0), startingOffsets="earliest").failure()
    delete_before(kafka.bootstrap, name, 2)
    lenient = make_flow(flow)
    failed = flow.start(name, startingOffsets="earliest").failure()
    assert f"{name}-0: offsets 0 to 2 (excluded)" in failed
    assert [batch.number for batch in flow.batches] == [0]
    lenient.run(name, startingOffsets="earliest", failOnDataLoss="false")
    assert [(batch.number, batch.rows) for batch in lenient.batches] == [(0, [(name, 0, 2, "c")])]


# --- restarts with something changed ---------------------------------------------------------------------


def test_a_restart_may_change_filter_limits_options_and_selection(flow: Flow, kafka: Any, topic: Any) -> None:
    """F25, B025: what was read stays read; a new topic is read from its first row."""
    one, two = topic(name="one"), topic(name="two")
    produce(kafka.bootstrap, one, ["0", "1"])
    produce(kafka.bootstrap, two, ["x"])
    assert flow.run(one, startingOffsets="earliest") == expect(one, 0, ["0", "1"])
    produce(kafka.bootstrap, one, ["2", "3", "4"])
    filtered = flow.run(
        one, prepare=lambda frame: frame.where("offset != 3"), maxOffsetsPerTrigger=2, includeHeaders="false"
    )
    assert filtered == [(one, 0, 2, "2"), (one, 0, 4, "4")]
    produce(kafka.bootstrap, one, ["5"])
    pattern = f"{one}|{two}"
    both = flow.run(None, subscribePattern=pattern, startingOffsets="latest")
    assert both == expect(one, 0, ["5"], start=5) + expect(two, 0, ["x"])
    produce(kafka.bootstrap, one, ["6"])
    produce(kafka.bootstrap, two, ["y"])
    assert flow.run(two, includeHeaders="true") == expect(two, 0, ["y"], start=1)
    numbers = [batch.number for batch in flow.batches]
    assert numbers == list(range(len(numbers)))
    ends = [json.loads(flow.stored(number))["offsets"] for number in numbers]
    assert [end.get(one, {}).get("0") for end in ends] == [2, 4, 5, 6, None]


def test_another_sink_goes_on_where_the_first_one_stopped(
    flow: Flow, stream: Load, kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """F25: the position belongs to the checkpoint, not to the sink."""
    name = topic()
    produce(kafka.bootstrap, name, ["a"])
    flow.run(name, startingOffsets="earliest")
    produce(kafka.bootstrap, name, ["b"])
    files = stream(name).writeStream.format("parquet").option("checkpointLocation", str(flow.checkpoint))
    query = files.trigger(availableNow=True).start(str(tmp_path / "rows"))
    assert query.awaitTermination(60)
    (file,) = (tmp_path / "rows").glob("*.parquet")
    columns = pq.read_table(file, columns=["topic", "partition", "offset", "value"]).to_pydict()
    assert list(zip(*columns.values(), strict=True)) == [(name, 0, 1, b"b")]


def test_of_two_sources_the_idle_one_keeps_its_position(
    flow: Flow, stream: Load, kafka: Any, topic: Any
) -> None:
    """B026, B302, T48: a union with news on one side only; nothing fails, and nothing comes twice."""
    busy, idle = topic(name="busy"), topic(name="idle")
    produce(kafka.bootstrap, busy, ["a"])
    produce(kafka.bootstrap, idle, ["x"])

    def unite(frame: DataFrame) -> DataFrame:
        return frame.union(stream(idle, startingOffsets="earliest"))

    first = flow.run(busy, startingOffsets="earliest", prepare=unite)
    assert first == expect(busy, 0, ["a"]) + expect(idle, 0, ["x"])
    flow.start(busy, prepare=unite)
    produce(kafka.bootstrap, busy, ["b"])
    assert flow.drain() == expect(busy, 0, ["b"], start=1)
    flow.stop()
    number = flow.batches[-1].number
    assert flow.stored(number, 0) != flow.stored(number - 1, 0)
    assert flow.stored(number, 1) == flow.stored(number - 1, 1)
    produce(kafka.bootstrap, idle, ["y"])
    assert flow.run(busy, prepare=unite) == expect(idle, 0, ["y"], start=1)


def test_a_source_joined_with_itself_is_planned_once(flow: Flow, kafka: Any, topic: Any) -> None:
    """B028: there is one position in the log; the rows that were counted are those that were scanned."""
    name = topic()
    produce(kafka.bootstrap, name, ["a", "b"])

    def pair(frame: DataFrame) -> DataFrame:
        part = frame.selectExpr(
            "concat(value) AS value",
            "topic || '' AS topic",
            "partition + 0 AS partition",
            "offset + 0 AS offset",
        )
        return part.union(part)

    flow.start(name, startingOffsets="earliest", prepare=pair)
    assert flow.drain() == sorted(2 * expect(name, 0, ["a", "b"]))
    (progress,) = [each for each in flow.progress if each["numInputRows"]]
    assert len(progress["sources"]) == 1
    assert progress["numInputRows"] == 4
    assert flow.stored(0, 0) == flow.stored(0, 1)  # one position, reported for each place it is used in
