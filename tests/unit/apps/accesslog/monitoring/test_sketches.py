"""Sketches and top tables: within their bounds at every size, and the same however they were combined."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.apps.accesslog.monitoring.load_counting_kernel import (
    BUCKETS,
    bucket_of,
    copy_texts,
    count_texts,
    hash_numbered,
    hash_text,
)
from penstock.apps.accesslog.monitoring.sketches import (
    EXACT_LIMIT,
    REGISTERS,
    Hashes,
    Registers,
    bucket_values,
    estimate_distinct,
    find_quantiles,
    make_registers,
    merge_registers,
)
from penstock.apps.accesslog.monitoring.top_lists import (
    choose_largest,
    cut_texts,
    merge_entries,
    rank_entries,
)
from tests.support.checked_kernels import check_bounds
from tests.support.guard_page import GuardedMemory

ROOT = Path(__file__).parents[5]


@numba.njit
def fill_buckets(latencies, buckets):  # type: ignore[no-untyped-def]
    for i in range(len(latencies)):
        buckets[i] = bucket_of(latencies[i])


@numba.njit
def fill_hashes(data, offsets, hashes):  # type: ignore[no-untyped-def]
    for i in range(len(hashes)):
        hashes[i] = hash_text(data, np.int64(offsets[i]), np.int64(offsets[i + 1]))


def hash_texts(texts: list[bytes]) -> NDArray[np.uint64]:
    data = np.frombuffer(b"".join(texts) or b"-", np.uint8).copy()
    offsets = np.zeros(len(texts) + 1, np.int32)
    np.cumsum([len(each) for each in texts], out=offsets[1:])
    hashes = np.zeros(len(texts), np.uint64)
    fill_hashes(data, offsets, hashes)
    return hashes


def hash_addresses(first: int, count: int) -> NDArray[np.uint64]:
    """Return the hashes of this many adjacent addresses, as a scan has them."""
    numbers = range(first, first + count)
    return hash_texts(
        [b"%d.%d.%d.%d" % (n >> 24 & 255, n >> 16 & 255, n >> 8 & 255, n & 255) for n in numbers]
    )


# --- distinct values ---------------------------------------------------------------------------------------


def unite(hashes: Hashes, sketches: Sequence[Registers]) -> tuple[Hashes, Registers | None]:
    """Return all hashes and sketches of one subject combined: hashes while they are few, else registers."""
    distinct = np.unique(hashes)
    if not sketches and len(distinct) <= EXACT_LIMIT:
        return distinct, None
    return distinct[:0], merge_registers([*sketches, make_registers(distinct)])


@pytest.mark.parametrize("first", [0x0A000000, 0xC0000200, 0x5DB8D822])
def test_distinct_clients_are_counted_exactly_while_few_and_within_two_percent_up_to_a_million(
    first: int,
) -> None:
    hashes = hash_addresses(first, 1_000_000)
    for size in (0, 1, 2, 10, 100, 1_000, EXACT_LIMIT):
        distinct, registers = unite(np.tile(hashes[:size], 2), [])
        assert (len(distinct), registers) == (size, None)
    registers = np.zeros(REGISTERS, np.uint8)
    at = 0
    for step in range(61):
        size = round(EXACT_LIMIT * 10 ** (step / 60 * math.log10(1_000_000 / EXACT_LIMIT)))
        registers = merge_registers([registers, make_registers(hashes[at:size])])
        at = size
        assert estimate_distinct(registers) == pytest.approx(size, rel=0.02)


def test_the_error_of_a_sketch_is_what_its_size_promises() -> None:
    """The standard error 1.04 / sqrt(32,768) is 0.57 %; one of 0.7 % would reveal a bad hash or estimator."""
    random = np.random.default_rng(1)
    for size in (6_000, 30_000, 100_000, 300_000):
        errors = []
        for _ in range(60):
            drawn = random.integers(0, 1 << 64, size, dtype=np.uint64)
            errors.append(estimate_distinct(make_registers(drawn)) / size - 1)
        assert np.sqrt(np.mean(np.square(errors))) < 0.007
        assert abs(np.mean(errors)) < 0.003


@given(st.lists(st.lists(st.integers(0, 9_000), max_size=40), max_size=5), st.integers(0, 9_000))
def test_a_sketch_is_a_function_of_the_set(parts: list[list[int]], more: int) -> None:
    universe = np.random.default_rng(2).integers(0, 1 << 64, 9_001, dtype=np.uint64)
    everything = np.concatenate([universe[part] for part in parts] + [universe[:more]])
    whole, registers = unite(everything, [])
    pieces = [universe[part] for part in parts]
    again, merged = unite(np.concatenate([*pieces[1:], *pieces[:1], universe[: more // 2]]), [])
    again, merged = unite(
        np.concatenate([again, universe[more // 2 : more]]), [] if merged is None else [merged]
    )
    assert (registers is None) == (merged is None) == (len(np.unique(everything)) <= EXACT_LIMIT)
    assert np.array_equal(whole, again)
    if registers is not None and merged is not None:
        assert np.array_equal(registers, merged)


def test_the_ends_of_a_sketch() -> None:
    assert estimate_distinct(np.zeros(REGISTERS, np.uint8)) == 0
    assert estimate_distinct(np.full(REGISTERS, 50, np.uint8)) > 1e18
    assert make_registers(np.array([0], np.uint64))[0] == 50
    assert make_registers(np.array([(1 << 64) - 1], np.uint64))[-1] == 1


# --- latencies ---------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, (1 << 40) - 1), min_size=1, max_size=200))
def test_a_quantile_is_within_one_percent_of_a_value_that_was_there(latencies: list[int]) -> None:
    buckets = np.zeros(len(latencies), np.int64)
    fill_buckets(np.array(latencies, np.int64), buckets)
    numbers, hits = np.unique(buckets, return_counts=True)
    for share, found in zip(
        (0.5, 0.95, 0.99, 1.0), find_quantiles(numbers, hits, (0.5, 0.95, 0.99, 1.0)), strict=True
    ):
        exact = sorted(latencies)[max(1, math.ceil(share * len(latencies) - 1e-9)) - 1]
        assert abs(found - exact) <= max(0.5, 0.008 * exact)


def test_buckets_rise_with_the_latency_and_the_ends_are_bounded() -> None:
    latencies = np.unique(np.concatenate([np.arange(5000), 2 ** np.arange(0, 62), 2 ** np.arange(0, 62) - 1]))
    buckets = np.zeros(len(latencies), np.int64)
    fill_buckets(latencies.astype(np.int64), buckets)
    assert (np.diff(buckets) >= 0).all()
    assert buckets.max() == BUCKETS - 1
    fill_buckets(np.array([-5, 0], np.int64), buckets[:2])
    assert buckets[:2].tolist() == [0, 0]
    assert (np.diff(bucket_values()) > 0).all()


# --- top tables --------------------------------------------------------------------------------------------


@given(
    st.lists(st.lists(st.integers(0, 60), max_size=150), min_size=1, max_size=6),
    st.integers(1, 12),
)
def test_top_tables_keep_their_bound_however_they_are_split_and_merged(
    parts: list[list[int]], room: int
) -> None:
    tables = []
    for part in parts:
        counts = Counter(part)
        cells = np.zeros(len(counts), np.int32)
        hits = np.array([*counts.values()], np.int64)
        keep, floors = choose_largest(cells, hits, 1, room)
        keys = np.array([*counts.keys()], np.uint64)[keep]
        zeros = np.zeros(len(keys), np.int64)
        entries = {"group": zeros, "hash": keys, "hits": hits[keep], "bytes": hits[keep] * 10}
        tables.append(({**entries, "credit": zeros + floors[0]}, floors))
    while len(tables) > 1:
        (left, missed), (right, too) = tables.pop(), tables.pop(0)
        joined = {name: np.concatenate([left[name], right[name]]) for name in left if name != "row"}
        merged, floors = merge_entries(joined, missed + too, room)
        merged.pop("row")
        tables.append((merged, floors))
    table, floors = tables[0]
    exact = Counter(number for part in parts for number in part)
    total = sum(exact.values())
    assert floors[0] <= total / (room + 1)
    assert len(table["hash"]) <= room
    seen = dict(zip(table["hash"].tolist(), table["hits"].tolist(), strict=True))
    credits = dict(zip(table["hash"].tolist(), table["credit"].tolist(), strict=True))
    for key, count in exact.items():
        if key in seen:
            assert seen[key] <= count <= seen[key] + floors[0] - credits[key]
        else:
            assert count <= floors[0]
    assert all(sent == 10 * hits for sent, hits in zip(table["bytes"], table["hits"], strict=True))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3000)), max_size=120), st.integers(1, 20))
def test_the_largest_of_each_cell_are_kept_and_of_equals_the_first(
    entries: list[tuple[int, int]], room: int
) -> None:
    cells = np.array([cell for cell, _ in entries], np.int32)
    hits = np.array([count for _, count in entries], np.int64)
    keep, floors = choose_largest(cells, hits, 4, room)
    for cell in range(4):
        rows = [row for row, (of, _) in enumerate(entries) if of == cell]
        best = sorted(rows, key=lambda row: (-entries[row][1], row))
        assert sorted(best[:room]) == [row for row in rows if keep[row]]
        assert floors[cell] == (entries[best[room]][1] if len(best) > room else 0)


def test_ranks_begin_at_one_in_each_group() -> None:
    entries = {
        "group": np.array([1, 0, 1, 1, 0]),
        "hash": np.array([5, 6, 7, 8, 9], np.uint64),
        "hits": np.array([3, 1, 9, 3, 2]),
    }
    rows, ranks = rank_entries(entries, 2)
    assert list(zip(rows.tolist(), ranks.tolist(), strict=True)) == [(4, 1), (1, 2), (2, 1), (0, 2)]


# --- kernels -----------------------------------------------------------------------------------------------

texts = st.lists(st.binary(max_size=40), min_size=1, max_size=50)


@given(texts, st.booleans())
def test_texts_are_counted_as_a_dictionary_counts_them_up_to_the_last_byte_of_the_buffer(
    values: list[bytes], cut: bool
) -> None:
    """The last text ends where memory ends, so one byte too far would end the process."""
    data = GuardedMemory(4096).place(b"".join(values))
    lengths = np.array([len(each) for each in values], np.int32)
    starts = (np.cumsum(lengths) - lengths).astype(np.int32)
    count = len(values)
    slots = np.empty(max(16, 1 << (2 * count).bit_length()), np.int32)
    hashes = np.empty(count, np.uint64)
    cells, texts = np.empty(count, np.int32), np.empty(count, np.int32)
    hits, sums = np.empty(count, np.int64), np.empty(count, np.int64)
    line_cells = np.array([line % 3 - 1 for line in range(count)], np.int32)
    sizes = np.arange(count)
    expected: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    for line, text in enumerate(values):
        if line_cells[line] >= 0:
            counted = b"" if line % 5 == 4 else text.partition(b"?")[0] if cut else text
            expected[int(line_cells[line]), counted].append(line)
    # Each line has its own number, although texts may be equal; every fifth line has none.
    numbers = np.array([-1 if line % 5 == 4 else line for line in range(count)], np.int32)
    keys, ends = np.empty(count + 1, np.uint64), np.zeros(count + 1, np.int32)
    hash_numbered(data, starts, lengths, cut, keys, ends)
    found = count_texts(
        *(numbers, keys, sizes, line_cells, np.uint64(0x9E3779B97F4A7C15)),
        *(slots, hashes, cells, hits, sums, texts),
    )
    starts = np.append(starts, np.int32(0))
    told = {
        (int(cells[at]), data[starts[texts[at]] : ends[texts[at]]].tobytes()): (hits[at], sums[at])
        for at in range(found)
    }
    assert told == {key: (len(rows), sum(rows)) for key, rows in expected.items()}


@given(texts)
def test_equal_texts_hash_alike_wherever_they_stand_and_others_do_not(values: list[bytes]) -> None:
    hashes = hash_texts([*values, b"between", *values[::-1]]).tolist()
    told = dict(zip(values, hashes, strict=False))
    assert hashes[: len(values)] == [told[text] for text in values]
    assert hashes[len(values) + 1 :] == [told[text] for text in values[::-1]]
    assert len(set(told.values())) == len(told)


def test_copies_that_would_leave_a_buffer_are_not_made() -> None:
    data = np.frombuffer(b"0123456789", np.uint8).copy()
    target = np.zeros(6, np.uint8)
    copy_texts(data, np.array([8, -1, 4], np.int32), np.array([0, 3, 5, 9], np.int32), target)
    assert bytes(target) == bytes(6)
    texts = cut_texts(data, np.array([0, 5, 0], np.int32), np.array([2, 3, 0], np.int32))
    assert texts.to_pylist() == [b"01", b"567", b"-"]


@pytest.mark.slow
def test_the_kernels_stay_inside_every_array_with_bounds_checks_on() -> None:
    """The same tests run in a separate process, where numba checks every index."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"),
            *(
                "tests/unit/apps/accesslog/monitoring/test_sketches.py",
                "tests/unit/apps/accesslog/monitoring/test_load_counting.py",
            ),
            *("-k", "texts or split or quantile or largest or flood or late"),
        ],
        cwd=ROOT,
        env={**os.environ, **check_bounds()},
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
