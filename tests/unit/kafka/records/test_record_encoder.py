"""Arrow columns into record batches, checked by the slow reference decoder."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import SinkError
from penstock.kafka.records.record_encoder import Encoder, ProducerStamp, record_columns
from tests.reference.record_decoder import HEADER, Row, split_batches, visible_rows

NOW = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def encode(batch: pa.RecordBatch, rows: list[int] | None = None, **options: int) -> list[bytes]:
    chosen = None if rows is None else np.array(rows, np.int64)
    columns = record_columns(batch, now_ms=NOW)
    return [bytes(each.data) for each in Encoder(**options).encode(columns, chosen)]


def decode(batches: list[bytes]) -> list[Row]:
    return [row for batch in batches for row in visible_rows(batch)]


def test_null_and_empty_stay_apart_in_key_value_and_header() -> None:
    """T24, B046: null, empty and bytes, when writing."""
    states = [None, b"", b"x"]
    rows = [(key, value, mark) for key in states for value in states for mark in states]
    batch = pa.record_batch(
        {
            "key": pa.array([key for key, _, _ in rows], pa.binary()),
            "value": pa.array([value for _, value, _ in rows], pa.binary()),
            "headers": pa.array([[{"key": "h", "value": mark}] for *_, mark in rows], HEADERS),
        }
    )
    assert [(row.key, row.value, row.headers[0][1]) for row in decode(encode(batch))] == rows


def test_headers_keep_order_and_repetitions() -> None:
    """T25, B050: the same key twice, in the order given; no headers and an empty list are the same."""
    given_headers = [
        [{"key": "b", "value": b"1"}, {"key": "a", "value": None}, {"key": "b", "value": b"2"}],
        [],
        None,
        [{"key": "", "value": b""}],
    ]
    batch = pa.record_batch({"value": [b"v"] * 4, "headers": pa.array(given_headers, HEADERS)})
    assert [row.headers for row in decode(encode(batch))] == [
        (("b", b"1"), ("a", None), ("b", b"2")),
        (),
        (),
        (("", b""),),
    ]


def test_a_null_header_key_is_refused() -> None:
    batch = pa.record_batch({"value": [b"v"], "headers": pa.array([[{"key": None, "value": b""}]], HEADERS)})
    with pytest.raises(SinkError, match=r"^\[NULL_HEADER_KEY\]"):
        record_columns(batch, now_ms=NOW)


def test_a_null_list_that_covers_child_values_writes_no_headers() -> None:
    pairs = pa.array([{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}], HEADERS.value_type)
    array = pa.ListArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()), pairs, type=HEADERS, mask=pa.array([True, False])
    )
    batch = pa.record_batch({"value": [b"x", b"y"], "headers": array})
    assert [row.headers for row in decode(encode(batch))] == [(), (("b", b"2"),)]


def test_timestamps_are_kept_and_missing_ones_are_now() -> None:
    times = [NOW - 5, None, NOW + 10**6, 0]
    rows = decode(encode(pa.record_batch({"value": [b""] * 4, "timestamp": pa.array(times, pa.int64())})))
    assert [row.timestamp_ms for row in rows] == [NOW - 5, NOW, NOW + 10**6, 0]
    header = HEADER.unpack_from(
        encode(pa.record_batch({"value": [b""] * 4, "timestamp": pa.array(times, pa.int64())}))[0]
    )
    assert header[7:9] == (NOW - 5, NOW + 10**6)


def test_an_arrow_timestamp_is_cut_to_milliseconds() -> None:
    moment = dt.datetime(2024, 1, 2, 3, 4, 5, 678_999, tzinfo=dt.UTC)
    batch = pa.record_batch({"value": [b""], "timestamp": pa.array([moment], pa.timestamp("us", "UTC"))})
    assert decode(encode(batch))[0].timestamp_ms == 1_704_164_645_678


def test_rows_are_written_in_the_order_given() -> None:
    batch = pa.record_batch({"value": [b"a", b"b", b"c", b"d"]})
    assert [row.value for row in decode(encode(batch, [3, 1, 1]))] == [b"d", b"b", b"b"]


def test_batches_stay_below_the_size_limit_and_a_giant_record_travels_alone() -> None:
    """T23: a record larger than a batch."""
    values = [b"s" * 100] * 50 + [b"L" * 5000] + [b"s" * 100] * 50
    batches = encode(pa.record_batch({"value": values}), max_batch_bytes=1000)
    assert [row.value for row in decode(batches)] == values
    alone = [batch for batch in batches if len(batch) > 1000]
    assert len(alone) == 1
    assert split_batches(alone[0])[0].count == 1
    assert len(batches) < 20


def test_a_record_of_64_mib_is_encoded() -> None:
    """T23: the largest message that is tested."""
    value = bytes(range(256)) * (1 << 18)
    (row,) = decode(encode(pa.record_batch({"value": pa.array([value])})))
    assert row.value == value


def test_the_stamp_goes_on_from_batch_to_batch_and_wraps() -> None:
    columns = record_columns(pa.record_batch({"value": [b"v" * 50] * 30}), now_ms=NOW)
    last = 2**31 - 1
    stamp = ProducerStamp(9, 4, last - 5, transactional=True)
    headers = [
        HEADER.unpack_from(each.data) for each in Encoder(max_batch_bytes=500).encode(columns, None, stamp)
    ]
    assert len(headers) > 3
    assert {(header[9], header[10]) for header in headers} == {(9, 4)}
    assert all(header[5] & 0x10 for header in headers)
    expected = last - 5
    for header in headers:
        assert header[11] == expected
        expected = (expected + header[12]) % 2**31


def test_an_unstamped_batch_belongs_to_no_producer() -> None:
    header = HEADER.unpack_from(encode(pa.record_batch({"value": [b"v"]}))[0])
    assert header[9:12] == (-1, -1, -1)


octets = st.none() | st.binary(max_size=200)
header_lists = st.none() | st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=5), "value": octets}), max_size=3
)
records = st.lists(st.tuples(octets, octets, header_lists, st.integers(0, 2**45)), max_size=30)


@settings(max_examples=60)
@given(records, st.integers(0, 4), st.integers(70, 3000), st.integers(0, 5))
def test_any_table_comes_back_from_any_codec_and_any_slice(
    rows: list[tuple[bytes | None, bytes | None, list[dict[str, object]] | None, int]],
    codec: int,
    max_batch_bytes: int,
    skip: int,
) -> None:
    """T24, T25: whatever the table holds, the slow decoder reads it back."""
    whole = pa.record_batch(
        {
            "key": pa.array([row[0] for row in rows], pa.binary()),
            "value": pa.array([row[1] for row in rows], pa.large_binary()),
            "headers": pa.array([row[2] for row in rows], HEADERS),
            "timestamp": pa.array([row[3] for row in rows], pa.int64()),
        }
    )
    decoded = decode(encode(whole.slice(skip), codec=codec, max_batch_bytes=max_batch_bytes))
    assert [(row.key, row.value, row.headers, row.timestamp_ms) for row in decoded] == [
        (key, value, tuple((h["key"], h["value"]) for h in headers or ()), time)
        for key, value, headers, time in rows[skip:]
    ]
