"""Typed columns: how the bytes of a column become values, and what a decoder returns.

Rule: every input value gives exactly one row, good, null or bad. A bad row says why and never shows the
value. Why not raise at the first bad value: one broken producer would stop every read, and a reader that
merely left the row out could not prove that nothing was lost.

A decoder is a frozen dataclass: it travels inside work orders to the workers that fetch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import pyarrow as pa

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
        """Decode a `pa.binary()` array; it may hold nulls, be a slice or be empty."""
