"""Equal texts have one number, whatever they are and wherever they end."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.apps.accesslog.texts import grouping_kernel as k
from penstock.apps.accesslog.texts.grouping import Grouped, group, group_lines
from penstock.formats.accesslog import Lines, make_parser
from tests.guard_page import GuardedMemory

rows_of_texts = st.lists(st.binary(max_size=20), min_size=1, max_size=5).flatmap(
    lambda some: st.lists(st.tuples(st.sampled_from([*some, None]), st.booleans()), max_size=40)
)


def lay_out(rows: list[tuple[bytes | None, bool]]) -> Lines:
    """Lines whose only field are these texts; the last one ends where memory ends."""
    joined = b"".join(text or b"" for text, _ in rows)
    lengths = np.array([-1 if text is None else len(text) for text, _ in rows], np.int32)
    kept = np.maximum(lengths, 0)
    nothing = np.zeros(0, np.int32)
    some = np.zeros(len(rows), np.int64)
    return Lines(
        data=GuardedMemory(max(1, len(joined))).place(joined),
        rows=np.arange(len(rows), dtype=np.int32),
        starts={"agent": (np.cumsum(kept) - kept).astype(np.int32)},
        lengths={"agent": lengths},
        time_us=some,
        status=some.astype(np.int16),
        size=some,
        latency_us=some,
        is_json=np.array([mark for _, mark in rows], np.bool_),
        bad_rows=nothing,
        bad_reasons=nothing.astype(np.int8),
    )


@given(rows_of_texts)
def test_equal_texts_have_one_number(rows: list[tuple[bytes | None, bool]]) -> None:
    lines = lay_out(rows)
    told = group(lines, "agent")
    order = {
        row: number for number, row in enumerate(dict.fromkeys(row for row in rows if row[0] is not None))
    }
    assert told.numbers.tolist() == [order.get(row, -1) for row in rows]
    for (text, mark), number in order.items():
        start = told.starts[number]
        assert (lines.data[start : start + told.lengths[number]].tobytes(), told.is_json[number]) == (
            text,
            mark,
        )
    hashes = {text: value for (text, _), value in zip(order, told.hashes.tolist(), strict=False)}
    assert len(set(hashes.values())) == len(hashes)
    assert told.spread_hashes().tolist() == [hashes.get(text, k.NO_TEXT) for text, _ in rows]


@given(rows_of_texts, st.data())
def test_lines_that_are_left_out_have_no_number(
    rows: list[tuple[bytes | None, bool]], data: st.DataObject
) -> None:
    only = np.array([data.draw(st.booleans()) for _ in rows], np.bool_)
    left = [row if chosen else (None, row[1]) for row, chosen in zip(rows, only.tolist(), strict=True)]
    whole, some = group(lay_out(left), "agent"), group(lay_out(rows), "agent", only)
    assert some.numbers.tolist() == whole.numbers.tolist()


def test_what_is_said_of_a_text_comes_to_all_its_lines() -> None:
    told: Grouped = group(lay_out([(b"a", False), (None, False), (b"b", False), (b"a", False)]), "agent")
    assert told.spread(np.array([10, 20], np.int16), -5).tolist() == [10, -5, 20, 10]


def test_all_fields_are_numbered() -> None:
    line = b'10.0.0.%d - - [01/Jan/2026:00:00:00 +0000] "GET /%d HTTP/1.1" 200 1 "-" "a%d"'
    grouped = group_lines(
        make_parser().parse(pa.array([line % (1, 1, 1), line % (2, 1, 2), line % (1, 2, 2)]))
    )
    assert {name: each.numbers.tolist() for name, each in grouped.items()} == {
        "target": [0, 0, 1],
        "agent": [0, 1, 1],
        "referrer": [-1, -1, -1],
        "method": [0, 0, 0],
        "protocol": [0, 0, 0],
        "client": [0, 1, 0],
    }


def test_texts_that_are_not_inside_of_their_buffer_are_none() -> None:
    starts = np.array([-1, 0, 3, 0], np.int32)
    lengths = np.array([2, 5, 2, 4], np.int32)
    numbers, firsts, hashes = np.empty(4, np.int32), np.empty(4, np.int32), np.empty(5, np.uint64)
    table = np.full(16, -1, np.int32)
    data = np.frombuffer(b"abcd", np.uint8)
    k.group_texts(data, starts, lengths, np.zeros(4, np.bool_), table, numbers, firsts, hashes)
    assert numbers.tolist() == [-1, -1, -1, 0]


def test_texts_in_a_crowded_table_stay_apart() -> None:
    """However many share a slot, a text is looked for in so many slots and no more."""
    rows = 200
    data = np.frombuffer(b"".join(b"%03d" % number for number in range(rows)), np.uint8)
    starts, lengths = np.arange(0, 3 * rows, 3, dtype=np.int32), np.full(rows, 3, np.int32)
    table = np.full(256, -1, np.int32)
    numbers, firsts, hashes = (
        np.empty(rows, np.int32),
        np.empty(rows, np.int32),
        np.empty(rows + 1, np.uint64),
    )
    marks = np.zeros(rows, np.bool_)
    count = k.group_texts(data, starts, lengths, marks, table, numbers, firsts, hashes)
    assert (count, len(set(numbers.tolist()))) == (rows, rows)
