"""Typed columns of a read: which of Kafka's columns are decoded, and how bad values are handled.

Rule: the columns `keyData` and `valueData` are added to Kafka's own; with `onDecodeError` other than `fail` a
column `decodeError` says what was bad. A bad row always stays in the frame, whatever else is done with it:
counts must add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from penstock.core.column_decoder import ColumnDecoder
from penstock.core.model import OFFERED

#: The Kafka column that each typed column is decoded from, in the order of the frame.
SOURCES: Mapping[str, str] = {"keyData": "key", "valueData": "value"}
ERROR_COLUMN = "decodeError"

FAIL, NULL, DEAD_LETTER = "fail", "null", "deadLetter"

#: The columns that identify a record in a dead letter and in an error.
_PLACE = ("topic", "partition", "offset")
_LETTER = ("key", "value", "timestamp", "headers", *_PLACE)


@dataclass(frozen=True, slots=True)
class Quota:
    """How many bad rows one task tolerates: a share of the rows it reads, and at least `floor`.

    Why a share: a number that suits a task of a million rows fails one of two million with the same data. Why
    a floor: in a task of ten rows, two bad ones are already a fifth.

    >>> Quota(floor=3, share=Fraction(1, 10)).allows(bad=5, rows=50)
    True
    """

    floor: int
    share: Fraction = Fraction(0)

    def allows(self, bad: int, rows: int) -> bool:
        return bad <= self.floor or bad <= self.share * rows

    def is_overridden(self, bad: int, rows: int) -> bool:
        """Return whether only the floor allows these bad rows, and the share does not."""
        return self.share * rows < bad <= self.floor and self.share > 0

    def __str__(self) -> str:
        if not self.share:
            return f"{self.floor} are allowed (`decodeErrorQuota`)"
        return (
            f"{float(self.share * 100):g} % are allowed (`decodeErrorQuota`), and {self.floor} in any case "
            "(`decodeErrorFloor`)"
        )


@dataclass(frozen=True, slots=True)
class TypedColumns:
    """What a task decodes. `output`: the frame's columns; `quota`: the tolerated bad rows, None for any."""

    decoders: Mapping[str, ColumnDecoder]
    output: tuple[str, ...]
    on_error: str = FAIL
    quota: Quota | None = None
    dead_letter_topic: str | None = None

    @property
    def fetched(self) -> tuple[str, ...]:
        """Return the Kafka columns that the reader must supply."""
        wanted = {name for name in self.output if name in OFFERED}
        wanted |= {SOURCES[name] for name in self.decoders}
        wanted |= set(_LETTER if self.on_error == DEAD_LETTER else _PLACE)
        return tuple(name for name in OFFERED if name in wanted)

    def spark_type(self, name: str) -> str:
        if name == ERROR_COLUMN:
            return "string"
        return self.decoders[name].spark_type if name in self.decoders else OFFERED[name]
