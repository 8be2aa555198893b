"""All Python processes of a session that was started with the launcher import the installed PySpark."""

from __future__ import annotations

import json
import os
import site
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition, SimpleDataSourceStreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _find_imports() -> dict[str, Any]:
    import py4j
    import pyspark.worker

    return {
        "files": [pyspark.__file__, pyspark.worker.__file__, py4j.__file__],
        "archives": [each for each in os.environ["PYTHONPATH"].split(":") if each.endswith((".zip", ".jar"))],
        "executable": sys.executable,
        "process": os.getpid(),
    }


def _check(text: str) -> int:
    """Check what a process has imported, and return its id."""
    found = json.loads(text)
    installed = [Path(each) for each in site.getsitepackages()]
    for file in found["files"]:
        assert any(each in Path(file).parents for each in installed), file
        assert ".zip" not in file
    assert not found["archives"]
    assert found["executable"] == sys.executable
    return int(found["process"])


class _Reader(DataSourceReader):
    def __init__(self, created: str) -> None:
        self._created = created

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(json.dumps(_find_imports()))]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        yield from ((each,) for each in (self._created, partition.value, json.dumps(_find_imports())))


class _StreamReader(SimpleDataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[str]], dict[str, int]]:
        return iter([(json.dumps(_find_imports()),)] if start["at"] == 0 else []), {"at": 1}


class TellingSource(DataSource):
    """A source of rows that report what each of Spark's Python processes has imported."""

    @classmethod
    def name(cls) -> str:
        return "telling"

    def schema(self) -> str:
        return "told string"

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader(json.dumps(_find_imports()))

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        return _StreamReader()


def test_creation_planning_and_tasks_import_what_is_installed(spark: SparkSession) -> None:
    spark.dataSource.register(TellingSource)
    rows = spark.read.format("telling").load().collect()
    assert len([_check(row.told) for row in rows]) == 3
    told = spark.sparkContext.parallelize([0], 1).map(lambda _: json.dumps(_find_imports())).collect()
    assert _check(told[0]) != os.getpid()


def test_a_streams_process_on_the_driver_imports_what_is_installed(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.dataSource.register(TellingSource)
    stream = spark.readStream.format("telling").load().writeStream.format("memory").queryName("telling_rows")
    query = stream.option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    rows = spark.table("telling_rows").collect()
    assert len([_check(row.told) for row in rows]) == 1
