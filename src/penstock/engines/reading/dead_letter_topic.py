"""Writes dead letters: sends bad records to a separate topic, with their origin and the reason.

Rules: a letter never stops its stream because of its size. It is compressed, as the record itself probably
was. Several letters are spread over batches of a size that the topic accepts. A letter that is still too
large is cut: only the beginning of its value is kept, then the record's own headers are dropped, then its key
is cut. A cut letter says so (`penstock.cut.value` and `.key` hold the full length in bytes, `.headers` the
number of headers), and `penstock.topic`, `.partition` and `.offset` say where the whole record is. Why not
fail: the same record would be read and refused again, forever.

    box = LetterBox(settings, "dead-letters")
    box.write(bad_rows, reasons)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import BrokerError

if TYPE_CHECKING:
    from penstock.core.client.client_settings import ClientSettings
    from penstock.kafka.writing.plain_producer import Writer

#: The largest batch that a topic accepts by default; assumed where the topic's limit cannot be asked for.
USUAL_LIMIT_BYTES = 1_048_588
#: A topic that refuses letters of this size is assumed to accept none.
LEAST_LIMIT_BYTES = 8_192
_LARGEST_BATCH_BYTES = 1_000_000
_TOO_LARGE = ("MESSAGE_TOO_LARGE", "RECORD_LIST_TOO_LARGE")
#: The most that a batch, a record and a header take besides their bytes.
_AROUND_A_RECORD, _AROUND_A_HEADER = 61 + 40, 10
#: Room for the three headers that describe a cut.
_AROUND_A_CUT = 120
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_KEY_HEADER = "penstock.key"
_PROVENANCE = 6


class LetterBox:
    """One task's writer to the dead-letter topic. It belongs to one thread; close it at the end."""

    def __init__(self, client: ClientSettings, topic: str) -> None:
        self._client = replace(client, client_id=f"{client.client_id}-dead-letters")
        self._topic = topic
        self._limit: int | None = None
        self._is_plain = False
        self._writer: Writer | None = None

    def write(self, rows: pa.RecordBatch, errors: pa.Array) -> None:
        """Write a letter for each row, and return when the brokers have all of them."""
        letters = make_letters(rows, errors)
        if self._limit is None:
            self._limit = self._ask_limit() or USUAL_LIMIT_BYTES
        while True:
            try:
                self._open_writer(self._limit).write(self._topic, self._fit(letters, self._limit))
                return
            except BrokerError as error:
                # Letters before the refused one are already written. They are repeated under the same keys.
                if error.condition not in _TOO_LARGE or not self._shrink(self._limit):
                    raise

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _ask_limit(self) -> int | None:
        from penstock.kafka.metadata.topic_admin import find_message_limit
        from penstock.kafka.transport.deadlines import Deadline
        from penstock.kafka.writing.plain_producer import HINT_TIMEOUT_MS

        try:
            soon = Deadline.after_ms(HINT_TIMEOUT_MS, "HINT_TIMEOUT_MS")
            return find_message_limit(self._client, self._topic, soon)
        except BrokerError:
            return None  # if a letter is refused as too large, we ask again

    def _shrink(self, limit: int) -> bool:
        """Lower the limit after a refusal; return False if there is nothing left to try."""
        asked = self._ask_limit()
        if asked is not None and asked < limit:
            self._limit = asked
        elif not self._is_plain:
            self._is_plain = True  # a topic may store uncompressed what we compress
        elif limit // 2 >= LEAST_LIMIT_BYTES:
            self._limit = limit // 2
        else:
            return False
        self.close()
        return True

    def _open_writer(self, limit: int) -> Writer:
        from penstock.kafka.records.codecs import ZSTD
        from penstock.kafka.writing.plain_producer import Writer

        if self._writer is None:
            largest = min(_LARGEST_BATCH_BYTES, _find_room(limit))
            self._writer = Writer(self._client, codec=ZSTD, max_batch_bytes=largest)
        return self._writer

    def _fit(self, letters: pa.RecordBatch, limit: int) -> pa.Table:
        """Return the letters. Those that the topic would refuse are cut and come last."""
        room = _find_room(limit)
        large = np.flatnonzero(measure_letters(letters) > room)
        if large.size and not self._is_plain:
            large = large[_measure_compressed(letters, large) > limit]
        if not large.size:
            return pa.Table.from_batches([letters])
        whole = np.delete(np.arange(letters.num_rows), large)
        cut = cut_letters(letters.take(pa.array(large)), room)
        return pa.Table.from_batches([letters.take(pa.array(whole)), cut])


def make_letters(rows: pa.RecordBatch, errors: pa.Array) -> pa.RecordBatch:
    """Return dead-letter records: the original value, a key that names the place, and provenance headers."""
    place = {name: pc.cast(rows.column(name), pa.string()) for name in ("topic", "partition", "offset")}
    key = pc.binary_join_element_wise(place["topic"], place["partition"], place["offset"], "/")
    provenance: dict[str, pa.Array] = {
        **{f"penstock.{name}": pc.cast(each, pa.binary()) for name, each in place.items()},
        "penstock.timestamp": pc.cast(
            pc.strftime(rows.column("timestamp"), "%Y-%m-%dT%H:%M:%SZ"), pa.binary()
        ),
        "penstock.error": pc.cast(errors, pa.binary()),
        _KEY_HEADER: rows.column("key"),
    }
    assert len(provenance) == _PROVENANCE
    headers = _add_headers(provenance, rows.column("headers"))
    return _make_batch(pc.cast(key, pa.binary()), rows.column("value"), headers)


def measure_letters(letters: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the most bytes each letter takes in a batch of its own, uncompressed."""
    headers = letters.column("headers")
    given = pc.list_flatten(headers)
    each = _lengths(given.field("key")) + _lengths(given.field("value")) + _AROUND_A_HEADER
    sums = np.concatenate([[0], np.cumsum(each)])
    last = np.cumsum(pc.list_value_length(headers).to_numpy(zero_copy_only=False))
    first = np.concatenate([[0], last[:-1]])
    sizes = _lengths(letters.column("key")) + _lengths(letters.column("value")) + _AROUND_A_RECORD
    return np.asarray(sizes + sums[last] - sums[first], np.int64)


def cut_letters(letters: pa.RecordBatch, room: int) -> pa.RecordBatch:
    """Return the letters, each cut to `room` bytes, with headers that describe what was cut.

    They are cut one by one, because each is as large as a topic's largest message.
    """
    values: list[bytes | None] = []
    headers: list[list[dict[str, Any]]] = []
    for row in letters.to_pylist():
        value, kept = _cut(row["key"], row["value"], row["headers"], room)
        values.append(value)
        headers.append(kept)
    made = pa.array(headers, pa.list_(_HEADER))
    return _make_batch(letters.column("key"), pa.array(values, pa.binary()), made)


def _cut(
    name: bytes, value: bytes | None, headers: Sequence[dict[str, Any]], room: int
) -> tuple[bytes | None, list[dict[str, Any]]]:
    place, given = list(headers[: _PROVENANCE - 1]), list(headers[_PROVENANCE:])
    key: bytes | None = headers[_PROVENANCE - 1]["value"]
    left = room - _AROUND_A_RECORD - len(name) - _count_bytes(place) - _AROUND_A_CUT
    left -= len(_KEY_HEADER) + _AROUND_A_HEADER
    cuts: dict[str, int] = {}
    if len(key or b"") + _count_bytes(given) > left and given:
        cuts["headers"], given = len(given), []
    if key is not None and len(key) > left:
        cuts["key"], key = len(key), key[: max(left // 2, 0)]
    left = max(left - len(key or b"") - _count_bytes(given), 0)
    if value is not None and len(value) > left:
        cuts["value"], value = len(value), value[:left]
    told = [{"key": f"penstock.cut.{what}", "value": b"%d" % size} for what, size in cuts.items()]
    return value, [*place, {"key": _KEY_HEADER, "value": key}, *told, *given]


def _count_bytes(headers: Sequence[dict[str, Any]]) -> int:
    return sum(len(each["key"].encode()) + len(each["value"] or b"") + _AROUND_A_HEADER for each in headers)


def _find_room(limit: int) -> int:
    """Return how much fits into a batch of `limit` bytes; compression makes some data slightly larger."""
    return limit - limit // 128 - 64


def _measure_compressed(letters: pa.RecordBatch, rows: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    from penstock.kafka.records.codecs import ZSTD
    from penstock.kafka.records.record_encoder import Encoder, record_columns

    encoder = Encoder(codec=ZSTD, max_batch_bytes=1)  # one batch for each letter
    batches = encoder.encode(record_columns(letters, now_ms=0), rows)
    return np.array([len(batch.data) for batch in batches], np.int64)


def _lengths(column: pa.Array) -> Any:
    return pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)


def _make_batch(key: pa.Array, value: pa.Array, headers: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([key, value, headers], names=["key", "value", "headers"])


def _add_headers(provenance: dict[str, pa.Array], original: pa.Array) -> pa.Array:
    """Return the headers: ours first, then the record's own."""
    count, ours = len(original), len(provenance)
    lengths = pc.fill_null(pc.list_value_length(original), 0).to_numpy(zero_copy_only=False)
    names = pa.concat_arrays([pa.repeat(name, count) for name in provenance])
    made = pa.StructArray.from_arrays([names, pa.concat_arrays(provenance.values())], fields=list(_HEADER))
    given = pc.list_flatten(original).cast(_HEADER)
    bounds = np.concatenate([[0], np.cumsum(lengths + ours)]).astype(np.int32)
    row = np.repeat(np.arange(count), lengths + ours)
    within = np.arange(bounds[-1]) - bounds[row]
    first = np.concatenate([[0], np.cumsum(lengths)])[row]
    index = np.where(within < ours, within * count + row, ours * count + first + within - ours)
    values = pa.concat_arrays([made, given]).take(pa.array(index))
    return pa.ListArray.from_arrays(pa.array(bounds), values)
