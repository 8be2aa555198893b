"""Random option sets for both connectors, each made from (seed, number) alone.

Rule: a set selects topics that exist, names only partitions they have, and orders its start before its end,
so that most sets read rows. Then at most one thing is broken on purpose. What the broker alone decides (no
record that young, rows trimmed away) may make any set fail, and both connectors must agree about that too.
Sets are made without a broker, so they can be counted, and any set can be repeated alone.

Why not a hypothesis strategy: it prefers small and repeated examples (of 250 sets, 94 came twice), and each
set costs two Spark jobs. With one fault per set there is nothing to shrink either.

    make_option_set(seed=7, number=3).resolve("prefix-", "broker:9092")
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.parity.option_values import (
    END_FAULTS,
    FINE,
    LOSSES,
    ORDER_FAULTS,
    REFUSED,
    SELECTION_FAULTS,
    START_FAULTS,
    VALUE_FAULTS,
)
from tests.parity.reading import QUICK
from tests.parity.topics import SHAPES, STEP_MS, T0, Shape

BY_NAME = {shape.name: shape for shape in SHAPES}
#: Patterns and the topics they match, wherever in a name a match may begin and end (see `differences`).
PATTERNS: dict[str, tuple[str, ...]] = {
    "~orders-.*": ("orders-eu", "orders-US"),
    "~orders-(eu|us)": ("orders-eu",),
    "(?i)~ORDERS-us": ("orders-US",),
    "^~[a-z&&[^s]]+$": ("plain", "open", "empty", "jumbled", "trimmed", "compacted"),
    "~[A-Z]\\w+\\.\\p{Upper}+_\\d": ("Upper.CASE_1",),
    "^(~s(kew|tamped)|__consumer_offsets)$": ("skew", "stamped"),
    "^~order$": (),
    "\\Q~plain\\E": ("plain",),
}
YOUNG_MS = T0 + 200 * STEP_MS  # later than every record except those the broker stamps
FUTURE_MS = 4_000_000_000_000  # later than every record
#: Every option that a set may have; the reports count each.
KEYS = (
    *("assign", "subscribe", "subscribePattern"),
    *("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets"),
    *("startingOffsetsByTimestampStrategy",),
    *("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets"),
    *FINE,
    *REFUSED,
)

Place = tuple[Shape, int]
Options = dict[str, str]


@dataclass(frozen=True)
class OptionSet:
    """Options as a user would write them, with `~` before topic names, and what was broken on purpose."""

    options: tuple[tuple[str, str], ...]
    fault: str = ""

    def resolve(self, prefix: str, bootstrap: str) -> Options:
        """Return the options for one session's topics and broker."""
        given = {key.lower() for key, _ in self.options}
        basis = {**QUICK, "kafka.bootstrap.servers": bootstrap}
        unset = {key: text for key, text in basis.items() if key.lower() not in given}
        unique = secrets.token_hex(4)
        own = {
            key: text.replace("~", prefix).replace("?", unique, key == "kafka.group.id")
            for key, text in self.options
        }
        return {**unset, **own}

    @property
    def cap(self) -> int | None:
        """Return the given `maxRecordsPerPartition`, if it is a number."""
        text = self._find("maxRecordsPerPartition")
        return int(text) if text.isdecimal() else None

    @property
    def cuts(self) -> bool:
        """Return whether an option asks for ranges to be cut."""
        return bool(self._find("minPartitions") or self._find("maxRecordsPerPartition"))

    def _find(self, wanted: str) -> str:
        return next((text for key, text in self.options if key.lower() == wanted.lower()), "")

    def keys(self) -> set[str]:
        """Return the options used, spelled as in `KEYS`."""
        known = {key.lower(): key for key in KEYS}
        return {known[key.lower()] for key, _ in self.options if key.lower() in known}


def make_option_set(*, seed: int, number: int) -> OptionSet:
    """Return the option set for a seed and number, always the same one."""
    random = Random(f"{seed} {number}")
    options, places = _select(random)
    options.update(_place(random, places))
    for key, texts in FINE.items():
        if random.random() < 0.15:
            options[key] = random.choice(texts)
    fault = random.choice(["", "", "", "", "", *FAULTS, "refused"])
    if fault:
        options = FAULTS[fault](random, options)
    return OptionSet(tuple(_spell(random, options)), fault)


# --- what is read -----------------------------------------------------------------------------------


def _select(random: Random) -> tuple[Options, list[Place]]:
    """Return one of the three ways to select, and the partitions that it selects."""
    way = random.choice(["subscribe", "assign", "subscribePattern"])
    if way == "subscribePattern":
        pattern = random.choice(sorted(PATTERNS))
        return {way: pattern}, _list_places([BY_NAME[name] for name in PATTERNS[pattern]])
    shapes = random.sample(SHAPES, random.choice([1, 1, 2, 3]))
    if way == "subscribe":
        names = [f"~{shape.name}" for shape in shapes]
        repeated = random.choice([names, [*names, names[0]]])
        return {way: random.choice([",", ", "]).join(repeated)}, _list_places(shapes)
    chosen = {
        shape.name: random.sample(shape.partitions, random.randint(1, len(shape.ends))) for shape in shapes
    }
    absent = random.choice([[], [], [9]])  # a partition that does not exist is left out
    text = json.dumps({f"~{name}": [*numbers, *absent] for name, numbers in chosen.items()})
    return {way: text}, [(BY_NAME[name], number) for name, numbers in chosen.items() for number in numbers]


def _list_places(shapes: list[Shape]) -> list[Place]:
    return [(shape, number) for shape in shapes for number in shape.partitions]


# --- from where to where ----------------------------------------------------------------------------


def _place(random: Random, places: list[Place]) -> Options:
    """Return start and end, each in any form, sometimes in two forms, of which the stronger must win."""
    options: Options = {}
    span = sorted((random.randint(0, 100), random.randint(0, 100)))
    for side, percent in (("starting", span[0]), ("ending", span[1])):
        for form in random.sample(
            ["word", "offsets", "offsets", "time", "times"], random.choice([0, 1, 1, 2])
        ):
            options.update(_make_position(random, side, form, percent, places))
    if "startingTimestamp" in options and "endingTimestamp" in options:
        # One time after another, for all partitions: see `differences`.
        times = sorted((options["startingTimestamp"], options["endingTimestamp"]))
        options["startingTimestamp"], options["endingTimestamp"] = times
    if random.random() < 0.3:
        options["startingOffsetsByTimestampStrategy"] = random.choice(["error", "latest", "latest", "LATEST"])
    return options


def _make_position(random: Random, side: str, form: str, percent: int, places: list[Place]) -> Options:
    word, signal = ("earliest", -2) if side == "starting" else ("latest", -1)
    if form == "word":
        return {f"{side}Offsets": random.choice([word, word.upper(), word.title()])}
    if form == "time":
        return {f"{side}Timestamp": str(_choose_time(random, percent))}
    by_topic: dict[str, dict[str, int]] = {}
    for shape, number in places:
        exact = shape.start(number) + (shape.ends[number] - shape.start(number)) * percent // 100
        value = _choose_time(random, percent) if form == "times" else random.choice([exact, exact, signal])
        by_topic.setdefault(f"~{shape.name}", {})[str(number)] = value
    key = f"{side}Offsets" + ("ByTimestamp" if form == "times" else "")
    return {key: json.dumps(by_topic)}


def _choose_time(random: Random, percent: int) -> int:
    """Return a time: mostly within the first records, which small partitions have, or before or after."""
    within = [T0 + percent * 20 * STEP_MS // 100, T0 + percent * 4 * STEP_MS // 100 + 1]
    return random.choice([*within, *within, *within, T0 - 1, YOUNG_MS, FUTURE_MS])


# --- what is wrong ----------------------------------------------------------------------------------


def _keep_fine(options: Options) -> Options:
    """Drop selection, start and end, so that a fault cannot hide behind a stronger option."""
    return {key: text for key, text in options.items() if key in FINE}


def _break_selection(random: Random, options: Options) -> Options:
    return {**_keep_fine(options), **random.choice(SELECTION_FAULTS)}


def _break_start(random: Random, options: Options) -> Options:
    return {**_keep_fine(options), "subscribe": "~plain", **dict([random.choice(START_FAULTS)])}


def _break_end(random: Random, options: Options) -> Options:
    return {**_keep_fine(options), "subscribe": "~plain", **dict([random.choice(END_FAULTS)])}


def _break_value(random: Random, options: Options) -> Options:
    # Some values are checked only when a task opens its client, so there must be a task, and nothing else
    # wrong.
    return {**_keep_fine(options), "subscribe": "~plain", **dict([random.choice(VALUE_FAULTS)])}


def _add_refused(random: Random, options: Options) -> Options:
    """Add one kind of fault; several settings may be wrong, because any of them may be reported first."""
    keys = random.sample(sorted(REFUSED), random.randint(1, len(REFUSED)))
    return {**options, **{key: random.choice(REFUSED[key]) for key in keys}}


def _swap_positions(random: Random, options: Options) -> Options:
    """Put a start behind its end or name other partitions, visibly in the options or only in the log."""
    return {**_keep_fine(options), "subscribe": "~plain", **random.choice(ORDER_FAULTS)}


def _lose_rows(random: Random, options: Options) -> Options:
    """Ask for offsets that were trimmed away, or that lie behind the end."""
    return {**_keep_fine(options), "subscribe": "~trimmed", **random.choice(LOSSES)}


FAULTS: dict[str, Callable[[Random, Options], Options]] = {
    "selection": _break_selection,
    "start": _break_start,
    "end": _break_end,
    "value": _break_value,
    "refused": _add_refused,
    "order": _swap_positions,
    "loss": _lose_rows,
}


# --- spelling ---------------------------------------------------------------------------------------


def _spell(random: Random, options: Options) -> list[tuple[str, str]]:
    """Return our options with names in any case, and Java's settings as Java writes them."""
    change = random.choice([str, str, str.lower, str.upper, str.swapcase])
    return [(key if key.startswith("kafka.") else change(key), text) for key, text in options.items()]
