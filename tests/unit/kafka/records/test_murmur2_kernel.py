"""Partitions of keys: the same as those of Java's default partitioner."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock.kafka.transport.protocol_messages  # noqa: F401  (imports kafka-python without its deprecation warnings)
from penstock.kafka.records.murmur2_kernel import NO_KEY, group_rows, partition_of_keys
from penstock.kernels.byte_columns import byte_column, null_column


def slow_murmur2(key: bytes) -> int:
    from kafka.partitioner.default import murmur2

    return int(murmur2(key))


def test_the_printed_results_of_the_java_partitioner() -> None:
    """B4: with three partitions item1 -> 1, item2 -> 0, item3 -> 2."""
    keys = byte_column(pa.array(["item1", "item2", "item3"]))
    assert partition_of_keys(keys, 3).tolist() == [1, 0, 2]


def test_every_key_length_agrees_with_another_implementation() -> None:
    rng = random.Random(3)
    keys = [rng.randbytes(size) for size in range(70) for _ in range(20)]
    for partitions in (1, 2, 7, 1000):
        expected = [(slow_murmur2(key) & 0x7FFFFFFF) % partitions for key in keys]
        assert partition_of_keys(byte_column(pa.array(keys)), partitions).tolist() == expected


@given(st.binary(max_size=40), st.integers(1, 2**31 - 1))
def test_any_key_and_any_number_of_partitions_agree(key: bytes, partitions: int) -> None:
    chosen = partition_of_keys(byte_column(pa.array([key])), partitions)
    assert chosen.tolist() == [(slow_murmur2(key) & 0x7FFFFFFF) % partitions]


def test_a_null_key_has_no_partition_and_an_empty_key_has_one() -> None:
    """T24: null and empty differ in a key that chooses a partition."""
    chosen = partition_of_keys(byte_column(pa.array([None, b"", b"x"], pa.binary())), 5)
    assert chosen[0] == NO_KEY
    assert chosen[1] == (slow_murmur2(b"") & 0x7FFFFFFF) % 5
    assert partition_of_keys(null_column(2), 5).tolist() == [NO_KEY, NO_KEY]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
def test_slices_and_kinds_of_columns_make_no_difference(kind: pa.DataType) -> None:
    names = [f"key-{number}" for number in range(50)]
    whole = pa.array(names, pa.string()).cast(kind)
    expected = [(slow_murmur2(name.encode()) & 0x7FFFFFFF) % 3 for name in names]
    assert partition_of_keys(byte_column(whole.slice(7, 20)), 3).tolist() == expected[7:27]


def test_rows_are_grouped_by_partition_in_their_order() -> None:
    chosen = np.array([2, 0, 2, 1, 0], np.int32)
    rows, starts = group_rows(chosen, 4)
    assert rows.tolist() == [1, 4, 3, 0, 2]
    assert starts.tolist() == [0, 2, 3, 5, 5]
