"""What the tests on a real Spark share: a short way to load a topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

Load = Callable[..., DataFrame]


@pytest.fixture
def load(spark: SparkSession, kafka: Any) -> Load:
    """`load(topic, startingOffsets=...)`: the frame, not yet run. `on` names another cluster.

    Options with a dot are given with two underscores: `kafka__isolation__level="read_committed"`. A topic
    of None leaves the selection to the options.
    """

    def load(topic: str | None, *, on: Any = None, **options: object) -> DataFrame:
        reader = spark.read.format("penstock")
        reader.option("kafka.bootstrap.servers", (on or kafka).bootstrap)
        if topic is not None:
            reader.option("subscribe", topic)
        for key, text in options.items():
            reader.option(key.replace("__", "."), text)  # type: ignore[arg-type]
        return reader.load()

    return load
