"""What a pushed filter may leave out: rows it would drop anyway, and never the notice of a loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.core.errors import BrokerError, DataLossError
from penstock.core.model import At, Narrowing, RangeOrder, WorkOrder
from tests.contract.worlds import World, Written

YOUNG = Narrowing(since_ms=5_000)
OLDER_THAN_ALL, YOUNGER_THAN_ALL = Narrowing(since_ms=-5), Narrowing(since_ms=20_000)


def five_and_five(world: World) -> str:
    """Five old records, then five young ones."""
    topic = world.create_topic()
    world.write(topic, [Written(b"old", timestamp_ms=1_000)] * 5)
    world.write(topic, [Written(b"young", timestamp_ms=9_000)] * 5)
    return topic


def order(world: World, topic: str, until: int, narrowing: Narrowing, **fields: Any) -> WorkOrder:
    isolation_level = fields.pop("isolation_level", "read_uncommitted")
    client = replace(world.settings, isolation_level=isolation_level)
    wanted = RangeOrder(topic, 0, At(0), At(until), fields.pop("topic_id", None))
    fields.setdefault("poll_timeout_ms", 20_000)
    return WorkOrder((wanted,), client, ("offset",), narrowing=narrowing, **fields)


def offsets(world: World, wanted: WorkOrder) -> list[int]:
    return [offset for batch in world.reader().read(wanted) for offset in batch["offset"].to_pylist()]


def test_rows_that_a_filter_drops_are_left_out(world: World) -> None:
    """F6: by a lower time, by offsets, and by a time that all or none of the rows have."""
    topic = five_and_five(world)
    assert offsets(world, order(world, topic, 10, YOUNG)) == [5, 6, 7, 8, 9]
    assert offsets(world, order(world, topic, 10, Narrowing(from_offset=3, until_offset=7))) == [3, 4, 5, 6]
    assert offsets(world, order(world, topic, 10, OLDER_THAN_ALL)) == list(range(10))
    assert offsets(world, order(world, topic, 10, YOUNGER_THAN_ALL)) == []


def test_young_rows_before_old_ones_are_not_jumped_over(world: World) -> None:
    """Times need not rise: the first young row is found, and each old one behind it is left out."""
    topic = world.create_topic()
    times = (1_000, 9_000, 1_000, 9_000)
    for time_ms in times:
        world.write(topic, [Written(b"x", timestamp_ms=time_ms)])
    assert offsets(world, order(world, topic, 4, YOUNG)) == [1, 3]


def test_rows_that_aged_out_are_a_loss_although_older_ones_were_not_wanted(world: World) -> None:
    """T15: whether the lost rows were young nobody can know any more."""
    topic = five_and_five(world)
    world.truncate_before(topic, 0, 7)
    with pytest.raises(DataLossError) as caught:
        offsets(world, order(world, topic, 10, YOUNG))
    assert caught.value.condition == "OFFSET_OUT_OF_RANGE"
    assert offsets(world, order(world, topic, 10, YOUNG, fail_on_data_loss=False)) == [7, 8, 9]


def test_rows_that_are_held_back_are_waited_for_though_none_is_young_yet(world: World) -> None:
    """T17: an open transaction may still bring young rows; not to find one now means nothing."""
    topic = world.create_topic()
    world.write(topic, [Written(b"old", timestamp_ms=1_000)])
    world.open_transaction(topic, [Written(b"held back", timestamp_ms=9_000)])
    wanted = order(world, topic, 2, YOUNG, isolation_level="read_committed", poll_timeout_ms=700)
    with pytest.raises(BrokerError) as caught:
        offsets(world, wanted)
    assert caught.value.condition == "FETCH_TIMEOUT"


def test_a_recreated_topic_without_young_rows_is_noticed(world: World) -> None:
    """The time is looked up by the topic's name; the id says that it is another topic."""
    topic = five_and_five(world)
    topic_id = world.view().describe([topic])[topic].topic_id
    world.recreate_topic(topic)
    world.write(topic, [Written(b"other", timestamp_ms=1_000)] * 10)
    with pytest.raises(DataLossError) as caught:
        offsets(world, order(world, topic, 10, YOUNG, topic_id=topic_id))
    assert caught.value.condition == "TOPIC_RECREATED"
