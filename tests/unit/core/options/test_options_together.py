"""Options that contradict each other, or that have no effect without another, are refused at the start."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.core.errors import OptionError
from penstock.core.options.batch_options import parse_batch_options
from penstock.core.options.direct_options import parse_direct_options
from penstock.core.options.direct_strategies import Subscribe
from penstock.core.options.option_table import option_specs
from penstock.core.options.stream_option_table import StreamTable
from penstock.core.options.stream_options import parse_stream_options
from penstock.engines.source.data_source import PenstockDataSource

BASE = {"kafka.bootstrap.servers": "b:9092", "subscribe": "t"}


def load(**options: str) -> str:
    """Return what `load()` does with these options; two underscores stand for a dot."""
    given = {key.replace("__", "."): text for key, text in options.items()}
    return PenstockDataSource({**BASE, **given}).schema()


PACE = "backpressure.initialRate", "backpressure.pid.minRate", "minRatePerPartition", "targetBatchDuration"
GAINS = "backpressure.pid.proportional", "backpressure.pid.integral", "backpressure.pid.derived"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        *((key, text) for key in (*PACE, *GAINS, "maxRatePerPartition") for text in ("-0.1", "nan", "inf")),
        *((key, "0") for key in PACE),
    ],
)
def test_a_pace_without_sense_is_refused(key: str, text: str) -> None:
    """B285: a gain below zero would speed up a consumer that is too slow.

    A bound of zero would stop the stream silently.
    """
    with pytest.raises(OptionError, match="OPTION_INVALID") as caught:
        parse_stream_options({**BASE, "backpressure.enabled": "true", key: text}, unique="")
    assert f"`{key}`" in str(caught.value)


@pytest.mark.parametrize("key", [*GAINS, "maxRatePerPartition"])
def test_a_gain_may_be_zero_and_so_may_a_bound_that_is_off(key: str) -> None:
    """B285: these are Spark's ranges."""
    assert parse_stream_options({**BASE, "backpressure.enabled": "true", key: "0"}, unique="").pacing


@pytest.mark.parametrize(
    "selection",
    [{"subscribe": "t,dead"}, {"subscribePattern": "d.*"}, {"assign": '{"dead":[0]}'}],
)
@pytest.mark.parametrize("parse", [parse_batch_options, parse_stream_options])
def test_dead_letters_do_not_go_where_the_query_reads(
    selection: dict[str, str], parse: Callable[..., object]
) -> None:
    """Each letter would become another letter, without end."""
    options = {
        "kafka.bootstrap.servers": "b:9092",
        "valueFormat": "string",
        "onDecodeError": "deadLetter",
        "deadLetterTopic": "dead",
    }
    with pytest.raises(OptionError, match=r"\[OPTION_CONFLICT\] `deadLetterTopic` is dead, which this query"):
        parse({**options, **selection}, unique="")
    with pytest.raises(OptionError, match="OPTION_CONFLICT"):
        PenstockDataSource({**options, **selection}).schema()
    parse({**options, "subscribePattern": "d", "deadLetterTopic": "dead"}, unique="")


STRANDED = [
    ({"valueSchema": "id BIGINT"}, "`valueFormat`"),
    ({"valueSchemaFile": "a.avsc"}, "`valueFormat`"),
    ({"valueSubject": "s"}, "`valueFormat`"),
    ({"valueMessage": "m"}, "`valueFormat`"),
    ({"keySchema": "id BIGINT"}, "`keyFormat`"),
    ({"keySchemaFile": "a.avsc"}, "`keyFormat`"),
    ({"keySubject": "s"}, "`keyFormat`"),
    ({"keyMessage": "m"}, "`keyFormat`"),
    ({"keySchema": "id BIGINT", "valueFormat": "string"}, "`keyFormat`"),
    ({"schemaRegistry__url": "http://r:1"}, "`valueFormat` or `keyFormat`"),
    ({"schemaRegistry__username": "u", "valueFormat": "string"}, "`schemaRegistry.url`"),
    ({"schemaRegistry__password": "p", "valueFormat": "string"}, "`schemaRegistry.url`"),
    ({"schemaRegistry__token": "t"}, "`schemaRegistry.url`"),
    ({"schemaRegistry__caFile": "ca.pem"}, "`schemaRegistry.url`"),
    ({"schemaRegistry__timeoutMs": "5"}, "`schemaRegistry.url`"),
    ({"onDecodeError": "null"}, "`valueFormat` or `keyFormat`"),
    ({"deadLetterTopic": "d", "valueFormat": "string"}, "`onDecodeError` = `deadLetter`"),
    (
        {"deadLetterTopic": "d", "valueFormat": "string", "onDecodeError": "null"},
        "`onDecodeError` = `deadLetter`",
    ),
    ({"decodeErrorQuota": "5", "valueFormat": "string"}, "`onDecodeError` = `null` or `deadLetter`"),
    (
        {"decodeErrorQuota": "5", "valueFormat": "string", "onDecodeError": "FAIL"},
        "`onDecodeError` = `null` or `deadLetter`",
    ),
    ({"decodeErrorFloor": "5", "valueFormat": "string"}, "`onDecodeError` = `null` or `deadLetter`"),
    ({"startingOffsetsFallback": "earliest"}, "`startingOffsets` = `committed`"),
    ({"startingOffsetsFallback": "earliest", "startingOffsets": "latest"}, "`startingOffsets` = `committed`"),
    ({"maxRatePerPartition": "100"}, "`backpressure.enabled`"),
    ({"minRatePerPartition": "100"}, "`backpressure.enabled`"),
    ({"targetBatchDuration": "5s"}, "`backpressure.enabled`"),
    ({"backpressure__initialRate": "100"}, "`backpressure.enabled`"),
    ({"backpressure__pid__minRate": "5"}, "`backpressure.enabled`"),
]


@pytest.mark.parametrize(("options", "other"), STRANDED, ids=lambda each: str(each))
def test_an_option_that_does_nothing_without_another_is_refused(options: dict[str, str], other: str) -> None:
    with pytest.raises(OptionError, match=r"\[OPTION_MISSING\]") as caught:
        load(**options)
    first = next(iter(options)).replace("__", ".")
    assert f"`{first}` is set, but does nothing without {other}." in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"valueSchema": "id BIGINT", "valueFormat": "json"},
        {"ONDECODEERROR": "NULL", "DECODEERRORQUOTA": "5", "valueFormat": "string"},
        {"onDecodeError": "fail"},  # what applies anyway
        {"startingOffsetsFallback": "earliest", "startingOffsets": "Committed", "kafka__group__id": "g"},
        {"startingOffsetsFallback": "error"},
        {"maxRatePerPartition": "100", "backpressure__enabled": "false"},  # switched off, not forgotten
        {
            "startingOffsetsByTimestampStrategy": "latest",
            "maxTriggerDelay": "5s",
        },  # Spark's own, and Spark tolerates it
    ],
    ids=str,
)
def test_options_that_have_what_they_need_are_accepted(options: dict[str, str]) -> None:
    assert load(**options).startswith("key binary")


def test_every_option_that_names_what_it_needs_names_options() -> None:
    keys = {spec.key for spec in option_specs(StreamTable).values()}
    named = {key for spec in option_specs(StreamTable).values() for key in spec.only_with}
    assert named
    assert named <= keys


def test_a_floor_under_a_plain_number_is_refused() -> None:
    """A plain number is the limit itself; a floor belongs to a share."""
    options = {"valueFormat": "string", "onDecodeError": "null", "decodeErrorFloor": "5"}
    for quota in ("100", "off"):
        with pytest.raises(OptionError, match=r"\[OPTION_CONFLICT\] .*`decodeErrorFloor`"):
            load(**options, decodeErrorQuota=quota)
    load(**options, decodeErrorQuota="1%")
    load(**options)


@pytest.mark.parametrize(("asked", "columns"), [("true", "key,value"), ("FALSE", "value,headers")])
def test_headers_that_are_asked_for_and_left_out_are_a_contradiction(asked: str, columns: str) -> None:
    """Headers are requested, but the named columns omit them: neither wish is guessed."""
    with pytest.raises(OptionError, match=r"\[OPTION_CONFLICT\].*includeHeaders.*columns"):
        load(includeHeaders=asked, columns=columns)


def test_headers_come_when_either_option_asks_for_them() -> None:
    assert "headers" in load(includeHeaders="true")
    assert "headers" in load(columns="headers,value")
    assert "headers" in load(columns="headers,value", includeHeaders="true")
    assert "headers" not in load(columns="value", includeHeaders="false")
    assert "headers" not in load(columns="value")


@pytest.mark.parametrize("parse", [parse_batch_options, parse_stream_options])
def test_every_kind_of_read_refuses_them(parse: object) -> None:
    """Even where no frame is loaded: direct streams, and queues of your own."""
    with pytest.raises(OptionError, match="valueFormat"):
        parse({**BASE, "valueSchema": "id BIGINT"}, unique="u")  # type: ignore[operator]
    with pytest.raises(OptionError, match="includeHeaders"):
        parse({**BASE, "includeHeaders": "true", "columns": "key"}, unique="u")  # type: ignore[operator]


def test_a_direct_stream_keeps_its_rates_without_backpressure() -> None:
    """In a direct stream a cap for a partition applies on its own, as in Spark's."""
    kafka = {"bootstrap.servers": "b:9092"}
    options = {"maxRatePerPartition": 5}
    parsed = parse_direct_options(Subscribe("t"), kafka, options, {}, interval_ms=1000, unique="u")
    assert parsed.stream.pacing is not None
