"""What the decoder makes of single batches: gaps, null and empty, headers, damage, sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import CorruptBatchError, DecodeError
from penstock.kafka.records.record_decoder import RecordDecoder
from tests.reference.record_decoder import visible_rows
from tests.reference.record_encoder import Record, build_batch, compress, reseal
from tests.support.kafka.decoding_checks import COLUMNS, decode, rows_of, values

CODECS = (0, 1, 2, 3, 4)


def three(offset: int = 0, codec: int = 0) -> bytes:
    return build_batch(offset, [Record(b"k", b"%d" % (offset + n)) for n in range(3)], codec=codec)


def next_offset(log: bytes) -> int | None:
    decoder = RecordDecoder("log", 0, COLUMNS)
    decoder.open(np.frombuffer(log, np.uint8))
    return decoder.next_offset


# --- compaction ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("gone")
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("kept", "gone"), [((1, 2), "first"), ((0, 2), "middle"), ((0, 1), "last"), ((), "every")]
)
def test_a_batch_whose_offsets_compaction_removed_still_ends_where_it_ended(
    codec: int, kept: tuple[int, ...]
) -> None:
    """T06: the first, a middle, the last or every offset of a batch is missing."""
    records = [Record(None, b"%d" % delta, offset_delta=delta) for delta in kept]
    log = build_batch(10, records, codec=codec if kept else 0, last_offset_delta=2)
    assert [row.offset for row in decode(log)] == [10 + delta for delta in kept]
    assert next_offset(log) == 13


def test_an_empty_batch_that_kept_its_codec_is_no_damage() -> None:
    """T06: an emptied batch has no payload to decompress."""
    log = build_batch(10, [], codec=4, payload=b"", last_offset_delta=4) + three(15)
    assert values(decode(log)) == [b"15", b"16", b"17"]


def test_a_hole_between_batches_is_passed() -> None:
    """T06: whole segments may be missing."""
    log = three(0) + three(1000)
    assert [row.offset for row in decode(log)] == [0, 1, 2, 1000, 1001, 1002]
    assert next_offset(log) == 1003


# --- ranges -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("start", range(8))
@pytest.mark.parametrize("until", range(8))
def test_only_rows_inside_the_range_come_out(codec: int, start: int, until: int) -> None:
    """T09: the broker returns whole batches; rows before and behind the range are dropped."""
    log = three(0, codec) + three(3, codec)
    assert [row.offset for row in decode(log, start, until)] == list(range(start, min(until, 6)))


def test_a_batch_cut_off_at_the_end_waits_for_the_next_answer() -> None:
    log = three(0) + three(3)
    for size in range(len(log)):
        whole = size // len(three(0))
        assert len(decode(log[:size])) == 3 * whole
        assert next_offset(log[:size]) == (3 * whole if whole else None)


# --- content ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_null_and_empty_stay_apart_on_the_way_in(codec: int) -> None:
    """T24, B046: key, value and header value in every combination of null, empty and bytes."""
    states = (None, b"", b"x")
    records = [Record(k, v, ((b"h", h),)) for k in states for v in states for h in states]
    rows = decode(build_batch(0, records, codec=codec))
    assert [(row.key, row.value, row.headers[0][1]) for row in rows] == [
        (r.key, r.value, r.headers[0][1]) for r in records
    ]


def test_headers_keep_order_and_repetitions_and_no_headers_are_null() -> None:
    """T25, B050: the same key twice, in order; a row without headers has null."""
    headers = ((b"b", b"1"), (b"a", None), (b"b", b"2"))
    log = build_batch(0, [Record(None, b"v", headers), Record(None, b"w")])
    decoder = RecordDecoder("log", 0, ("headers",))
    decoder.open(np.frombuffer(log, np.uint8))
    (batch,) = (*decoder.rows(0, 10), *decoder.rest())
    assert batch.column("headers").to_pylist() == [
        [{"key": "b", "value": b"1"}, {"key": "a", "value": None}, {"key": "b", "value": b"2"}],
        None,
    ]


def test_milliseconds_are_what_the_producer_wrote_whatever_that_is() -> None:
    """`timestampMs` alone has no limits; beside `timestamp` it has those of Spark's times."""
    log = build_batch(0, [Record(), Record(time_delta=7), Record(time_delta=-2)], base_time=-(2**62))

    def read_times(log: bytes, *columns: str) -> list[int]:
        decoder = RecordDecoder("log", 0, columns)
        decoder.open(np.frombuffer(log, np.uint8))
        batches = [*decoder.rows(0, 10), *decoder.rest()]
        return [each for batch in batches for each in batch.column("timestampMs").to_pylist()]

    assert read_times(log, "timestampMs") == [-(2**62), 7 - 2**62, -2 - 2**62]
    with pytest.raises(DecodeError, match="TIMESTAMP_OVERFLOW"):
        read_times(log, "timestamp", "timestampMs")
    log = build_batch(0, [Record(), Record(time_delta=-3)], base_time=1)
    assert read_times(log, "timestamp", "timestampMs") == [1, -2]


def test_append_time_gives_every_row_the_batch_time() -> None:
    records = [Record(None, b"v", time_delta=delta) for delta in (0, 5, -3)]
    log = build_batch(0, records, base_time=1000, max_time=9999, append_time=True)
    assert [(row.timestamp_ms, row.timestamp_type) for row in decode(log)] == [(9999, 1)] * 3
    log = build_batch(0, records, base_time=1000)
    assert [(row.timestamp_ms, row.timestamp_type) for row in decode(log)] == [(1000, 0), (1005, 0), (997, 0)]


octets = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.binary(max_size=4), octets), max_size=3).map(tuple)
records = st.lists(st.builds(Record, octets, octets, headers, st.integers(-(2**40), 2**40)), max_size=20)


@settings(max_examples=150)
@given(
    st.lists(st.tuples(records, st.sampled_from(CODECS)), max_size=4), st.integers(1, 9), st.integers(0, 60)
)
def test_any_log_reads_as_the_reference_reads_it(
    batches: list[tuple[list[Record], int]], max_rows: int, start: int
) -> None:
    """T24, T25, T09: even when a new Arrow batch begins every few rows."""
    log, base = b"", 0
    for some, codec in batches:
        log += build_batch(base, some, codec=codec)
        base += max(len(some), 1)
    assert decode(log, start, max_rows=max_rows, max_bytes=64) == list(visible_rows(log, start))


def test_batches_that_are_kept_are_not_overwritten_by_later_ones() -> None:
    """Output buffers are reused only when nobody holds an Arrow batch made from them."""
    records = [Record(b"k%d" % n, b"v%d" % n * 5, ((b"h", b"%d" % n),), time_delta=n) for n in range(40)]
    log = build_batch(0, records[:20]) + build_batch(20, records[20:], codec=4)
    decoder = RecordDecoder("log", 3, COLUMNS, max_rows=2)
    decoder.open(np.frombuffer(log, np.uint8))
    kept = [*decoder.rows(0, 40), *decoder.rest()]
    assert len(kept) == 20
    assert [row for batch in kept for row in rows_of(batch)] == list(visible_rows(log, 0))


def test_buffers_that_nobody_holds_are_used_again() -> None:
    log = build_batch(0, [Record(b"k", b"%d" % n) for n in range(40)])
    decoder = RecordDecoder("log", 3, COLUMNS, max_rows=2)
    decoder.open(np.frombuffer(log, np.uint8))
    places = {batch.column("value").buffers()[2].address for batch in decoder.rows(0, 40)}
    assert len(places) <= 2


def test_rows_of_several_partitions_share_an_arrow_batch_and_keep_their_places() -> None:
    """Each row has the topic and partition it came from, even where an Arrow batch ends among them."""
    decoder = RecordDecoder("a", 0, ("topic", "partition", "offset"), max_rows=4)
    batches = []
    for topic, partition, rows in [("a", 0, 3), ("a", 1, 3), ("longer", 1, 0), ("longer", 7, 4), ("b", 2, 1)]:
        decoder.aim(topic, partition)
        log = build_batch(0, [Record(None, b"v")] * rows) if rows else b""
        decoder.open(np.frombuffer(log, np.uint8))
        batches += decoder.rows(0, 10)
    batches += decoder.rest()
    assert [batch.num_rows for batch in batches] == [4, 4, 3]
    assert [tuple(row.values()) for batch in batches for row in batch.to_pylist()] == [
        *[("a", 0, n) for n in range(3)],
        *[("a", 1, n) for n in range(3)],
        *[("longer", 7, n) for n in range(4)],
        ("b", 2, 0),
    ]
    assert list(decoder.rest()) == []


def test_rows_of_a_damaged_buffer_do_not_come_out_later() -> None:
    decoder = RecordDecoder("log", 0, ("offset",), check_crcs=False)
    damaged = bytearray(build_batch(0, [Record(None, b"v")] * 3))
    damaged[-3] ^= 0x7F  # the length of the last value
    decoder.open(np.frombuffer(bytes(damaged), np.uint8))
    with pytest.raises(CorruptBatchError):
        list(decoder.rows(0, 10))
    assert list(decoder.rest()) == []


# --- damage -------------------------------------------------------------------------------------------


def test_every_flipped_bit_behind_the_checksum_is_found() -> None:
    """The checksum is checked by default."""
    log = three(40)
    for at in range(21, len(log)):
        for bit in range(8):
            broken = bytearray(log)
            broken[at] ^= 1 << bit
            with pytest.raises(DecodeError) as caught:
                decode(bytes(broken))
            assert caught.value.condition in ("CHECKSUM_MISMATCH", "CORRUPT_BATCH")


def test_a_checksum_error_names_topic_partition_and_offset() -> None:
    """T21: checked by default; the error says where the batch is, in words and as facts."""
    broken = bytearray(three(40))
    broken[-1] ^= 1
    with pytest.raises(CorruptBatchError, match=r"^\[CHECKSUM_MISMATCH\] log-3: .* offset 40 ") as caught:
        decode(bytes(broken))
    assert caught.value.facts == {"topic": "log", "partition": 3, "offset": 40}


def test_without_the_check_a_damaged_batch_is_read_as_it_is_and_reading_goes_on() -> None:
    """T21: with `check.crcs=false` nothing is skipped, so there is nothing to count."""
    broken = bytearray(three(40))
    broken[-2] ^= 1  # the last byte of the last value
    log = bytes(broken) + three(43)
    assert values(decode(log, check_crcs=False)) == [b"40", b"41", b"43", b"43", b"44", b"45"]


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_ends_before_any_row_of_the_batch(codec: int) -> None:
    """T22: the error is typed and has the batch's offset."""
    log = three(0) + build_batch(3, [Record(None, b"v")], codec=codec, payload=b"whatever")
    with pytest.raises(CorruptBatchError, match=r"^\[UNKNOWN_CODEC\] log-3: the record batch at offset 3"):
        decode(log)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_damaged_compression_is_a_typed_error(codec: int) -> None:
    """T22: the checksum is right, but the content is not."""
    payload = compress(codec, b"no records at all" * 20)[:-9]
    with pytest.raises(CorruptBatchError, match="log-3"):
        decode(build_batch(3, [Record(None, b"v")], codec=codec, payload=payload))


def test_a_decompression_bomb_is_refused() -> None:
    """T22: a batch of kilobytes that would expand to hundreds of megabytes."""
    bomb = compress(4, bytes(400 << 20))
    with pytest.raises(CorruptBatchError, match=r"^\[DECOMPRESSION_LIMIT\]"):
        decode(build_batch(0, [Record(None, b"v")], codec=4, payload=bomb))


def test_overlapping_batches_are_refused() -> None:
    """T09: offsets rise over the whole answer."""
    with pytest.raises(CorruptBatchError, match=r"^\[CORRUPT_BATCH\]"):
        decode(three(0) + three(2))


def test_offsets_that_do_not_rise_inside_a_batch_are_refused() -> None:
    """T09: a row is delivered once."""
    records = [Record(None, b"a", offset_delta=1), Record(None, b"b", offset_delta=1)]
    with pytest.raises(CorruptBatchError, match=r"^\[CORRUPT_BATCH\]"):
        decode(build_batch(0, records))


@pytest.mark.parametrize("size", [1, 255, 65_536, 5_000_000, 64 << 20])
@pytest.mark.parametrize("codec", [0, 4])
def test_messages_from_one_byte_to_64_mib_are_read(size: int, codec: int) -> None:
    """T23: larger than every buffer of the decoder."""
    value = bytes(size)
    log = build_batch(0, [Record(None, b"a"), Record(b"k", value), Record(None, b"z")], codec=codec)
    assert [len(row.value or b"") for row in decode(log)] == [1, size, 1]


def test_a_count_that_promises_more_records_than_there_are_is_refused() -> None:
    log = bytearray(three(0))
    log[26], log[60] = 9, 9  # last offset delta and count
    with pytest.raises(CorruptBatchError, match=r"^\[CORRUPT_BATCH\]"):
        decode(bytes(reseal(log)))
