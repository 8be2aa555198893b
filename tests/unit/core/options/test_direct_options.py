"""The configuration of a direct stream: strategies, Kafka's settings, options, SparkConf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.core.errors import OptionError, PenstockError
from penstock.core.model import At, Earliest, Latest, Position, Since, TopicPartition
from penstock.core.options.direct_options import DirectOptions, parse_direct_options
from penstock.core.options.direct_strategies import Assign, ReadStrategy, Subscribe, SubscribePattern
from penstock.core.planning.partition_selection import SelectPartitions, SelectTopics
from penstock.core.streaming.backpressure import Pacing, PidSettings

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def parse(
    strategy: ReadStrategy | None = None,
    kafka: dict[str, object] | None = None,
    conf: dict[str, str] | None = None,
    **options: object,
) -> DirectOptions:
    given = {key.replace("__", "."): value for key, value in options.items()}
    return parse_direct_options(
        strategy or Subscribe("t"),
        {"bootstrap.servers": "b:9092", **(kafka or {})},
        given,
        conf or {},
        interval_ms=2000,
        unique="u",
    )


def test_each_strategy_can_be_built_with_and_without_starts() -> None:
    """B225, D4: three strategies."""
    starts: dict[TopicPartition | tuple[str, int], Position | int] = {("t", 0): 33, T1: Since(5)}
    expected = {T0: At(33), T1: Since(5)}
    for make in (
        lambda **how: Subscribe("t", "u", **how),
        lambda **how: SubscribePattern("t.*", **how),
        lambda **how: Assign([("t", 0), T1], **how),
    ):
        assert parse(make()).starting == {}
        assert parse(make(starting=starts)).starting == expected
    assert parse(Subscribe("t", "u")).stream.selection == SelectTopics(("t", "u"))
    assert parse(Assign([T1, ("t", 0), T0])).stream.selection == SelectPartitions((T0, T1))


def test_a_named_start_knows_whether_the_stream_reads_committed_rows_only() -> None:
    """A start behind an open transaction must not be blamed on a recreated topic."""
    for level, expected in (("read_committed", True), ("read_uncommitted", False)):
        assert parse(kafka={"isolation.level": level}).make_reading({T0: At(3)}).committed_only is expected


def test_a_pattern_is_a_regular_expression_for_the_whole_name() -> None:
    """D4: the shell-style pattern `topic1-*` means topic1 followed by dashes."""
    selection: Any = parse(SubscribePattern("topic1-*")).stream.selection
    assert selection.pattern.matches("topic1--")
    assert not selection.pattern.matches("topic1-a")
    selection = parse(SubscribePattern("topic1-.*")).stream.selection
    assert selection.pattern.matches("topic1-a")
    assert not selection.pattern.matches("my-topic1-a")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Subscribe(),
        lambda: Subscribe(" "),
        lambda: Subscribe("a,b"),
        lambda: Assign([]),
        lambda: Assign([("t", "0")]),  # type: ignore[list-item]
        lambda: Assign([("t", 0)], starting={("t", 1): 5}),
        lambda: Subscribe("t", starting={("t", 0): -1}),
        lambda: Subscribe("t", starting={("t", 0): True}),
        lambda: Subscribe("t", starting={("t", 0): "earliest"}),  # type: ignore[dict-item]
    ],
)
def test_a_wrong_strategy_says_what_to_write(make: Callable[[], ReadStrategy]) -> None:
    with pytest.raises(OptionError) as raised:
        make()
    assert raised.value.condition == "STRATEGY_INVALID"


@pytest.mark.parametrize(
    ("make", "condition"),
    [
        (lambda: SubscribePattern(" "), "OPTION_INVALID"),
        (lambda: SubscribePattern("t("), "PATTERN_REFUSED"),
        (lambda: Assign([("t", -1)]), "OPTION_INVALID"),
    ],
)
def test_what_an_option_would_refuse_a_strategy_refuses_too(
    make: Callable[[], ReadStrategy], condition: str
) -> None:
    with pytest.raises(OptionError) as raised:
        parse(make())
    assert raised.value.condition == condition


@pytest.mark.parametrize(
    ("text", "reset"),
    [
        (None, Latest()),
        ("earliest", Earliest()),
        ("LATEST", Latest()),
        ("None", None),
        ("smallest", Earliest()),
        ("largest", Latest()),
    ],
)
def test_the_reset_rule_is_read_in_any_case(text: str | None, reset: Position | None) -> None:
    """C5, C7, I28, D12: `auto.offset.reset`; without it Kafka's default."""
    assert parse(kafka={} if text is None else {"auto.offset.reset": text}).reset == reset


def test_tasks_never_see_a_reset_rule_or_auto_commit_and_have_a_group_of_their_own() -> None:
    """B230: a user's setting cannot override what executors get."""
    options = parse(kafka={"auto.offset.reset": "earliest", "enable.auto.commit": "FALSE"})
    assert options.stream.executor_client.group_id != options.stream.client.group_id
    assert parse(kafka={"group.id": "t6"}).stream.client.group_id == "t6"


@pytest.mark.parametrize("value", [True, "TRUE", "true"])
@pytest.mark.parametrize("key", ["enable.auto.commit", "auto.commit.enable"])
def test_auto_commit_is_refused(key: str, value: object) -> None:
    """D31, T31, I29: it would store the driver's position, which is ahead of the processing."""
    with pytest.raises(OptionError) as raised:
        parse(kafka={key: value})
    assert raised.value.condition == "AUTO_COMMIT_REFUSED"


@pytest.mark.parametrize(
    ("kafka", "options", "conf"),
    [
        ({"auto.offset.reset": "first"}, {}, {}),
        ({"enable.auto.commit": "perhaps"}, {}, {}),
        ({}, {"startingOffsets": "earliest"}, {}),
        ({}, {"subscribe": "t"}, {}),
        ({}, {"targetBatchDuration": "5s"}, {}),
        ({}, {"nonsense": "1"}, {}),
        ({}, {}, {"spark.streaming.kafka.maxRetries": "often"}),
        ({}, {}, {"spark.streaming.kafka.allowNonConsecutiveOffsets": "maybe"}),
        ({}, {"columns": "key", "allowNonConsecutiveOffsets": "false"}, {}),
        ({}, {}, {"spark.network.timeout": "long"}),
        ({}, {}, {"spark.streaming.kafka.maxRatePerPartition": "-1"}),
    ],
)
def test_what_is_wrong_fails_when_the_stream_is_made(
    kafka: dict[str, object], options: dict[str, object], conf: dict[str, str]
) -> None:
    with pytest.raises(PenstockError) as raised:
        parse(kafka=kafka, conf=conf, **options)
    assert isinstance(raised.value, OptionError)


def test_a_log_that_is_not_kafka_needs_no_brokers_unless_an_option_uses_kafka() -> None:
    def parse_bare(**options: object) -> DirectOptions:
        return parse_direct_options(
            Subscribe("t"), {}, options, {}, interval_ms=1, unique="u", has_brokers=False
        )

    assert parse_bare().stream.client.bootstrap_servers == ()
    for option in (
        {"commitOffsetsToGroup": "g"},
        {"valueFormat": "string", "onDecodeError": "deadLetter", "deadLetterTopic": "d"},
    ):
        with pytest.raises(OptionError, match=r"OPTION_MISSING.*kafka\.bootstrap\.servers"):
            parse_bare(**option)


def test_one_task_per_kafka_partition_unless_asked() -> None:
    """D17: packed or split only on request."""
    assert parse().stream.limits.min_records_per_task == 0
    assert parse(minRecordsPerTask=100).stream.limits.min_records_per_task == 100
    assert parse(minPartitions=9).stream.limits.min_partitions == 9


def test_spark_streaming_settings_are_defaults_and_what_is_given_wins() -> None:
    """I1, I2, I3, I4, I5, I6, I7, I11, I12, I34: they come from SparkConf."""
    conf = {
        "spark.streaming.backpressure.enabled": "true",
        "spark.streaming.backpressure.initialRate": "5",
        "spark.streaming.backpressure.pid.minRate": "7",
        "spark.streaming.kafka.maxRatePerPartition": "3",
        "spark.streaming.kafka.minRatePerPartition": "2",
        "spark.streaming.kafka.maxRetries": "1",
        "spark.streaming.kafka.consumer.cache.enabled": "false",
        "spark.streaming.kafka.allowNonConsecutiveOffsets": "false",
        "spark.streaming.stopGracefullyOnShutdown": "false",
        "spark.network.timeout": "90s",
    }
    options = parse(conf=conf)
    pid = PidSettings(min_rate=7.0)
    assert options.stream.pacing == Pacing(
        2000, pid, 5.0, max_rate_per_partition=3.0, min_rate_per_partition=2.0
    )
    assert options.stream.learns
    assert not options.allow_gaps
    assert not options.graceful
    assert options.stream.fetch_offset_retries == 2
    assert options.stream.poll_timeout_ms == 90_000
    assert not options.stream.connection_pool
    mine = parse(
        conf=conf, maxRatePerPartition=1, kafkaConsumer__pollTimeoutMs=512, backpressure__enabled=False
    )
    assert mine.stream.pacing == Pacing(
        2000, pid, None, max_rate_per_partition=1.0, min_rate_per_partition=2.0
    )
    assert not mine.stream.learns
    assert mine.stream.poll_timeout_ms == 512
    assert parse(conf={**conf, "spark.streaming.kafka.consumer.poll.ms": "700"}).stream.poll_timeout_ms == 700
    assert parse(conf={"spark.network.timeout": "30"}).stream.poll_timeout_ms == 30_000


def test_without_settings_nothing_bounds_a_batch_and_gaps_are_read() -> None:
    """I6, D23: this is the documented cold start; gaps are read unless they are explicitly refused."""
    options = parse()
    assert options.stream.pacing is None
    assert options.allow_gaps
    assert options.graceful


def test_max_poll_records_is_accepted_with_a_word_and_has_no_effect() -> None:
    """D25, I30: it limits nothing here."""
    options = parse(kafka={"max.poll.records": 1})
    assert any("max.poll.records" in each for each in options.stream.warnings)
    assert options.stream.pacing is None
