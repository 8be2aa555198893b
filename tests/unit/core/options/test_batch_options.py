"""What the options of a batch read mean after parsing."""

from __future__ import annotations

import pickle
import re

import pytest

from penstock.core.errors import OptionError
from penstock.core.model import (
    Ago,
    At,
    Committed,
    Earliest,
    Latest,
    RecordsBeforeEnd,
    Since,
    TopicPartition,
)
from penstock.core.options.batch_options import parse_batch_options
from penstock.core.options.position_rules import ForAll, ForEach
from penstock.core.options.shared_options import ReadOptions
from penstock.core.options.stream_options import parse_stream_options
from penstock.core.planning.partition_selection import SelectPartitions, SelectPattern, SelectTopics
from penstock.core.planning.task_splitting import PlanLimits

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NONSENSE = "this is neither a time nor JSON"


def parse(**options: str) -> ReadOptions:
    base = {"kafka.bootstrap.servers": "b:9092", "subscribe": "t"}
    return parse_batch_options({**base, **options}, unique="u")


def test_the_defaults_are_sparks() -> None:
    """B086, I17, I21, I22, F13, F21: earliest to latest, fail on loss, no headers, 120 s."""
    options = parse()
    assert (options.start, options.end) == (ForAll(Earliest()), ForAll(Latest()))
    assert options.fail_on_data_loss
    assert options.columns == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert options.poll_timeout_ms == 120_000
    assert (options.fetch_offset_retries, options.fetch_offset_retry_interval_ms) == (3, 1000)
    assert options.limits == PlanLimits(None, None, 0)
    assert options.warnings == ()


def test_parsed_options_travel_to_a_worker() -> None:
    options = parse(startingOffsets='{"t":{"0":4}}')
    assert pickle.loads(pickle.dumps(options)) == options


# --- which partitions -----------------------------------------------------------------------------


def parse_selection(**options: str) -> object:
    return parse_batch_options({"kafka.bootstrap.servers": "b:9092", **options}, unique="u").selection


def test_assign_is_json_from_topic_to_partition_numbers() -> None:
    """B077, T29: each one once, in order, with names in their own case."""
    partitions = (TopicPartition("A", 0), TopicPartition("a", 1), TopicPartition("a", 2))
    assert parse_selection(assign='{"a":[2,1,2],"A":[0]}') == SelectPartitions(partitions)


def test_a_topic_named_twice_counts_once() -> None:
    """T29: and it keeps its capitals."""
    assert parse_selection(subscribe=" Orders,b ,Orders,") == SelectTopics(("Orders", "b"))


def test_a_pattern_is_kept_as_a_pattern() -> None:
    selection = parse_selection(subscribePattern=" T.* ")
    assert isinstance(selection, SelectPattern)
    assert selection.pattern.text == "T.*"


def test_no_selection_is_an_error() -> None:
    """B099, I16: one strategy is required."""
    with pytest.raises(OptionError, match="OPTION_MISSING.*subscribePattern"):  # noqa: RUF043
        parse_selection()


@pytest.mark.parametrize("other", [{"subscribePattern": "t.*"}, {"assign": '{"a":[0]}'}])
def test_two_selections_are_an_error(other: dict[str, str]) -> None:
    """B099: only one strategy may be set."""
    with pytest.raises(OptionError, match="OPTION_CONFLICT"):
        parse_selection(subscribe="t", **other)


def test_missing_bootstrap_servers_are_a_typed_error() -> None:
    """B203, I15: before anything is tried."""
    with pytest.raises(OptionError, match=r"\[OPTION_MISSING\].*`kafka.bootstrap.servers`"):
        parse_batch_options({"subscribe": "t"}, unique="u")


# --- where to start and end -----------------------------------------------------------------------


def test_one_time_beats_times_which_beat_offsets_and_the_beaten_are_never_parsed() -> None:
    """B096: nonsense in an overridden option does no harm."""
    times = '{"t":{"0":7}}'
    first = parse(startingTimestamp="5", startingOffsetsByTimestamp=NONSENSE, startingOffsets=NONSENSE)
    second = parse(startingOffsetsByTimestamp=times, startingOffsets=NONSENSE)
    assert first.start == ForAll(Since(5))
    assert second.start == ForEach({TopicPartition("t", 0): Since(7)}, {}, by_time=True)


def test_the_end_has_the_same_precedence() -> None:
    """B096: this holds for the three end options."""
    times = '{"t":{"0":7}}'
    first = parse(endingTimestamp="5", endingOffsetsByTimestamp=NONSENSE, endingOffsets=NONSENSE)
    second = parse(endingOffsetsByTimestamp=times, endingOffsets=NONSENSE)
    assert first.end == ForAll(Since(5))
    assert second.end == ForEach({TopicPartition("t", 0): Since(7)}, {}, by_time=True)


def test_offsets_are_json_with_minus_two_for_earliest_and_minus_one_for_latest() -> None:
    """B078: the numbers become types."""
    start = parse(startingOffsets='{"t":{"0":23,"1":-2}}').start
    end = parse(endingOffsets='{"t":{"0":23,"1":-1}}').end
    assert start == ForEach({TopicPartition("t", 0): At(23), TopicPartition("t", 1): Earliest()}, {})
    assert end == ForEach({TopicPartition("t", 0): At(23), TopicPartition("t", 1): Latest()}, {})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "earliest"}, ForAll(Earliest())),
        ({"startingOffsets": '{"t":{"0":23,"1":-2}}'}, ForEach({T0: At(23), T1: Earliest()}, {})),
        (
            {"startingOffsetsByTimestamp": '{"t":{"0":7,"1":9}}'},
            ForEach({T0: Since(7), T1: Since(9)}, {}, by_time=True),
        ),
        ({"startingTimestamp": "5"}, ForAll(Since(5))),
    ],
)
def test_a_start_is_a_word_an_offset_or_a_time(options: dict[str, str], expected: object) -> None:
    """I17: for all partitions together, or for each separately."""
    assert parse(**options).start == expected


def test_topic_names_in_json_keep_their_capitals() -> None:
    """T29: names are data, only option keys ignore case."""
    assert parse(startingOffsets='{"Orders":"EARLIEST"}').start == ForEach({}, {"Orders": Earliest()})
    start = parse(startingOffsets='{"Orders":{"0":1}}').start
    assert isinstance(start, ForEach)
    assert list(start.partitions) == [TopicPartition("Orders", 0)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-10m", Ago(600_000)),
        ("-2h", Ago(7_200_000)),
        ("-1d", Ago(86_400_000)),
        ("-30s", Ago(30_000)),
        ("-1000", RecordsBeforeEnd(1000)),
    ],
)
def test_positions_counted_back(text: str, expected: object) -> None:
    assert parse(startingOffsets=text).start == ForAll(expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"startingOffsets": "10m"}, "For the last 10m, write `-10m`."),
        ({"startingOffsets": " +2H "}, "For the last 2h, write `-2h`."),
        ({"startingOffsets": "-10 m"}, "For the last 10m, write `-10m`."),
        ({"startingOffsets": "- 10m"}, "For the last 10m, write `-10m`."),
        ({"endingOffsets": "10m"}, "For all but the last 10m, write `-10m`."),
        ({"startingTimestamp": "10m"}, "For the last 10m, set `startingOffsets` to `-10m`."),
        ({"endingTimestamp": "-1d"}, "To end 1d ago, set `endingOffsets` to `-1d`."),
        (
            {"startingOffsetsByTimestamp": '{"t":{"0":"+10m"}}'},
            "For the last 10m, set `startingOffsets` to `-10m`.",
        ),
    ],
)
def test_a_length_of_time_without_its_sign_gets_advice(options: dict[str, str], advice: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse(**options)
    assert refused.value.condition == "OPTION_INVALID"
    assert refused.value.hint == advice


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (key, text)
        for key in ("startingOffsets", "endingOffsets")
        for text in ("soon", "-soon", "-1", "23", '{"t":5}', '{"t":{"0":-7}}', '{"t":{"0":"x"}}', "{")
    ],
)
def test_only_what_is_accepted_is_offered(key: str, text: str) -> None:
    """A batch read cannot start at the end or end at the beginning, in words or in Kafka's numbers."""
    with pytest.raises(OptionError) as refused:
        parse(**{key: text})
    told = str(refused.value)
    other = ("`latest`", "for latest") if key == "startingOffsets" else ("`earliest`", "for earliest")
    assert not any(each in told for each in other)
    for example in re.findall(r'`(\{"topicA":\{"0":23.*?\}\})`', told):
        parse(**{key: example})
    for word in re.findall(r"`(earliest|latest|-10m|-1000)`", told):
        parse(**{key: word})


@pytest.mark.parametrize("text", ["-0m", "-0s", "-0"])
@pytest.mark.parametrize("key", ["startingOffsets", "endingOffsets"])
def test_nothing_before_the_end_is_no_place(key: str, text: str) -> None:
    with pytest.raises(OptionError, match="OPTION_INVALID"):
        parse(**{key: text})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"startingTimestamp": "1700000000"},
            "The start is at 1700000000: as milliseconds since 1970 it is too",
        ),
        ({"startingOffsetsByTimestamp": '{"t":{"0":1700000000}}'}, "as seconds, it is 1700000000000 ms"),
        (
            {"endingTimestamp": "1700000000000000"},
            "The end is at 1700000000000000: as milliseconds since 1970",
        ),
        ({"endingTimestamp": "0"}, "The end is at 0: "),
        ({"startingTimestamp": "0"}, None),  # a common way to ask for everything
        ({"startingTimestamp": "1700000000000", "endingTimestamp": "2026-01-31T12:00:00Z"}, None),
    ],
)
def test_a_time_in_another_unit_is_read_as_spark_reads_it_with_a_warning(
    options: dict[str, str], words: str | None
) -> None:
    told = " ".join(parse(**options).warnings)
    assert told == "" if words is None else words in told
    stream = {key: text for key, text in options.items() if key.startswith("starting")}
    given = {"kafka.bootstrap.servers": "b:9092", "subscribe": "t", **stream}
    warned = " ".join(parse_stream_options(given, unique="u").warnings)
    assert bool(warned) == (bool(stream) and words is not None)


def test_committed_means_the_given_group() -> None:
    options = parse(startingOffsets="Committed", **{"kafka.group.id": "reports"})
    assert options.start == ForAll(Committed())
    assert options.client.group_id == "reports"


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [("2026-01-31T12:00:00Z", 1769860800000), ("2026-01-31T13:00:00.250+01:00", 1769860800250), ("0", 0)],
)
def test_a_time_states_its_zone_or_is_milliseconds(text: str, time_ms: int) -> None:
    """T26: it is the same moment on every machine."""
    assert parse(startingTimestamp=text).start == ForAll(Since(time_ms))


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
@pytest.mark.parametrize("text", ["2026-10-25T02:30:00", "2026-03-29T02:30:00", "2026-01-31"])
def test_a_time_without_a_zone_is_refused_in_every_zone(
    text: str, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T26: including the hours that exist twice or not at all."""
    monkeypatch.setenv("TZ", zone)
    with pytest.raises(OptionError, match="OPTION_INVALID.*zone"):  # noqa: RUF043
        parse(startingTimestamp=text)


def test_a_time_finer_than_kafkas_is_refused() -> None:
    with pytest.raises(OptionError, match="finer"):
        parse(endingTimestamp="2026-01-31T12:00:00.0005Z")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingTimestamp": "5"}, "error"),
        ({"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "LATEST"}, "latest"),
        ({"startingOffsets": "-10m"}, "latest"),
        ({"startingOffsets": "-10m", "startingOffsetsByTimestampStrategy": "error"}, "error"),
    ],
)
def test_what_a_start_time_without_records_does(options: dict[str, str], expected: str) -> None:
    """B094, F24: an error unless told otherwise; ten last minutes without records are simply empty."""
    assert parse(**options).unmatched_start == expected


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": '{"t":{"0":1,"1":1,"2":1}}', "endingOffsets": '{"t":{"0":0,"1":0}}'},
        {"startingOffsets": '{"t":{"0":1}}', "endingOffsets": '{"u":{"0":5}}'},
        {"startingOffsets": '{"t":"earliest","u":"earliest"}', "endingOffsets": '{"t":{"0":5}}'},
        {"startingOffsetsByTimestamp": '{"t":{"0":1}}', "endingOffsets": '{"t":{"1":5}}'},
    ],
)
def test_start_and_end_must_name_the_same_partitions(options: dict[str, str]) -> None:
    """B100: this is found before any broker is asked."""
    with pytest.raises(OptionError) as caught:
        parse(**options)
    assert caught.value.condition == "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET"


def test_a_topics_own_entry_matches_any_partitions_of_it() -> None:
    options = parse(startingOffsets='{"t":"earliest"}', endingOffsets='{"t":{"0":5,"1":6}}')
    assert isinstance(options.end, ForEach)


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": '{"t":{"0":1,"1":1}}', "endingOffsets": '{"t":{"0":1,"1":0}}'},
        {"startingTimestamp": "6", "endingTimestamp": "5"},
        {"startingOffsetsByTimestamp": '{"t":{"0":6}}', "endingOffsetsByTimestamp": '{"t":{"0":5}}'},
        {"startingOffsets": "-10m", "endingOffsets": "-11m"},
        {"startingOffsets": "-10", "endingOffsets": "-11"},
    ],
)
def test_a_start_behind_its_end_is_refused_before_any_read(options: dict[str, str]) -> None:
    """B101: whatever the log holds."""
    with pytest.raises(OptionError) as caught:
        parse(**options)
    assert caught.value.condition == "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET"


def test_a_start_equal_to_its_end_is_an_empty_read() -> None:
    options = parse(startingOffsets='{"t":{"0":1}}', endingOffsets='{"t":{"0":1}}')
    assert options.start == options.end


# --- clients --------------------------------------------------------------------------------------


def test_driver_and_tasks_have_settings_of_their_own() -> None:
    """F18, B068: they differ by name, and by a group that no other query has."""
    options = parse(**{"kafka.client.id": "reports"})
    assert options.client.client_id == "reports-driver"
    assert options.client.group_id == "spark-kafka-relation-u-driver"
    assert options.executor_client.client_id == "reports-executor"
    assert options.executor_client.group_id == "spark-kafka-relation-u-executor"


def test_a_prefix_changes_only_the_prefix_of_the_group() -> None:
    """B068: the rest stays generated."""
    assert parse(groupIdPrefix="mine").client.group_id == "mine-u-driver"


def test_a_fixed_group_is_used_as_given_and_warned_about() -> None:
    """B069: in driver and tasks; the prefix then has no effect, which is reported too."""
    options = parse(groupIdPrefix="mine", **{"kafka.group.id": "fixed"})
    assert options.client.group_id == options.executor_client.group_id == "fixed"
    assert any("kafka.group.id" in warning for warning in options.warnings)
    assert any("groupIdPrefix" in warning for warning in options.warnings)


# --- columns and tasks ----------------------------------------------------------------------------


def test_headers_are_added_when_asked_for() -> None:
    """I21, F3, F10: as the last column."""
    assert parse(includeHeaders="true").columns[-1] == "headers"
    assert parse(includeHeaders="true", columns="headers, value").columns == ("headers", "value")


def test_columns_come_in_the_order_they_are_named_in() -> None:
    assert parse(columns="timestamptype, VALUE,headers").columns == ("timestampType", "value", "headers")


def test_an_unknown_column_is_refused_with_the_one_probably_meant() -> None:
    with pytest.raises(OptionError, match=r"\[COLUMN_UNKNOWN\].*`timestmp`.*Did you mean `timestamp`\?"):
        parse(columns="value,timestmp")


def test_cutting_and_packing_at_once_is_a_conflict() -> None:
    with pytest.raises(OptionError, match="OPTION_CONFLICT"):
        parse(minPartitions="4", minRecordsPerTask="10")


# --- values kept elsewhere ------------------------------------------------------------------------


def refer(text: str) -> str | None:
    options = {"kafka.bootstrap.servers": "b:9092", "subscribe": "t", "kafka.group.id": text}
    files = {"/run/group": "from-file\n", "/run/all": "other=1\ngroup = from-line\n"}
    return parse_batch_options(
        options, unique="u", read_file=files.__getitem__, environ={"GROUP": "from-env"}
    ).client.group_id


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${env:GROUP}", "from-env"),
        ("${file:/run/group}", "from-file"),
        ("${file:/run/all:group}", "from-line"),
        ("a${env:GROUP}", "a${env:GROUP}"),
    ],
)
def test_a_setting_may_refer_to_a_variable_or_a_file(text: str, expected: str) -> None:
    """S13: so the value itself is in no plan and no event log."""
    assert refer(text) == expected


@pytest.mark.parametrize("text", ["${env:NONE}", "${file:/run/all:none}"])
def test_a_reference_to_nothing_is_an_error(text: str) -> None:
    """S13: it never becomes an empty password."""
    with pytest.raises(OptionError, match="REFERENCE_MISSING"):
        refer(text)
