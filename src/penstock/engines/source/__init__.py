"""Spark's Python data source for Kafka: `spark.read.format("penstock")`."""

from penstock.engines.source.data_source import PenstockDataSource

__all__ = ["PenstockDataSource"]
