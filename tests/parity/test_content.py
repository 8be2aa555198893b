"""Every topic, whole and cut to pieces, at both isolation levels: both connectors return the same rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.parity.conftest import World
from tests.parity.option_sets import OptionSet
from tests.parity.reading import Answer, read_both
from tests.parity.topics import SHAPES
from tests.parity.verdicts import judge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: How many rows each topic shows; fewer at `read_committed` where transactions were aborted or are open.
ROWS = {shape.name: sum(shape.ends) - sum(shape.starts) for shape in SHAPES} | {
    "compacted": 8,
    "transacted": 28,
}
COMMITTED = ROWS | {"transacted": 16, "open": 10}


def read_alike(spark: SparkSession, world: World, **options: str) -> Answer:
    """Return the rows, after checking that both connectors read the same."""
    spelt = {key.replace("_", "."): text for key, text in options.items()}
    resolved = OptionSet(tuple(spelt.items())).resolve(world.prefix, world.bootstrap)
    official, ours = read_both(spark, resolved)
    assert judge(official, ours) in ("same rows", "both read nothing")
    return ours


@pytest.mark.parametrize("name", ROWS)
def test_a_topic_with_its_headers_reads_alike(spark: SparkSession, world: World, name: str) -> None:
    """B045, B046, B047, B050, B086: nulls, headers of all kinds, missing times, gaps, markers."""
    assert read_alike(spark, world, subscribe=f"~{name}", includeHeaders="true").rows == ROWS[name]


#: Ends are numbers, otherwise Spark's connector does not cut; open transactions cannot be read as committed.
ENDS = {"transacted": (28, 6), "open": (13, 5), "compacted": (41,)}
STABLE_ENDS = ENDS | {"open": (8, 2)}


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("most", ["1", "3"])
@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_ranges_that_begin_and_end_on_offsets_nobody_sees_read_alike(
    spark: SparkSession, world: World, name: str, most: str, level: str
) -> None:
    """T01, B044, B045, B124: tasks of one to three offsets, many of which are markers, aborted or gone."""
    ends = (STABLE_ENDS if level == "read_committed" else ENDS)[name]
    answer = read_alike(
        spark,
        world,
        subscribe=f"~{name}",
        maxRecordsPerPartition=most,
        endingOffsets=json.dumps({f"~{name}": {str(number): end for number, end in enumerate(ends)}}),
        kafka_isolation_level=level,
    )
    assert answer.rows == (COMMITTED if level == "read_committed" else ROWS)[name]
    assert all(last - first < int(most) for *_, first, last in answer.splits)


@pytest.mark.parametrize("pieces", ["5", "7", "16", "50"])
@pytest.mark.parametrize("most", [None, "50"])
def test_skewed_partitions_are_cut_at_the_same_offsets(
    spark: SparkSession, world: World, pieces: str, most: str | None
) -> None:
    """B104, B113, B114, B115, B117, B126: partitions of 120, 12, 3 and 0 offsets in so many pieces."""
    cap = {} if most is None else {"maxRecordsPerPartition": most}
    answer = read_alike(spark, world, subscribe="~skew", minPartitions=pieces, **cap)
    assert len(answer.tasks) >= 5
