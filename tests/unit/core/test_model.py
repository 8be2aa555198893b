"""The core types, and what they promise to all code that uses them."""

from __future__ import annotations

import pickle

import pytest

from penstock.core.client.client_settings import ClientSettings, SaslSettings, Secret
from penstock.core.model import COLUMNS, At, Earliest, OffsetRange, RangeOrder, TopicPartition, WorkOrder


def test_a_kafka_row_has_sparks_columns_in_sparks_order() -> None:
    """F3: names and types, headers last."""
    assert dict(COLUMNS) == {
        "key": "binary",
        "value": "binary",
        "topic": "string",
        "partition": "int",
        "offset": "bigint",
        "timestamp": "timestamp",
        "timestampType": "int",
        "headers": "array<struct<key:string,value:binary>>",
    }
    assert list(COLUMNS)[-1] == "headers"


def test_a_range_is_half_open() -> None:
    """C26: its end is the next offset to read, so 5 to 8 is three offsets."""
    assert OffsetRange("t", 0, 5, 8).size == 3
    assert OffsetRange("t", 0, 8, 5).size == 0


def test_partitions_sort_by_topic_and_then_by_number() -> None:
    mixed = [TopicPartition("b", 0), TopicPartition("a", 10), TopicPartition("a", 9)]
    assert [str(each) for each in sorted(mixed)] == ["a-9", "a-10", "b-0"]


def test_a_work_order_is_complete_and_travels() -> None:
    """F33: partition, range, client, poll timeout, loss flag and columns, in one picklable value."""
    order = WorkOrder(
        (RangeOrder("t", 1, Earliest(), At(9), b"id"),),
        ClientSettings((("b", 1),), sasl=SaslSettings("PLAIN", "u", Secret("hunter2"))),
        ("value", "headers"),
        fail_on_data_loss=False,
        poll_timeout_ms=512,
    )
    assert pickle.loads(pickle.dumps(order)) == order
    assert "hunter2" not in repr(order)


def test_positions_are_types_and_not_numbers() -> None:
    """No position can be added to a number or compared with one by accident."""
    with pytest.raises(TypeError):
        Earliest() < 5  # type: ignore[operator]  # noqa: B015
    assert At(5) != 5
