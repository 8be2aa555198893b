"""How far a stream is behind: records, seconds, and bytes, per partition and together.

Records are exact offsets (gaps from compaction and transactions count). Seconds are the age of the first
record that is still to be read. Bytes are an estimate: the number of records times the stored size of sampled
records near the position. The reports say so in the name, `bytesEstimate`.

>>> lags = measure_lags({TopicPartition("t", 0): 5}, {TopicPartition("t", 0): 9}, {}, now_ms=0)
>>> summarize(lags)["maxOffsetsBehindLatest"]
4
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.model import Peek, TopicPartition
from penstock.core.offsets.stream_position import Offsets


@dataclass(frozen=True, slots=True)
class StreamLag:
    """One partition's lag. Seconds and bytes are None where they were not measured."""

    records: int
    seconds: float | None = None
    bytes_estimate: int | None = None


@dataclass(frozen=True, slots=True)
class PeekedRecords:
    """A peek at the records from a position on, and its time on the watcher's clock."""

    position: int
    at_s: float
    peek: Peek


def measure_lags(
    offsets: Offsets,
    ends: Offsets,
    peeks: Mapping[TopicPartition, PeekedRecords],
    *,
    now_ms: int,
) -> dict[TopicPartition, StreamLag]:
    """Return the lag of each partition whose position and end are both known."""
    lags = {}
    for each in sorted(offsets.keys() & ends.keys()):
        records = max(0, ends[each] - offsets[each])
        if records == 0:
            lags[each] = StreamLag(0, 0.0, 0)
            continue
        seen = peeks.get(each)
        if seen is None:
            lags[each] = StreamLag(records)
            continue
        # The size is about right nearby, but the age only where that very record was looked at.
        is_there = seen.position == offsets[each]
        seconds = max(0, now_ms - seen.peek.timestamp_ms) / 1000 if is_there else None
        lags[each] = StreamLag(records, seconds, int(records * seen.peek.bytes_per_record))
    return lags


def summarize(lags: Mapping[TopicPartition, StreamLag]) -> dict[str, Any]:
    """Return totals under the names of Spark's connector and ours, or nothing if there are no lags."""
    if not lags:
        return {}
    records = [each.records for each in lags.values()]
    summary: dict[str, Any] = {
        "minOffsetsBehindLatest": min(records),
        "maxOffsetsBehindLatest": max(records),
        "avgOffsetsBehindLatest": sum(records) / len(records),
        "records": sum(records),
    }
    if all(each.seconds is not None for each in lags.values()):
        summary["seconds"] = max(each.seconds or 0.0 for each in lags.values())
    if all(each.bytes_estimate is not None for each in lags.values()):
        summary["bytesEstimate"] = sum(each.bytes_estimate or 0 for each in lags.values())
    behind: dict[str, dict[str, dict[str, Any]]] = {}
    for partition, lag in lags.items():
        if lag.records:
            one = {"records": lag.records, "seconds": lag.seconds, "bytesEstimate": lag.bytes_estimate}
            behind.setdefault(partition.topic, {})[str(partition.partition)] = {
                name: value for name, value in one.items() if value is not None
            }
    if behind:
        summary["partitions"] = behind
    return summary


def count_within(
    max_bytes: int, waiting: Mapping[TopicPartition, int], peeks: Mapping[TopicPartition, PeekedRecords]
) -> int | None:
    """Return how many of these records make about `max_bytes` by sampled sizes, or None without samples."""
    seen = {each: records for each, records in waiting.items() if records > 0 and each in peeks}
    weight = sum(records * peeks[each].peek.bytes_per_record for each, records in seen.items())
    if not weight:
        return None
    return max(1, int(max_bytes / (weight / sum(seen.values()))))
