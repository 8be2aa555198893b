"""Traffic of several web servers with labelled attacks in it: for the demo, for tests, to time detection.

Rules: the same settings give the same lines, byte for byte. The rate is the one in the settings from the
first second on, up to 50,000 lines/s on one core. The truth names every client with its label and class, when
it sent its first request, and how many it sent. Lines are in the order in which a server writes them: at the
end of a request, with the time of its beginning. So slow requests are late, as in real logs. A few lines are
broken.

Visits that began before the first second are simulated, too; otherwise the site would seem to wake up.

    simulation = Simulation(SimulationSettings(rate=5000, seconds=60, seed=7))
    for step in simulation.steps():
        for lines in step.servers:
            file.write(lines.text)
    write_truth(simulation, Path("truth.csv"))
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.apps.accesslog.simulation.honest_visitors import LONGEST_VISIT_S, Site, visitors_at
from penstock.apps.accesslog.simulation.simulated_attackers import (
    CLASSES,
    LABELS,
    SimulatedAttackers,
    Situation,
    mean_flood,
)
from penstock.apps.accesslog.simulation.simulated_requests import EVENT, ClientTable, EventRows, TextPool
from penstock.core.errors import OptionError

#: The format of the lines, for a parser.
LOG_FORMAT = '%h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-Agent}i" %D'
DEFAULT_START_S = 1_770_000_000  # 2026-02-02 02:40:00 UTC
HIGHEST_RATE = 50_000
_CRAWLER_SHARE, _BROKEN_SHARE = 0.04, 0.0004
_LOOK_BACK_S = 30  # no request takes longer
_MEAN_CAMPAIGN = 42.0  # of all classes but floods
_LEAST_HONEST_SHARE = 0.3
_GARBAGE = (
    b"",
    b"\x00\x00\x00\x00",
    b"[notice] child pid 4711 exit signal",
    b"- - - -",
    b"\xff\xfe\xfd broken",
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """The settings of a simulation.

    `day_s` is the length of the site's day: with a short one, the load goes up and down within minutes.
    """

    rate: float = 5_000.0
    seconds: int = 60
    servers: int = 3
    seed: int = 7
    attacks: tuple[str, ...] = tuple(CLASSES)
    attack_share: float = 0.08
    start_s: int = DEFAULT_START_S
    day_s: int = 86_400
    with_latency: bool = True

    def __post_init__(self) -> None:
        unknown = [each for each in self.attacks if each not in CLASSES]
        wrong = ""
        if unknown:
            wrong = f"There is no attack class {', '.join(unknown)}. The classes are {', '.join(CLASSES)}."
        elif not 0 < self.rate <= HIGHEST_RATE:
            wrong = f"The rate is {self.rate:g} lines/s; it can be up to {HIGHEST_RATE}."
        elif min(self.seconds, self.servers, self.day_s) < 1 or not 0 <= self.attack_share < 1:
            wrong = "Seconds, servers and a day's length must be 1 or greater, the share of attacks below 1."
        if wrong:
            raise OptionError("SIMULATION_INVALID", wrong, hint="Correct the option.")


@dataclass(frozen=True, slots=True)
class ServerLines:
    """What one server writes in a step; `lines` and their clients as Arrow arrays, or the bytes of a file."""

    server: str
    lines: pa.Array
    clients: pa.Array

    @property
    def text(self) -> bytes:
        """Return the lines as a file has them. The steps must have been made with `newlines`."""
        data = self.lines.buffers()[2]
        return b"" if data is None else bytes(data)


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """A piece of a second: when it is due, and what each server writes."""

    due_s: float
    count: int
    servers: tuple[ServerLines, ...]


class Simulation:
    """One run. `steps` can be iterated once; the truth grows with it."""

    def __init__(self, settings: SimulationSettings) -> None:
        self.settings = settings
        seeds = np.random.SeedSequence(settings.seed).spawn(5)
        made, self._visits, self._crawls, self._chance, planned = map(np.random.default_rng, seeds)
        self.clients = ClientTable()
        self._pool = TextPool()
        self._site = Site(self._pool, made)
        self._attackers = SimulatedAttackers(self._pool, self._site, made)
        self._garbage = self._pool.add_all(list(_GARBAGE))
        self._buckets: dict[int, list[EventRows]] = {}
        self._plan = self._plan_campaigns(planned)
        self._attack_share = settings.attack_share if self._plan else 0.0
        self._attacked = np.zeros(settings.seconds + 1, np.int64)
        moments = np.linspace(0, settings.seconds, 64).tolist()
        self._mean_visitors = sum(map(self._visitors_at, moments)) / len(moments)
        self.lines = 0
        self.broken_lines = 0

    def _plan_campaigns(self, dice: np.random.Generator) -> list[tuple[float, str, int]]:
        """Return the time, the class and the seed of each campaign; each class attacks at least once."""
        settings = self.settings
        names = list(settings.attacks)
        if not names or not settings.attack_share:
            return []
        weights = np.array([CLASSES[name] for name in names], float)
        sizes = [mean_flood(settings.rate) if name == "flood" else _MEAN_CAMPAIGN for name in names]
        mean = float(np.average(sizes, weights=weights))
        expected = settings.rate * settings.seconds * settings.attack_share / mean
        more = max(0, round(expected) - len(names))
        chosen = [*names, *(names[n] for n in dice.choice(len(names), more, p=weights / weights.sum()))]
        # The first of each class comes early enough to be seen whole.
        latest = np.where(np.arange(len(chosen)) < len(names), 0.5, 0.95) * settings.seconds
        moments = dice.random(len(chosen)) * latest
        seeds = dice.integers(0, 2**62, len(chosen)).tolist()
        return sorted(zip(moments.tolist(), chosen, seeds, strict=True))

    # --- one second after another -----------------------------------------------------------------------

    def steps(self, *, slices: int = 1, newlines: bool = False) -> Iterator[SimulatedStep]:
        """Yield all lines, second by second, each cut into `slices` that are due one after another."""
        for second in range(-math.ceil(LONGEST_VISIT_S), 0):
            self._begin(second)
        for second in range(self.settings.seconds):
            self._begin(second)
            events = self._take(second)
            due = events["begin"] + events["latency_us"] / 1e6
            cuts = np.searchsorted(due, second + np.arange(1, slices) / slices)
            for number, some in enumerate(np.split(events, cuts)):
                yield self._write(some, second, second + number / slices, newlines)

    def load_at(self, second: float) -> float:
        """Return the rate at this second: quiet nights, busy afternoons, on average the settings' rate."""
        return self.settings.rate * self._visitors_at(second) / self._mean_visitors

    def _visitors_at(self, second: float) -> float:
        return visitors_at(self.settings.start_s + second, self.settings.day_s)

    def _begin(self, second: int) -> None:
        """Begin what starts within this second, and put its requests into the seconds that log them."""
        target = self.load_at(second)
        while self._plan and self._plan[0][0] < second + 1 and second >= 0:
            moment, name, seed = self._plan.pop(0)
            now = Situation(moment, self.settings.seconds - moment, self.settings.rate)
            attack = self._attackers.attack(name, now, self.clients, np.random.default_rng(seed))
            self._put(attack)
            times = np.clip(attack["begin"].astype(np.int64), 0, self.settings.seconds)
            self._attacked += np.bincount(times, minlength=self._attacked.size)
        crawled = target * _CRAWLER_SHARE
        if second >= 0:
            self._put(self._site.crawl(second, crawled, self.clients, self._crawls))
        # Honest visitors make up the rest, so that the rate is that of the settings.
        attacked = float(self._attacked[second]) if second >= 0 else target * self._attack_share
        wanted = max(target - crawled - attacked, target * _LEAST_HONEST_SHARE)
        visits = int(self._visits.poisson(wanted / self._site.mean_length))
        if visits:
            self._put(self._site.begin_visits(visits, second, self.clients, self._visits))

    def _put(self, events: EventRows) -> None:
        logged = events["begin"] + events["latency_us"] / 1e6
        order = np.argsort(logged, kind="stable")
        events, logged = events[order], logged[order]
        first, last = (math.floor(logged[0]), math.floor(logged[-1])) if events.size else (0, -1)
        cuts = np.searchsorted(logged, np.arange(first + 1, last + 1))
        for second, some in enumerate(np.split(events, cuts), first):
            if 0 <= second < self.settings.seconds and some.size:
                self._buckets.setdefault(second, []).append(some)

    def _take(self, second: int) -> EventRows:
        waiting = self._buckets.pop(second, [])
        events = np.concatenate(waiting) if waiting else np.zeros(0, EVENT)
        return events[np.argsort(events["begin"] + events["latency_us"] / 1e6, kind="stable")]

    def _write(self, events: EventRows, second: int, due_s: float, newlines: bool) -> SimulatedStep:
        count, dice = events.size, self._chance
        faults = np.zeros(count, np.int8)
        benign = self.clients.classes[events["client"]] == 0
        faults[(dice.random(count) < _BROKEN_SHARE) & benign] = 1
        faults[(dice.random(count) < _BROKEN_SHARE / 3) & benign] = 2
        good = faults == 0
        self.clients.requests += np.bincount(events["client"][good], minlength=self.clients.requests.size)
        np.minimum.at(self.clients.firsts, events["client"][good], events["begin"][good])
        self.lines += count
        self.broken_lines += int(count - good.sum())
        sticky = events["client"] % 5 < 3
        servers = self.settings.servers
        server = np.where(sticky, events["client"] % servers, dice.integers(0, servers, count))
        times = make_times(self.settings.start_s + second - _LOOK_BACK_S, _LOOK_BACK_S + 2)
        written = []
        for number in range(servers):
            mine = server == number
            seconds = np.floor(events["begin"][mine]).astype(np.int64) - second + _LOOK_BACK_S
            lines, clients = self._render(events[mine], seconds, faults[mine], times, newlines)
            written.append(ServerLines(f"web{number + 1}", lines, clients))
        return SimulatedStep(due_s, count, tuple(written))

    def _render(
        self,
        events: EventRows,
        seconds: npt.NDArray[np.int64],
        faults: npt.NDArray[np.int8],
        times: npt.NDArray[np.uint8],
        newlines: bool,
    ) -> tuple[pa.Array, pa.Array]:
        from penstock.apps.accesslog.simulation.line_writing_kernel import (
            FIXED,
            FRAME_BYTES,
            HEX,
            KEY_BYTES,
            Addresses,
            LineColumns,
            write_lines,
        )

        count = events.size
        pool, starts = self._pool.columns()
        sizes = np.diff(starts)
        foreign = np.where(faults == 2, self._garbage[events["client"] % self._garbage.size], 0)
        texts = [np.ascontiguousarray(events[name]) for name in ("request", "referrer", "agent")]
        room = FRAME_BYTES * count + int(sum(sizes[each].sum() for each in (*texts, foreign)))
        out, keys = np.empty(room, np.uint8), np.empty(KEY_BYTES * count, np.uint8)
        out_starts, key_starts = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
        request, referrer, agent = texts
        status, size, latency_us, client = (
            np.ascontiguousarray(events[name]) for name in ("status", "size", "latency_us", "client")
        )
        table = self.clients
        lines = LineColumns(
            client, np.clip(seconds, 0, _LOOK_BACK_S + 1), request, status, size, latency_us, referrer, agent,
            faults, foreign,
        )  # fmt: skip
        addresses = Addresses(table.highs, table.lows, table.are_v6)
        if not write_lines(
            lines, addresses, times, pool, starts, FIXED, HEX, self.settings.with_latency, newlines,
            out, out_starts, keys, key_starts,
        ):  # fmt: skip
            raise AssertionError("a line is longer than was measured")
        return _make_array(out, out_starts), _make_array(keys, key_starts)

    # --- the truth --------------------------------------------------------------------------------------

    def truth(self) -> pa.Table:
        """Return every client that sent a request: client, label, class, first_time, requests."""
        seen = np.flatnonzero(self.clients.requests[: self.clients.count])
        classes = self.clients.classes[seen]
        first = np.floor(self.clients.firsts[seen]).astype(np.int64) + self.settings.start_s
        return pa.table(
            {
                "client": self._name_clients(seen),
                "label": np.where(classes > 0, "attack", "benign"),
                "class": np.array(LABELS)[classes],
                "first_time": [
                    datetime.fromtimestamp(each, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                    for each in first.tolist()
                ],
                "requests": self.clients.requests[seen],
            }
        )

    def _name_clients(self, numbers: npt.NDArray[np.int64]) -> pa.Array:
        events = np.zeros(numbers.size, EVENT)
        events["client"] = numbers
        nothing = np.zeros(numbers.size, np.int64)
        times = make_times(self.settings.start_s, 1)
        _, names = self._render(events, nothing, np.zeros(numbers.size, np.int8), times, False)
        return names.cast(pa.large_string())


def write_truth(simulation: Simulation, path: Path) -> None:
    """Write the truth as CSV, whole or not at all."""
    table = simulation.truth()
    part = path.with_name(f"{path.name}.part")
    with part.open("w", newline="", encoding="ascii") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table.column_names)
        writer.writerows(zip(*(column.to_pylist() for column in table.columns), strict=True))
    part.replace(path)


def make_times(first_s: int, count: int) -> npt.NDArray[np.uint8]:
    """Return the texts of this many seconds as logs have them, one after another."""
    texts = []
    for second in range(first_s, first_s + count):
        at = datetime.fromtimestamp(second, UTC)
        texts.append(f"{at.day:02}/{_MONTHS[at.month - 1]}/{at.year}:{at:%H:%M:%S} +0000".encode())
    return np.frombuffer(b"".join(texts), np.uint8)


def _make_array(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> pa.Array:
    used = data[: int(starts[-1])]
    return pa.Array.from_buffers(
        pa.large_binary(), starts.size - 1, [None, pa.py_buffer(starts), pa.py_buffer(used)]
    )
