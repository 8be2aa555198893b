"""Equal texts get one number, whatever they are and wherever they end."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.apps.accesslog.parsing.line_parser import Lines, make_parser
from penstock.apps.accesslog.texts import text_grouping_kernel as k
from penstock.apps.accesslog.texts.text_grouping import Grouped, group, group_lines
from tests.support.guard_page import GuardedMemory

rows_of_texts = st.lists(st.binary(max_size=20), min_size=1, max_size=5).flatmap(
    lambda some: st.lists(st.tuples(st.sampled_from([*some, None]), st.booleans()), max_size=40)
)


def lay_out(rows: list[tuple[bytes | None, bool]]) -> Lines:
    """Return lines whose only field is one of these texts; the last one ends where memory ends."""
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


def number(data: bytes, starts: list[int], lengths: list[int], table: np.ndarray) -> list[int]:
    rows = len(starts)
    numbers, firsts, hashes = np.empty(rows, np.int32), np.zeros(64, np.int32), np.zeros(64, np.uint64)
    k.group_texts(
        *(np.frombuffer(data, np.uint8)[: max(lengths)], np.array(starts, np.int32)),
        *(np.array(lengths, np.int32), np.zeros(rows, np.bool_), table, numbers, firsts, hashes),
    )
    return numbers.tolist()


def test_texts_that_are_not_inside_of_their_buffer_are_none() -> None:
    """Not even if the bytes behind the buffer would look the same."""
    empty = np.full(16, -1, np.int32)
    assert number(b"ababab", [-1, 4, 1, 2, 0], [2, 2, 2, 2, 2], empty) == [-1, -1, -1, -1, 0]


def test_a_text_is_looked_for_in_so_many_slots_and_no_more() -> None:
    """In a table with one free slot, the nearest texts find it; further away two equal texts stay apart."""
    together = 0
    for free in range(64):
        table = np.full(64, 50, np.int32)
        table[free] = -1
        numbers = number(b"a", [0, 0, 0], [1, -1, 1], table)
        assert numbers in ([0, -1, 0], [0, -1, 1])
        together += numbers == [0, -1, 0]
    assert together == k.LONGEST_SEARCH
