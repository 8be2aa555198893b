"""Typed columns of a read: which of Kafka's columns are decoded, and what becomes of what cannot be.

Rule: the columns `keyData` and `valueData` stand beside Kafka's own; with `onDecodeError` other than `fail` a
column `decodeError` says why they are null. A bad row is never left out of the frame, whatever else is done
with it: counts must add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.columns import ColumnDecoder
from penstock.core.model import OFFERED

#: Typed column to the column of Kafka's it is decoded from, in the order of the frame.
SOURCES: Mapping[str, str] = {"keyData": "key", "valueData": "value"}
ERROR_COLUMN = "decodeError"

FAIL, NULL, DEAD_LETTER = "fail", "null", "deadLetter"

#: What a dead letter is made of, and what an error names.
_PLACE = ("topic", "partition", "offset")
_LETTER = ("key", "value", "timestamp", "headers", *_PLACE)


@dataclass(frozen=True, slots=True)
class TypedColumns:
    """What a task decodes. `output` is the frame; `quota` bad rows in one task are borne, one more is not."""

    decoders: Mapping[str, ColumnDecoder]
    output: tuple[str, ...]
    on_error: str = FAIL
    quota: int | None = None
    dead_letter_topic: str | None = None

    @property
    def fetched(self) -> tuple[str, ...]:
        """The columns of Kafka's that the reader must give."""
        wanted = {name for name in self.output if name in OFFERED}
        wanted |= {SOURCES[name] for name in self.decoders}
        wanted |= set(_LETTER if self.on_error == DEAD_LETTER else _PLACE)
        return tuple(name for name in OFFERED if name in wanted)

    def spark_type(self, name: str) -> str:
        if name == ERROR_COLUMN:
            return "string"
        return self.decoders[name].spark_type if name in self.decoders else OFFERED[name]
