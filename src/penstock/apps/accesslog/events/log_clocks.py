"""Time as the log shows it: the running maximum of each partition, and the watermark that follows from all.

Rules. A line's time is never before its partition's maximum less the lateness: an earlier line is moved up to
it and counted as late, never dropped. The watermark is the least of (maximum less lateness) over partitions
that are not idle, including those without a line so far. Events before it are folded, the others wait.
Whether a partition is idle is decided by the wall clock, so it is stored with the clocks and a repeated batch
finds it.

A partition last seen in the future (our clock was set back) is waited for as if it had been seen now. One
whose server was ahead of the wall clock (`future_clocks`) counts as silent. While all partitions are idle,
the watermark advances at half the speed of the wall clock (`pass_time`). So the log catches up, and its
minutes do not fall on one moment, where visitors would look like a flood. Why not the time of arrival: a
restart, a replay or another batch size would count other lines together.

>>> clocks = advance(Clocks.begin([0, 1]), {0: 9_000_000}, lateness_us=1_000_000)
>>> clocks.watermark_us == NEVER, advance(clocks, {1: 7_500_000}, lateness_us=1_000_000).watermark_us
(True, 6500000)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from penstock.core.errors import DecodeError

#: Before all times.
NEVER = -(1 << 62)
_VERSION = 1


@dataclass(frozen=True, slots=True)
class LogClock:
    """What is known of one partition. `seen_at_us` is wall-clock time and decides whether it is idle."""

    max_us: int = NEVER
    is_idle: bool = False
    seen_at_us: int = NEVER


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of all partitions, and the watermark, which never goes back."""

    partitions: Mapping[int, LogClock]
    watermark_us: int = NEVER

    @classmethod
    def begin(cls, partitions: Iterable[int] = ()) -> Clocks:
        return cls({each: LogClock() for each in partitions})

    def pack(self) -> bytes:
        """Return the clocks as text for a state row."""
        rows = [[n, c.max_us, c.is_idle, c.seen_at_us] for n, c in sorted(self.partitions.items())]
        told = {"version": _VERSION, "watermark_us": self.watermark_us, "partitions": rows}
        return json.dumps(told, separators=(",", ":")).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Clocks:
        told = json.loads(data)
        if told.get("version") != _VERSION:
            raise DecodeError(
                "CLOCKS_VERSION",
                f"The stored clocks have version {told.get('version')!r}; this release reads {_VERSION}.",
                hint="Run the release that wrote them, or a newer one.",
            )
        return cls({n: LogClock(most, idle, seen) for n, most, idle, seen in told["partitions"]},
                   told["watermark_us"])  # fmt: skip


def decide_idle(
    clocks: Clocks, *, now_us: int, with_lines: Iterable[int], known: Iterable[int], idle_after_us: int
) -> Clocks:
    """Return the clocks before a batch, with partitions marked as idle or not. Store the result.

    A partition with lines is not idle. One is idle after `idle_after_us` without lines.
    """
    active = set(with_lines)
    partitions = dict(clocks.partitions)
    for number in sorted({*known, *active, *partitions}):
        clock = partitions.get(number, LogClock())
        if number in active:
            clock = replace(clock, is_idle=False, seen_at_us=now_us)
        elif clock.seen_at_us == NEVER or clock.seen_at_us > now_us:
            clock = replace(clock, seen_at_us=now_us)
        elif now_us - clock.seen_at_us >= idle_after_us:
            clock = replace(clock, is_idle=True)
        partitions[number] = clock
    return replace(clocks, partitions=partitions)


def cap_at_watermark(clocks: Clocks, wrong: Iterable[int]) -> Clocks:
    """Return the clocks with these partitions set back to the watermark if they are beyond it."""
    right = {
        number: replace(clock, max_us=min(clock.max_us, clocks.watermark_us))
        for number, clock in clocks.partitions.items()
        if number in set(wrong)
    }
    return replace(clocks, partitions={**clocks.partitions, **right})


def pass_time(clocks: Clocks, elapsed_us: int) -> Clocks:
    """Return the clocks after `elapsed_us` of wall-clock time, which moves them only if all are idle."""
    if clocks.watermark_us == NEVER or not all(each.is_idle for each in clocks.partitions.values()):
        return clocks
    return replace(clocks, watermark_us=clocks.watermark_us + max(1, elapsed_us // 2))


def advance(clocks: Clocks, maxima_us: Mapping[int, int], *, lateness_us: int) -> Clocks:
    """Return the clocks after a batch in which the partitions reached these maxima."""
    partitions = dict(clocks.partitions)
    for number, most in maxima_us.items():
        clock = partitions.get(number, LogClock())
        partitions[number] = replace(clock, max_us=max(clock.max_us, most))
    waited_for = [each for each in partitions.values() if not each.is_idle]
    watermark = clocks.watermark_us
    if waited_for:
        least = min(each.max_us for each in waited_for)
        if least > NEVER:
            watermark = max(watermark, least - lateness_us)
    elif partitions:
        most = max(each.max_us for each in partitions.values())
        if most > NEVER:
            watermark = max(watermark, most + 1)
    return Clocks(partitions, watermark)


def finish(clocks: Clocks) -> Clocks:
    """Return the clocks with all partitions at their end, as after a replay: nothing waits any more."""
    ended = {number: replace(clock, is_idle=True) for number, clock in clocks.partitions.items()}
    return advance(replace(clocks, partitions=ended), {}, lateness_us=0)
