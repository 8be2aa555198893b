"""Fetches Spark's own JVM connector for Kafka, which parity tests and benchmarks compare Penstock with.

Rule: each jar is fetched alone. With their dependencies, Ivy would fetch a second Spark.

    SparkSession.builder.config("spark.jars", ",".join(map(str, fetch_connector())))
"""

from __future__ import annotations

from pathlib import Path

from penstock.cluster.downloads.jars import Progress, fetch_jars

#: The newest version that can be fetched and works with PySpark 4.3.
CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)


def fetch_connector(progress: Progress | None = None) -> list[Path]:
    """Return the connector's jars, for `spark.jars`."""
    folder = fetch_jars("spark-connector", CONNECTOR, progress, expected_jars=len(CONNECTOR))
    return sorted(folder.glob("*.jar"))
