"""Which rows of a log with transactions a committed read sees, including mistakes that other clients made."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.core.errors import CorruptBatchError
from penstock.kafka.records.record_decoder import RecordDecoder
from tests.reference.record_decoder import visible_rows
from tests.reference.record_encoder import Record, build_batch, build_marker
from tests.support.kafka.decoding_checks import COLUMNS, decode, values


def data(offset: int, *texts: bytes, producer: int = -1, codec: int = 0) -> bytes:
    """Return a batch of values; with a producer it belongs to that producer's open transaction."""
    return build_batch(
        offset, [Record(None, text) for text in texts], producer_id=producer,
        transactional=producer >= 0, codec=codec,
    )  # fmt: skip


def commit(offset: int, producer: int) -> bytes:
    return build_marker(offset, producer_id=producer, commit=True)


def abort(offset: int, producer: int) -> bytes:
    return build_marker(offset, producer_id=producer, commit=False)


def committed(log: bytes, aborted: list[tuple[int, int]], start: int = 0) -> list[bytes | None]:
    """Return what the fast decoder returns, after checking that the reference agrees."""
    rows = decode(log, start, aborted=aborted)
    assert rows == list(visible_rows(log, start, aborted=aborted))
    return values(rows)


def test_a_marker_without_rows_does_not_use_up_the_next_transactions_entry() -> None:
    """T04: the abort marker at 0 has no rows in this log; the entry belongs to the transaction at 3."""
    log = abort(0, 7) + data(1, b"good", producer=7) + commit(2, 7)
    log += data(3, b"bad", producer=7) + abort(4, 7) + data(5, b"also good", producer=7) + commit(6, 7)
    assert committed(log, [(7, 3)]) == [b"good", b"also good"]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_compressed_batches_of_an_aborted_transaction_are_hidden(codec: int) -> None:
    """T04: compressed aborted batches."""
    log = data(0, b"bad", b"bad too", producer=7, codec=codec) + abort(2, 7)
    log += data(3, b"good", producer=7, codec=codec) + commit(4, 7)
    assert committed(log, [(7, 0)]) == [b"good"]


def test_several_transactions_of_one_producer_are_told_apart() -> None:
    """T04: the search must continue after a producer's first marker."""
    log = data(0, b"bad 1", producer=7) + abort(1, 7)
    log += data(2, b"good 1", producer=7) + commit(3, 7)
    log += data(4, b"bad 2", producer=7) + data(5, b"bad 3", producer=7) + abort(6, 7)
    log += data(7, b"good 2", producer=7) + commit(8, 7)
    log += data(9, b"bad 4", producer=7) + abort(10, 7)
    assert committed(log, [(7, 0), (7, 4), (7, 9)]) == [b"good 1", b"good 2"]


def test_a_lone_abort_marker_is_passed_over() -> None:
    """T04: an abort marker of an unlisted producer, and one whose transaction is long gone."""
    log = abort(0, 9) + data(1, b"good") + abort(2, 7) + data(3, b"good too", producer=7) + commit(4, 7)
    assert committed(log, []) == [b"good", b"good too"]
    assert committed(log, [(7, 50)]) == [b"good", b"good too"]


def test_interleaved_transactions_end_each_at_their_own_marker() -> None:
    """T04, B046: other producers' rows and rows without a transaction stay."""
    log = data(0, b"a1", producer=7) + data(1, b"b1", producer=8) + data(2, b"plain")
    log += data(3, b"a2", producer=7) + commit(4, 8) + data(5, b"b2", producer=8) + abort(6, 7)
    log += data(7, b"a3", producer=7) + abort(8, 8) + commit(9, 7)
    assert committed(log, [(7, 0), (8, 5)]) == [b"b1", b"plain", b"a3"]


def test_an_aborted_transaction_that_began_before_the_answer_is_hidden() -> None:
    """T04: the first offset of the entry lies before everything that was fetched."""
    log = data(100, b"bad", producer=7) + data(101, b"plain") + abort(102, 7)
    assert committed(log, [(7, 12)], start=100) == [b"plain"]


def test_rows_of_one_producer_outside_a_transaction_are_never_hidden() -> None:
    """T04: only transactional batches can be aborted."""
    log = build_batch(0, [Record(None, b"idempotent")], producer_id=7)
    log += data(1, b"bad", producer=7) + abort(2, 7)
    assert committed(log, [(7, 0)]) == [b"idempotent"]


def test_an_uncommitted_read_sees_aborted_rows_but_no_marker() -> None:
    """T04, B046: markers are never rows."""
    log = data(0, b"bad", producer=7) + abort(1, 7) + data(2, b"good", producer=7) + commit(3, 7)
    assert values(decode(log)) == [b"bad", b"good"]


def test_an_answer_of_only_aborted_rows_advances() -> None:
    """T05: no row is returned, and yet the next offset is after the batches."""
    log = data(10, b"bad", b"bad", producer=7) + data(12, b"bad", producer=7) + abort(13, 7)
    decoder = RecordDecoder("log", 0, COLUMNS)
    assert decoder.open(np.frombuffer(log, np.uint8)) == 3
    assert [*decoder.rows(10, 100, [(7, 10)]), *decoder.rest()] == []
    assert decoder.next_offset == 14


def test_a_tombstone_inside_a_transaction_is_null() -> None:
    """B046, T24: null keys and values inside a committed transaction."""
    records = [Record(None, None), Record(b"k", None), Record(None, b"v"), Record(b"", b"")]
    log = build_batch(0, records, producer_id=7, transactional=True) + commit(4, 7)
    rows = decode(log, aborted=[])
    assert [(row.key, row.value) for row in rows] == [(None, None), (b"k", None), (None, b"v"), (b"", b"")]


def test_a_malformed_marker_is_an_error_and_not_a_guess() -> None:
    """T04: a control record that is too short to say how the transaction ended."""
    marker = build_batch(1, [Record(b"\x00", b"")], producer_id=7, transactional=True, control=True)
    log = data(0, b"maybe", producer=7) + marker
    with pytest.raises(CorruptBatchError, match="marker"):
        decode(log, aborted=[(7, 0)])
