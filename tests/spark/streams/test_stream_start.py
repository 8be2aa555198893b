"""Where a new stream starts, and where it continues after a stop: by partition, by name, by pattern.

Loss checking must change nothing here, so it is switched at each restart: the queries from `latest` begin
with it on, those from `earliest` with it off.
"""

from __future__ import annotations

import json
import secrets
from typing import Any

import pytest

from tests.spark.streaming import Flow, add_partitions, create_topic, expect, now_ms
from tests.support.kafka.topic_filling import produce

HOW = ["assign", "subscribe", "subscribePattern"]


def select(how: str, topic: str, partitions: int) -> dict[str, str]:
    """Return the option that selects this topic in the given way."""
    if how == "assign":
        return {how: json.dumps({topic: list(range(partitions))})}
    return {how: topic if how == "subscribe" else f"{topic[:-3]}.*"}


def grow(flow: Flow, kafka: Any, name: str, how: str) -> None:
    """Add a partition while the query runs; it is read from its first offset, unless assigned."""
    add_partitions(kafka.bootstrap, name, 4)
    produce(kafka.bootstrap, name, ["first", "second"], partition=3)
    grown = expect(name, 3, ["first", "second"])
    assert flow.drain() == ([] if how == "assign" else grown)


@pytest.mark.parametrize(
    ("how", "word"), [("assign", "LATEST"), ("subscribe", None), ("subscribePattern", "Latest")]
)
def test_a_query_from_latest_sees_what_comes_later_also_while_it_is_stopped(
    flow: Flow, kafka: Any, topic: Any, how: str, word: str | None
) -> None:
    """B001, B006, B011, B020, F1, F19, F29: this is the default; earlier rows are never seen."""
    name = topic(3)
    produce(kafka.bootstrap, name, ["a", "b"])
    produce(kafka.bootstrap, name, ["x"], partition=1)
    chosen = {**select(how, name, 3), **({"startingOffsets": word} if word else {})}
    flow.start(None, failOnDataLoss="true", **chosen)
    assert flow.drain() == []
    produce(kafka.bootstrap, name, ["c"])
    assert flow.drain() == expect(name, 0, ["c"], start=2)
    grow(flow, kafka, name, how)
    flow.stop()
    produce(kafka.bootstrap, name, ["d"])
    produce(kafka.bootstrap, name, ["y"], partition=1)
    rows = flow.run(None, failOnDataLoss="false", **chosen)
    assert rows == expect(name, 0, ["d"], start=3) + expect(name, 1, ["y"], start=1)


@pytest.mark.parametrize(
    ("how", "word"), [("assign", "EARLIEST"), ("subscribe", "earliest"), ("subscribePattern", "Earliest")]
)
def test_a_query_from_earliest_sees_every_row_once(
    flow: Flow, kafka: Any, topic: Any, how: str, word: str
) -> None:
    """B002, B007, B012, B020, F19, F29: none comes again after a restart."""
    name = topic(3)
    produce(kafka.bootstrap, name, ["a", "b"])
    produce(kafka.bootstrap, name, ["x"], partition=1)
    chosen = {**select(how, name, 3), "startingOffsets": word}
    flow.start(None, failOnDataLoss="false", **chosen)
    assert flow.drain() == expect(name, 0, ["a", "b"]) + expect(name, 1, ["x"])
    grow(flow, kafka, name, how)
    flow.stop()
    flow.start(None, failOnDataLoss="true", **chosen)
    assert flow.drain() == []
    produce(kafka.bootstrap, name, ["c"])
    assert flow.drain() == expect(name, 0, ["c"], start=2)


@pytest.mark.parametrize("how", HOW)
def test_each_partition_starts_at_its_own_offset(flow: Flow, kafka: Any, topic: Any, how: str) -> None:
    """B003, B008, B013, F19: -2 is earliest, -1 latest, another number exact; a restart continues."""
    name = topic(3)
    for partition in range(3):
        produce(kafka.bootstrap, name, ["0", "1", "2", "3"], partition=partition)
    chosen = {**select(how, name, 3), "startingOffsets": json.dumps({name: {"0": -2, "1": -1, "2": 3}})}
    flow.start(None, **chosen)
    assert flow.drain() == expect(name, 0, ["0", "1", "2", "3"]) + expect(name, 2, ["3"], start=3)
    flow.stop()
    produce(kafka.bootstrap, name, ["4"], partition=1)
    assert flow.run(None, failOnDataLoss="false", **chosen) == expect(name, 1, ["4"], start=4)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("form", ["startingOffsetsByTimestamp", "startingTimestamp"])
def test_each_partition_starts_at_the_first_row_of_its_time(
    flow: Flow, kafka: Any, topic: Any, how: str, form: str
) -> None:
    """B004, B005, B009, B010, B014, B015, F19: a time for each partition, or one for all."""
    name, base = topic(3), now_ms() - 3_600_000
    for partition in range(3):
        for n in range(4):
            produce(kafka.bootstrap, name, [str(n)], partition=partition, timestamp_ms=base + 1000 * n)
    if form == "startingTimestamp":
        when, begins = str(base + 1500), [2, 2, 2]
    else:
        when = json.dumps({name: {"0": base + 2000, "1": base + 2001, "2": base - 1}})
        begins = [2, 3, 0]
    flow.start(None, **select(how, name, 3), **{form: when})
    assert flow.drain() == [
        row for p, begin in enumerate(begins) for row in expect(name, p, "0123"[begin:], start=begin)
    ]
    grow(flow, kafka, name, how)


@pytest.mark.parametrize("how", ["subscribe", "subscribePattern"])
@pytest.mark.parametrize("form", ["startingOffsetsByTimestamp", "startingTimestamp"])
def test_a_time_after_all_rows_of_a_partition_is_an_error_or_its_end(
    flow: Flow, kafka: Any, topic: Any, how: str, form: str
) -> None:
    """B016, B017, B018, B019: by default the query fails; the strategy `latest` starts it at the end."""
    name, base = topic(2), now_ms() - 3_600_000
    produce(kafka.bootstrap, name, ["a", "b"], timestamp_ms=base + 1000)
    produce(kafka.bootstrap, name, ["x", "y"], partition=1, timestamp_ms=base)
    each = json.dumps({name: {"0": base + 500, "1": base + 500}})
    chosen = {**select(how, name, 2), form: str(base + 500) if form == "startingTimestamp" else each}
    failed = flow.start(None, **chosen).failure()
    assert f"[NO_OFFSET_FOR_TIMESTAMP] {name}-1 has no record at or after {base + 500}" in failed
    flow.start(None, startingOffsetsByTimestampStrategy="latest", **chosen)
    assert flow.drain() == expect(name, 0, ["a", "b"])
    produce(kafka.bootstrap, name, ["z"], partition=1, timestamp_ms=base)
    assert flow.drain() == expect(name, 1, ["z"], start=2)


def test_a_topic_in_the_offsets_is_meant_in_its_own_letter_case(flow: Flow, kafka: Any, topic: Any) -> None:
    """B020: two topics differ only in case; offsets for the wrong one are refused."""
    name = topic(name="CaSe")
    create_topic(kafka.bootstrap, name.lower())
    produce(kafka.bootstrap, name, ["a", "b", "c"])
    produce(kafka.bootstrap, name.lower(), ["no", "no", "no"])
    failed = flow.start(name, startingOffsets=json.dumps({name.lower(): {"0": 1}})).failure()
    assert "[KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED]" in failed
    rows = flow.run(name, startingOffsets=json.dumps({name: {"0": 1}}))
    assert rows == expect(name, 0, ["b", "c"], start=1)


def test_a_query_whose_pattern_matches_nothing_yet_waits_through_restarts(
    flow: Flow, kafka: Any, topic: Any
) -> None:
    """B011, F23: with the default start; what appears while it is stopped is read from its first offset."""
    prefix = f"later-{secrets.token_hex(4)}"
    chosen = {"subscribePattern": f"{prefix}.*"}

    def fail(_number: int) -> None:
        raise RuntimeError("the first batch is planned, and not done")

    assert "the first batch is planned" in flow.start(None, before=fail, **chosen).failure()
    assert flow.run(None, **chosen) == []
    assert json.loads(flow.stored(0))["offsets"] == {}
    name = topic(name=prefix)
    produce(kafka.bootstrap, name, ["a", "b"])
    flow.start(None, **chosen)
    assert flow.drain() == expect(name, 0, ["a", "b"])
    produce(kafka.bootstrap, name, ["c"])
    assert flow.drain() == expect(name, 0, ["c"], start=2)
