"""The floor: the same rows as ready-made Arrow batches through a Python data source, without Kafka.

What remains is what Spark itself takes to carry Arrow batches from a Python worker into rows. No source
written in Python can be faster. The distance to the floor is the cost of fetching and decoding.

Two floors are measured. `floor` hands over the very rows of the topic, from Arrow files that are mapped into
memory: nothing is decoded or copied, but every byte is a new one, as it is for any real source. `hot floor`
hands over one batch again and again, which also saves the transfer from memory into the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bench.topics import Load, settings_of
from penstock.core.model import COLUMNS, Earliest, Latest, RangeOrder, WorkOrder
from penstock.kafka.reading.kafka_reader import KafkaReader

_COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
}


def save_batches(bootstrap: str, load: Load, folder: Path) -> None:
    """Read the topic once and save its Arrow batches, in a file for each partition."""
    folder.mkdir()
    columns = tuple(name for name in COLUMNS if name in _COLUMNS)
    for partition in range(load.partitions):
        wanted = RangeOrder(load.name, partition, Earliest(), Latest())
        batches = KafkaReader().read(WorkOrder((wanted,), settings_of(bootstrap), columns))
        first = next(batches)
        with (
            pa.OSFile(str(folder / f"{partition}.arrow"), "wb") as sink,
            pa.ipc.new_file(sink, first.schema) as writer,
        ):
            writer.write_batch(first)
            for batch in batches:
                writer.write_batch(batch)


class FloorReader(DataSourceReader):
    def __init__(self, folder: str, columns: tuple[str, ...], hot: bool) -> None:
        self.folder, self.columns, self.hot = folder, columns, hot

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(str(each)) for each in sorted(Path(self.folder).iterdir())]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        ready = pa.ipc.open_file(pa.memory_map(partition.value))
        first = ready.get_batch(0)
        for number in range(ready.num_record_batches):
            batch = ready.get_batch(number)
            if self.hot:
                batch = first.slice(0, batch.num_rows)
            yield batch.select(self.columns)


class FloorSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "floor"

    def _columns(self) -> tuple[str, ...]:
        return tuple((self.options.get("columns") or ",".join(_COLUMNS)).split(","))

    def schema(self) -> str:
        return ", ".join(f"{name} {_COLUMNS[name]}" for name in self._columns())

    def reader(self, schema: Any) -> DataSourceReader:
        return FloorReader(self.options["folder"], self._columns(), self.options["hot"] == "true")


def register_floor(spark: SparkSession) -> None:
    spark.dataSource.register(FloorSource)
