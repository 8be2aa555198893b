"""The options that batch reads and streams share: `ReadOptions`, and how its parts are read.

Rule: each group of options that exclude or overrule each other is read here once, for both kinds of query, so
that `subscribe` or `startingTimestamp` cannot come to mean two things.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from penstock.core.client.client_settings import ClientSettings
from penstock.core.client.java_settings import PREFIX, ParsedClient, ReadFile
from penstock.core.errors import OptionError
from penstock.core.model import COLUMNS, OFFERED, Ago, Committed, Position, Since
from penstock.core.options.batch_option_table import REPLACED, BatchTable
from penstock.core.options.option_table import find_close_key, invalid, option_specs, unknown_option
from penstock.core.options.option_values import find_unit_mistake
from penstock.core.options.position_rules import (
    ForAll,
    PositionRule,
    list_positions,
    parse_assignment,
    parse_offsets_rule,
    parse_time_rule,
    parse_times_rule,
)
from penstock.core.options.secret_references import resolve_reference
from penstock.core.options.stream_option_table import RECORDS_WORTH_A_TASK
from penstock.core.options.typed_column_options import FormatTable, pick_formats
from penstock.core.planning.partition_selection import (
    Selection,
    SelectPartitions,
    SelectPattern,
    SelectTopics,
)
from penstock.core.planning.range_bounds import BatchRead
from penstock.core.planning.task_splitting import PlanLimits
from penstock.core.planning.topic_pattern import TopicPattern

_PLAIN_COLUMNS = tuple(name for name in COLUMNS if name != "headers")


@dataclass(frozen=True)
class ReadOptions:
    """A batch read's parsed options; a stream has more.

    `client` holds the driver's settings, `executor_client` those of the tasks.
    """

    selection: Selection
    start: PositionRule
    end: PositionRule
    unmatched_start: str
    uncommitted_start: Position | None
    client: ClientSettings
    executor_client: ClientSettings
    columns: tuple[str, ...]
    formats: FormatTable
    limits: PlanLimits
    fail_on_data_loss: bool
    poll_timeout_ms: int
    fetch_offset_retries: int
    fetch_offset_retry_interval_ms: int
    connection_pool: bool
    warnings: tuple[str, ...]

    @property
    def reading(self) -> BatchRead:
        """Return what planning starts from; a stream resolves its first position from it."""
        return BatchRead(
            self.selection,
            self.start,
            self.end,
            self.unmatched_start,
            self.uncommitted_start,
            committed_only=self.client.isolation_level == "read_committed",
        )


def make_read_options(
    table: BatchTable,
    texts: Mapping[str, str],
    selection: Selection,
    client: ParsedClient,
    start: PositionRule,
    end: PositionRule,
    *,
    uncommitted_start: Position | None = None,
    unique: str,
    warnings: Sequence[str],
) -> ReadOptions:
    """Return the checked options that both kinds of read have. `texts` holds the options as given."""
    check_committed(start, end, client.settings)
    if table.min_partitions and table.min_records_per_task:
        raise OptionError(
            "OPTION_CONFLICT",
            "`minPartitions` cuts ranges and `minRecordsPerTask` packs them; both are set.",
            hint="Set one of them.",
        )
    # "The last ten minutes" of a silent partition is empty, not an error. A fixed time without a record is an
    # error, as in Spark.
    relative = any(isinstance(each, Ago) for each in list_positions(start))
    driver, executor = name_clients(client.settings, f"{table.group_id_prefix}-{unique}")
    return ReadOptions(
        selection=selection,
        start=start,
        end=end,
        unmatched_start=table.starting_strategy or ("latest" if relative else "error"),
        uncommitted_start=uncommitted_start,
        client=driver,
        executor_client=executor,
        columns=read_columns(table),
        formats=pick_formats(table, texts, selection),
        limits=_read_limits(table),
        fail_on_data_loss=table.fail_on_data_loss,
        poll_timeout_ms=table.poll_timeout_ms,
        fetch_offset_retries=table.fetch_offset_retries,
        fetch_offset_retry_interval_ms=table.fetch_offset_retry_interval_ms,
        connection_pool=table.connection_pool,
        warnings=(
            *warnings,
            *warn_about_group(client.settings, texts),
            *warn_about_times(start, end),
            *client.warnings,
        ),
    )


def _read_limits(table: BatchTable) -> PlanLimits:
    """Return the limits. In a stream small ranges share tasks, unless options say how to split the work."""
    packed = table.min_records_per_task
    if packed is None:
        cut = table.min_partitions is not None or table.max_records_per_partition is not None
        packed = 0 if cut else RECORDS_WORTH_A_TASK
    return PlanLimits(table.min_partitions, table.max_records_per_partition, packed)


def refuse_files(path: str) -> str:
    """Raise as for a missing file: no files may be read here."""
    raise FileNotFoundError(path)


def sort_keys(
    table: type[Any],
    options: Mapping[str, str],
    *,
    elsewhere: Mapping[str, str],
    read_file: ReadFile,
    environ: Mapping[str, str],
) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Return our options, Java's settings without their prefix, and warnings. Keys come in any case.

    A message shows an unknown key as it came, and a known one as its table writes it. Spark hands a source
    its options in lower case, so for an unknown key only the suggested name has its capitals.

    `elsewhere` maps options without effect in this kind of query to the warning for each.
    """
    keys = [spec.key for spec in option_specs(table).values()]
    known = {key.lower() for key in keys}
    without_effect = {key.lower(): warning for key, warning in elsewhere.items()}
    replaced = {each.lower(): each for each in REPLACED}
    texts: dict[str, str] = {}
    java: dict[str, str] = {}
    warnings: list[str] = []
    for key, text in options.items():
        lower = key.lower()
        if lower.startswith(PREFIX):
            java[key[len(PREFIX) :]] = resolve_reference(key, text, environ=environ, read_file=read_file)
        elif lower in known:
            texts[lower] = text
        elif lower in without_effect:
            warnings.append(without_effect[lower])
        elif lower in replaced:
            raise OptionError(
                "OPTION_REFUSED",
                f"Option `{replaced[lower]}` is not supported.",
                hint=REPLACED[replaced[lower]],
                facts={"option": key},
            )
        else:
            raise unknown_option(key, [*keys, *elsewhere, PREFIX + "bootstrap.servers"])
    return texts, java, warnings


def read_selection(table: BatchTable) -> Selection:
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
        return SelectPartitions(parse_assignment(key, text))
    if key == "subscribe":
        topics = tuple(dict.fromkeys(name for each in text.split(",") if (name := each.strip())))
        if not topics:
            raise invalid(key, text, "at least one topic")
        return SelectTopics(topics)
    return read_pattern(text)


def read_pattern(text: str) -> SelectPattern:
    if not text.strip():
        raise invalid("subscribePattern", text, "a regular expression")
    return SelectPattern(TopicPattern(text.strip()))


def read_start(table: BatchTable, *, default: Position, refused: Position | None = None) -> PositionRule:
    """Return where reading starts. `refused` is the end of the log that is not accepted here."""
    texts = (table.starting_timestamp, table.starting_offsets_by_timestamp, table.starting_offsets)
    return read_rule("starting", *texts, default=default, refused=refused)


def read_rule(
    side: Literal["starting", "ending"],
    time: str | None,
    times: str | None,
    offsets: str | None,
    *,
    default: Position,
    refused: Position | None,
) -> PositionRule:
    """Return the first rule that is set; do not parse the others."""
    if time is not None:
        return parse_time_rule(f"{side}Timestamp", time)
    if times is not None:
        return parse_times_rule(f"{side}OffsetsByTimestamp", times)
    if offsets is not None:
        return parse_offsets_rule(f"{side}Offsets", offsets, refused=refused)
    return ForAll(default)


def warn_about_times(start: PositionRule, end: PositionRule) -> list[str]:
    """Return a warning for each time that is probably seconds or microseconds; like Spark, accept any.

    A start at 0 commonly means everything, and gives no warning.
    """
    starts = [each.time_ms for each in list_positions(start) if isinstance(each, Since) and each.time_ms]
    ends = [each.time_ms for each in list_positions(end) if isinstance(each, Since)]
    sides = (("start", starts), ("end", ends))
    return [
        f"The {side} is at {time_ms}: {mistake}. Write milliseconds, or an ISO 8601 time with a zone."
        for side, times in sides
        for time_ms in dict.fromkeys(times)
        if (mistake := find_unit_mistake(time_ms)) is not None
    ]


def check_committed(start: PositionRule, end: PositionRule, client: ClientSettings) -> None:
    if Committed() in (*list_positions(start), *list_positions(end)) and client.group_id is None:
        raise OptionError(
            "OPTION_MISSING",
            "`committed` needs to know whose commits, but `kafka.group.id` is not set.",
            hint="Set `kafka.group.id` to the group.",
            facts={"option": "kafka.group.id"},
        )


def read_columns(table: BatchTable) -> tuple[str, ...]:
    """Return the columns of the frame: Kafka's, and those that the format options add."""
    if table.columns is None:
        headers = ("headers",) if table.include_headers else ()
        return (*_PLAIN_COLUMNS, *headers, *table.typed_columns)
    names = [*OFFERED, *table.typed_columns]
    known = {name.lower(): name for name in names}
    chosen: list[str] = []
    for name in (each.strip() for each in table.columns.split(",")):
        if not name:
            raise invalid("columns", table.columns, "names of columns separated by commas")
        if name.lower() not in known:
            meant = find_close_key(name, names)
            raise OptionError(
                "COLUMN_UNKNOWN",
                f"Option `columns` names `{name}`, which is not a column of this read.",
                hint=f"Did you mean `{meant}`?" if meant else f"The columns are {', '.join(names)}.",
                facts={"column": name},
            )
        chosen.append(known[name.lower()])
    if len(set(chosen)) < len(chosen):
        raise invalid("columns", table.columns, "each column once")
    if table.include_headers is not None and table.include_headers != ("headers" in chosen):
        said, named = ("true", "leaves out") if table.include_headers else ("false", "names")
        raise OptionError(
            "OPTION_CONFLICT",
            f"`includeHeaders` is {said}, but `columns` {named} `headers`.",
            hint="With `columns`, leave out `includeHeaders` and name `headers` if you want them.",
            facts={"columns": chosen},
        )
    return tuple(chosen)


def name_clients(client: ClientSettings, generated: str) -> tuple[ClientSettings, ClientSettings]:
    """Return the driver's and the tasks' settings, with different client names and a group for each read."""

    def name(role: str) -> ClientSettings:
        group = client.group_id if client.group_id is not None else f"{generated}-{role}"
        return replace(client, client_id=f"{client.client_id}-{role}", group_id=group)

    return name("driver"), name("executor")


def warn_about_group(client: ClientSettings, texts: Mapping[str, str]) -> list[str]:
    if client.group_id is None:
        return []
    warnings = [
        "`kafka.group.id` is set: queries that share a group share its quotas and its committed offsets."
    ]
    if "groupidprefix" in texts:
        warnings.append("`groupIdPrefix` has no effect, because `kafka.group.id` is set.")
    return warnings
