"""Scores decisions against labels of clients, and compares the figures with the goals.

Rules. A client counts as found if a decision blocks it; ambiguous ones are left out. Recall is the share of
attacking clients that are found, precision the share of found ones that attack. Blocked is the share of
attack requests that come after the detection. Requests and seconds to detect are given by class, because a
median over all classes hides the slow ones.

>>> labels = [Label("192.0.2.1", "attack", "scanner"), Label("192.0.2.2", "benign", "")]
>>> score([Found("192.0.2.1", 3, 40.0)], labels, {"192.0.2.1": Visits(100, 10.0)}).blocked
0.97
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.apps.accesslog.events.subjects import name_client
from penstock.apps.accesslog.first_look.log_blocks import BLOCK_BYTES, look_first, open_log, read_blocks
from penstock.apps.accesslog.parsing.line_parser import make_parser, take_texts
from penstock.core.errors import OptionError

CRAWLER_NAMES = "googlebot|bingbot|msnbot|slurp|yandex|baiduspider|duckduckbot|applebot|seznam|exabot|sogou"


@dataclass(frozen=True, slots=True)
class Label:
    """What is known about a client: attack, benign or ambiguous, and of which class."""

    client: str
    label: str
    attack: str


@dataclass(frozen=True, slots=True)
class Found:
    """The first decision that blocks a client."""

    client: str
    request_index: int
    decided_at: float  # seconds since 1970


@dataclass(slots=True)
class Visits:
    """What a log says about a client."""

    requests: int = 0
    first_at: float = 0.0
    is_crawler: bool = False


@dataclass(frozen=True, slots=True)
class ClassScore:
    """Detection of one class of attack."""

    clients: int = 0
    requests: tuple[int, ...] = ()  # to detect, for those found
    seconds: tuple[float, ...] = ()

    def __add__(self, other: ClassScore) -> ClassScore:
        return ClassScore(
            self.clients + other.clients, self.requests + other.requests, self.seconds + other.seconds
        )


@dataclass(frozen=True, slots=True)
class Score:
    """The figures of one log, or of several added up."""

    attackers: int = 0
    found: int = 0
    benign: int = 0
    benign_hit: int = 0
    crawlers_hit: int = 0
    attack_requests: int = 0
    blocked_requests: int = 0
    classes: Mapping[str, ClassScore] = field(default_factory=dict)

    @property
    def recall(self) -> float:
        return self.found / self.attackers if self.attackers else 1.0

    @property
    def precision(self) -> float:
        hit = self.found + self.benign_hit
        return self.found / hit if hit else 1.0

    @property
    def benign_share(self) -> float:
        return self.benign_hit / self.benign if self.benign else 0.0

    @property
    def blocked(self) -> float:
        return self.blocked_requests / self.attack_requests if self.attack_requests else 1.0

    def __add__(self, other: Score) -> Score:
        names = sorted({*self.classes, *other.classes})
        empty = ClassScore()
        classes = {name: self.classes.get(name, empty) + other.classes.get(name, empty) for name in names}
        return Score(
            self.attackers + other.attackers, self.found + other.found, self.benign + other.benign,
            self.benign_hit + other.benign_hit, self.crawlers_hit + other.crawlers_hit,
            self.attack_requests + other.attack_requests, self.blocked_requests + other.blocked_requests,
            classes,
        )  # fmt: skip


def score(found: Iterable[Found], labels: Sequence[Label], visits: Mapping[str, Visits]) -> Score:
    """Return how decisions compare with labels. `visits` says how often and since when each client came."""
    first = {each.client: each for each in found}
    attackers = [each for each in labels if each.label == "attack"]
    benign = [each for each in labels if each.label == "benign"]
    hit = [each.client for each in benign if each.client in first]
    classes: dict[str, ClassScore] = {}
    requests = blocked = 0
    for each in attackers:
        seen = visits.get(each.client, Visits())
        requests += seen.requests
        one = ClassScore(1)
        if each.client in first:
            detection = first[each.client]
            blocked += max(seen.requests - detection.request_index, 0)
            one = ClassScore(1, (detection.request_index,), (max(detection.decided_at - seen.first_at, 0.0),))
        classes[each.attack] = classes.get(each.attack, ClassScore()) + one
    return Score(
        len(attackers), sum(each.client in first for each in attackers), len(benign), len(hit),
        sum(visits.get(client, Visits()).is_crawler for client in hit), requests, blocked, classes,
    )  # fmt: skip


def read_decisions(path: Path | str) -> list[Found]:
    """Return the first blocking row of each client in a file that `replay` wrote."""
    first: dict[str, Found] = {}
    for row in _read_csv(path, ("client", "decided_at", "request_index", "action")):
        if row["action"] == "block":
            at = datetime.fromisoformat(row["decided_at"]).timestamp()
            client = unify(row["client"])
            first.setdefault(client, Found(client, int(row["request_index"]), at))
    return list(first.values())


def read_labels(path: Path | str) -> list[Label]:
    """Return the labels of each client; the addresses of a /64 are one client, of the class named first."""
    first: dict[tuple[str, str], Label] = {}
    for row in _read_csv(path, ("client", "label", "class")):
        client = unify(row["client"])
        first.setdefault((client, row["label"]), Label(client, row["label"], row["class"]))
    return list(first.values())


def count_visits(
    paths: Iterable[Path | str],
    log_format: str = "auto",
    trusted_proxies: Iterable[str] = (),
    *,
    look: Callable[[pa.Array], object] | None = None,
) -> dict[str, Visits]:
    """Return requests, first time and claimed crawlers of each client of some logs.

    `look` gets lines of each log before they are counted.
    """
    parser = make_parser(log_format, trusted_proxies)
    visits: dict[str, Visits] = {}
    for path in paths:
        with open_log(path) as file:
            blocks = read_blocks(file, BLOCK_BYTES)
            for values in blocks if look is None else look_first({0: blocks}, look)[0]:
                lines = parser.parse(values)
                clients = take_texts(lines, "client").dictionary_encode()
                names = [unify(name.decode("utf-8", "replace")) for name in clients.dictionary.to_pylist()]
                places = clients.indices.to_numpy()
                agents = take_texts(lines, "agent").fill_null(b"")
                crawling = pc.match_substring_regex(agents, CRAWLER_NAMES, ignore_case=True)
                counts = np.bincount(places, minlength=len(names))
                crawls = np.bincount(places, crawling.to_numpy(zero_copy_only=False), len(names))
                firsts = np.full(len(names), np.iinfo(np.int64).max)
                np.minimum.at(firsts, places, lines.time_us)
                begins = (firsts / 1e6).tolist()
                for n, name in enumerate(names):
                    seen = visits.setdefault(name, Visits(0, begins[n]))
                    seen.requests += int(counts[n])
                    seen.first_at = min(seen.first_at, begins[n])
                    seen.is_crawler |= bool(crawls[n])
    return visits


def unify(client: str) -> str:
    """Return the client that an address is counted as, always spelt the same; host names stay."""
    return name_client(client)


def compare_with_goals(result: Score) -> list[tuple[str, str, str, bool]]:
    """Return for each measure its name, the figure, the goal, and whether it is reached."""
    rows = [
        ("recall", f"{result.recall:.3f}", ">= 0.90", result.recall >= 0.90),
        ("precision", f"{result.precision:.3f}", ">= 0.98", result.precision >= 0.98),
        ("benign clients hit", f"{result.benign_share:.2%} ({result.benign_hit} of {result.benign})",
         "<= 0.10%", result.benign_share <= 0.001),
        ("search crawlers hit", str(result.crawlers_hit), "0", result.crawlers_hit == 0),
        ("attack requests blocked", f"{result.blocked:.3f}", ">= 0.96", result.blocked >= 0.96),
    ]  # fmt: skip
    scanners = result.classes.get("scanner")
    if scanners and scanners.clients:
        worst = max(scanners.requests, default=0)
        reached = len(scanners.requests) == scanners.clients and worst <= 5
        rows.append(("scanner: requests to detect, worst", str(worst or "missed"), "<= 5", reached))
    forced = result.classes.get("brute_force")
    if forced and forced.clients:
        told = f"{len(forced.requests)} of {forced.clients}"
        rows.append(("brute force found", told, "all", len(forced.requests) == forced.clients))
    return rows


def describe(result: Score) -> list[str]:
    """Return lines for a terminal: the goals, then each class."""
    rows = [("", "measured", "goal", "")]
    rows += [
        (what, figure, goal, "yes" if ok else "NO") for what, figure, goal, ok in compare_with_goals(result)
    ]
    widths = [max(len(row[n]) for row in rows) for n in range(3)]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, [*widths, 3], strict=True)).rstrip()
             for row in rows]  # fmt: skip
    return [*lines, "", *describe_classes(result)]


def describe_classes(result: Score) -> list[str]:
    """Return a line for each class: how many were found, and how fast."""
    lines = [f"{'class':<20} {'found':>12} {'requests to detect':>20} {'seconds to detect':>20}",
             f"{'':<20} {'':>12} {'median / most':>20} {'median / most':>20}"]  # fmt: skip
    for name, one in sorted(result.classes.items()):
        found = f"{len(one.requests)} of {one.clients}"
        requests = f"{median(one.requests):g} / {max(one.requests)}" if one.requests else "-"
        seconds = f"{median(one.seconds):.1f} / {max(one.seconds):.1f}" if one.seconds else "-"
        lines.append(f"{name or '(none)':<20} {found:>12} {requests:>20} {seconds:>20}")
    return lines


def _read_csv(path: Path | str, needed: Sequence[str]) -> list[dict[str, str]]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            missing = [name for name in needed if name not in (rows.fieldnames or ())]
            if missing:
                raise OptionError(
                    "COLUMNS_MISSING",
                    f"{path} has no column {', '.join(missing)}.",
                    hint="The first line must name the columns.",
                )
            return list(rows)
    except OSError as error:
        raise OptionError(
            "FILE_UNREADABLE",
            f"{path} cannot be read: {error.strerror}.",
            hint="Check its name and permissions.",
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise OptionError(
            "FILE_UNREADABLE", f"{path} cannot be read: {error}.", hint="Give a CSV file in UTF-8."
        ) from error
