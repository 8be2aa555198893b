"""Where a batch read starts and ends, on a real Spark and a real broker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.spark.conftest import Load
from tests.spark.rows import offsets, span
from tests.support.kafka.topic_filling import delete_before, produce

#: Times of the records in `timed`: record n of each partition has the time FIRST_MS + n seconds.
FIRST_MS = 1_700_000_000_000


def fill(kafka: Any, topic: str, counts: Sequence[int]) -> None:
    for partition, count in enumerate(counts):
        produce(kafka.bootstrap, topic, [f"{partition}-{n}" for n in range(count)], partition=partition)


@pytest.fixture
def timed(kafka: Any, topic: Any) -> str:
    """Return a topic of two partitions with the times FIRST_MS, +1 s, ... +4 s in each."""
    name = topic(2)
    for partition in (0, 1):
        for n in range(5):
            produce(
                kafka.bootstrap,
                name,
                [f"{partition}-{n}"],
                partition=partition,
                timestamp_ms=FIRST_MS + n * 1000,
            )
    return name


def at(topic: str, first: int, second: int) -> str:
    return json.dumps({topic: {"0": first, "1": second}})


def test_a_frame_that_is_used_again_sees_the_rows_written_since(load: Load, kafka: Any, topic: Any) -> None:
    """B085, B086: the end is bound again at each execution."""
    name = topic(3)
    fill(kafka, name, [4, 3, 0])
    frame = load(name, startingOffsets="earliest", endingOffsets="latest")
    defaults = load(name)
    assert offsets(frame) == offsets(defaults) == span(0, 0, 4) + span(1, 0, 3)
    produce(kafka.bootstrap, name, ["new"], partition=2)
    produce(kafka.bootstrap, name, ["newer"], partition=0)
    expected = span(0, 0, 5) + span(1, 0, 3) + span(2, 0, 1)
    assert offsets(frame) == offsets(defaults) == expected


def test_fixed_ends_stay_and_latest_ends_move(load: Load, kafka: Any, topic: Any) -> None:
    """B087: one end is a number, one end is -1."""
    name = topic(2)
    fill(kafka, name, [5, 5])
    frame = load(name, startingOffsets=at(name, -2, 2), endingOffsets=at(name, 3, -1))
    assert offsets(frame) == span(0, 0, 3) + span(1, 2, 5)
    fill(kafka, name, [5, 5])
    assert offsets(frame) == span(0, 0, 3) + span(1, 2, 10)


def test_a_time_includes_its_start_and_excludes_its_end(load: Load, timed: str) -> None:
    """B088: times for each partition, on a record and between two."""
    frame = load(
        timed,
        startingOffsetsByTimestamp=at(timed, FIRST_MS + 1000, FIRST_MS + 1001),
        endingOffsetsByTimestamp=at(timed, FIRST_MS + 3000, FIRST_MS + 3001),
    )
    assert offsets(frame) == span(0, 1, 3) + span(1, 2, 4)


def test_a_start_by_time_goes_with_an_end_by_offset(load: Load, timed: str) -> None:
    """B089: start by time, end by offset."""
    frame = load(
        timed,
        startingOffsetsByTimestamp=at(timed, FIRST_MS + 1000, FIRST_MS + 2000),
        endingOffsets=at(timed, 4, -1),
    )
    assert offsets(frame) == span(0, 1, 4) + span(1, 2, 5)


def test_a_start_by_offset_goes_with_an_end_by_time(load: Load, timed: str) -> None:
    """B090: start by offset, end by time."""
    frame = load(
        timed,
        startingOffsets=at(timed, 1, -2),
        endingOffsetsByTimestamp=at(timed, FIRST_MS + 2000, FIRST_MS + 4000),
    )
    assert offsets(frame) == span(0, 1, 2) + span(1, 0, 4)


def test_a_start_by_time_reads_to_the_end(load: Load, timed: str) -> None:
    """B091: start by time, no end."""
    frame = load(timed, startingOffsetsByTimestamp=at(timed, FIRST_MS + 3000, FIRST_MS))
    assert offsets(frame) == span(0, 3, 5) + span(1, 0, 5)


def test_an_end_by_time_reads_from_the_beginning(load: Load, timed: str) -> None:
    """B092: end by time, no start."""
    frame = load(timed, endingOffsetsByTimestamp=at(timed, FIRST_MS + 3000, FIRST_MS))
    assert offsets(frame) == span(0, 0, 3)


def test_one_time_can_hold_for_all_partitions(load: Load, timed: str) -> None:
    """B093: one start and one end for everything, as a number and as text with a zone."""
    frame = load(timed, startingTimestamp=FIRST_MS + 1000, endingTimestamp=FIRST_MS + 3000)
    assert offsets(frame) == span(0, 1, 3) + span(1, 1, 3)
    frame = load(timed, startingTimestamp="2023-11-14T22:13:21Z", endingTimestamp="2023-11-14T23:13:23+01:00")
    assert offsets(frame) == span(0, 1, 3) + span(1, 1, 3)


def test_a_start_time_that_no_record_has_is_an_error(load: Load, timed: str) -> None:
    """B094, F24: it fails by default and starts at the end when an option says so."""
    late = FIRST_MS + 60_000
    with pytest.raises(Exception, match=r"\[NO_OFFSET_FOR_TIMESTAMP\]"):
        load(timed, startingTimestamp=late).collect()
    assert offsets(load(timed, startingTimestamp=late, startingOffsetsByTimestampStrategy="latest")) == []


def test_an_end_time_that_no_record_has_reads_to_the_end(load: Load, timed: str) -> None:
    """B095: a partition whose records are all older is read whole."""
    frame = load(timed, endingOffsetsByTimestamp=at(timed, FIRST_MS + 60_000, FIRST_MS + 1000))
    assert offsets(frame) == span(0, 0, 5) + span(1, 0, 1)


def test_one_time_for_all_beats_times_beat_offsets(load: Load, timed: str) -> None:
    """B096: the precedence holds at both ends, even over an option that would be an error."""
    times = {
        "startingOffsetsByTimestamp": at(timed, FIRST_MS + 2000, FIRST_MS + 2000),
        "endingOffsetsByTimestamp": at(timed, FIRST_MS + 4000, FIRST_MS + 4000),
    }
    numbers = {"startingOffsets": "latest", "endingOffsets": "earliest"}
    frame = load(timed, **numbers, **times)
    assert offsets(frame) == span(0, 2, 4) + span(1, 2, 4)
    frame = load(timed, **numbers, **times, startingTimestamp=FIRST_MS, endingTimestamp=FIRST_MS + 1000)
    assert offsets(frame) == span(0, 0, 1) + span(1, 0, 1)


def test_a_frame_used_twice_in_one_query_gives_its_rows_twice(load: Load, kafka: Any, topic: Any) -> None:
    """B097: union and self-join of one frame."""
    name = topic(2)
    fill(kafka, name, [50, 30])
    frame = load(name)
    assert offsets(frame.union(frame)) == sorted(2 * (span(0, 0, 50) + span(1, 0, 30)))
    keys = frame.select("partition", "offset")
    assert offsets(keys.join(keys, ["partition", "offset"])) == span(0, 0, 50) + span(1, 0, 30)


def test_a_frame_that_is_used_again_starts_at_the_new_beginning(load: Load, kafka: Any, topic: Any) -> None:
    """B098: the start is bound at execution, with and without a task count, with loss checking on."""
    name = topic()
    fill(kafka, name, [10])
    frame, split = load(name), load(name, minPartitions=3)
    assert offsets(frame) == offsets(split) == span(0, 0, 10)
    delete_before(kafka.bootstrap, name, 4)
    fill(kafka, name, [2])
    assert offsets(frame) == offsets(split) == span(0, 4, 12)


def test_bad_options_fail_at_load(load: Load) -> None:
    """B099, B101: before any read, with the condition in the error."""
    with pytest.raises(Exception, match=r"\[START_AT_LATEST\]"):
        load("t", startingOffsets="latest").collect()  # `load` cannot know that this will not be a stream
    with pytest.raises(Exception, match=r"\[START_AT_LATEST\]"):
        load("t", startingOffsets='{"t":{"0":-1}}', endingOffsets="latest")
    with pytest.raises(Exception, match=r"\[END_AT_EARLIEST\]"):
        load("t", endingOffsets="earliest")
    with pytest.raises(Exception, match=r"\[\w*START_OFFSET\w*\]"):
        load("t", startingOffsets='{"t":{"0":9}}', endingOffsets='{"t":{"0":3}}')


def test_start_and_end_must_name_the_partitions_there_are(load: Load, kafka: Any, topic: Any) -> None:
    """B100: too few partitions at the start, another one at the end."""
    name = topic(2)
    fill(kafka, name, [3, 3])
    condition = r"\[KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED\]"
    with pytest.raises(Exception, match=condition):
        load(name, startingOffsets=json.dumps({name: {"0": 1}})).collect()
    with pytest.raises(Exception, match=condition):
        load(name, endingOffsets=json.dumps({name: {"0": 1, "1": 1, "7": 1}})).collect()


def test_a_start_behind_the_end_is_refused_once_times_are_known(load: Load, timed: str) -> None:
    """B102: the start comes from a time, the end is a number."""
    with pytest.raises(Exception, match=r"\[RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET\].*start offset 3"):
        load(timed, startingTimestamp=FIRST_MS + 3000, endingOffsets=at(timed, 1, -1)).collect()


def test_a_start_behind_the_log_is_refused(load: Load, timed: str) -> None:
    """B103: a start above the end of the log, the end being latest."""
    with pytest.raises(Exception, match=r"\[RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET\].* 500 .* 5\b"):
        load(timed, startingOffsets=at(timed, 500, 0)).collect()


def test_a_task_count_gives_so_many_tasks_and_every_row_once(load: Load, kafka: Any, topic: Any) -> None:
    """B104, F30: even when the frame runs again after new data, and in a partition that was empty."""
    name = topic(3)
    fill(kafka, name, [60, 30, 0])
    frame = load(name, minPartitions=6)
    assert frame.rdd.getNumPartitions() >= 6
    assert offsets(frame) == span(0, 0, 60) + span(1, 0, 30)
    fill(kafka, name, [40, 0, 7])
    assert offsets(frame) == span(0, 0, 100) + span(1, 0, 30) + span(2, 0, 7)
