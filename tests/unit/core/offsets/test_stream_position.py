"""A stream's position as text: the same text for the same position, with nothing guessed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import OffsetStoreError
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition, read_position, write_position

partitions = st.builds(TopicPartition, st.text(min_size=1, max_size=5), st.integers(0, 300))
numbers = st.dictionaries(partitions, st.integers(0, 2**63 - 1), max_size=8)
positions = st.builds(
    StreamPosition,
    numbers,
    st.dictionaries(st.text(max_size=5), st.binary(min_size=16, max_size=16), max_size=4),
    numbers,
    numbers,
    numbers,
)


@given(positions)
def test_a_position_survives_its_text(position: StreamPosition) -> None:
    """B030, F22: through JSON and back."""
    assert read_position(json.loads(json.dumps(write_position(position)))) == position


@given(positions, st.randoms())
def test_equal_positions_have_equal_texts(position: StreamPosition, random: Any) -> None:
    """B030: in whatever order the entries were learned, because Spark compares texts."""

    def shuffle(mapping: Any) -> Any:
        items = list(mapping.items())
        random.shuffle(items)
        return dict(items)

    again = StreamPosition(
        shuffle(position.offsets),
        shuffle(position.topic_ids),
        shuffle(position.leader_epochs),
        shuffle(position.starts),
        shuffle(position.gone),
    )
    assert json.dumps(write_position(again)) == json.dumps(write_position(position))


def test_partitions_are_written_in_the_order_of_their_numbers() -> None:
    offsets = {TopicPartition("t", number): 0 for number in (10, 2, 0)}
    assert list(write_position(StreamPosition(offsets))["offsets"]["t"]) == ["0", "2", "10"]


def test_a_text_of_sparks_own_connector_is_read() -> None:
    """B032: so a query can move here with its checkpoint; `version` is a valid topic name there."""
    position = read_position({"t": {"0": 5, "1": 7}, "version": {"0": 1}})
    assert position.offsets == {
        TopicPartition("t", 0): 5,
        TopicPartition("t", 1): 7,
        TopicPartition("version", 0): 1,
    }
    assert position.topic_ids == position.starts == {}


def test_a_newer_version_is_refused_with_both_versions() -> None:
    """B024: its meaning is never guessed."""
    with pytest.raises(OffsetStoreError, match=r"\[CHECKPOINT_TOO_NEW\].*version 2.*up to 1"):
        read_position({"version": 2, "offsets": {}})


@pytest.mark.parametrize(
    "stored",
    [
        None,
        [],
        "t",
        {"version": 0, "offsets": {}},
        {"version": True, "offsets": {}},
        {"version": "1", "offsets": {}},
        {"version": 1},
        {"version": 1, "offsets": {"t": 5}},
        {"version": 1, "offsets": {"t": {"0": -1}}},
        {"version": 1, "offsets": {"t": {"0": 1.5}}},
        {"version": 1, "offsets": {"t": {"0": True}}},
        {"version": 1, "offsets": {"t": {"x": 1}}},
        {"version": 1, "offsets": {"t": {"-1": 1}}},
        {"version": 1, "offsets": {"t": {"٣": 1}}},
        {"version": 1, "offsets": {}, "topicIds": {"t": "xyz"}},
        {"version": 1, "offsets": {}, "topicIds": {"t": 5}},
        {"version": 1, "offsets": {}, "topicIds": ["t"]},
        {"version": 1, "offsets": {}, "starts": 5},
        {"t": {"0": -2}},
        {"logOffset": 3},
    ],
)
def test_a_text_that_is_no_position_is_refused_with_what_to_do(stored: object) -> None:
    """T46: a damaged checkpoint, or another source's, is no reason to start at an arbitrary place."""
    with pytest.raises(OffsetStoreError, match=r"\[CHECKPOINT_UNREADABLE\].*checkpoint"):
        read_position(stored)


def test_a_batch_begins_where_its_end_says_or_where_the_one_before_ended() -> None:
    old, new = TopicPartition("t", 0), TopicPartition("t", 1)
    before = StreamPosition({old: 5})
    end = StreamPosition({old: 9, new: 3}, starts={new: 1})
    assert (end.start_of(old, before), end.start_of(new, before)) == (5, 1)
    assert end.start_of(TopicPartition("t", 2), before) is None
