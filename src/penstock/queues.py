"""Any queue as a Spark source, with Penstock's handling of positions, limits, losses and restarts.

Subclass `QueueDataSource`, give it a name and a `Log` (see `penstock.core.model`: a `LogView` that gives
topics and bounds, and a `Reader` that turns a work order into Arrow batches), and register it. Options that
Penstock knows (`subscribe`, `startingOffsets`, `maxOffsetsPerTrigger`, ...) mean what they mean for Kafka.
All others are yours, in `self.own_options`. The guide "Your own queue" builds one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from penstock.core.errors import OptionError
from penstock.core.model import OFFERED, Log
from penstock.core.options.batch_options import parse_batch_options
from penstock.core.options.option_table import option_specs
from penstock.core.options.stream_option_table import StreamTable
from penstock.core.options.stream_options import check_load, parse_stream_options
from penstock.core.options.typed_column_options import FormatTable
from penstock.engines.reading.option_inputs import see_outside

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_KAFKA_ONLY = {
    "commitoffsetstogroup",
    *(spec.key.lower() for spec in option_specs(FormatTable).values()),
}
_KNOWN = {spec.key.lower() for spec in option_specs(StreamTable).values()} - _KAFKA_ONLY
#: The group whose commits `startingOffsets=committed` means.
_GROUP = "kafka.group.id"


def make_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the schema that a reader's batches must have: Spark accepts no other for these columns."""
    import pyarrow as pa

    from penstock.kafka.records.record_schema import ARROW_TYPES

    return pa.schema([(name, ARROW_TYPES[name]) for name in columns])


class QueueDataSource(DataSource):
    """A Spark data source over a log of your own, for batch reads and streams. Rows have Kafka's columns."""

    @abstractmethod
    def open_log(self) -> Log:
        """Return the queue, made from `self.own_options`. It is pickled to the workers."""

    @property
    def own_options(self) -> dict[str, str]:
        return {key: text for key, text in self.options.items() if key.lower() not in (*_KNOWN, _GROUP)}

    def schema(self) -> str:
        columns, _ = check_load(self._known_options(), **see_outside(), has_brokers=False)
        return ", ".join(f"{name} {OFFERED[name]}" for name in columns)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        from penstock.engines.source.batch_reader import BatchReader

        options = parse_batch_options(self._known_options(), **see_outside(), has_brokers=False)
        return BatchReader(options, self.open_log())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002 (Spark's name)
        from penstock.engines.source.stream_reader import StreamReader

        options = parse_stream_options(self._known_options(), **see_outside(), has_brokers=False)
        return StreamReader(options, self.open_log())

    def _known_options(self) -> dict[str, str]:
        for key in self.options:
            if key.lower() in _KAFKA_ONLY:
                raise OptionError(
                    "OPTION_REFUSED",
                    f"Option `{key}` works with Kafka only.",
                    hint="Leave it out; decode or commit in your own program.",
                    facts={"option": key},
                )
        return {key: text for key, text in self.options.items() if key.lower() in (*_KNOWN, _GROUP)}
