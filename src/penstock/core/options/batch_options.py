"""The options of a batch read: `spark.read.format("penstock")`.

Rule: parse once, on entry. `parse_batch_options` turns the texts into `ReadOptions`; errors are raised there,
before any broker is asked, and nothing after it sees an option's text. Names and meanings are those of
Spark's own connector, so that a job moves here by changing the format; ours are marked in the table.

>>> parse_batch_options({"kafka.bootstrap.servers": "b:9092", "subscribe": "t"}, unique="x").client.group_id
'spark-kafka-relation-x-driver'
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.client.java_settings import ReadFile, parse_client
from penstock.core.errors import OptionError
from penstock.core.model import Earliest, Latest
from penstock.core.options.batch_option_table import BatchTable
from penstock.core.options.option_table import read_surface
from penstock.core.options.position_rules import PositionRule, check_start_not_after_end, list_positions
from penstock.core.options.shared_options import (
    ReadOptions,
    make_read_options,
    read_rule,
    read_selection,
    read_start,
    refuse_files,
    sort_keys,
)
from penstock.core.options.stream_option_table import STREAM_ONLY


def parse_batch_options(
    options: Mapping[str, str],
    *,
    unique: str,
    read_file: ReadFile = refuse_files,
    environ: Mapping[str, str] | None = None,
    has_brokers: bool = True,
) -> ReadOptions:
    """Parse all options and return them. `unique` ends the generated group id.

    The caller provides files and environment variables. With `has_brokers`, the source is Kafka, so the
    brokers' addresses are required.
    """
    texts, java, warnings = sort_keys(
        BatchTable,
        options,
        elsewhere={key: f"`{key}` has no effect in a batch read." for key in STREAM_ONLY},
        read_file=read_file,
        environ=environ or {},
    )
    table = read_surface(BatchTable, texts)
    # Spark's order: if several things are wrong, both connectors should name the same one.
    selection = read_selection(table)
    client = parse_client(java, read_file=read_file, has_brokers=has_brokers)
    start, end = _read_start(table), _read_end(table)
    check_start_not_after_end(start, end)
    return make_read_options(table, texts, selection, client, start, end, unique=unique, warnings=warnings)


def _read_start(table: BatchTable) -> PositionRule:
    rule = read_start(table, default=Earliest(), refused=Latest())
    if Latest() in list_positions(rule):
        raise OptionError(
            "START_AT_LATEST",
            "A batch read cannot start at `latest`: it would read nothing.",
            hint="Start at `earliest`, at offsets or at a time.",
        )
    return rule


def _read_end(table: BatchTable) -> PositionRule:
    texts = (table.ending_timestamp, table.ending_offsets_by_timestamp, table.ending_offsets)
    rule = read_rule("ending", *texts, default=Latest(), refused=Earliest())
    if Earliest() in list_positions(rule):
        raise OptionError(
            "END_AT_EARLIEST",
            "A batch read cannot end at `earliest`: it would read nothing.",
            hint="End at `latest`, at offsets or at a time.",
        )
    return rule
