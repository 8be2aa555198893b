r"""Decodes text values: checks that they are UTF-8 and does nothing else.

Rule: bytes that are not UTF-8 make a bad row. They do not become replacement characters, which would be
different data that looks right. If all rows are good, the bytes are not copied.

>>> import pyarrow as pa
>>> StringDecoder().decode(pa.array([b"ok", b"\xff", None])).errors.to_pylist()
[None, 'the value is not UTF-8', None]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.typed_columns import Decoded

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class StringDecoder:
    """A decoder of UTF-8 text."""

    @property
    def spark_type(self) -> str:
        return "string"

    def decode(self, values: pa.Array) -> Decoded:
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            return Decoded(values.cast(pa.string()))
        except pa.ArrowInvalid:
            from penstock.formats.text.utf8_kernel import find_text  # loads numba

            good = find_text(values)
        bad = pc.and_(pc.invert(good), pc.is_valid(values))
        column = pc.if_else(good, values, pa.scalar(None, pa.binary())).cast(pa.string())
        reason = pa.scalar("the value is not UTF-8", pa.string())
        return Decoded(column, pc.if_else(bad, reason, pa.scalar(None, pa.string())))
