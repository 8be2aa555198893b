"""What Spark's plan shows of a batch read."""

from __future__ import annotations

from typing import Any

from tests.support.kafka.topic_filling import produce


def plan_of(frame: Any) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_the_format_name_picks_the_connector_and_the_plan_tells_which(
    spark: Any, kafka: Any, topic: Any
) -> None:
    """B070, B071, B105: there is one implementation behind each name, and the physical plan names it."""
    name = topic(1)
    produce(kafka.bootstrap, name, ["a"])
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": name}
    ours = plan_of(spark.read.format("penstock").options(**options).load())
    assert "BatchScan" in ours
    assert "penstock" in ours
    assert "KafkaScan" not in ours
