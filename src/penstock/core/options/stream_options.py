"""The options of a stream: `spark.readStream.format("penstock")`.

Rule: as for a batch read, options are parsed once, on entry. Spark's `load()` does not say whether a frame
will be read as a batch or as a stream, so `check_load` refuses only what is wrong for both; what is wrong for
one kind fails when that kind of query starts.

>>> parse_stream_options({"kafka.bootstrap.servers": "b:9092", "subscribe": "t"}, unique="x").start
ForAll(position=Latest())
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.client.java_settings import ReadFile, parse_client
from penstock.core.errors import OptionError
from penstock.core.model import Earliest, Latest, Position
from penstock.core.options.batch_options import parse_batch_options
from penstock.core.options.option_table import invalid, read_surface, refuse_stranded
from penstock.core.options.position_rules import ForAll
from penstock.core.options.secret_references import resolve_reference
from penstock.core.options.shared_options import (
    ReadOptions,
    make_read_options,
    read_columns,
    read_selection,
    read_start,
    refuse_files,
    sort_keys,
)
from penstock.core.options.storage_addresses import Place, parse_place
from penstock.core.options.stream_option_table import ENDS, StreamTable
from penstock.core.options.typed_column_options import FormatTable, pick_formats
from penstock.core.planning.partition_selection import Selection
from penstock.core.streaming.backpressure import Pacing, PidSettings

_FALLBACKS: Mapping[str, Position | None] = {"error": None, "earliest": Earliest(), "latest": Latest()}


@dataclass(frozen=True)
class StreamOptions(ReadOptions):
    """A stream's parsed options. If it `learns`, a batch's size follows from how long the last ones took."""

    max_offsets: int | None
    min_offsets: int | None
    max_delay_ms: int
    max_bytes: int | None
    metadata_cache_ms: int | None
    commit_group: str | None
    fixed_group: str | None
    loss_ledger: Place | None
    pacing: Pacing | None
    learns: bool


def check_load(
    options: Mapping[str, str],
    *,
    unique: str = "",
    read_file: ReadFile = refuse_files,
    environ: Mapping[str, str] | None = None,
    has_brokers: bool = True,
) -> tuple[tuple[str, ...], FormatTable]:
    """Refuse what is wrong in every kind of query; return the columns and the format options."""
    texts, java, _ = sort_keys(StreamTable, options, elsewhere={}, read_file=read_file, environ=environ or {})
    table = read_surface(StreamTable, texts)
    selection = read_selection(table)
    parse_client(java, read_file=read_file, has_brokers=has_brokers)
    read_start(table, default=Latest())
    if any(key.lower() in texts for key in ENDS):  # only a batch read has an end, so all of its rules hold
        parse_batch_options(
            options, unique=unique, read_file=read_file, environ=environ, has_brokers=has_brokers
        )
    refuse_stranded(StreamTable, table, texts)
    return read_columns(table), pick_formats(table, texts, selection)


def parse_stream_options(
    options: Mapping[str, str],
    *,
    unique: str,
    read_file: ReadFile = refuse_files,
    environ: Mapping[str, str] | None = None,
    has_brokers: bool = True,
    selection: Selection | None = None,
    interval_ms: int | None = None,
) -> StreamOptions:
    """Parse all options and return them. `unique` ends the generated group id.

    The caller provides files and environment variables. With `has_brokers`, the source is Kafka, so the
    brokers' addresses are required. `selection` and `interval_ms` are those of a direct stream, which has no
    options for them.
    """
    texts, java, warnings = sort_keys(
        StreamTable, options, elsewhere={}, read_file=read_file, environ=environ or {}
    )
    table = read_surface(StreamTable, texts)
    selection = selection or read_selection(table)
    client = parse_client(java, read_file=read_file, has_brokers=has_brokers)
    _refuse_ends(texts)
    start = read_start(table, default=Latest())
    shared = make_read_options(
        table,
        texts,
        selection,
        client,
        start,
        ForAll(Latest()),
        uncommitted_start=_FALLBACKS[table.starting_offsets_fallback],
        unique=unique,
        warnings=[*warnings, *_warn_about_cold_start(table), *_warn_about_ledger(table)],
    )
    least, most = table.min_offsets_per_trigger, table.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise invalid("minOffsetsPerTrigger", str(least), f"at most `maxOffsetsPerTrigger`, which is {most}")
    return StreamOptions(
        **vars(shared),
        max_offsets=most,
        min_offsets=least,
        max_delay_ms=table.max_trigger_delay_ms,
        max_bytes=table.max_bytes_per_trigger,
        metadata_cache_ms=table.metadata_cache_ms,
        commit_group=table.commit_offsets_to_group,
        fixed_group=client.settings.group_id,
        loss_ledger=_read_ledger(table, read_file, environ or {}),
        pacing=_read_pacing(table, interval_ms),
        learns=table.backpressure,
    )


def _warn_about_ledger(table: StreamTable) -> list[str]:
    if table.loss_ledger is None or not table.fail_on_data_loss:
        return []
    return ["`lossLedger` has no effect while `failOnDataLoss` is true: it records losses passed over."]


def _refuse_ends(texts: Mapping[str, str]) -> None:
    given = [key for key in ENDS if key.lower() in texts]
    if given:
        raise OptionError(
            "END_IN_STREAM",
            f"A stream has no end, but `{given[0]}` is set.",
            hint="Leave it out; to read what is there now and stop, use the trigger `availableNow`.",
            facts={"option": given[0]},
        )


def _read_ledger(table: StreamTable, read_file: ReadFile, environ: Mapping[str, str]) -> Place | None:
    if table.loss_ledger is None:
        return None
    return parse_place(
        resolve_reference("lossLedger", table.loss_ledger, environ=environ, read_file=read_file)
    )


def _read_pacing(table: StreamTable, interval_ms: int | None) -> Pacing | None:
    """Return what bounds batches, or None.

    In a direct stream, which has an interval, the rate per partition bounds them even without backpressure;
    the initial rate counts only with it, as in Spark.
    """
    cap = table.max_rate_per_partition or None
    if not table.backpressure and (interval_ms is None or cap is None):
        return None
    return Pacing(
        target_ms=table.target_batch_duration_ms if interval_ms is None else interval_ms,
        pid=PidSettings(table.pid_proportional, table.pid_integral, table.pid_derived, table.pid_min_rate),
        initial_rate=table.initial_rate if table.backpressure else None,
        max_rate_per_partition=cap,
        min_rate_per_partition=table.min_rate_per_partition,
    )


def _warn_about_cold_start(table: StreamTable) -> list[str]:
    bounds = (
        table.initial_rate,
        table.max_rate_per_partition,
        table.max_offsets_per_trigger,
        table.max_bytes_per_trigger,
    )
    if not table.backpressure or any(bounds):
        return []
    return [
        "`backpressure.enabled` is set without a limit for the cold start: the first batch takes all that "
        "waits. Set `backpressure.initialRate`."
    ]
