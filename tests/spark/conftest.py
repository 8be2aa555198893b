"""Fixtures shared by the tests on a real Spark: a short way to load a topic, and to run a stream."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.streaming import Flow

Load = Callable[..., DataFrame]
MakeFlow = Callable[..., Flow]


@pytest.fixture
def load(spark: SparkSession, kafka: Any) -> Load:
    """Return `load(topic, startingOffsets=...)`, which makes a frame. `on` names another cluster.

    Options with a dot are given with two underscores: `kafka__isolation__level="read_committed"`. A topic
    of None leaves the selection to the options.
    """

    def load(topic: str | None, *, on: Any = None, **options: object) -> DataFrame:
        return _load(spark.read, topic, on or kafka, options)

    return load


@pytest.fixture
def stream(spark: SparkSession, request: pytest.FixtureRequest) -> Load:
    """Return `stream(topic, startingOffsets=...)`, which makes a streaming frame; else it is like `load`."""

    def stream(topic: str | None, *, on: Any = None, **options: object) -> DataFrame:
        return _load(spark.readStream, topic, on or request.getfixturevalue("kafka"), options)

    return stream


@pytest.fixture
def make_flow(stream: Load, tmp_path: Path) -> Iterator[MakeFlow]:
    """Yield a function that makes queries, each with a checkpoint, and stop those that a test leaves running.

    `make_flow(other)` begins with a copy of the other one's checkpoint.
    """
    flows: list[Flow] = []

    def make(other: Flow | None = None) -> Flow:
        flows.append(Flow(stream, tmp_path / f"checkpoint-{len(flows)}"))
        if other is not None:
            shutil.copytree(other.checkpoint, flows[-1].checkpoint)
        return flows[-1]

    yield make
    for each in flows:
        each.stop()


@pytest.fixture
def flow(make_flow: MakeFlow) -> Flow:
    """Return one query with its checkpoint."""
    return make_flow()


def _load(reader: Any, topic: str | None, cluster: Any, options: dict[str, object]) -> DataFrame:
    reader = reader.format("penstock").option("kafka.bootstrap.servers", cluster.bootstrap)
    if topic is not None:
        reader = reader.option("subscribe", topic)
    for key, text in options.items():
        reader = reader.option(key.replace("__", "."), text)
    frame: DataFrame = reader.load()
    return frame
