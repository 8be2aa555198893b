"""How many bad values a task tolerates: a share of what it reads, and always a few."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import DecodeError
from penstock.core.model import At, Earliest, Latest, RangeOrder, TopicPartition
from penstock.core.options.batch_options import parse_batch_options
from penstock.core.planning.range_bounds import count_offsets
from penstock.engines.reading.read_tasks import find_most_rows
from penstock.engines.reading.typed_column_setup import make_typed
from penstock.engines.reading.typed_rows import TypedRows
from penstock.testing.memory_log import MemoryLog

CLIENT = ClientSettings((("nowhere", 1),))
#: Not UTF-8, and so not a string.
BAD = b"\xff"
ROWS_IN_A_BATCH = 10_000


def make_batches(rows: int, bad: int, *, spread: bool = True) -> Iterator[pa.RecordBatch]:
    """Yield rows of which `bad` are bad: spread evenly, or the first ones."""
    if spread:
        is_bad = (np.arange(1, rows + 1) * bad // rows) > (np.arange(rows) * bad // rows)
    else:
        is_bad = np.arange(rows) < bad
    values = pa.array([b"good", BAD]).take(pa.array(is_bad.astype(np.int8)))
    table = pa.table(
        {
            "value": values,
            "topic": pa.array(["t"]).take(pa.array(np.zeros(rows, np.int8))),
            "partition": np.zeros(rows, np.int32),
            "offset": np.arange(rows, dtype=np.int64),
        }
    )
    yield from table.to_batches(max_chunksize=ROWS_IN_A_BATCH)


def read(
    batches: Iterator[pa.RecordBatch], *, most_rows: int | None = None, **options: str
) -> tuple[int, int, DecodeError | None]:
    """Return the number of rows and bad rows that a task has passed on, and the error that ended it."""
    given = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", "valueFormat": "string", **options}
    parsed = parse_batch_options({"onDecodeError": "null", **given}, unique="u")
    typed = make_typed(parsed.formats, ("valueData", "decodeError"))
    assert typed is not None
    rows = bad = 0
    try:
        for batch in TypedRows(typed, CLIENT, lambda so_far: most_rows).convert(batches):
            rows += batch.num_rows
            bad += batch.num_rows - batch.column("decodeError").null_count
    except DecodeError as error:
        return rows, bad, error
    return rows, bad, None


@pytest.mark.parametrize("rows", [20_000, 200_000, 2_000_000, 4_000_000])
def test_the_same_share_of_bad_values_passes_whatever_a_task_reads(rows: int) -> None:
    """2.3 % are bad, and only the handling of bad values is set."""
    bad = rows * 23 // 1000
    assert read(make_batches(rows, bad)) == (rows, bad, None)


@pytest.mark.parametrize("spread", [True, False], ids=["spread", "at first"])
@pytest.mark.parametrize("most_rows", [None, 200_000])
def test_a_share_counts_for_all_of_a_task_and_to_the_record(spread: bool, most_rows: int | None) -> None:
    """Bad values come in clusters, so what a task has read so far is not a measure."""
    rows, options = 200_000, {"decodeErrorQuota": "10%", "decodeErrorFloor": "5"}
    kept = read(make_batches(rows, 20_000, spread=spread), most_rows=most_rows, **options)
    assert kept == (rows, 20_000, None)
    *_, error = read(make_batches(rows, 20_001, spread=spread), most_rows=most_rows, **options)
    assert error is not None
    assert error.condition == "DECODE_QUOTA_EXCEEDED"
    assert "20001 could not be decoded; 10 % are allowed" in str(error)


def test_a_task_that_cannot_keep_its_share_any_more_reads_no_further() -> None:
    """A wrong schema shows after a tenth of the rows; if the log cannot be asked, their number is unknown."""
    passed, _, error = read(make_batches(200_000, 200_000), most_rows=200_000)
    assert passed == 20_000
    assert error is not None
    assert error.facts["bad"] == 30_000
    assert read(make_batches(200_000, 200_000))[0] == 200_000


def test_a_few_bad_values_do_not_fail_a_small_task() -> None:
    assert read(make_batches(10, 10)) == (10, 10, None)
    assert read(make_batches(10, 2), decodeErrorFloor="2") == (10, 2, None)
    *_, error = read(make_batches(10, 3), decodeErrorFloor="2")
    assert error is not None
    assert "Of the 10 records that this task has read, 3 could not be decoded" in str(error)
    assert "t-0 offset" in str(error)


def test_no_share_is_none_as_no_number_is() -> None:
    for quota in ("0", "0%", "0.0%"):
        assert read(make_batches(10, 0), decodeErrorQuota=quota) == (10, 0, None)
        *_, error = read(make_batches(10, 1), decodeErrorQuota=quota)
        assert error is not None
        assert "; 0 are allowed (`decodeErrorQuota`)." in str(error)
    assert read(make_batches(10, 1), decodeErrorQuota="0%", decodeErrorFloor="1") == (10, 1, None)


def test_a_share_that_the_floor_overrides_is_told_with_its_numbers(caplog: pytest.LogCaptureFixture) -> None:
    def warn(bad: int, **options: str) -> list[str]:
        caplog.clear()
        assert read(make_batches(1_000, bad), **options) == (1_000, bad, None)
        return caplog.messages

    (told,) = warn(69, decodeErrorQuota="5%")
    assert "Of the 1000 records that this task has read, 69 could not be decoded, more than the 5 %" in told
    assert "`decodeErrorFloor` lets each task tolerate 10000 in any case" in told
    assert warn(50, decodeErrorQuota="5%") == []
    assert warn(69, decodeErrorQuota="off") == []
    assert warn(69, decodeErrorQuota="69") == []


def test_a_plain_number_is_a_number_of_values_and_stops_at_the_next() -> None:
    assert read(make_batches(30_000, 7), decodeErrorQuota="7") == (30_000, 7, None)
    passed, _, error = read(make_batches(30_000, 30_000), decodeErrorQuota="7")
    assert passed == 0
    assert error is not None
    assert "; 7 are allowed (`decodeErrorQuota`)." in str(error)


def test_a_quota_that_is_off_bears_everything() -> None:
    assert read(make_batches(30_000, 30_000), decodeErrorQuota="off") == (30_000, 30_000, None)


@pytest.mark.parametrize(
    ("start", "until", "most"),
    [
        (At(5), At(25), 20),  # numbers: exactly these
        (Earliest(), At(25), None),  # words: only a reader that can ask the log knows
        (At(5), Latest(), None),
    ],
)
def test_how_many_rows_a_task_has_at_most_comes_from_its_ranges(
    start: At | Earliest, until: At | Latest, most: int | None
) -> None:
    log = MemoryLog()
    ranges = (RangeOrder("t", 0, start, until),)
    assert find_most_rows(log, ranges, 3) == most


def test_offsets_of_ranges_are_counted_with_the_ends_that_are_looked_up() -> None:
    ranges = (RangeOrder("t", 0, Earliest(), Latest()), RangeOrder("t", 1, At(5), At(25)))
    assert count_offsets(ranges, {TopicPartition("t", 0): 3}, {TopicPartition("t", 0): 10}) == 27
