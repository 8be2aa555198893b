"""What the page on streams says about Spark itself, checked on a real one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.kafka.topic_filling import produce

PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "streams.md").read_text()


def test_a_checkpoint_holds_the_folders_that_the_page_shows(
    spark: SparkSession, kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """F49: newest ends, finished batches, state, metadata; each has its row in the table."""
    name = topic()
    produce(kafka.bootstrap, name, ["a", "b", "a"])
    frame = spark.readStream.format("penstock").option("kafka.bootstrap.servers", kafka.bootstrap)
    counts = frame.option("subscribe", name).option("startingOffsets", "earliest").load()
    writer = counts.groupBy("value").count().writeStream.outputMode("complete").format("noop")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    try:
        query.awaitTermination(120)
    finally:
        query.stop()
    found = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    shown = set(re.findall(r"^\| `([a-z]+)/?(?:N)?/?`", PAGE, re.MULTILINE))
    assert {"metadata", "offsets", "commits", "state"} <= found
    assert found - {"sources"} <= shown
    assert name in (tmp_path / "offsets" / "0").read_text()


def test_continuous_mode_is_refused_clearly(
    spark: SparkSession, kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """F11, F14: Spark offers it to no Python source, and says so when the query starts."""
    frame = spark.readStream.format("penstock").option("kafka.bootstrap.servers", kafka.bootstrap)
    writer = frame.option("subscribe", topic()).load().writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(continuous="1 second")
    with pytest.raises(Exception, match=r"(?i)continuous"):
        writer.start().awaitTermination(60)
