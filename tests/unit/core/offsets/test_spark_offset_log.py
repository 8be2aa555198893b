"""Entries of Spark's offset log, written by this connector and by Spark's own."""

from __future__ import annotations

import json

import pytest

from penstock.core.errors import OffsetStoreError
from penstock.core.model import TopicPartition
from penstock.core.offsets.spark_offset_log import read_entry
from penstock.core.offsets.stream_position import StreamPosition, write_position

HEAD = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n'
ONE, TWO = TopicPartition("t", 0), TopicPartition("u", 3)


def test_an_entry_holds_the_positions_of_all_sources() -> None:
    ours = StreamPosition({ONE: 5}, {"t": b"\1" * 16}, {ONE: 2}, starts={ONE: 1})
    assert read_entry(HEAD + json.dumps(write_position(ours))) == ours
    both = read_entry(HEAD + json.dumps(write_position(ours)) + '\n-\n{"u":{"3":7}}\n')
    assert both.offsets == {ONE: 5, TWO: 7}
    assert both.starts == {ONE: 1}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not an entry of version v1"),
        ("v2\n{}\n{}", "not an entry of version v1"),
        (HEAD + "-", "no source has an offset"),
        (HEAD + "7a", "not JSON"),
        (HEAD + '{"t":{"0":5}}\n{"t":{"0":6}}', "two sources of the query read t-0"),
    ],
)
def test_an_entry_that_cannot_be_read_is_an_error(text: str, why: str) -> None:
    with pytest.raises(OffsetStoreError, match="OFFSET_LOG_UNREADABLE") as caught:
        read_entry(text)
    assert why in str(caught.value)


def test_a_source_that_is_not_kafka_is_told() -> None:
    with pytest.raises(OffsetStoreError, match="CHECKPOINT_UNREADABLE"):
        read_entry(HEAD + '{"logOffset":0}')
