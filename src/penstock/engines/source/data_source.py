"""The entry point: what Spark calls by name, and where option texts become a parsed read.

Rule: options are parsed here, in `schema()` (so that a wrong one fails at `load()`) and when a reader is
made. No code behind this handles option text. Spark makes a new object, in a new process, for each of the two
calls, so nothing is carried between them. Spark imports this module at every look-up of a Python source, for
every user, so it imports nothing heavy: numba, pyarrow and kafka-python are imported when a read begins.

    spark.read.format("penstock").option("kafka.bootstrap.servers", "b:9092").option("subscribe", "t").load()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from penstock.core.errors import OptionError, PenstockError
from penstock.core.loggers import get_logger
from penstock.core.options.batch_options import parse_batch_options
from penstock.core.options.shared_options import ReadOptions
from penstock.core.options.stream_options import check_load, parse_stream_options
from penstock.core.typed_columns import TypedColumns
from penstock.core.versions import check_versions
from penstock.engines.reading.option_inputs import see_outside
from penstock.engines.reading.read_tasks import name_schema
from penstock.engines.reading.typed_column_setup import make_typed, refuse_changed_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = get_logger(__name__)


class PenstockDataSource(DataSource):
    """Kafka as a Spark data source, for batch reads and streams; writes raise "not there yet"."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> str:
        """Return Kafka's columns as Spark names them; raise on wrong options, before anything is planned."""
        check_versions()
        columns, formats = check_load(dict(self.options), **see_outside())
        return name_schema(columns, make_typed(formats, columns))

    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.engines.source.batch_reader import BatchReader

        options = parse_batch_options(dict(self.options), **see_outside())
        return BatchReader(options, typed=_prepare(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from penstock.engines.source.stream_reader import RefusedStream, StreamReader

        try:
            options = parse_stream_options(dict(self.options), **see_outside())
            return StreamReader(options, typed=_prepare(options, schema))
        except PenstockError as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        raise _not_yet("Writing (`write`)", 'Write with `format("kafka")` and its jars')

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        raise _not_yet("Writing a stream (`writeStream`)", 'Write with `format("kafka")` and its jars')


def _prepare(options: ReadOptions, schema: StructType) -> TypedColumns | None:
    """Return the typed columns that the options ask for, and log what the user should know."""
    _refuse_other_schema(schema, options.columns)
    for warning in options.warnings:
        log.warning("%s", warning)
    typed = make_typed(options.formats, options.columns)
    refuse_changed_schema(typed, schema)
    return typed


def _not_yet(what: str, instead: str) -> OptionError:
    return OptionError("NOT_YET", f"{what} cannot be done with `penstock` yet.", hint=f"{instead} for now.")


def _refuse_other_schema(schema: StructType, columns: tuple[str, ...]) -> None:
    if tuple(schema.fieldNames()) != columns:
        raise OptionError(
            "SCHEMA_FIXED",
            f"A Kafka row has the columns {', '.join(columns)}; a schema with "
            f"{', '.join(schema.fieldNames())} was given.",
            hint="Leave out `.schema(...)`; choose columns with the option `columns`.",
        )
