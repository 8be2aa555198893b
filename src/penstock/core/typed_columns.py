"""Typed columns of a read: which of Kafka's columns are decoded, by what, and how bad values are handled.

Rule: the columns `keyData` and `valueData` are added to Kafka's own. With `onDecodeError` other than `fail` a
column `decodeError` says what was bad and never shows the value. Each value gives exactly one row, good, null
or bad, because counts must add up. Why not raise at the first bad value: one broken producer would stop every
read, and a reader that merely left the row out could not prove that nothing was lost.

A decoder is a frozen dataclass: it travels inside work orders to the workers that fetch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from penstock.core.model import OFFERED

if TYPE_CHECKING:
    import pyarrow as pa

#: The Kafka column that each typed column is decoded from, in the order of the frame.
SOURCES: Mapping[str, str] = {"keyData": "key", "valueData": "value"}
ERROR_COLUMN = "decodeError"

FAIL, NULL, DEAD_LETTER = "fail", "null", "deadLetter"

#: The columns that identify a record in a dead letter and in an error.
_PLACE = ("topic", "partition", "offset")
_LETTER = ("key", "value", "timestamp", "headers", *_PLACE)
#: The longest reason, in characters: one short line, shown beside every bad row.
MAX_REASON = 200


@dataclass(frozen=True, slots=True)
class Decoded:
    """One column of typed values, as long as its input.

    `column` is null where the input was null (a tombstone) or bad; where only some fields of a value are bad,
    it may hold the others. `errors` is None when nothing was bad, otherwise null where good and a short
    reason, never the payload, where bad.
    """

    column: pa.Array
    errors: pa.StringArray | None = None


@runtime_checkable
class ColumnDecoder(Protocol):
    """A decoder of binary values into a typed column. Picklable, hashable, safe to use from two threads."""

    @property
    def spark_type(self) -> str:
        """Return Spark's DDL of the column, for example `struct<id:bigint,name:string>`."""

    def decode(self, values: pa.Array) -> Decoded:
        """Return the typed values of a `pa.binary()` array, which may hold nulls, be a slice or be empty."""


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
    """What a task decodes. `output` are the frame's columns; `quota` bounds bad rows, unless it is None."""

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
