"""The options of a batch read: `spark.read.format("penstock")`.

Rule: parse once, at the door. `parse_batch_options` turns the texts into `BatchOptions`; what is wrong fails there,
before any broker is asked, and nothing behind it sees an option's text. Names and meanings are those of Spark's own
connector, so that a job moves over by changing the format; ours are marked in the table.

>>> parse_batch_options({"kafka.bootstrap.servers": "b:9092", "subscribe": "t"}, unique="x").client.group_id
'spark-kafka-relation-x-driver'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.core.client import ClientSettings
from penstock.core.client_java import PREFIX, ReadFile, parse_client
from penstock.core.errors import OptionError
from penstock.core.model import COLUMNS, Ago, Committed, Earliest, Latest, Position
from penstock.core.options import find_close_key, invalid, option, option_specs, read_surface, unknown_option
from penstock.core.pattern import TopicPattern
from penstock.core.planning import BatchRead, Limits
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
from penstock.core.values import INT64_MAX, parse_boolean, parse_integer_from, parse_text, parse_word

_WRONG = "OPTION_INVALID"
_PLAIN_COLUMNS = tuple(name for name in COLUMNS if name != "headers")


def keep_text(text: str) -> str:
    """Left as it is: a rule that is beaten by another is never parsed."""
    return text


@dataclass(frozen=True)
class BatchTable:
    """The table of this surface. Groups of options that exclude or beat each other are read together later."""

    assign: str | None = option(
        "assign",
        keep_text,
        "Exactly these partitions, as JSON. One of `assign`, `subscribe`, `subscribePattern`.",
        accepts=('{"t":[0,1]}', '{"A":[0],"b":[2]}'),
        rejects=(
            ("", _WRONG),
            ("t", _WRONG),
            ('{"t":0}', _WRONG),
            ('{"t":[-1]}', _WRONG),
            ("{}", _WRONG),
            ('{"t":[true]}', _WRONG),
            ('{"t":[0],"t":[1]}', _WRONG),
        ),
    )
    subscribe: str | None = option(
        "subscribe",
        keep_text,
        "These topics, separated by commas; each counts once.",
        accepts=("t", "A, b,A"),
        rejects=(("", _WRONG), (" , ", _WRONG)),
    )
    subscribe_pattern: str | None = option(
        "subscribePattern",
        keep_text,
        "All topics whose whole name matches this Java regular expression.",
        accepts=("t.*", "(?i)Orders-\\d{2}", "[a-z&&[^x]]+"),
        rejects=(("", _WRONG), ("t(", "PATTERN_REFUSED"), ("a*+", "PATTERN_REFUSED")),
    )
    starting_timestamp: str | None = option(
        "startingTimestamp",
        keep_text,
        "Start at the first record at or after this time, in every partition: milliseconds since 1970, or (ours) an "
        "ISO 8601 time with a zone. Beats the next two.",
        accepts=("1700000000000", "2026-01-31T12:00:00Z", "2026-01-31T12:00:00.5+01:00"),
        rejects=(
            ("", _WRONG),
            ("now", _WRONG),
            ("-1", _WRONG),
            ("2026-01-31T12:00:00", _WRONG),
            ("1.5", _WRONG),
        ),
    )
    starting_offsets_by_timestamp: str | None = option(
        "startingOffsetsByTimestamp",
        keep_text,
        "The same for each partition, as JSON. Beats the next.",
        accepts=('{"t":{"0":1700000000000}}',),
        rejects=(
            ("", _WRONG),
            ("5", _WRONG),
            ('{"t":{"0":-1}}', _WRONG),
            ('{"t":{"x":1}}', _WRONG),
            ('{"t":{"0":1.5}}', _WRONG),
            ('{"t":{"0":"2026-01-31T12:00:00"}}', _WRONG),
        ),
    )
    starting_offsets: str | None = option(
        "startingOffsets",
        keep_text,
        '`earliest`; offsets for each partition as JSON, -2 for earliest; `{"t":"earliest"}` for a topic; (ours) '
        "`committed`, `-10m` for the last ten minutes, `-1000` for the last thousand offsets.",
        default_doc="`earliest`",
        accepts=("earliest", "EARLIEST", '{"t":{"0":23,"1":-2}}', '{"T":"earliest"}', "-10m", "-1000"),
        rejects=(
            ("latest", "START_AT_LATEST"),
            ('{"t":{"0":-1}}', "START_AT_LATEST"),
            ('{"t":"latest"}', "START_AT_LATEST"),
            ("", _WRONG),
            ("first", _WRONG),
            ("-1", _WRONG),
            ("-2", _WRONG),
            ('{"t":{"0":-3}}', _WRONG),
            ('{"t":{"0":-1001}}', _WRONG),
            ("23", _WRONG),
            ('{"t":{"0":1.0}}', _WRONG),
            ('{"t":{"-1":0}}', _WRONG),
            ("[]", _WRONG),
            ("committed", "OPTION_MISSING"),
        ),
    )
    starting_strategy: str | None = option(
        "startingOffsetsByTimestampStrategy",
        parse_word("error", "latest"),
        "What to do where no record is at or after the start time: fail, or start at the end.",
        default_doc="`error`",
        accepts=("error", "LATEST"),
        rejects=(("earliest", _WRONG), ("", _WRONG)),
    )
    ending_timestamp: str | None = option(
        "endingTimestamp",
        keep_text,
        "End before the first record at or after this time. Beats the next two.",
        accepts=("1700000000000", "2026-01-31T12:00:00Z"),
        rejects=(("", _WRONG), ("2026-01-31", _WRONG)),
    )
    ending_offsets_by_timestamp: str | None = option(
        "endingOffsetsByTimestamp",
        keep_text,
        "The same for each partition, as JSON. Beats the next.",
        accepts=('{"t":{"0":1700000000000}}',),
        rejects=(("", _WRONG), ("{", _WRONG)),
    )
    ending_offsets: str | None = option(
        "endingOffsets",
        keep_text,
        "`latest`; offsets (not included) for each partition as JSON, -1 for latest; (ours) `committed`, `-10m`, `-1000`.",
        default_doc="`latest`",
        accepts=("latest", "Latest", '{"t":{"0":23,"1":-1}}', '{"t":"latest"}', "-10m"),
        rejects=(
            ("earliest", "END_AT_EARLIEST"),
            ('{"t":{"0":-2}}', "END_AT_EARLIEST"),
            ('{"t":"earliest"}', "END_AT_EARLIEST"),
            ("", _WRONG),
            ("end", _WRONG),
        ),
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        parse_boolean,
        "Whether offsets asked for but gone fail the read.",
        default=True,
        accepts=("true", "FALSE"),
        rejects=(("yes", _WRONG), ("", _WRONG), ("1", _WRONG)),
    )
    include_headers: bool = option(
        "includeHeaders",
        parse_boolean,
        "Whether the rows have the column `headers`.",
        default=False,
        accepts=("true", "False"),
        rejects=(("on", _WRONG),),
    )
    columns: str | None = option(
        "columns",
        parse_text,
        "Ours: only these columns, in this order; fewer are faster.",
        default_doc="all but `headers`",
        accepts=("value", "key, value, timestampType"),
        rejects=(("", _WRONG), ("valeu", "COLUMN_UNKNOWN"), ("value,value", _WRONG), (",", _WRONG)),
    )
    min_partitions: int | None = option(
        "minPartitions",
        parse_integer_from(1),
        "At least about so many tasks: big ranges are cut.",
        accepts=("1", "4"),
        rejects=(("0", _WRONG), ("-1", _WRONG), ("1.5", _WRONG), ("a", _WRONG), ("", _WRONG)),
    )
    max_records_per_partition: int | None = option(
        "maxRecordsPerPartition",
        parse_integer_from(1, INT64_MAX),
        "At most so many offsets in one task.",
        accepts=("1", "1000000"),
        rejects=(("0", _WRONG), ("-5", _WRONG), ("1e6", _WRONG)),
    )
    min_records_per_task: int = option(
        "minRecordsPerTask",
        parse_integer_from(0, INT64_MAX),
        "Ours: small ranges share a task until it has so many offsets; 0 gives each range its own.",
        default=0,
        accepts=("0", "10000"),
        rejects=(("-1", _WRONG), ("x", _WRONG)),
    )
    poll_timeout_ms: int = option(
        "kafkaConsumer.pollTimeoutMs",
        parse_integer_from(1),
        "How long a task waits for records before it fails.",
        default=120_000,
        accepts=("512",),
        rejects=(("0", _WRONG), ("-1", _WRONG), ("inf", _WRONG), ("nan", _WRONG)),
    )
    fetch_offset_retries: int = option(
        "fetchOffset.numRetries",
        parse_integer_from(1),
        "How often offsets are looked up before the read fails.",
        default=3,
        accepts=("1", "5"),
        rejects=(("0", _WRONG), ("-1", _WRONG), ("three", _WRONG)),
    )
    fetch_offset_retry_interval_ms: int = option(
        "fetchOffset.retryIntervalMs",
        parse_integer_from(0),
        "Pause between those attempts.",
        default=1000,
        accepts=("0", "10"),
        rejects=(("-1", _WRONG), ("1s", _WRONG)),
    )
    group_id_prefix: str = option(
        "groupIdPrefix",
        parse_text,
        "Beginning of the generated group id.",
        default="spark-kafka-relation",
        accepts=("reports",),
        rejects=((" ", _WRONG),),
    )
    connection_pool: bool = option(
        "connectionPool",
        parse_boolean,
        "Ours: whether tasks keep connections for the next task.",
        default=True,
        accepts=("false",),
        rejects=(("no", _WRONG),),
    )
    push_filters: bool = option(
        "pushFilters",
        parse_boolean,
        "Ours: whether a lower bound on `timestamp` skips older data. Needs Spark's internal setting "
        "`spark.sql.python.filterPushdown.enabled`.",
        default=False,
        accepts=("true",),
        rejects=(("maybe", _WRONG),),
    )


#: Options of streaming queries; in a batch read they mean nothing.
STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
REPLACED = {
    "numPartitions": "Use `minPartitions`, or `repartition()` on the DataFrame.",
    "topic": "Use `subscribe` to read; `topic` belongs to writing.",
    "topics": "Use `subscribe`.",
    "bootstrap.servers": "Use `kafka.bootstrap.servers`.",
    "metadata.broker.list": "Use `kafka.bootstrap.servers`.",
    "group.id": "Use `kafka.group.id`.",
}


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
    start, unmatched = _read_start(table)
    end = _read_end(table)
    check_start_not_after_end(start, end)
    selection = _read_selection(table)
    client = parse_client(java, read_file=read_file)
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
        warnings=(*warnings, *_warn_about_group(client.settings, texts), *client.warnings),
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
