"""Every example in every option table is run, and the promises of the tables' machinery are checked."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceReader

from penstock.core.client.client_settings import ClientSettings
from penstock.core.client.java_setting_table import JavaSettings
from penstock.core.client.untranslated_settings import PRODUCER_ONLY, REFUSED, WITHOUT_EFFECT
from penstock.core.errors import OptionError
from penstock.core.options.batch_option_table import REPLACED, BatchTable
from penstock.core.options.batch_options import parse_batch_options
from penstock.core.options.option_table import OptionSpec, option, option_specs, read_surface, reference_rows
from penstock.core.options.shared_options import ReadOptions
from penstock.core.options.stream_option_table import ENDS, STREAM_ONLY, StreamTable
from penstock.core.options.stream_options import StreamOptions, check_load, parse_stream_options
from penstock.engines.source.batch_reader import BatchReader

PEM = "-----BEGIN CERTIFICATE-----\n1\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\n2\n-----END PRIVATE KEY-----\n"
FILES = {"ca.pem": PEM, "client.pem": KEY + PEM, "nothing.pem": "hello"}
SELECTIONS = ("assign", "subscribe", "subscribePattern")


def read_file(path: str) -> str:
    if path not in FILES:
        raise FileNotFoundError(path)
    return FILES[path]


def parse(options: dict[str, str]) -> ReadOptions:
    return parse_batch_options(options, unique="u", read_file=read_file)


def complete(key: str, text: str, needs: dict[str, str]) -> dict[str, str]:
    """Return the smallest valid set of options that contains this one."""
    base = {"kafka.bootstrap.servers": "b:9092", "subscribe": "t"}
    if key in SELECTIONS:
        del base["subscribe"]
    return {**base, **needs, key: text}


TABLES: list[tuple[str, OptionSpec]] = [
    *(("", spec) for spec in option_specs(BatchTable).values()),
    *(("kafka.", spec) for spec in option_specs(JavaSettings).values()),
]
ACCEPTED = [(prefix + spec.key, text, dict(spec.needs)) for prefix, spec in TABLES for text in spec.accepts]
REJECTED = [
    (prefix + spec.key, text, condition, dict(spec.needs))
    for prefix, spec in TABLES
    for text, condition in spec.rejects
]


@pytest.mark.parametrize(("key", "text", "needs"), ACCEPTED)
def test_an_accepted_example_is_accepted(key: str, text: str, needs: dict[str, str]) -> None:
    """I15, I16, I17, I19, I21, I22, I23, I25, B107, B131: every example of every option."""
    assert isinstance(parse(complete(key, text, needs)), ReadOptions)


@pytest.mark.parametrize(("key", "text", "condition", "needs"), REJECTED)
def test_a_rejected_example_ends_in_its_condition(
    key: str, text: str, condition: str, needs: dict[str, str]
) -> None:
    """B067, B099, B107, B131, S08: at `load()`, with the option's name in the message."""
    with pytest.raises(OptionError) as caught:
        parse(complete(key, text, needs))
    assert caught.value.condition == condition
    assert caught.value.hint


@pytest.mark.parametrize("key", [spec.key for _, spec in TABLES])
def test_every_option_has_documentation_and_examples(key: str) -> None:
    spec = next(spec for _, spec in TABLES if spec.key == key)
    assert spec.doc.endswith(".")
    assert spec.accepts or spec.rejects


@pytest.mark.parametrize(("key", "text", "needs"), ACCEPTED)
def test_option_names_are_case_insensitive(key: str, text: str, needs: dict[str, str]) -> None:
    """B073, F10: upper, lower and original case parse to the same."""
    options = complete(key, text, needs)
    upper = {name.upper(): value for name, value in options.items()}
    lower = {name.lower(): value for name, value in options.items()}
    assert parse(upper) == parse(lower) == parse(options)


STREAM_TABLE = [spec for spec in option_specs(StreamTable).values() if spec.key not in ENDS]
STREAM_ACCEPTED = [(spec.key, text, dict(spec.needs)) for spec in STREAM_TABLE for text in spec.accepts]
STREAM_REJECTED = [
    (spec.key, text, condition, dict(spec.needs)) for spec in STREAM_TABLE for text, condition in spec.rejects
]


def parse_stream(options: dict[str, str]) -> StreamOptions:
    return parse_stream_options(options, unique="u", read_file=read_file)


@pytest.mark.parametrize(("key", "text", "needs"), STREAM_ACCEPTED)
def test_an_accepted_example_is_accepted_in_a_stream(key: str, text: str, needs: dict[str, str]) -> None:
    """I1, I2, I18, B073, B076: every example of every option, in any case, at load and at start."""
    options = complete(key, text, needs)
    assert check_load(options)
    upper = {name.upper(): value for name, value in options.items()}
    assert parse_stream(options) == parse_stream(upper)


@pytest.mark.parametrize(("key", "text", "condition", "needs"), STREAM_REJECTED)
def test_a_rejected_example_ends_in_its_condition_in_a_stream(
    key: str, text: str, condition: str, needs: dict[str, str]
) -> None:
    """B067, B076, B099: with a hint."""
    with pytest.raises(OptionError) as caught:
        parse_stream(complete(key, text, needs))
    assert caught.value.condition == condition
    assert caught.value.hint


def test_options_of_a_stream_in_any_case_have_the_values_that_were_given() -> None:
    """B074: none is ignored because of its spelling, and none falls back to its default."""
    options = {
        "KAFKACONSUMER.pollTIMEOUTms": "512",
        "MINoffsetsPERtrigger": "3",
        "maxOFFSETSperTrigger": "7",
        "MaxTriggerDELAY": "11s",
        "FETCHoffset.NUMretries": "5",
        "fetchOFFSET.RetryIntervalMS": "17",
        "Partition.Metadata.Cache.TTL.ms": "19",
    }
    parsed = parse_stream(complete("FAILondataLOSS", "false", options))
    assert not parsed.fail_on_data_loss
    assert (parsed.poll_timeout_ms, parsed.min_offsets, parsed.max_offsets) == (512, 3, 7)
    assert (parsed.max_delay_ms, parsed.metadata_cache_ms) == (11_000, 19)
    assert (parsed.fetch_offset_retries, parsed.fetch_offset_retry_interval_ms) == (5, 17)


@pytest.mark.parametrize("key", ENDS)
def test_a_stream_with_an_end_is_refused_when_it_starts(key: str) -> None:
    """B066: an end is an option of batch reads; `load()` cannot know yet, but the start of the query does."""
    options = complete(key, '{"t":{"0":5}}' if key != "endingTimestamp" else "5", {})
    assert check_load(options)
    with pytest.raises(OptionError, match=r"\[END_IN_STREAM\].*availableNow"):
        parse_stream(options)


@pytest.mark.parametrize("value", ["true", "false"])
def test_the_removed_pushing_of_filters_is_refused_with_the_reason(value: str) -> None:
    """It could return too few rows, so `load()` refuses it, in a batch read and in a stream."""
    options = complete("pushFilters", value, {})
    for door in (check_load, parse, parse_stream):
        with pytest.raises(OptionError, match=r"\[OPTION_REFUSED\].*`pushFilters`.*removed.*misses rows"):
            door(options)
    assert BatchReader.pushFilters is DataSourceReader.pushFilters


@pytest.mark.parametrize(
    ("given", "condition"),
    [
        ({}, "OPTION_MISSING"),
        ({"subscribe": "t", "assign": '{"t":[0]}'}, "OPTION_CONFLICT"),
        ({"subscribe": ""}, "OPTION_INVALID"),
        ({"assign": "{}"}, "OPTION_INVALID"),
        ({"subscribePattern": ""}, "OPTION_INVALID"),
    ],
)
def test_a_stream_without_one_selection_is_refused(given: dict[str, str], condition: str) -> None:
    """B066: none, two, or an empty one."""
    with pytest.raises(OptionError) as caught:
        parse_stream({"kafka.bootstrap.servers": "b:9092", **given})
    assert caught.value.condition == condition


def test_a_minimum_above_the_maximum_is_refused() -> None:
    """B066: the error has both numbers."""
    with pytest.raises(OptionError, match=r"\[OPTION_INVALID\].*minOffsetsPerTrigger.*which is 10"):
        parse_stream(complete("minOffsetsPerTrigger", "11", {"maxOffsetsPerTrigger": "10"}))


def test_small_ranges_share_tasks_in_a_stream_unless_the_cutting_is_asked_for() -> None:
    assert parse_stream(complete("failOnDataLoss", "true", {})).limits.min_records_per_task > 0
    for key in ("minPartitions", "maxRecordsPerPartition"):
        assert parse_stream(complete(key, "4", {})).limits.min_records_per_task == 0


def test_an_unknown_option_is_refused_with_the_one_probably_meant() -> None:
    with pytest.raises(
        OptionError, match=r"\[OPTION_UNKNOWN\].*`minPartition`.*Did you mean `minPartitions`\?"
    ):
        parse(complete("minPartition", "4", {}))


def test_a_message_shows_options_as_they_were_written() -> None:
    """An unknown key is shown as it was given, a known one as its table spells it."""
    with pytest.raises(OptionError, match=r"There is no option `MinPartishions`"):
        parse(complete("MinPartishions", "4", {}))
    with pytest.raises(
        OptionError, match=r"`kafka\.Bootstrap\.Server`.*Did you mean `kafka\.bootstrap\.servers`"
    ):
        parse(complete("kafka.Bootstrap.Server", "b:9092", {}))
    assert "Not known to Kafka, ignored: kafka.My.Own." in parse(complete("KAFKA.My.Own", "1", {})).warnings


def test_a_message_shows_capitals_though_spark_passes_options_on_in_lower_case() -> None:
    """PySpark's options are a dictionary that forgets how a key was spelled."""
    for written, shown in (
        ("minPartition", r"`minpartition`.*Did you mean `minPartitions`"),
        ("numPartitions", r"Option `numPartitions` is not supported"),
        ("minPartitions", r"Option `minPartitions` is 'x'"),
    ):
        given = CaseInsensitiveDict(complete(written, "x", {}))
        with pytest.raises(OptionError, match=shown):
            parse(dict(given))
    given = CaseInsensitiveDict(complete("maxOffsetsPerTrigger", "1", {}))
    assert any("`maxOffsetsPerTrigger`" in warning for warning in parse(dict(given)).warnings)


def test_an_unknown_option_like_nothing_points_to_the_reference() -> None:
    with pytest.raises(OptionError, match=r"\[OPTION_UNKNOWN\].*reference"):
        parse(complete("zzz", "4", {}))


@pytest.mark.parametrize("key", REPLACED)
def test_an_option_of_other_connectors_is_refused_with_its_replacement(key: str) -> None:
    """F30, I25: the errors for `numPartitions` and similar options name the one to use."""
    with pytest.raises(OptionError, match=r"\[OPTION_REFUSED\].*Use `"):
        parse(complete(key, "4", {}))


@pytest.mark.parametrize("key", STREAM_ONLY)
def test_a_streaming_option_is_a_warning_in_a_batch_read(key: str) -> None:
    """I18: it is reported, not refused, and never parsed."""
    assert any(key in warning for warning in parse(complete(key, "not a number", {})).warnings)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_client_setting_says_what_to_do_instead(name: str) -> None:
    """B067, I26, I29, S08: whatever its value."""
    with pytest.raises(OptionError) as caught:
        parse(complete(f"kafka.{name}", "none", {}))
    assert caught.value.condition == "OPTION_REFUSED"
    assert caught.value.hint == REFUSED[name]


def test_client_settings_without_effect_are_one_warning() -> None:
    """They are accepted, so that a job can move over, but never silently."""
    options = complete("kafka.max.poll.records", "500", {"kafka.session.timeout.ms": "9"})
    warnings = [each for each in parse(options).warnings if "Without effect" in each]
    assert warnings == ["Without effect in Penstock: kafka.max.poll.records, kafka.session.timeout.ms."]


@pytest.mark.parametrize("name", sorted(WITHOUT_EFFECT | PRODUCER_ONLY))
def test_no_setting_of_javas_clients_is_called_unknown(name: str) -> None:
    """Each one is accepted with a warning that names it and is true."""
    (warning,) = parse(complete(f"kafka.{name}", "1", {})).warnings
    assert f"kafka.{name}" in warning
    assert "without effect" in warning.lower()


def test_no_client_setting_is_in_two_lists() -> None:
    translated = {spec.key for spec in option_specs(JavaSettings).values()}
    lists = [translated, set(REFUSED), WITHOUT_EFFECT, PRODUCER_ONLY]
    assert sum(map(len, lists)) == len(set().union(*lists))


def test_the_reference_shows_the_defaults_the_client_really_has() -> None:
    defaults = {each.name: each.default for each in fields(ClientSettings)}
    for name, spec in option_specs(JavaSettings).items():
        if isinstance(defaults.get(name), int | bool):
            shown = "-1" if name.endswith("buffer_bytes") and not defaults[name] else str(defaults[name])
            assert spec.default_doc.startswith(f"`{shown.lower()}`"), spec.key


def test_the_reference_has_one_row_for_each_option() -> None:
    rows = reference_rows(BatchTable)
    assert len(rows) == 2 + len(option_specs(BatchTable))
    assert any(row.startswith("| `minPartitions` | none |") for row in rows)


def test_a_bar_in_an_example_does_not_break_the_reference() -> None:
    @dataclass(frozen=True)
    class Bars:
        bar: str = option("bar", str, "One | two.", accepts=("a|b",))

    assert reference_rows(Bars)[-1] == "| `bar` | none | One \\| two. | `a\\|b` |"


def test_an_error_about_a_secret_option_does_not_show_its_value() -> None:
    """S10: the value of a password option is not quoted when it is wrong."""

    @dataclass(frozen=True)
    class Doors:
        pin: int = option("door.password", int, "A number.")

    with pytest.raises(OptionError) as caught:
        read_surface(Doors, {"door.password": "hunter2"})
    assert "hunter2" not in str(caught.value) + repr(caught.value.facts)
