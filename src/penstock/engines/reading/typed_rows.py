"""Typed columns in a task: decodes rows as they come from the reader, and deals with bad ones.

Rule: the brokers have a dead letter before its batch goes on, so a task that succeeds has lost none. A
repeated task writes them again under the same keys (topic/partition/offset), so a compacted dead-letter
topic keeps each once. Rows are handled in columns, not one by one.

The allowed share of bad rows refers to everything that the task reads, so it is checked at the task's end.
Bad rows come in clusters, and a share of the rows so far would fail a task that begins with a cluster. Before
its end a task fails only if the share will be exceeded whatever follows, so that with a wrong schema it does
not read everything first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import DecodeError
from penstock.core.loggers import get_logger
from penstock.core.typed_columns import (
    DEAD_LETTER,
    ERROR_COLUMN,
    FAIL,
    SOURCES,
    ColumnDecoder,
    Decoded,
    Quota,
    TypedColumns,
)
from penstock.engines.reading.dead_letter_topic import LetterBox

if TYPE_CHECKING:
    from penstock.core.client.client_settings import ClientSettings

log = get_logger(__name__)

#: The decoders whose kernels are ready in this process.
_READY: set[type] = set()


class TypedRows:
    """One task's decoding: iterate over `convert`, and call `close` at the end.

    `find_most` returns the most rows that the task can read, given how many it has read; None if unknown.
    """

    def __init__(
        self,
        typed: TypedColumns,
        client: ClientSettings,
        find_most: Callable[[int], int | None] | None = None,
    ) -> None:
        self._typed, self._client = typed, client
        self._find_most = find_most
        self._most: int | None = None
        self._rows = self._bad = 0
        self._first: dict[str, Any] = {}  # where the first bad row is, and the reason
        self._box: LetterBox | None = None

    def convert(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns: dict[str, pa.Array] = {name: batch.column(name) for name in batch.schema.names}
            errors: pa.Array | None = None
            for name, decoder in self._typed.decoders.items():
                decoded = decode_in_turn(decoder, columns[SOURCES[name]])
                columns[name] = decoded.column
                if decoded.errors is not None:
                    errors = _join_errors(errors, SOURCES[name], decoded.errors)
            self._rows += batch.num_rows
            if errors is not None:
                self._settle(batch, errors)
            if ERROR_COLUMN in self._typed.output:
                columns[ERROR_COLUMN] = pa.nulls(batch.num_rows, pa.string()) if errors is None else errors
            chosen = self._typed.output
            yield pa.RecordBatch.from_arrays([columns[name] for name in chosen], names=list(chosen))
        quota = self._typed.quota
        if quota is not None and not quota.allows(self._bad, self._rows):
            raise _too_many(self._first, self._bad, self._rows, quota)
        if quota is not None and quota.is_overridden(self._bad, self._rows):
            log.warning("%s", _tell_overridden(self._bad, self._rows, quota))

    def close(self) -> None:
        if self._box is not None:
            self._box.close()

    def _settle(self, batch: pa.RecordBatch, errors: pa.Array) -> None:
        bad = np.flatnonzero(errors.is_valid().to_numpy(zero_copy_only=False))
        self._bad += bad.size
        if self._typed.on_error == FAIL:
            raise _explain(batch, errors, int(bad[0]), bad.size)
        self._first = self._first or _facts(batch, errors, int(bad[0]))
        quota = self._typed.quota
        if quota is not None and self._bad > quota.floor and self._cannot_keep(quota):
            raise _too_many(self._first, self._bad, self._rows, quota)
        if self._typed.on_error == DEAD_LETTER:
            rows = pa.array(bad)
            self._open_box().write(batch.take(rows), errors.take(rows))

    def _cannot_keep(self, quota: Quota) -> bool:
        """Return whether the bad rows so far are too many for all that the task can read."""
        if not quota.share:
            return True
        if self._find_most is not None:
            self._most, self._find_most = self._find_most(self._rows), None  # asked only once
        return self._most is not None and not quota.allows(self._bad, self._most)

    def _open_box(self) -> LetterBox:
        if self._box is None:
            assert self._typed.dead_letter_topic is not None
            self._box = LetterBox(self._client, self._typed.dead_letter_topic)
        return self._box


def decode_in_turn(decoder: ColumnDecoder, values: pa.Array) -> Decoded:
    """Return the decoded values. On a machine's first use one process compiles while the others wait."""
    kind = type(decoder)
    if kind in _READY:
        return decoder.decode(values)
    from penstock.kernels.compilation_lock import compile_in_turn

    decoded: list[Decoded] = []
    compile_in_turn(
        kind.__name__,
        kind.__module__,
        lambda: decoded.append(decoder.decode(values)),
        told="the kernels of a value format",
    )
    _READY.add(kind)
    return decoded[-1]


def _join_errors(before: pa.Array | None, source: str, errors: pa.Array) -> pa.Array:
    told = pc.binary_join_element_wise(pa.scalar(f"{source}: "), errors, "")
    if before is None:
        return told
    both = pc.binary_join_element_wise(before, told, "; ")
    return pc.coalesce(both, before, told)


def _facts(batch: pa.RecordBatch, errors: pa.Array, row: int) -> dict[str, Any]:
    facts = {name: batch.column(name)[row].as_py() for name in ("topic", "partition", "offset")}
    return {**facts, "reason": errors[row].as_py()}


def _explain(batch: pa.RecordBatch, errors: pa.Array, row: int, count: int) -> DecodeError:
    facts = _facts(batch, errors, row)
    more = f" It is the first of {count} in this batch of rows." if count > 1 else ""
    return DecodeError(
        "DECODE_FAILED",
        f"{facts['topic']}-{facts['partition']} offset {facts['offset']}: {facts['reason']}.{more}",
        hint="Set `onDecodeError` to `null` to go on with nulls, or to `deadLetter` to keep such records.",
        facts=facts,
    )


def _tell_overridden(bad: int, rows: int, quota: Quota) -> str:
    return (
        f"Of the {rows} records that this task has read, {bad} could not be decoded, more than the "
        f"{float(quota.share * 100):g} % of `decodeErrorQuota`. They are tolerated because "
        f"`decodeErrorFloor` lets each task tolerate {quota.floor} in any case; set it lower for the share "
        "to count."
    )


def _too_many(first: dict[str, Any], bad: int, rows: int, quota: Quota) -> DecodeError:
    facts = {**first, "bad": bad, "rows": rows, "floor": quota.floor, "share": float(quota.share)}
    return DecodeError(
        "DECODE_QUOTA_EXCEEDED",
        f"Of the {rows} records that this task has read, {bad} could not be decoded; {quota}. The first of "
        f"them is {facts['topic']}-{facts['partition']} offset {facts['offset']}: {facts['reason']}.",
        hint="The producers or the schema have probably changed: correct the schema. To tolerate more, raise "
        "`decodeErrorQuota`, or set it to `off`.",
        facts=facts,
    )
