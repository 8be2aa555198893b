"""The floor: the same rows as ready-made Arrow batches through a Python data source, no Kafka at all.

What remains is what Spark itself takes to carry Arrow batches from a Python worker into rows. No source
written in Python can be faster; the distance to it is the price of fetching and decoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

_PARTITIONS = 4
_COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
}


class FloorReader(DataSourceReader):
    def __init__(self, records: int, size: int, columns: tuple[str, ...]) -> None:
        self.records, self.size, self.columns = records, size, columns

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(index) for index in range(_PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import numpy as np
        import pyarrow as pa

        rows = max(1, min(65_536, (4 << 20) // self.size))
        ready = {
            "key": pa.array([b"client-%d" % (i % 1000) for i in range(rows)], pa.binary()),
            "value": pa.array([b"x" * self.size] * rows, pa.binary()),
            "topic": pa.array(["b-100"] * rows),
            "partition": pa.array(np.full(rows, partition.value, np.int32)),
            "offset": pa.array(np.arange(rows)),
            "timestamp": pa.array(np.arange(rows), pa.timestamp("us", "UTC")),
            "timestampType": pa.array(np.zeros(rows, np.int32)),
        }
        batch = pa.record_batch({name: ready[name] for name in self.columns})
        left = self.records // _PARTITIONS
        while left > 0:
            yield batch.slice(0, min(left, rows))
            left -= rows


class FloorSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "floor"

    def _columns(self) -> tuple[str, ...]:
        return tuple((self.options.get("columns") or ",".join(_COLUMNS)).split(","))

    def schema(self) -> str:
        return ", ".join(f"{name} {_COLUMNS[name]}" for name in self._columns())

    def reader(self, schema: Any) -> DataSourceReader:
        return FloorReader(int(self.options["records"]), int(self.options["size"]), self._columns())


def register_floor(spark: SparkSession) -> None:
    spark.dataSource.register(FloorSource)
