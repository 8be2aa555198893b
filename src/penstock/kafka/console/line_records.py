"""Turns the lines that a console producer reads into records, in bulk.

Rules: only a newline ends a record; a last line without one counts; bytes pass unchanged, whether they are
valid text or not. Lines are not handled one by one: `cut_lines` cuts a whole block, and Arrow splits off the
keys.

>>> cutter = LineCutter()
>>> cutter.cut(b"one\\ntw").to_pylist(), cutter.cut(b"o\\n\\nend").to_pylist(), cutter.rest().to_pylist()
([b'one'], [b'two', b''], [b'end'])
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import SinkError
from penstock.kafka.records.record_schema import HEADERS
from penstock.kernels.newline_cutting import cut_lines

#: A longer line is not a message: brokers accept 1 MB unless configured otherwise.
LONGEST_LINE_BYTES = 100 << 20


class LineCutter:
    """Cuts a stream of blocks into lines; whatever follows the last newline waits for the next block."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        self._begun_bytes = 0

    def cut(self, block: bytes) -> pa.Array:
        """Return the lines that end in this block."""
        last = block.rfind(b"\n") + 1
        if not last:
            self._keep(block)
            return pa.array([], pa.large_binary())
        whole = b"".join([*self._begun, block[:last]])
        self._begun, self._begun_bytes = [], 0
        self._keep(block[last:])
        return cut_lines(whole)[0]

    def rest(self) -> pa.Array:
        """Return the last line if it did not end with a newline, else nothing."""
        rest, self._begun, self._begun_bytes = b"".join(self._begun), [], 0
        return pa.array([rest] if rest else [], pa.large_binary())

    def _keep(self, piece: bytes) -> None:
        if not piece:
            return
        self._begun.append(piece)
        self._begun_bytes += len(piece)
        if self._begun_bytes > LONGEST_LINE_BYTES:
            raise SinkError(
                "LINE_TOO_LONG",
                f"A line is longer than {LONGEST_LINE_BYTES} bytes.",
                hint="Each line becomes one message; check that the input is text with line ends.",
                facts={"limit_bytes": LONGEST_LINE_BYTES},
            )


def make_records(
    lines: pa.Array,
    *,
    separator: bytes | None = None,
    partition: int | None = None,
    timestamp_ms: int | None = None,
    headers: Sequence[tuple[str, bytes | None]] = (),
) -> pa.RecordBatch:
    """Return the columns to write. With a separator, the text before its first occurrence is the key."""
    columns: dict[str, pa.Array] = {"value": lines}
    if separator is not None:
        columns["key"], columns["value"] = _split_keys(lines, separator)
    if partition is not None:
        columns["partition"] = pa.array(np.full(len(lines), partition, np.int32))
    if timestamp_ms is not None:
        columns["timestamp"] = pa.array(np.full(len(lines), timestamp_ms, np.int64))
    if headers:
        entries = [{"key": name, "value": value} for name, value in headers]
        columns["headers"] = pa.array([entries], HEADERS).take(pa.array(np.zeros(len(lines), np.int64)))
    return pa.record_batch(columns)


def find_keyless(lines: pa.Array, separator: bytes) -> int | None:
    """Return the index of the first line without a separator."""
    places = pc.find_substring(lines, pattern=separator).to_numpy(zero_copy_only=False)
    lacking = np.flatnonzero(places < 0)
    return int(lacking[0]) if lacking.size else None


def _split_keys(lines: pa.Array, separator: bytes) -> tuple[pa.Array, pa.Array]:
    both = pc.split_pattern(lines, pattern=separator, max_splits=1).flatten()
    pairs = np.arange(len(lines), dtype=np.int64) * 2  # every line has a separator, so two parts
    return both.take(pa.array(pairs)), both.take(pa.array(pairs + 1))
