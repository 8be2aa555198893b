"""Typed columns in a task: rows are decoded as they come from the reader, and bad ones are settled.

Rule: a dead letter is with the brokers before its batch goes on, so a task that ends well has lost none; one
that is repeated writes them again under the same key (topic/partition/offset), so a compacted dead-letter
topic holds each once. Rows are settled in columns, not one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.columns import ColumnDecoder, Decoded
from penstock.core.errors import DecodeError
from penstock.core.typed import DEAD_LETTER, ERROR_COLUMN, FAIL, SOURCES, TypedColumns

if TYPE_CHECKING:
    from penstock.core.client import ClientSettings
    from penstock.kafka.writer import Writer

#: Formats whose kernels this process has.
_READY: set[str] = set()
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])


class TypedRows:
    """One task's decoding: `convert` for each batch; `close` at the end."""

    def __init__(self, typed: TypedColumns, client: ClientSettings) -> None:
        self._typed, self._client = typed, client
        self._bad = 0
        self._writer: Writer | None = None

    def convert(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns: dict[str, pa.Array] = {name: batch.column(name) for name in batch.schema.names}
            errors: pa.Array | None = None
            for name, decoder in self._typed.decoders.items():
                decoded = decode_in_turn(decoder, columns[SOURCES[name]])
                columns[name] = decoded.column
                if decoded.errors is not None:
                    errors = _join_errors(errors, SOURCES[name], decoded.errors)
            if errors is not None:
                self._settle(batch, errors)
            if ERROR_COLUMN in self._typed.output:
                columns[ERROR_COLUMN] = pa.nulls(batch.num_rows, pa.string()) if errors is None else errors
            chosen = self._typed.output
            yield pa.RecordBatch.from_arrays([columns[name] for name in chosen], names=list(chosen))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _settle(self, batch: pa.RecordBatch, errors: pa.Array) -> None:
        bad = np.flatnonzero(errors.is_valid().to_numpy(zero_copy_only=False))
        self._bad += bad.size
        if self._typed.on_error == FAIL:
            raise _explain(batch, errors, int(bad[0]), bad.size)
        if self._typed.quota is not None and self._bad > self._typed.quota:
            raise _too_many(batch, errors, int(bad[0]), self._bad, self._typed.quota)
        if self._typed.on_error == DEAD_LETTER:
            topic = self._typed.dead_letter_topic
            assert topic is not None
            rows = pa.array(bad)
            self._open_writer().write(topic, make_letters(batch.take(rows), errors.take(rows)))

    def _open_writer(self) -> Writer:
        from penstock.kafka.writer import Writer

        if self._writer is None:
            self._writer = Writer(replace(self._client, client_id=f"{self._client.client_id}-dead-letters"))
        return self._writer


def decode_in_turn(decoder: ColumnDecoder, values: pa.Array) -> Decoded:
    """Decode; the first time on a machine, one process compiles while the others wait for what it makes."""
    kind = type(decoder).__name__
    if kind in _READY:
        return decoder.decode(values)
    from penstock.formats.jit import source_stamp
    from penstock.kafka.records.warmup import compile_in_turn

    decoded: list[Decoded] = []
    compile_in_turn(f"{kind}|{source_stamp()[0]}", lambda: decoded.append(decoder.decode(values)))
    _READY.add(kind)
    return decoded[-1]


def make_letters(rows: pa.RecordBatch, errors: pa.Array) -> pa.RecordBatch:
    """The records of a dead-letter topic: original value, a key that names the place, provenance headers."""
    place = {name: pc.cast(rows.column(name), pa.string()) for name in ("topic", "partition", "offset")}
    key = pc.binary_join_element_wise(place["topic"], place["partition"], place["offset"], "/")
    provenance: dict[str, pa.Array] = {
        **{f"penstock.{name}": pc.cast(each, pa.binary()) for name, each in place.items()},
        "penstock.timestamp": pc.cast(
            pc.strftime(rows.column("timestamp"), "%Y-%m-%dT%H:%M:%SZ"), pa.binary()
        ),
        "penstock.error": pc.cast(errors, pa.binary()),
        "penstock.key": rows.column("key"),
    }
    return pa.RecordBatch.from_arrays(
        [
            pc.cast(key, pa.binary()),
            rows.column("value"),
            _add_headers(provenance, rows.column("headers")),
        ],
        names=["key", "value", "headers"],
    )


def _add_headers(provenance: dict[str, pa.Array], original: pa.Array) -> pa.Array:
    """Ours first, then those the record came with."""
    count, ours = len(original), len(provenance)
    lengths = pc.fill_null(pc.list_value_length(original), 0).to_numpy(zero_copy_only=False)
    names = pa.concat_arrays([pa.repeat(name, count) for name in provenance])
    made = pa.StructArray.from_arrays([names, pa.concat_arrays(provenance.values())], fields=list(_HEADER))
    given = pc.list_flatten(original).cast(_HEADER)
    offsets = np.concatenate([[0], np.cumsum(lengths + ours)]).astype(np.int32)
    row = np.repeat(np.arange(count), lengths + ours)
    within = np.arange(offsets[-1]) - offsets[row]
    first = np.concatenate([[0], np.cumsum(lengths)])[row]
    index = np.where(within < ours, within * count + row, ours * count + first + within - ours)
    values = pa.concat_arrays([made, given]).take(pa.array(index))
    return pa.ListArray.from_arrays(pa.array(offsets), values)


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


def _too_many(batch: pa.RecordBatch, errors: pa.Array, row: int, count: int, quota: int) -> DecodeError:
    facts = {**_facts(batch, errors, row), "bad": count, "quota": quota}
    return DecodeError(
        "DECODE_QUOTA_EXCEEDED",
        f"{count} records of this task could not be decoded; {quota} are allowed (decodeErrorQuota). One of "
        f"them is {facts['topic']}-{facts['partition']} offset {facts['offset']}: {facts['reason']}.",
        hint="The producers or the schema have probably changed. Correct the schema, or raise the quota.",
        facts=facts,
    )
