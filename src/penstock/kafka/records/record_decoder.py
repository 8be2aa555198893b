"""Decodes record batches as Kafka stores them into Arrow batches as Spark wants them.

Rule: progress is the end of the last whole batch in the buffer (`next_offset`), never the last row
decoded: a range may end on a transaction marker, an aborted row or a hole left by compaction, and a
reader that counts rows would wait there forever.

Why not one Arrow batch per record batch, or per partition: producers make batches of any size, from one
record to a gigabyte of decompressed text, and a stream's batch may have a few rows from each of hundreds of
partitions. Arrow batches are cut by rows and by bytes instead, so memory is bounded, no 32-bit position can
overflow, and Spark rarely pays its cost per Arrow batch. Column buffers are reused once the Arrow batch made
from them is released: fresh pages cost more than decoding does.

>>> decoder = RecordDecoder("events", 0, ("offset", "value"))
>>> decoder.schema.names
['offset', 'value']
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import crc32c
import numpy as np
import pyarrow as pa

from penstock.core.errors import CorruptBatchError, DecodeError, PenstockError
from penstock.kafka.records import record_decoding_kernel as k
from penstock.kafka.records.codecs import Decompressor
from penstock.kafka.records.record_schema import ARROW_TYPES

#: Rows and bytes at which an Arrow batch is cut. Measured in `bench/read`: with fewer rows, Spark's per-batch
#: cost comes more often; with more, rows fall out of the processor's cache on both sides.
MAX_ROWS = 65_536
MAX_BYTES = 4 << 20

#: Makes an uninitialised array of a number of items of a type.
NewMemory: TypeAlias = Callable[[int, Any], np.ndarray[Any, Any]]

_NOBODY = np.empty(0, np.int64)
_NO_ENTRIES = np.empty((0, 2), np.int64)
_REASONS = {
    k.BAD_LENGTH: "a length points outside the batch",
    k.BAD_VARINT: "a variable-length number is cut off or too long",
    k.BAD_OFFSET: "a record's offset is outside its batch or does not rise",
    k.BAD_COUNT: "the number of records does not match what is there",
    k.BAD_RECORD: "a record's size does not match its fields",
    k.BAD_HEADER: "a record header is malformed",
    k.BAD_MARKER: "a transaction marker is malformed",
    k.BAD_MAGIC: "its format version is unknown",
    k.BAD_ORDER: "its offsets overlap the batch before it",
}


class RecordDecoder:
    """Decodes fetch answers one after the other; `aim` switches to another partition."""

    def __init__(
        self,
        topic: str,
        partition: int,
        columns: Sequence[str],
        *,
        check_crcs: bool = True,
        max_rows: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.schema = pa.schema([(name, ARROW_TYPES[name]) for name in columns])
        self.next_offset: int | None = None
        self.leader_epoch: int | None = None
        self._topic, self._partition = topic, partition
        self._columns = tuple(columns)
        self._check_crcs = check_crcs
        self._max_rows, self._max_bytes = max_rows, max_bytes
        self._table = np.empty((256, k.TABLE_WIDTH), np.int64)
        self._count = 0
        self._buffer = np.empty(0, np.uint8)
        self._sets: list[_ColumnSet] = []
        self._new_memory: NewMemory = np.empty  # the fuzz run passes memory that ends at a protected page
        self._constants: dict[str, pa.Array] = {}
        self._decompressor = Decompressor()
        # The Arrow batch being filled: its buffers, how full they are, and where each partition's rows begin.
        self._filling: _ColumnSet | None = None
        self._state = _fresh_state()
        self._runs: list[tuple[int, str, int]] = []

    def aim(self, topic: str, partition: int) -> None:
        """Set the partition to which buffers opened from now on belong."""
        if (topic, partition) != (self._topic, self._partition):
            self._topic, self._partition = topic, partition
            self._constants = {}
        self.next_offset = self.leader_epoch = None

    def open(self, buffer: np.ndarray[Any, np.dtype[np.uint8]]) -> int:
        """Take one fetch answer's records, read only their batch headers, and return how many are whole.

        Set `next_offset` (None when not even one batch is whole). The caller can ask for the next answer
        now, before the rows of this one are decoded.
        """
        self._buffer, self._count = buffer, 0
        at, expected, code = 0, 0, k.FULL
        while code == k.FULL:
            if self._count == len(self._table):
                self._table = np.concatenate([self._table, np.empty_like(self._table)])
            found, at, code = k.scan(buffer, at, len(buffer), expected, self._table[self._count :])
            self._count += found
            if found:
                expected = int(self._table[self._count - 1, k.LAST_OFFSET]) + 1
        if code != k.DONE:
            self._fail(code, at)
        self.next_offset = expected if self._count else None
        if self._count:
            self.leader_epoch = int(self._table[self._count - 1, k.EPOCH])
        return self._count

    def first_after_epoch(self, epoch: int) -> int | None:
        """Return the offset in the opened buffer where batches of a later leader epoch begin."""
        later = self._table[: self._count, k.EPOCH] > epoch
        return int(self._table[int(np.argmax(later)), k.BASE_OFFSET]) if later.any() else None

    def rows(
        self, start: int, until: int, aborted: Sequence[tuple[int, int]] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Decode the visible rows with `start <= offset < until` of the opened buffer.

        Yield full Arrow batches; what does not fill one is kept for `rest` or for the rows of the next
        buffer. `aborted` is the answer's list of (producer id, first offset) when only committed rows are
        wanted, None when every data row is. Markers are never rows.
        """
        try:
            yield from self._rows(start, until, aborted)
        except PenstockError:
            self._drop_rest()  # half of a damaged buffer
            raise

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield the Arrow batch that is not full, if there is one."""
        if self._filling is not None and self._state[k.ROWS]:
            yield self._finish()
        self._drop_rest()

    def _rows(
        self, start: int, until: int, aborted: Sequence[tuple[int, int]] | None
    ) -> Iterator[pa.RecordBatch]:
        table = self._table[: self._count]
        first = int(np.searchsorted(table[:, k.LAST_OFFSET], start))
        last = int(np.searchsorted(table[:, k.BASE_OFFSET], until))
        table = table[first:last]
        if self._check_crcs:
            self._check(table)
        self._hide_invisible(table, aborted)
        # Compaction keeps the header of a batch whose records are all gone; it has nothing to decompress.
        bare = table[:, k.END] - table[:, k.BEGIN] == k.HEADER_SIZE
        table = table[(table[:, k.FLAGS] & k.SKIP == 0) & ~(bare & (table[:, k.COUNT] == 0))]
        columns = self._filling = self._filling or self._take()
        if not self._runs or self._runs[-1][1:] != (self._topic, self._partition):
            self._runs.append((int(self._state[k.ROWS]), self._topic, self._partition))
        for source, segments in self._segments(table):
            state = self._state
            state[k.SEGMENT], state[k.POSITION] = 0, -1
            while True:
                code = columns.fill(source, segments, state, start, until)
                if code == k.DONE:
                    break
                if code == k.FULL:
                    resume = state[[k.SEGMENT, k.RECORD, k.POSITION, k.PREVIOUS]]
                    yield self._finish()
                    columns, state = self._take_next(), self._state
                    state[[k.SEGMENT, k.RECORD, k.POSITION, k.PREVIOUS]] = resume
                elif code == k.OVERSIZED:
                    columns = self._filling = columns.grown(state)
                else:
                    self._fail(code, int(segments[state[k.SEGMENT], k.BEGIN]), state)

    def compile_fill(self) -> None:
        """Compile the filling kernel without a record (see `record_warmup`)."""
        self._take().fill(self._buffer, self._table[:0], _fresh_state(), 0, 0)

    # --- steps ----------------------------------------------------------------------------------------

    def _check(self, table: np.ndarray[Any, Any]) -> None:
        view = self._buffer.data
        crc = crc32c.crc32c
        for begin, end, stored in table[:, [k.BEGIN, k.END, k.CHECKSUM]].tolist():
            if crc(view[begin + 21 : end]) != stored:
                offset = int.from_bytes(view[begin : begin + 8], "big")
                raise CorruptBatchError(
                    "CHECKSUM_MISMATCH",
                    f"{self._topic}-{self._partition}: the record batch at offset {offset} does not match "
                    "its checksum.",
                    hint="Restore the broker's disk from another replica; `kafka.check.crcs=false`"
                    " reads it unchecked.",
                    facts={"topic": self._topic, "partition": self._partition, "offset": offset},
                )

    def _hide_invisible(self, table: np.ndarray[Any, Any], aborted: Sequence[tuple[int, int]] | None) -> None:
        if aborted:
            entries = np.array(sorted((first, pid) for pid, first in aborted), np.int64).reshape(-1, 2)
            producers, slots = np.unique(entries[:, 1], return_inverse=True)
        else:
            entries, producers, slots = _NO_ENTRIES, _NOBODY, _NOBODY
        code = k.hide_invisible(
            self._buffer, table, aborted is not None, np.ascontiguousarray(entries[:, 0]),
            slots, producers, np.zeros(len(producers), np.int64),
        )  # fmt: skip
        if code != k.DONE:
            self._fail(code, 0)

    def _segments(
        self, table: np.ndarray[Any, Any]
    ) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        """Yield runs of batches that lie in one piece of memory: (bytes, rows of the batch table)."""
        compressed = table[:, k.CODEC] != 0
        edges = np.flatnonzero(np.diff(compressed)) + 1
        for first, last in itertools.pairwise([0, *edges.tolist(), len(table)]):
            if first == last:
                return  # no batch is wanted
            rows = table[first:last].copy()
            rows[:, k.BEGIN] += k.HEADER_SIZE
            if compressed[first]:
                yield from self._decompressed(rows)
            else:
                yield self._buffer, rows

    def _decompressed(
        self, rows: np.ndarray[Any, Any]
    ) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        """Yield batches decompressed side by side, as many as the decompressor holds at once."""
        held = self._decompressor
        first, end = 0, 0
        for i, (begin, until, codec) in enumerate(rows[:, [k.BEGIN, k.END, k.CODEC]].tolist()):
            data = self._buffer[begin:until]
            try:
                after = held.append(codec, data, end)
                if after < 0:
                    yield held.held(end), rows[first:i]
                    first, end = i, 0
                    after = held.append(codec, data, 0)
            except CorruptBatchError as error:
                raise CorruptBatchError(
                    error.condition,
                    f"{self._topic}-{self._partition}: the record batch at offset {rows[i, k.BASE_OFFSET]}: "
                    f"{error.what}",
                    hint=error.hint,
                    facts={**error.facts, "topic": self._topic, "partition": self._partition},
                ) from error
            rows[i, k.BEGIN], rows[i, k.END] = end, after
            end = after
        yield held.held(end), rows[first:]

    def _take(self) -> _ColumnSet:
        for columns in self._sets:
            if columns.is_free():
                return columns
        columns = _ColumnSet(self._columns, self._max_rows, self._max_bytes, self._new_memory)
        self._sets = [*self._sets[-2:], columns]
        return columns

    def _take_next(self) -> _ColumnSet:
        """Return buffers for the rows after a full Arrow batch of the same partition."""
        self._filling, self._state = self._take(), _fresh_state()
        self._runs = [(0, self._topic, self._partition)]
        return self._filling

    def _drop_rest(self) -> None:
        self._filling, self._state, self._runs = None, _fresh_state(), []

    def _finish(self) -> pa.RecordBatch:
        """Return the rows so far as an Arrow batch."""
        assert self._filling is not None
        columns, state = self._filling, self._state
        rows = int(state[k.ROWS])
        arrays = [
            columns.array(name, state) if name in _ColumnSet.OWN else self._place(name, rows)
            for name in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _place(self, name: str, rows: int) -> pa.Array:
        """Return the column `topic` or `partition`."""
        if len(self._runs) == 1 and self._runs[0][1:] == (self._topic, self._partition):
            return self._constant(name, rows)
        begins = [begin for begin, _, _ in self._runs]
        counts = np.diff([*begins, rows])
        if name == "partition":
            numbers = np.repeat(np.array([number for _, _, number in self._runs], np.int32), counts)
            return pa.Array.from_buffers(ARROW_TYPES[name], rows, [None, pa.py_buffer(numbers)])
        texts = [topic.encode() for _, topic, _ in self._runs]
        ends = np.zeros(rows + 1, np.int32)
        np.cumsum(np.repeat([len(text) for text in texts], counts), out=ends[1:])
        data = b"".join(text * int(count) for text, count in zip(texts, counts, strict=True))
        return pa.Array.from_buffers(ARROW_TYPES[name], rows, [None, pa.py_buffer(ends), pa.py_buffer(data)])

    def _constant(self, name: str, rows: int) -> pa.Array:
        known = self._constants.get(name)
        if known is None or len(known) < rows:
            known = self._constants[name] = self._repeat(name, rows)
        return known.slice(0, rows)

    def _repeat(self, name: str, rows: int) -> pa.Array:
        """Return a column of one value. Avoid `pa.scalar` and `pa.array`: they load pandas, for a second."""
        if name == "partition":
            numbers = np.full(rows, self._partition, np.int32)
            return pa.Array.from_buffers(ARROW_TYPES[name], rows, [None, pa.py_buffer(numbers)])
        text = self._topic.encode()
        ends = np.arange(rows + 1, dtype=np.int32) * len(text)
        return pa.Array.from_buffers(
            ARROW_TYPES[name], rows, [None, pa.py_buffer(ends), pa.py_buffer(text * rows)]
        )

    def _fail(self, code: int, at: int, state: np.ndarray[Any, Any] | None = None) -> None:
        place = f"{self._topic}-{self._partition}"
        facts: dict[str, object] = {"topic": self._topic, "partition": self._partition}
        if state is not None:
            facts["offset"] = int(state[k.BAD_AT])
            place += f" near offset {facts['offset']}"
        if code == k.OLD_MAGIC:
            raise DecodeError(
                "UNSUPPORTED_MESSAGE_FORMAT",
                f"{place} holds messages in a format older than Kafka 0.11.",
                hint="Copy the topic with a current producer, then read the copy.",
                facts=facts,
            )
        if code == k.BAD_TIME:
            assert state is not None
            facts["timestamp_ms"] = int(state[k.BAD_VALUE])
            raise DecodeError(
                "TIMESTAMP_OVERFLOW",
                f"{place}: the record's timestamp {facts['timestamp_ms']} ms does not fit a Spark timestamp.",
                hint="Read `timestampMs` instead (option `columns`), or fix the producer.",
                facts=facts,
            )
        raise CorruptBatchError(
            "CORRUPT_BATCH",
            f"{place}: a record batch is damaged: {_REASONS[code]}.",
            hint="Let the broker restore it from another replica, or start after it with `startingOffsets`.",
            facts={**facts, "position": at},
        )


def _fresh_state() -> np.ndarray[Any, np.dtype[np.int64]]:
    state = np.zeros(k.STATE_WIDTH, np.int64)
    state[k.POSITION] = -1
    return state


class _ColumnSet:
    """The output buffers of one Arrow batch."""

    OWN = frozenset({"key", "value", "offset", "timestamp", "timestampMs", "timestampType", "headers"})

    def __init__(
        self,
        columns: Sequence[str],
        rows: int,
        data: int,
        new: NewMemory,
        *,
        need: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.columns, self.rows, self.data, self.new = tuple(columns), rows, data, new
        key, value, headers = (name in columns for name in ("key", "value", "headers"))
        # What the kernel multiplies milliseconds by: Spark's times are microseconds.
        time_scale = 1000 if "timestamp" in columns else int("timestampMs" in columns)
        self._choice = k.RecordChoice(rows, key, value, headers, time_scale)

        def ends(wanted: bool, size: int = rows) -> np.ndarray[Any, Any]:
            array = new(size + 1 if wanted else 0, np.int32)
            array[:1] = 0
            return array

        def bits(size: int = rows) -> np.ndarray[Any, Any]:
            array = new((size + 7) // 8, np.uint8)
            array[:] = 0
            return array

        def text(wanted: bool, name: str) -> np.ndarray[Any, Any]:
            return new(max(data, need.get(name, 0)) if wanted else 0, np.uint8)

        entries = max(rows, need.get("headers", 0))
        self._arrays = k.FilledColumns(
            offsets=new(rows, np.int64),
            times=new(rows if time_scale else 0, np.int64),
            time_types=new(rows, np.int32),
            key_ends=ends(key),
            key_bits=bits(),
            keys=text(key, "key"),
            value_ends=ends(value),
            value_bits=bits(),
            values=text(value, "value"),
            list_ends=ends(headers),
            list_bits=bits(),
            header_key_ends=ends(headers, entries),
            header_keys=text(headers, "header_key"),
            header_value_ends=ends(headers, entries),
            header_value_bits=bits(entries if headers else 0),
            header_values=text(headers, "header_value"),
        )
        # An Arrow buffer made from an array holds a reference to it: a count above this means "in use".
        self._at_rest = tuple(sys.getrefcount(array) for array in self._arrays)

    def is_free(self) -> bool:
        """Return whether no Arrow batch made from these buffers is still in use."""
        return tuple(sys.getrefcount(array) for array in self._arrays) == self._at_rest

    def grown(self, state: np.ndarray[Any, Any]) -> _ColumnSet:
        """Return room for one record larger than the ordinary size; used once, then dropped."""
        need = {
            "key": k.NEED_KEY, "value": k.NEED_VALUE, "headers": k.NEED_HEADERS,
            "header_key": k.NEED_HEADER_KEY, "header_value": k.NEED_HEADER_VALUE,
        }  # fmt: skip
        return _ColumnSet(
            self.columns,
            self.rows,
            self.data,
            self.new,
            need={name: int(state[at]) for name, at in need.items()},
        )

    def fill(
        self, source: np.ndarray[Any, Any], segments: np.ndarray[Any, Any], state: np.ndarray[Any, Any],
        start: int, until: int,
    ) -> int:  # fmt: skip
        return int(k.fill(source, segments, state, start, until, self._choice, self._arrays))

    def array(self, name: str, state: np.ndarray[Any, Any]) -> pa.Array:
        rows, arrays = int(state[k.ROWS]), self._arrays
        if name == "offset":
            return pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(arrays.offsets)])
        if name == "timestamp":
            return pa.Array.from_buffers(ARROW_TYPES[name], rows, [None, pa.py_buffer(arrays.times)])
        if name == "timestampMs":
            scale = self._choice.time_scale
            times = arrays.times if scale == 1 else arrays.times[:rows] // scale
            return pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(times)])
        if name == "timestampType":
            return pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(arrays.time_types)])
        if name == "key":
            return _binary(rows, int(state[k.KEY_NULLS]), arrays.key_bits, arrays.key_ends, arrays.keys)
        if name == "value":
            return _binary(
                rows, int(state[k.VALUE_NULLS]), arrays.value_bits, arrays.value_ends, arrays.values
            )
        return self._headers(rows, state)

    def _headers(self, rows: int, state: np.ndarray[Any, Any]) -> pa.Array:
        entries, arrays = int(state[k.HEADERS]), self._arrays
        keys = _binary(entries, 0, arrays.key_bits[:0], arrays.header_key_ends, arrays.header_keys)
        keys = _text(keys) if state[k.HEADER_KEY_HIGH] else keys.view(pa.string())
        values = _binary(
            entries, int(state[k.HEADER_VALUE_NULLS]), arrays.header_value_bits, arrays.header_value_ends,
            arrays.header_values,
        )  # fmt: skip
        struct = ARROW_TYPES["headers"].value_type
        pairs = pa.StructArray.from_arrays([keys, values], fields=list(struct))
        nulls = int(state[k.HEADER_NULLS])
        bits = pa.py_buffer(arrays.list_bits) if nulls else None
        return pa.Array.from_buffers(
            ARROW_TYPES["headers"], rows, [bits, pa.py_buffer(arrays.list_ends)], nulls, 0, [pairs]
        )


def _binary(
    rows: int, nulls: int, bits: np.ndarray[Any, Any], ends: np.ndarray[Any, Any], data: np.ndarray[Any, Any]
) -> pa.Array:
    validity = pa.py_buffer(bits) if nulls else None
    return pa.Array.from_buffers(pa.binary(), rows, [validity, pa.py_buffer(ends), pa.py_buffer(data)], nulls)


def _text(keys: pa.Array) -> pa.Array:
    """Return header keys as text. Invalid UTF-8 becomes replacement characters, as in Java."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())
