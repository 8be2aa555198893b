"""Finds the schemas of the ids in a batch of values: what is known, what to ask, what counts as unknown.

Rules: an id counts as unknown only after two questions, some time apart, because a replica of a registry may
learn of a new schema late, and its rows are good. The meaning of an id never changes, so schemas are kept for
the life of the process (a bounded number). An unknown id is not asked for again for as long as it has already
been unknown, at most a minute. Five bytes of noise look like an id, so one call is bounded, in unknown ids
and in time. Beyond either bound it fails and judges no row.

Why the bound follows the quota of bad rows: each id has at least one row. More unknown ids than allowed bad
rows would fail the task anyway, and fewer do not fail here on any worker: one process does not know what
another has learned. Of a share only the floor counts, because the number of the task's rows is unknown here.
So a large task that would have tolerated them may fail here, and the error says what to set. Why not treat
the remaining ids as unknown: one producer of noise would turn the good rows of others into bad ones.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from penstock.core.errors import DecodeError
from penstock.formats.registry.schema_registry import RegisteredSchema, Registry, RegistrySettings

MAX_KEPT = 1000
MAX_UNKNOWN_KEPT = 50_000
#: How long one call may ask: twice for each of the 65,536 rows of a batch, at 2 ms each, and some more.
LOOKUP_TIMEOUT_S = 300.0
LONGEST_BELIEF_S = 60.0
#: Settings, id, and whether the schema is wanted as a file descriptor.
_Key: TypeAlias = tuple[RegistrySettings, int, bool]


@dataclass(frozen=True, slots=True)
class _Absence:
    """The first and the last time that an id was asked for and not found."""

    since: float
    last: float

    def is_settled(self, least_s: float) -> bool:
        """Return whether the last question came late enough after the first to count."""
        return self.last - self.since >= least_s

    def is_believed(self, now: float, least_s: float) -> bool:
        """Return whether rows with this id are bad without another question."""
        known_s = max(self.last - self.since, 1.0)
        return self.is_settled(least_s) and now < self.last + min(known_s, LONGEST_BELIEF_S)


class _Kept:
    """What this process has learned from registries."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._schemas: OrderedDict[_Key, RegisteredSchema] = OrderedDict()
        self._absences: OrderedDict[_Key, _Absence] = OrderedDict()

    def find(self, key: _Key) -> tuple[RegisteredSchema | None, _Absence | None]:
        with self._lock:
            if key in self._schemas:
                self._schemas.move_to_end(key)
            return self._schemas.get(key), self._absences.get(key)

    def keep(self, key: _Key, schema: RegisteredSchema | None, asked_at: float) -> _Absence | None:
        with self._lock:
            before = self._absences.pop(key, None)
            if schema is not None:
                self._schemas[key] = schema
                while len(self._schemas) > MAX_KEPT:
                    self._schemas.popitem(last=False)
                return None
            if before is not None and asked_at > before.last + LONGEST_BELIEF_S + 1:
                before = None  # too long ago to count as the first of two questions
            made = self._absences[key] = _Absence(asked_at if before is None else before.since, asked_at)
            while len(self._absences) > MAX_UNKNOWN_KEPT:
                self._absences.popitem(last=False)
            return made


_kept = _Kept()


def find_schemas(
    settings: RegistrySettings, ids: Iterable[int], *, serialized: bool = False
) -> dict[int, RegisteredSchema | None]:
    """Return the schema of each id, None if the registry has none. Ask for them in the order of `ids`."""
    deadline = time.monotonic() + LOOKUP_TIMEOUT_S
    least_s = settings.second_look_ms / 1000
    found: dict[int, RegisteredSchema | None] = {}
    open_ids: deque[int] = deque()
    now = time.monotonic()
    for each in ids:
        found[each], absence = _kept.find((settings, each, serialized))
        if found[each] is None and not (absence is not None and absence.is_believed(now, least_s)):
            open_ids.append(each)
    if not open_ids:
        return found
    unknown = sum(schema is None for schema in found.values()) - len(open_ids)
    with Registry(settings) as registry:

        def ask(schema_id: int, left: int) -> _Absence | None:
            asked_at = time.monotonic()
            if asked_at >= deadline:
                raise _too_slow(left)
            schema = found[schema_id] = registry.find_schema(schema_id, serialized=serialized)
            return _kept.keep((settings, schema_id, serialized), schema, asked_at)

        while open_ids:
            if unknown > settings.max_unknown_ids:
                raise _too_many(unknown, settings.max_unknown_ids, len(open_ids))
            doubtful: dict[int, float] = {}
            while open_ids and unknown + len(doubtful) <= settings.max_unknown_ids:
                absence = ask(open_ids[0], len(open_ids))
                each = open_ids.popleft()
                if absence is not None and absence.is_settled(least_s):
                    unknown += 1
                elif absence is not None:
                    doubtful[each] = absence.since + least_s
            for n, (each, due) in enumerate(doubtful.items()):
                while (wait_s := due - time.monotonic()) > 0:
                    time.sleep(wait_s)
                unknown += ask(each, len(doubtful) - n + len(open_ids)) is not None
    return found


def _too_many(unknown: int, allowed: int, left: int) -> DecodeError:
    return DecodeError(
        "SCHEMA_IDS_UNKNOWN",
        f"The schema registry does not know {unknown} schema ids of one batch of rows, and no more than "
        f"{allowed} may be unknown; {left} more were not asked for. No row was called bad.",
        hint="A producer probably writes values that do not begin with a schema id: find it. To read past "
        "them, set `onDecodeError` to `null` or `deadLetter`, and `decodeErrorFloor` to at least the number "
        "of such values that one task reads, or `decodeErrorQuota` to that number or to `off`.",
        facts={"unknown": unknown, "allowed": allowed, "left": left},
    )


def _too_slow(left: int) -> DecodeError:
    return DecodeError(
        "SCHEMA_IDS_UNSETTLED",
        f"The schema registry was asked for the schema ids of one batch of rows for {LOOKUP_TIMEOUT_S:g} s, "
        f"and {left} of them are still open. No row was called bad.",
        hint="Check how long the registry takes to answer, and whether a producer writes values that do "
        "not begin with a schema id. Another attempt asks for what is left if it runs in the same Python "
        "process, and for all of them if it does not.",
        facts={"left": left},
        retriable=True,
    )
