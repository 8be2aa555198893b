"""What a stream does when its log has changed: recreated, aged out, or deleted, even during a batch.

Each case runs on the checkpoint of a query that had read everything. With loss checking the query must fail
and name the exact range. Without it every row that is there must come once, and the loss must be counted.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections import Counter
from typing import Any

import pytest

from penstock.core.options.stream_options import parse_stream_options
from penstock.engines.source.stream_reader import StreamReader
from tests.spark.conftest import MakeFlow
from tests.spark.streaming import Flow, add_partitions, create_topic, delete_topic, expect
from tests.support.kafka.topic_filling import delete_before, produce

#: Checks that are repeated before a loss is believed need no pause in these tests.
HASTY = {"fetchOffset__retryIntervalMs": 10}


def count_losses(flow: Flow) -> dict[str, int]:
    """Return what the newest of the query's reports says is lost."""
    (source,) = flow.progress[-1]["sources"]
    losses: dict[str, int] = source["latestOffset"]["losses"]
    return losses


def open_reader(kafka: Any, topic: str, **options: object) -> StreamReader:
    """Open the driver's half of a stream in this process, to see what it logs."""
    texts = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": topic, **HASTY, **options}
    spelled = {key.replace("__", "."): str(text) for key, text in texts.items()}
    return StreamReader(parse_stream_options(spelled, unique="u"))


def test_a_recreated_topic_is_another_topic_whether_it_is_shorter_or_longer(
    flow: Flow, make_flow: MakeFlow, kafka: Any, topic: Any
) -> None:
    """B052, B061, T10, T11, F37, G12: all its rows are new; Spark's own connector would skip them."""
    shorter, longer = topic(name="a-shorter"), topic(name="b-longer")
    chosen = f"{shorter},{longer}"
    for name in (shorter, longer):
        produce(kafka.bootstrap, name, ["0", "1", "2"])
    flow.run(chosen, startingOffsets="earliest")
    for name, values in ((shorter, ["x"]), (longer, ["v", "w", "x", "y", "z"])):
        delete_topic(kafka.bootstrap, name)
        create_topic(kafka.bootstrap, name)
        produce(kafka.bootstrap, name, values)
    strict, lenient = make_flow(flow), make_flow(flow)
    failed = strict.start(chosen, **HASTY).failure()
    assert "[TOPIC_RECREATED]" in failed
    for name, end in ((shorter, 1), (longer, 5)):
        assert f"{name}-0: the topic was deleted and created again" in failed
        assert f"What the old one held from 3 on is lost; the new one holds [0, {end})." in failed
    assert strict.batches == []
    lenient.start(chosen, failOnDataLoss="false", **HASTY)
    rows = lenient.drain()
    assert rows == expect(shorter, 0, ["x"]) + expect(longer, 0, ["v", "w", "x", "y", "z"])
    # What came after 3 is unknown.
    assert count_losses(lenient) == {"ranges": 2, "offsets": 0, "openEnds": 2}


def test_rows_that_aged_out_before_they_were_read_are_named_or_stepped_over(
    flow: Flow, make_flow: MakeFlow, kafka: Any, topic: Any
) -> None:
    """B054, B055, B061, B065, G12: below the position, and below the first row of a new partition."""
    name = topic()
    produce(kafka.bootstrap, name, ["0", "1"])
    flow.run(name, startingOffsets="earliest")
    produce(kafka.bootstrap, name, ["2", "3", "4", "5"])
    add_partitions(kafka.bootstrap, name, 2)
    produce(kafka.bootstrap, name, ["x", "y", "z"], partition=1)
    delete_before(kafka.bootstrap, name, 4)
    delete_before(kafka.bootstrap, name, 2, partition=1)
    strict, lenient = make_flow(flow), make_flow(flow)
    failed = strict.start(name, **HASTY).failure()
    assert f"[START_OFFSET_RESET] {name}-0: offsets [2, 4) were deleted before they were read" in failed
    assert f"{name}-1 is new, but its log already begins at 2: offsets [0, 2) were never seen." in failed
    assert strict.batches == []
    lenient.start(name, failOnDataLoss="false", **HASTY)
    rows = expect(name, 0, ["4", "5"], start=4) + expect(name, 1, ["z"], start=2)
    assert lenient.drain() == rows
    assert count_losses(lenient) == {"ranges": 2, "offsets": 4, "openEnds": 0}
    produce(kafka.bootstrap, name, ["6"])
    assert lenient.drain() == expect(name, 0, ["6"], start=6)
    assert count_losses(lenient) == {"ranges": 2, "offsets": 4, "openEnds": 0}


def test_a_pattern_goes_on_without_a_topic_that_was_deleted_and_with_one_that_is_new(
    flow: Flow, make_flow: MakeFlow, kafka: Any, topic: Any
) -> None:
    """B027, B051, B061, T14, F29, F37: even when not a single topic is left for a while."""
    name = topic(name="goes")
    pattern = f"{name}.*"
    produce(kafka.bootstrap, name, ["a", "b"])
    options = {"subscribePattern": pattern, "startingOffsets": "earliest", **HASTY}
    flow.start(None, failOnDataLoss="false", **options)
    assert flow.drain() == expect(name, 0, ["a", "b"])
    strict = make_flow(flow)
    delete_topic(kafka.bootstrap, name)
    assert flow.drain() == []
    create_topic(kafka.bootstrap, f"{name}-2", 2)
    produce(kafka.bootstrap, f"{name}-2", ["x", "y"], partition=1)
    assert flow.drain() == expect(f"{name}-2", 1, ["x", "y"])
    assert count_losses(flow) == {"ranges": 1, "offsets": 0, "openEnds": 1}
    assert flow.progress[-1]["sources"][0]["latestOffset"]["newPartitions"] == 2
    stored = [json.loads(flow.stored(batch.number)) for batch in flow.batches]
    assert all(each["offsets"] for each in stored)
    assert stored[-1]["gone"] == {name: {"0": 2}}
    failed = strict.start(None, kafka__group__id="shared", **options).failure()
    assert f"[PARTITIONS_DELETED] {name}-0 is gone. It was read up to 2" in failed
    assert "Queries that share the group shared" in failed


def test_a_topic_deleted_while_a_batch_runs_fails_it_or_leaves_it_short(
    flow: Flow, make_flow: MakeFlow, kafka: Any, topic: Any
) -> None:
    """B053, B064, F37: planned, then gone before its tasks read; the other topic is still read."""
    stays, goes = topic(name="stays"), topic(name="goes")
    for name in (stays, goes):
        produce(kafka.bootstrap, name, ["a", "b"])
    options = {
        "startingOffsets": "earliest",
        "subscribePattern": f"{stays}|{goes}",
        **HASTY,
    }

    def delete(number: int) -> None:
        if number == 0:
            delete_topic(kafka.bootstrap, goes)

    strict = make_flow()
    flow.start(None, before=delete, failOnDataLoss="false", **options)
    assert flow.drain() == expect(stays, 0, ["a", "b"])
    produce(kafka.bootstrap, stays, ["c"])
    assert flow.drain() == expect(stays, 0, ["c"], start=2)
    flow.stop()
    create_topic(kafka.bootstrap, goes)
    produce(kafka.bootstrap, goes, ["a"])
    failed = strict.start(None, before=delete, **options).failure()
    assert "[PARTITION_GONE]" in failed
    assert goes in failed
    assert strict.batches == []


def test_rows_that_age_out_while_a_batch_runs_are_an_error_or_left_out_once(
    flow: Flow, make_flow: MakeFlow, kafka: Any, topic: Any
) -> None:
    """B055, B064: a reader never moves on silently; out of range is an error that names the range."""
    name = topic()
    produce(kafka.bootstrap, name, ["0", "1", "2", "3"])

    def age(offset: int) -> Any:
        return lambda number: delete_before(kafka.bootstrap, name, offset)

    options = {"startingOffsets": "earliest"}
    flow.start(name, before=age(1), failOnDataLoss="false", **options)
    assert flow.drain() == expect(name, 0, ["1", "2", "3"], start=1)
    flow.stop()
    failed = make_flow().start(name, before=age(3), **options).failure()
    assert f"[OFFSET_OUT_OF_RANGE] {name}-0: offsets 1 to 3 (excluded)" in failed


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_each_loss_has_its_own_condition_and_is_told_once(
    kafka: Any, topic: Any, caplog: pytest.LogCaptureFixture, fail_on_data_loss: str
) -> None:
    """B061, B065, G12: when a loss is stepped over, it is logged with its range and counted."""
    name = topic()
    produce(kafka.bootstrap, name, ["0", "1", "2"])
    reader = open_reader(kafka, name, startingOffsets="earliest", failOnDataLoss=fail_on_data_loss)
    limit = reader.getDefaultReadLimit()
    start = reader.latestOffset(reader.initialOffset(), limit)
    produce(kafka.bootstrap, name, ["3", "4"])
    delete_before(kafka.bootstrap, name, 4)
    if fail_on_data_loss == "true":
        with pytest.raises(Exception, match=r"\[START_OFFSET_RESET\] .*\[3, 4\)"):
            reader.latestOffset(start, limit)
        return
    end = reader.latestOffset(start, limit)
    delete_topic(kafka.bootstrap, name)
    gone = reader.latestOffset(end, limit)
    assert reader.latestOffset(gone, limit) == gone
    report = reader.reportLatestOffset()
    assert report is not None
    assert report["losses"] == {"ranges": 2, "offsets": 1, "openEnds": 1}
    told = [text for text in caplog.messages if "failOnDataLoss=false" in text]
    assert [text.split("]")[0] + "]" for text in told] == ["[START_OFFSET_RESET]", "[PARTITIONS_DELETED]"]
    assert "offsets [3, 4) were deleted" in told[0]
    assert "It was read up to 5" in told[1]


@pytest.mark.slow
def test_twenty_seconds_of_topics_that_come_and_go_never_fail_a_query(
    flow: Flow, kafka: Any, topic: Any
) -> None:
    """B058, B055: topics are created, deleted, recreated and aged out under it; no row comes twice."""
    root = topic(name="storm")
    dice = random.Random(8)
    names = [f"{root}-{n}" for n in range(4)]
    there: dict[str, tuple[int, int]] = {}  # the first offset and the end of each
    written = 0
    flow.start(
        None,
        subscribePattern=f"{root}-.*",
        startingOffsets="earliest",
        failOnDataLoss="false",
        maxOffsetsPerTrigger=40,
        before=lambda number: hashlib.pbkdf2_hmac("sha256", b"slow", b"work", 1 + 100_000 * (number % 3)),
        **HASTY,
    )
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        name, what = dice.choice(names), dice.random()
        if name not in there:
            create_topic(kafka.bootstrap, name)
            there[name] = (0, 0)
        elif what < 0.15:
            delete_topic(kafka.bootstrap, name)
            del there[name]
        elif what < 0.3:
            first, end = there[name]
            there[name] = (dice.randint(first, end), end)
            delete_before(kafka.bootstrap, name, there[name][0])
        else:
            count = dice.randint(1, 30)
            produce(kafka.bootstrap, name, [str(written + n) for n in range(count)])
            written, there[name] = written + count, (there[name][0], there[name][1] + count)
        assert flow.query is not None
        assert flow.query.exception() is None
    for name in set(names) - set(there):
        create_topic(kafka.bootstrap, name)
    for name in names:
        produce(kafka.bootstrap, name, [f"last of {name}"])
    values = Counter(row[3] for row in flow.drain())
    assert [value for value, times in values.items() if times > 1] == []
    assert {f"last of {name}" for name in names} <= set(values)
