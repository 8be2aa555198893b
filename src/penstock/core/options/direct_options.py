"""The settings of a direct stream, from four places: arguments, Kafka's settings, options and SparkConf.

Rules: settings are parsed once, when the stream is created. Options are the source's, with the same names and
meanings; `spark.streaming.*` settings are defaults for them, and a given option wins. Auto commit is refused:
it stores how far the driver has looked, not what was processed. `auto.offset.reset` says where a partition
without a stored position starts, and nothing else: tasks never use it.

>>> parse_reset({"auto.offset.reset": "Earliest"})
Earliest()
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from penstock.core.client.java_settings import PREFIX, ReadFile
from penstock.core.errors import OptionError
from penstock.core.model import Earliest, Latest, Position, TopicPartition
from penstock.core.options.direct_option_table import OUTAGE_TIMEOUT, DirectTable
from penstock.core.options.direct_strategies import ReadStrategy
from penstock.core.options.option_table import invalid, parse_setting, read_surface
from penstock.core.options.option_values import parse_boolean, parse_duration_ms, parse_integer_from
from penstock.core.options.position_rules import ForAll, ForEach
from penstock.core.options.shared_options import refuse_files
from penstock.core.options.stream_options import StreamOptions, parse_stream_options
from penstock.core.planning.partition_selection import SelectPartitions
from penstock.core.planning.range_bounds import BatchRead

DeliveryMode: TypeAlias = Literal["at-most-once", "at-least-once", "exactly-once"]
DELIVERIES: tuple[DeliveryMode, ...] = ("at-most-once", "at-least-once", "exactly-once")

_STREAMING = "spark.streaming."
_BACKPRESSURE = ("enabled", "initialRate", "pid.proportional", "pid.integral", "pid.derived", "pid.minRate")
#: SparkConf's names, and the options they give defaults for.
CONF_DEFAULTS: Mapping[str, str] = {
    **{f"{_STREAMING}backpressure.{each}": f"backpressure.{each}" for each in _BACKPRESSURE},
    f"{_STREAMING}kafka.maxRatePerPartition": "maxRatePerPartition",
    f"{_STREAMING}kafka.minRatePerPartition": "minRatePerPartition",
    f"{_STREAMING}kafka.consumer.poll.ms": "kafkaConsumer.pollTimeoutMs",
    f"{_STREAMING}kafka.consumer.cache.enabled": "connectionPool",
}
_MAX_RETRIES = f"{_STREAMING}kafka.maxRetries"
_GAPS = "allowNonConsecutiveOffsets"
#: Options that only a direct stream has.
_DIRECT_ONLY = frozenset({_GAPS.lower(), OUTAGE_TIMEOUT.lower()})
_GRACEFUL = f"{_STREAMING}stopGracefullyOnShutdown"
_NETWORK_TIMEOUT = "spark.network.timeout"
#: Defaults in which a direct stream differs from the source: one task per Kafka partition.
_DEFAULTS = {"minRecordsPerTask": "0"}
#: Options that use Kafka whatever is read.
_KAFKA_NEEDED = ("commitoffsetstogroup", "deadlettertopic")
#: Options whose values come from the strategy or from arguments.
_SAID_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("subscribe", "subscribepattern", "assign"), "Give a strategy: Subscribe(...)."),
    **dict.fromkeys(
        ("startingoffsets", "startingoffsetsbytimestamp", "startingtimestamp", "startingoffsetsfallback"),
        "Give starts to the strategy (`starting=`), and `auto.offset.reset` for the other partitions.",
    ),
    "targetbatchduration": "It is the interval.",
}
_RESETS: Mapping[str, Position | None] = {
    "earliest": Earliest(),
    "latest": Latest(),
    "none": None,
    # The names of Kafka 0.8.
    "smallest": Earliest(),
    "largest": Latest(),
}


@dataclass(frozen=True)
class DirectOptions:
    """The parsed settings of a direct stream. `reset` None: a partition without any position is an error."""

    stream: StreamOptions
    starting: Mapping[TopicPartition, Position]
    reset: Position | None
    allow_gaps: bool
    graceful: bool
    outage_timeout_ms: int

    @property
    def first_reading(self) -> BatchRead:
        """Return a reading of all partitions by the reset rule; rule `none` only finds which exist."""
        return BatchRead(self.stream.selection, ForAll(self.reset or Earliest()), ForAll(Latest()))

    def make_reading(self, positions: Mapping[TopicPartition, Position]) -> BatchRead:
        """Return the reading that turns these positions into numbers."""
        return BatchRead(
            SelectPartitions(tuple(sorted(positions))),
            ForEach(positions, {}),
            ForAll(Latest()),
            unmatched_start="latest",
            committed_only=self.stream.client.isolation_level == "read_committed",
        )


_AUTO_COMMIT = ("enable.auto.commit", "auto.commit.enable")
_OURS = ("auto.offset.reset", *_AUTO_COMMIT)


def parse_direct_options(
    strategy: ReadStrategy,
    kafka: Mapping[str, object],
    options: Mapping[str, object],
    conf: Mapping[str, str],
    *,
    interval_ms: int,
    unique: str,
    read_file: ReadFile = refuse_files,
    environ: Mapping[str, str] | None = None,
    has_brokers: bool = True,
) -> DirectOptions:
    """Parse the settings and return them.

    `kafka` holds Kafka's settings by their names without prefix, `options` holds the source's options, and
    `conf` is SparkConf. With `has_brokers`, Kafka is used, so the brokers' addresses are required.
    """
    _refuse_auto_commit(kafka)
    _refuse_said_elsewhere(options)
    given = {key: _write(value) for key, value in options.items() if key.lower() not in _DIRECT_ONLY}
    own_options = {key: _write(value) for key, value in options.items() if key.lower() in _DIRECT_ONLY}
    texts = {
        **_find_defaults(conf, {key.lower() for key in given}),
        **given,
        **{PREFIX + key: _write(value) for key, value in kafka.items() if key not in _OURS},
    }
    stream = parse_stream_options(
        texts,
        unique=unique,
        read_file=read_file,
        environ=environ,
        has_brokers=has_brokers or any(key.lower() in _KAFKA_NEEDED for key in texts),
        selection=strategy.selection,
        interval_ms=interval_ms,
    )
    allow_gaps = _read_gaps(options, conf)
    if not allow_gaps and "offset" not in stream.columns:
        raise OptionError(
            "OPTION_CONFLICT",
            f"`{_GAPS}` is false, but `columns` leaves out the offsets in which gaps would be seen.",
            hint="Add `offset` to `columns`, or allow gaps.",
        )
    return DirectOptions(
        stream=stream,
        starting=strategy.starting,
        reset=parse_reset(kafka),
        allow_gaps=allow_gaps,
        graceful=parse_setting(_GRACEFUL, conf.get(_GRACEFUL, "true"), parse_boolean),
        outage_timeout_ms=read_surface(DirectTable, own_options).outage_timeout_ms,
    )


def parse_reset(kafka: Mapping[str, object]) -> Position | None:
    """Return where partitions without a position start; Kafka's default is `latest`."""
    text = str(kafka.get("auto.offset.reset", "latest")).strip()
    if text.lower() not in _RESETS:
        raise invalid("auto.offset.reset", text, "`earliest`, `latest` or `none`")
    return _RESETS[text.lower()]


def _refuse_auto_commit(kafka: Mapping[str, object]) -> None:
    for key in _AUTO_COMMIT:
        if key in kafka and parse_setting(key, _write(kafka[key]), parse_boolean):
            raise OptionError(
                "AUTO_COMMIT_REFUSED",
                f"`{key}` is true: Kafka would store how far the driver has looked, not what was processed, "
                "and a restart would leave out the rest.",
                hint="Leave it out, and say where offsets are kept (`offsets=`).",
                facts={"option": key},
            )


def _refuse_said_elsewhere(options: Mapping[str, object]) -> None:
    for key in options:
        hint = _SAID_ELSEWHERE.get(key.lower())
        if hint is not None:
            raise OptionError(
                "OPTION_REFUSED",
                f"Option `{key}` cannot be set on a direct stream.",
                hint=hint,
                facts={"option": key},
            )


def _find_defaults(conf: Mapping[str, str], given: set[str]) -> dict[str, str]:
    defaults = dict(_DEFAULTS)
    if {"minpartitions", "maxrecordsperpartition"} & given:
        del defaults["minRecordsPerTask"]  # both decide how the work is split
    if _NETWORK_TIMEOUT in conf:
        timeout_ms = parse_setting(_NETWORK_TIMEOUT, conf[_NETWORK_TIMEOUT], _parse_seconds)
        defaults["kafkaConsumer.pollTimeoutMs"] = str(timeout_ms)
    if _MAX_RETRIES in conf:
        retries = parse_setting(_MAX_RETRIES, conf[_MAX_RETRIES], parse_integer_from(0, 1000))
        defaults["fetchOffset.numRetries"] = str(retries + 1)  # ours counts all attempts
    defaults |= {ours: conf[key] for key, ours in CONF_DEFAULTS.items() if key in conf}
    return {key: text for key, text in defaults.items() if key.lower() not in given}


def _write(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read_gaps(options: Mapping[str, object], conf: Mapping[str, str]) -> bool:
    """Return whether to read past offsets without a record: yes, unless an option says no."""
    for key, value in options.items():
        if key.lower() == _GAPS.lower():
            return parse_setting(key, _write(value), parse_boolean)
    key = f"{_STREAMING}kafka.{_GAPS}"
    return parse_setting(key, conf.get(key, "true"), parse_boolean)


def _parse_seconds(text: str) -> int:
    # As in Spark, a bare number is seconds here.
    return int(text) * 1000 if text.strip().isdigit() else parse_duration_ms(text)
