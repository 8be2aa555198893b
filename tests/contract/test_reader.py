"""What every `Reader` promises, checked on the log in memory and on a real broker."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.errors import BrokerError, DataLossError
from penstock.core.model import (
    COLUMNS,
    At,
    Bound,
    Earliest,
    Latest,
    RangeOrder,
    Reader,
    TopicPartition,
    WorkOrder,
)
from tests.contract.worlds import World, Written

ALL_COLUMNS = tuple(COLUMNS)
#: For ranges that are known never to fill up.
SHORT_WAIT_MS = 700


def order(
    world: World,
    topic: str,
    start: Bound,
    until: Bound,
    *,
    partition: int = 0,
    columns: tuple[str, ...] = ("offset", "value"),
    isolation_level: str = "read_uncommitted",
    **fields: Any,
) -> WorkOrder:
    topic_id = fields.pop("topic_id", None)
    client = replace(world.settings, isolation_level=isolation_level)
    fields.setdefault("poll_timeout_ms", 20_000)
    wanted = RangeOrder(topic, partition, start, until, topic_id)
    return WorkOrder((wanted,), client, columns, **fields)


def rows(world: World, wanted: WorkOrder) -> list[dict[str, Any]]:
    return [row for batch in world.reader().read(wanted) for row in batch.to_pylist()]


def offsets(world: World, wanted: WorkOrder) -> list[int]:
    return [row["offset"] for row in rows(world, wanted)]


def ten(world: World) -> str:
    topic = world.create_topic()
    world.write(topic, [Written(b"%d" % number) for number in range(10)])
    return topic


def _spark_schema() -> Any:
    from pyspark.sql import types as t

    pair = t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())])
    kinds: dict[str, t.DataType] = {
        "binary": t.BinaryType(),
        "string": t.StringType(),
        "int": t.IntegerType(),
        "bigint": t.LongType(),
        "timestamp": t.TimestampType(),
        "array<struct<key:string,value:binary>>": t.ArrayType(pair),
    }
    return t.StructType([t.StructField(name, kinds[kind]) for name, kind in COLUMNS.items()])


def test_both_worlds_have_readers(any_world: World) -> None:
    assert isinstance(any_world.reader(), Reader)


def test_a_range_is_half_open(any_world: World) -> None:
    """D51: reading ends at the range's end and nowhere else."""
    topic = ten(any_world)
    assert rows(any_world, order(any_world, topic, At(3), At(6))) == [
        {"offset": number, "value": b"%d" % number} for number in (3, 4, 5)
    ]


def test_an_empty_range_reads_nothing(any_world: World) -> None:
    topic = ten(any_world)
    assert rows(any_world, order(any_world, topic, At(4), At(4))) == []
    assert rows(any_world, order(any_world, topic, At(10), At(10))) == []


def test_open_ends_are_bound_when_the_reading_starts(any_world: World) -> None:
    topic = ten(any_world)
    whole = order(any_world, topic, Earliest(), Latest())
    assert offsets(any_world, whole) == list(range(10))
    any_world.truncate_before(topic, 0, 7)
    any_world.write(topic, [Written(b"10")])
    assert offsets(any_world, whole) == [7, 8, 9, 10]


def test_batches_have_the_asked_columns_with_the_types_that_spark_wants(world: World) -> None:
    """B047: in the first batch and in every other one, in the requested order."""
    from pyspark.sql.pandas.types import to_arrow_schema

    topic = world.create_topic()
    headers = (("a", b"1"), ("b", None), ("a", b"2"))
    world.write(
        topic,
        [
            Written(b"value", b"key", 1_700_000_000_123, headers),
            Written(None, None, 1_700_000_000_124),
        ],
    )
    wanted = order(world, topic, At(0), At(2), columns=ALL_COLUMNS)
    table = pa.Table.from_batches(list(world.reader().read(wanted)))
    assert table.schema == to_arrow_schema(_spark_schema(), timezone="UTC")

    first, second = table.to_pylist()
    assert first["headers"] == [
        {"key": "a", "value": b"1"},
        {"key": "b", "value": None},
        {"key": "a", "value": b"2"},
    ]
    assert (first["key"], first["value"]) == (b"key", b"value")
    assert (first["topic"], first["partition"], first["offset"]) == (topic, 0, 0)
    assert first["timestamp"].timestamp() * 1000 == pytest.approx(1_700_000_000_123, abs=0.5)
    assert first["timestampType"] == 0
    assert (second["key"], second["value"], second["headers"]) == (None, None, None)


def test_ranges_of_one_order_are_read_in_their_order(any_world: World) -> None:
    topic = any_world.create_topic(2)
    any_world.write(topic, [Written(b"a"), Written(b"b", partition=1), Written(b"c")])
    one = order(any_world, topic, At(0), At(1), partition=1)
    both = replace(one, ranges=(*one.ranges, RangeOrder(topic, 0, At(1), At(2))))
    assert [row["value"] for row in rows(any_world, both)] == [b"b", b"c"]


def test_a_range_that_ends_on_a_marker_ends(world: World) -> None:
    """F39: counting rows instead of offsets would wait forever for the row that the marker is not."""
    topic = world.create_topic()
    world.write_transaction(topic, [Written(b"in")], commit=True)
    world.write(topic, [Written(b"after")])
    assert offsets(world, order(world, topic, At(0), At(2))) == [0]
    assert offsets(world, order(world, topic, At(0), At(3))) == [0, 2]
    assert offsets(world, order(world, topic, At(1), At(2))) == []


def test_aborted_records_are_seen_only_by_those_who_read_uncommitted(world: World) -> None:
    topic = world.create_topic()
    world.write(topic, [Written(b"plain")])
    world.write_transaction(topic, [Written(b"aborted"), Written(b"aborted")], commit=False)
    world.write_transaction(topic, [Written(b"kept")], commit=True)
    world.write(topic, [Written(b"last")])
    end = At(7)
    assert [row["value"] for row in rows(world, order(world, topic, At(0), end))] == [
        b"plain",
        b"aborted",
        b"aborted",
        b"kept",
        b"last",
    ]
    committed = order(world, topic, At(0), end, isolation_level="read_committed")
    assert [row["value"] for row in rows(world, committed)] == [b"plain", b"kept", b"last"]


def test_an_offset_that_aged_out_is_an_error_with_the_bounds(any_world: World) -> None:
    """F44: the error names topic, partition, offset and what the log still holds."""
    topic = ten(any_world)
    any_world.truncate_before(topic, 0, 5)
    with pytest.raises(DataLossError) as caught:
        rows(any_world, order(any_world, topic, At(2), At(8)))
    error = caught.value
    assert error.condition == "OFFSET_OUT_OF_RANGE"
    wanted = {"topic": topic, "partition": 0, "offset": 2, "earliest": 5, "latest": 10}
    assert wanted.items() <= error.facts.items()
    for fact in (f"{topic}-0", "2", "5", "10"):
        assert fact in str(error)


def test_without_loss_checking_reading_goes_on_at_what_is_left(any_world: World) -> None:
    """T08: the range is cut to what the log still holds; no row outside it is returned, and none twice."""
    topic = ten(any_world)
    any_world.truncate_before(topic, 0, 5)

    def left_of(start: int, until: int) -> list[int]:
        wanted = order(
            any_world, topic, At(start), At(until), fail_on_data_loss=False, poll_timeout_ms=SHORT_WAIT_MS
        )
        return offsets(any_world, wanted)

    assert left_of(2, 8) == [5, 6, 7]
    assert left_of(2, 5) == left_of(2, 4) == []
    assert left_of(12, 14) == []  # behind the end: what is left is not read instead


def test_what_aged_out_before_a_piece_of_earliest_was_begun_is_no_loss(any_world: World) -> None:
    """B098: neither in the first piece nor in later ones, although loss checking is on."""
    topic = ten(any_world)
    any_world.truncate_before(topic, 0, 6)
    first = order(any_world, topic, Earliest(), At(4))
    later = order(any_world, topic, At(4), At(8))
    later = replace(later, ranges=(replace(later.ranges[0], from_earliest=True),))
    gone = replace(later, ranges=(replace(later.ranges[0], until=At(5)),))
    assert [offsets(any_world, each) for each in (first, later, gone)] == [[], [6, 7], []]


def test_an_offset_after_the_end_is_out_of_range(any_world: World) -> None:
    topic = ten(any_world)
    with pytest.raises(DataLossError) as caught:
        rows(any_world, order(any_world, topic, At(50), At(60)))
    assert caught.value.condition == "OFFSET_OUT_OF_RANGE"
    assert caught.value.facts["latest"] == 10


def test_a_range_past_the_end_is_waited_for(any_world: World) -> None:
    """F45: a short answer is not the end; the rows that arrive while waiting are read."""
    topic = ten(any_world)
    batches = any_world.reader().read(order(any_world, topic, At(8), At(12)))
    assert next(batches)["offset"].to_pylist() == [8, 9]
    any_world.write(topic, [Written(b"late"), Written(b"late")])
    assert [offset for batch in batches for offset in batch["offset"].to_pylist()] == [10, 11]


def test_a_range_past_an_end_that_stays_is_out_of_range_and_without_loss_checking_what_is_there(
    any_world: World,
) -> None:
    """F44: the reader waits up to the limit, then reports the exact range; no row is made up or repeated."""
    topic = ten(any_world)
    wanted = order(any_world, topic, At(8), At(12), poll_timeout_ms=700)
    with pytest.raises(DataLossError) as caught:
        rows(any_world, wanted)
    assert caught.value.condition == "OFFSET_OUT_OF_RANGE"
    assert caught.value.facts["offset"] == 10
    assert offsets(any_world, replace(wanted, fail_on_data_loss=False)) == [8, 9]


def test_a_range_that_never_fills_ends_with_an_error_at_its_deadline(world: World) -> None:
    """F44: this second kind of failure, a timeout, is distinguished from out of range."""
    topic = world.create_topic()
    world.write(topic, [Written(b"a")])
    world.open_transaction(topic, [Written(b"held back")])
    begun = time.monotonic()
    wanted = order(world, topic, At(0), At(2), isolation_level="read_committed", poll_timeout_ms=700)
    with pytest.raises(BrokerError) as caught:
        rows(world, wanted)
    assert caught.value.condition == "FETCH_TIMEOUT"
    assert f"{topic}-0" in str(caught.value)
    assert "700 ms" in str(caught.value)
    assert 0.5 < time.monotonic() - begun < 2.7


def test_a_recreated_topic_is_not_read_in_the_place_of_the_old_one(any_world: World) -> None:
    topic = ten(any_world)
    topic_id = any_world.view().describe([topic])[topic].topic_id
    any_world.recreate_topic(topic)
    any_world.write(topic, [Written(b"other")] * 10)
    with pytest.raises(DataLossError) as caught:
        rows(any_world, order(any_world, topic, At(0), At(5), topic_id=topic_id))
    assert caught.value.condition == "TOPIC_RECREATED"
    assert offsets(any_world, order(any_world, topic, At(0), At(2), topic_id=None)) == [0, 1]
    assert any_world.view().latest([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 10}


def test_a_recreated_topic_is_noticed_even_when_it_is_empty(any_world: World) -> None:
    """A fetch would not show it, because there is nothing to fetch; the topic id does."""
    topic = ten(any_world)
    topic_id = any_world.view().describe([topic])[topic].topic_id
    any_world.recreate_topic(topic)
    wanted = order(any_world, topic, Earliest(), Latest(), topic_id=topic_id)
    with pytest.raises(DataLossError) as caught:
        rows(any_world, wanted)
    assert caught.value.condition == "TOPIC_RECREATED"
    assert offsets(any_world, replace(wanted, fail_on_data_loss=False)) == []


@pytest.mark.parametrize("ends", [(At(2), At(8)), (Earliest(), Latest())], ids=["fixed", "late"])
def test_a_deleted_topic_is_a_loss_and_without_loss_checking_no_rows(
    any_world: World, ends: tuple[Bound, Bound]
) -> None:
    """T15: deleted between planning and reading; the loss rule decides, and the rest is read."""
    topic, other = ten(any_world), ten(any_world)
    topic_id = any_world.view().describe([topic])[topic].topic_id
    any_world.delete_topic(topic)
    wanted = order(any_world, topic, *ends, topic_id=topic_id)
    with pytest.raises(DataLossError) as caught:
        rows(any_world, wanted)
    assert caught.value.condition == "PARTITION_GONE"
    both = replace(
        wanted,
        ranges=(*wanted.ranges, RangeOrder(other, 0, At(8), At(10))),
        fail_on_data_loss=False,
    )
    assert offsets(any_world, both) == [8, 9]


def test_a_range_that_starts_after_its_end_is_a_loss(any_world: World) -> None:
    """It is an error when losses count, and reads no rows when they do not."""
    topic = ten(any_world)
    wanted = order(any_world, topic, At(50), Latest())
    with pytest.raises(DataLossError) as caught:
        rows(any_world, wanted)
    assert caught.value.condition == "START_AFTER_END"
    assert offsets(any_world, replace(wanted, fail_on_data_loss=False)) == []
