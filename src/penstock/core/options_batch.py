"""The options of a batch read: `spark.read.format("penstock")`.

Rule: parse once, at the door. `parse_batch_options` turns the texts into `BatchOptions`; what is wrong
fails there, before any broker is asked, and nothing behind it sees an option's text. Names and meanings
are those of Spark's own connector, so that a job moves over by changing the format; ours are marked in
the table.

>>> parse_batch_options({"kafka.bootstrap.servers": "b:9092", "subscribe": "t"}, unique="x").client.group_id
'spark-kafka-relation-x-driver'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.core.batch_table import REPLACED, STREAM_ONLY, BatchTable
from penstock.core.bounds import BatchRead
from penstock.core.client import ClientSettings
from penstock.core.client_java import PREFIX, ReadFile, parse_client
from penstock.core.errors import OptionError
from penstock.core.model import COLUMNS, Ago, Committed, Earliest, Latest, Position
from penstock.core.options import find_close_key, invalid, option_specs, read_surface, unknown_option
from penstock.core.pattern import TopicPattern
from penstock.core.planning import Limits
from penstock.core.positions import (
    ForAll,
    ForEach,
    Rule,
    check_start_not_after_end,
    parse_assignment,
    parse_offsets_rule,
    parse_time_rule,
    parse_times_rule,
)
from penstock.core.references import resolve_reference
from penstock.core.selection import Assign, Selection, Subscribe, SubscribePattern

_PLAIN_COLUMNS = tuple(name for name in COLUMNS if name != "headers")


@dataclass(frozen=True)
class BatchOptions:
    """A batch read, parsed. `client` is the driver's, `executor_client` the tasks'."""

    selection: Selection
    start: Rule
    end: Rule
    unmatched_start: str
    client: ClientSettings
    executor_client: ClientSettings
    columns: tuple[str, ...]
    min_partitions: int | None
    max_records_per_partition: int | None
    min_records_per_task: int
    fail_on_data_loss: bool
    poll_timeout_ms: int
    fetch_offset_retries: int
    fetch_offset_retry_interval_ms: int
    connection_pool: bool
    push_filters: bool
    warnings: tuple[str, ...]

    @property
    def reading(self) -> BatchRead:
        """What planning starts from."""
        return BatchRead(self.selection, self.start, self.end, self.unmatched_start)

    @property
    def limits(self) -> Limits:
        """How planning cuts."""
        return Limits(self.min_partitions, self.max_records_per_partition, self.min_records_per_task)


def refuse_files(path: str) -> str:
    """Where no files may be read, every file is missing."""
    raise FileNotFoundError(path)


def parse_batch_options(
    options: Mapping[str, str],
    *,
    unique: str,
    read_file: ReadFile = refuse_files,
    environ: Mapping[str, str] | None = None,
) -> BatchOptions:
    """Parse all options. `unique` ends the generated group id; files and variables come from the caller."""
    texts, java, warnings = _sort_keys(options, read_file, environ or {})
    table = read_surface(BatchTable, texts)
    # Spark's order: when several things are wrong, both connectors should name the same one.
    selection = _read_selection(table)
    client = parse_client(java, read_file=read_file)
    start, unmatched = _read_start(table)
    end = _read_end(table)
    check_start_not_after_end(start, end)
    _check_committed(start, end, client.settings)
    if table.min_partitions and table.min_records_per_task:
        raise OptionError(
            "OPTION_CONFLICT",
            "`minPartitions` cuts ranges and `minRecordsPerTask` packs them; both are set.",
            hint="Set one of them.",
        )
    driver, executor = _name_clients(client.settings, f"{table.group_id_prefix}-{unique}")
    return BatchOptions(
        selection=selection,
        start=start,
        end=end,
        unmatched_start=unmatched,
        client=driver,
        executor_client=executor,
        columns=_read_columns(table),
        min_partitions=table.min_partitions,
        max_records_per_partition=table.max_records_per_partition,
        min_records_per_task=table.min_records_per_task,
        fail_on_data_loss=table.fail_on_data_loss,
        poll_timeout_ms=table.poll_timeout_ms,
        fetch_offset_retries=table.fetch_offset_retries,
        fetch_offset_retry_interval_ms=table.fetch_offset_retry_interval_ms,
        connection_pool=table.connection_pool,
        push_filters=table.push_filters,
        warnings=(
            *warnings,
            *_warn_about_group(client.settings, texts),
            *_warn_about_filters(table),
            *client.warnings,
        ),
    )


def _sort_keys(
    options: Mapping[str, str], read_file: ReadFile, environ: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Our options, Java's settings without their prefix, and warnings. Keys come in any case."""
    known = {spec.key.lower() for spec in option_specs(BatchTable).values()}
    stream_only = {each.lower(): each for each in STREAM_ONLY}
    replaced = {each.lower(): hint for each, hint in REPLACED.items()}
    texts: dict[str, str] = {}
    java: dict[str, str] = {}
    warnings: list[str] = []
    for key, text in options.items():
        lower = key.lower()
        if lower.startswith(PREFIX):
            java[lower.removeprefix(PREFIX)] = resolve_reference(
                key, text, environ=environ, read_file=read_file
            )
        elif lower in known:
            texts[lower] = text
        elif lower in stream_only:
            warnings.append(f"`{stream_only[lower]}` has no effect in a batch read.")
        elif lower in replaced:
            raise OptionError(
                "OPTION_REFUSED",
                f"Option `{key}` is not supported.",
                hint=replaced[lower],
                facts={"option": key},
            )
        else:
            keys = [spec.key for spec in option_specs(BatchTable).values()]
            raise unknown_option(key, [*keys, *STREAM_ONLY, PREFIX + "bootstrap.servers"])
    return texts, java, warnings


# --- groups of options ----------------------------------------------------------------------------


def _read_selection(table: BatchTable) -> Selection:
    given = {
        key: text
        for key, text in (
            ("assign", table.assign),
            ("subscribe", table.subscribe),
            ("subscribePattern", table.subscribe_pattern),
        )
        if text is not None
    }
    if len(given) != 1:
        raise OptionError(
            "OPTION_CONFLICT" if given else "OPTION_MISSING",
            f"Of `assign`, `subscribe` and `subscribePattern` exactly one must be set, not {len(given)}.",
            hint="Set one of them, e.g. `subscribe` to the topic's name.",
            facts={"given": sorted(given)},
        )
    ((key, text),) = given.items()
    if key == "assign":
        return Assign(parse_assignment(key, text))
    if key == "subscribe":
        topics = tuple(dict.fromkeys(name for each in text.split(",") if (name := each.strip())))
        if not topics:
            raise invalid(key, text, "at least one topic")
        return Subscribe(topics)
    if not text.strip():
        raise invalid(key, text, "a regular expression")
    return SubscribePattern(TopicPattern(text.strip()))


def _read_start(table: BatchTable) -> tuple[Rule, str]:
    """The start, and what to do where its time finds no record."""
    rule = _read_rule(
        ("startingTimestamp", table.starting_timestamp),
        ("startingOffsetsByTimestamp", table.starting_offsets_by_timestamp),
        ("startingOffsets", table.starting_offsets),
        default=Earliest(),
    )
    if Latest() in _positions(rule):
        raise OptionError(
            "START_AT_LATEST",
            "A batch read cannot start at `latest`: it would read nothing.",
            hint="Start at `earliest`, at offsets or at a time.",
        )
    # "The last ten minutes" of a partition that was silent is nothing, not an error; a time that was named
    # and is not there is Spark's error.
    relative = any(isinstance(each, Ago) for each in _positions(rule))
    return rule, table.starting_strategy or ("latest" if relative else "error")


def _read_end(table: BatchTable) -> Rule:
    rule = _read_rule(
        ("endingTimestamp", table.ending_timestamp),
        ("endingOffsetsByTimestamp", table.ending_offsets_by_timestamp),
        ("endingOffsets", table.ending_offsets),
        default=Latest(),
    )
    if Earliest() in _positions(rule):
        raise OptionError(
            "END_AT_EARLIEST",
            "A batch read cannot end at `earliest`: it would read nothing.",
            hint="End at `latest`, at offsets or at a time.",
        )
    return rule


def _read_rule(
    time: tuple[str, str | None],
    times: tuple[str, str | None],
    offsets: tuple[str, str | None],
    *,
    default: Position,
) -> Rule:
    """The first that is set; the others stay unread."""
    if time[1] is not None:
        return parse_time_rule(time[0], time[1])
    if times[1] is not None:
        return parse_times_rule(times[0], times[1])
    if offsets[1] is not None:
        return parse_offsets_rule(offsets[0], offsets[1])
    return ForAll(default)


def _positions(rule: Rule) -> list[Position]:
    if isinstance(rule, ForEach):
        return [*rule.partitions.values(), *rule.topics.values()]
    return [rule.position]


def _check_committed(start: Rule, end: Rule, client: ClientSettings) -> None:
    if Committed() in (*_positions(start), *_positions(end)) and client.group_id is None:
        raise OptionError(
            "OPTION_MISSING",
            "`committed` needs to know whose commits, but `kafka.group.id` is not set.",
            hint="Set `kafka.group.id` to the group.",
            facts={"option": "kafka.group.id"},
        )


def _read_columns(table: BatchTable) -> tuple[str, ...]:
    headers = ("headers",) if table.include_headers else ()
    if table.columns is None:
        return (*_PLAIN_COLUMNS, *headers)
    known = {name.lower(): name for name in COLUMNS}
    chosen: list[str] = []
    for name in (each.strip() for each in table.columns.split(",")):
        if not name:
            raise invalid("columns", table.columns, "names of columns separated by commas")
        if name.lower() not in known:
            meant = find_close_key(name, COLUMNS)
            raise OptionError(
                "COLUMN_UNKNOWN",
                f"Option `columns` names `{name}`, which is no column of a Kafka row.",
                hint=f"Did you mean `{meant}`?" if meant else f"The columns are {', '.join(COLUMNS)}.",
                facts={"column": name},
            )
        chosen.append(known[name.lower()])
    if len(set(chosen)) < len(chosen):
        raise invalid("columns", table.columns, "each column once")
    return tuple(dict.fromkeys((*chosen, *headers)))


def _name_clients(client: ClientSettings, generated: str) -> tuple[ClientSettings, ClientSettings]:
    """The driver's and the tasks' settings: told apart by name, each read with a group of its own."""

    def name(role: str) -> ClientSettings:
        group = client.group_id if client.group_id is not None else f"{generated}-{role}"
        return replace(client, client_id=f"{client.client_id}-{role}", group_id=group)

    return name("driver"), name("executor")


def _warn_about_group(client: ClientSettings, texts: Mapping[str, str]) -> list[str]:
    if client.group_id is None:
        return []
    warnings = [
        "`kafka.group.id` is set: queries that share a group share its quotas and its committed offsets."
    ]
    if "groupidprefix" in texts:
        warnings.append("`groupIdPrefix` has no effect, because `kafka.group.id` is set.")
    return warnings


def _warn_about_filters(table: BatchTable) -> list[str]:
    """Spark 4.3 stores pushed filters in the loaded source and not in the query that has them."""
    if not table.push_filters:
        return []
    return ["`pushFilters` is set: load a frame for each filter, a second use of one frame may miss rows."]
