"""Spikes, drops and jumps: each second of each server judged against its own last fifteen minutes.

Windows of 10, 30 and 60 seconds are compared with the median and the spread of earlier windows of that
length, on a scale where Poisson noise is 1 whatever the rate. One alert opens when a rate has been off for
some seconds by enough spreads, by a factor, and by enough requests to matter (`AnomalyLimits`). What happens
while it is open is kept out of the baseline. It closes when the cause has gone, or after fifteen minutes,
when the new level counts as normal. Errors (5xx) and the mean log of the latency are judged in the same way.

Rule: event time is judged, second by second, once the clocks of the partitions have passed it. So alerts
depend on the logs, not on the batches. Why not fixed thresholds: nobody sets them for each server. Why not
mean and standard deviation: one flood in the past would hide the next.

>>> watch = Watch.begin()
>>> watch.add("www", 0, (3, 0, 0, 0, 0)), watch.advance(10)
(None, [])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.apps.accesslog.monitoring import spike_detection_kernel as loop
from penstock.apps.accesslog.monitoring.minute_tables import ALL
from penstock.apps.accesslog.monitoring.sketches import bucket_values

KINDS = ("rate_spike", "rate_drop", "error_jump", "latency_jump")
#: Seconds judged in one call; a day of quiet is skipped, not judged.
_CHUNK = 600
#: After this many seconds without a line nothing that is known can change any more.
_ALL_QUIET = loop.BINS * loop.BIN + loop.RECENT + 2 * loop.BIN


@dataclass(frozen=True, slots=True)
class AnomalyLimits:
    """The thresholds for alerts. The fields are in the order of the kernel's numbers."""

    z: float = 5.5  #: spreads of the baseline
    up: float = 1.5  #: a spike is at least this many times the median
    down: float = 0.6  #: a drop is at most this share of it
    excess_per_s: float = 3.0  #: a spike has at least this many requests/s more, times 15, 25 or 40 s
    steady_s: float = 3.0  #: seconds in a row until an alert opens
    calm_s: float = 15.0  #: seconds in a row until it is over
    longest_s: float = 900.0  #: a level that stays for this long is the new normal
    error_step: float = 0.05  #: an error ratio is higher by at least this
    latency_step: float = 37.0  #: buckets of 1/64 power of two: a factor of 1.5


@dataclass(frozen=True, slots=True)
class AlertChange:
    """An alert that has opened (`closed_at` is None) or closed; times in seconds since 1970."""

    kind: str
    server: str
    opened_at: int
    closed_at: int | None
    value: float  # when it opened: requests/s, a ratio, or a latency in microseconds
    expected: float  # at that time
    peak: float  # the farthest off so far
    score: float  # how many spreads of the baseline it was off
    new_level: bool = False  # closed because the level stays


@dataclass(slots=True)
class Watch:
    """What is known about the recent past of each server, and the seconds that wait to be judged."""

    servers: list[str]  # the first one is all together
    past: dict[str, NDArray[Any]]  # the arrays of `_make_past`, a row for each server
    judged_until: int | None = None  # the next second to judge; None: no line yet
    last_heard: int = 0
    pending: dict[int, dict[str, NDArray[np.int64]]] = field(default_factory=dict)
    limits: AnomalyLimits = field(default_factory=AnomalyLimits)

    @classmethod
    def begin(cls, limits: AnomalyLimits | None = None) -> Watch:
        """Return a watch that knows nothing; its first series is all servers together."""
        watch = cls([], _make_past(0), limits=limits or AnomalyLimits())
        watch._add_series([ALL], born=np.iinfo(np.int64).max)
        return watch

    def add(self, server: str, second: int, facts: Any) -> None:
        """Add a second of a server: requests, errors, latencies, sum and squares of their buckets."""
        if self.judged_until is not None and second < self.judged_until:
            return  # it was judged already, without these
        row = self.pending.setdefault(second, {})
        facts = np.asarray(facts, np.int64)
        row[server] = row[server] + facts if server in row else facts

    def advance(self, until: int) -> list[AlertChange]:
        """Judge all seconds before `until`; return the alerts that opened or closed."""
        changes: list[AlertChange] = []
        due = sorted(second for second in self.pending if second < until)
        if self.judged_until is None:
            if not due:
                return []
            self.judged_until = due[0]
        while self.judged_until < until:
            first = self.judged_until
            due = [second for second in due if second >= first]
            if self._is_quiet(first):
                self.judged_until = first = due[0] if due else until
                if first >= until:
                    break
            self._add_new_servers(first, first + 1)
            # A server that is first heard in this stretch begins a new stretch.
            stop = min(until, first + _CHUNK)
            known = set(self.servers)
            fresh = [at for at in due if at < stop and not known.issuperset(self.pending[at])]
            stop = fresh[0] if fresh and fresh[0] > first else stop
            changes += self._judge(first, stop)
        return changes

    def relieve(self, most: int) -> list[AlertChange]:
        """Judge the oldest waiting seconds without further delay, until at most `most` are left."""
        waiting = sum(map(len, self.pending.values()))
        until = None
        for second in sorted(self.pending):
            if waiting <= most:
                break
            waiting -= len(self.pending[second])
            until = second + 1
        return [] if until is None else self.advance(until)

    def forget(self, server: str) -> None:
        """Forget a server that will send no more lines."""
        if server in self.servers and server != ALL:
            keep = [at for at, name in enumerate(self.servers) if name != server]
            self.servers = [self.servers[at] for at in keep]
            self.past = {name: of[keep] for name, of in self.past.items()}

    def _is_quiet(self, second: int) -> bool:
        """Return whether the past holds nothing but silence, so that more of it changes nothing."""
        return second - self.last_heard > _ALL_QUIET and not self.past["marks"][:, :, loop.OPENED].any()

    def _add_new_servers(self, first: int, until: int) -> None:
        for second in range(first, until):
            unknown = [name for name in self.pending.get(second, {}) if name not in self.servers]
            if unknown:
                self._add_series(sorted(unknown), born=second)
                if len(self.servers) >= 3:  # one server alone is all servers
                    self.past["born"][0] = min(int(self.past["born"][0]), second)

    def _judge(self, first: int, stop: int) -> list[AlertChange]:
        number = {name: at for at, name in enumerate(self.servers)}
        facts = np.zeros((stop - first, len(self.servers), loop.FACTS), np.int64)
        for step in range(stop - first):
            row = self.pending.pop(first + step, None)
            if row:
                self.last_heard = first + step
                for server, counts in row.items():
                    facts[step, number[server]] = counts
                    facts[step, 0] += counts
        changes: list[AlertChange] = []
        done = 0
        room = loop.KINDS * len(self.servers) * 8
        while done < stop - first:
            events = np.zeros((room, loop.EVENT_NUMBERS), np.int64)
            values = np.zeros((room, loop.EVENT_VALUES), np.float64)
            steps, found = loop.judge_seconds(
                first + done,
                facts[done:],
                *self.past.values(),
                np.array(astuple(self.limits)),
                np.empty(loop.BINS, np.float64),
                np.empty((loop.WINDOWS, loop.FACTS), np.int64),
                events,
                values,
            )
            done += steps
            changes += [self._make_change(*row) for row in zip(events[:found], values[:found], strict=True)]
        self.judged_until = stop
        return changes

    def _make_change(self, event: NDArray[np.int64], values: NDArray[np.float64]) -> AlertChange:
        series, kind, what, second, opened = event.tolist()
        peak, value, expected, score = values.tolist()
        if kind == loop.LATENCY:
            peak, value, expected = (_to_micros(each) for each in (peak, value, expected))
        return AlertChange(
            kind=KINDS[kind],
            server=self.servers[series],
            opened_at=opened,
            closed_at=None if what == 1 else second,
            value=value,
            expected=expected,
            peak=peak,
            score=score,
            new_level=what == 3,
        )

    def _add_series(self, names: list[str], born: int) -> None:
        self.servers += names
        new = _make_past(len(names))
        new["born"][:] = born
        self.past = {name: np.concatenate([of, new[name]]) for name, of in self.past.items()}

    # --- kept between batches ------------------------------------------------------------------------------

    def to_tables(self) -> dict[str, pa.Table]:
        """Return everything that is known, as tables."""
        series: dict[str, Any] = {"server": pa.array(self.servers, pa.string())}
        for name, of in self.past.items():
            series[name] = pa.array([each.tobytes() for each in of], pa.binary())
        rows = [
            (second, server, *facts.tolist())
            for second, found in sorted(self.pending.items())
            for server, facts in sorted(found.items())
        ]
        columns = list(zip(*rows, strict=True)) or [()] * (2 + loop.FACTS)
        types = [pa.int64(), pa.string(), *[pa.int64()] * loop.FACTS]
        names = ["second", "server", *(f"f{at}" for at in range(loop.FACTS))]
        waiting = [pa.array(list(of), kind) for of, kind in zip(columns, types, strict=True)]
        waiting[1] = waiting[1].dictionary_encode()
        return {
            "series": pa.table(series),
            "pending": pa.Table.from_arrays(waiting, names=names),
            "judged": pa.table(
                {
                    "until": pa.array([self.judged_until], pa.int64()),
                    "last_heard": pa.array([self.last_heard], pa.int64()),
                }
            ),
        }

    @classmethod
    def from_tables(cls, tables: Mapping[str, pa.Table], limits: AnomalyLimits | None = None) -> Watch:
        series = tables["series"]
        servers = series["server"].to_pylist()
        past = {}
        for name, shape in _make_past(0).items():
            joined = np.frombuffer(b"".join(series[name].to_pylist()), shape.dtype)
            past[name] = joined.reshape(len(servers), *shape.shape[1:]).copy()
        judged = tables["judged"].to_pylist()[0]
        watch = cls(servers, past, judged["until"], judged["last_heard"], limits=limits or AnomalyLimits())
        waiting = tables["pending"].to_pydict()
        facts = np.array([waiting[f"f{at}"] for at in range(loop.FACTS)], np.int64).T
        for second, server, row in zip(waiting["second"], waiting["server"], facts, strict=True):
            watch.add(server, second, row)
        return watch


def _make_past(series: int) -> dict[str, NDArray[Any]]:
    """Return an empty past for new series, in the order of the kernel's arguments."""
    return {
        "born": np.zeros(series, np.int64),
        "recent": np.zeros((series, loop.RECENT, loop.FACTS), np.int64),
        "bins": np.zeros((series, loop.BINS, loop.FACTS), np.int64),
        "usable": np.zeros((series, loop.BINS, 3), np.uint8),
        "base": np.full((series, loop.BASELINES), -1.0),
        "marks": np.zeros((series, loop.KINDS, loop.MARKS), np.int64),
        "extremes": np.zeros((series, loop.KINDS, loop.EVENT_VALUES), np.float64),
    }


_BUCKETS = bucket_values()


def _to_micros(bucket: float) -> float:
    """Return a mean of bucket numbers as a latency."""
    below = min(max(int(bucket), 0), len(_BUCKETS) - 2)
    share = min(max(bucket - below, 0.0), 1.0)
    return float(_BUCKETS[below] * (1.0 - share) + _BUCKETS[below + 1] * share)
