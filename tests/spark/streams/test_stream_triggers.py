"""When batches run and how big they are: triggers, limits, and runs that end by themselves."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from penstock.core.options.option_values import INT64_MAX
from tests.spark.conftest import MakeFlow
from tests.spark.streaming import Flow, add_partitions, create_topic, delete_topic, expect
from tests.support.kafka.topic_filling import produce
from tests.support.waiting import wait_until

AVAILABLE_NOW = {"availableNow": True}


def number_values(count: int, start: int = 0) -> list[str]:
    return [str(n) for n in range(start, start + count)]


def test_available_now_reads_what_was_there_in_capped_batches_and_ends(
    flow: Flow, kafka: Any, topic: Any
) -> None:
    """B033, B037, B300, F27, I18, T47: shares follow the backlog, with at least one; later rows wait."""
    name = topic(2)
    produce(kafka.bootstrap, name, number_values(10))
    produce(kafka.bootstrap, name, ["x"], partition=1)

    def add_more(number: int) -> None:
        if number == 0:
            add_partitions(kafka.bootstrap, name, 3)
            produce(kafka.bootstrap, name, ["late"], partition=1)
            produce(kafka.bootstrap, name, ["new"], partition=2)

    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 5}
    flow.start(name, trigger=AVAILABLE_NOW, during=add_more, **options).finish()
    assert [batch.rows for batch in flow.batches] == [
        expect(name, 0, number_values(4)) + expect(name, 1, ["x"]),
        expect(name, 0, number_values(5, 4), start=4),
        expect(name, 0, ["9"], start=9),
    ]
    later = flow.start(name, trigger=AVAILABLE_NOW, **options).finish()
    assert later == expect(name, 1, ["late"], start=1) + expect(name, 2, ["new"])


def test_available_now_names_both_sets_when_a_planned_partition_disappears(
    flow: Flow, kafka: Any, topic: Any
) -> None:
    """B034, T47: it vanishes between two batches, whatever the loss option; the next run reads the rest."""
    stays, goes = topic(name="stays"), topic(name="goes")
    for name in (stays, goes):
        produce(kafka.bootstrap, name, ["a", "b", "c", "d"])

    def delete(number: int) -> None:
        if number == 0:
            delete_topic(kafka.bootstrap, goes)

    options = {"subscribePattern": f"{stays}|{goes}", "failOnDataLoss": "false", "maxOffsetsPerTrigger": 4}
    flow.start(None, trigger=AVAILABLE_NOW, during=delete, startingOffsets="earliest", **options)
    failed = flow.failure()
    assert "[AVAILABLE_NOW_PARTITIONS_LOST]" in failed
    assert f"was to read {goes}-0, {stays}-0; what is there now is {stays}-0." in failed
    assert flow.take() == expect(goes, 0, ["a", "b"]) + expect(stays, 0, ["a", "b"])
    rows = flow.start(None, trigger=AVAILABLE_NOW, **options).finish()
    assert rows == expect(stays, 0, ["c", "d"], start=2)


def test_available_now_shows_both_offsets_when_the_log_ends_before_its_plan(
    flow: Flow, kafka: Any, topic: Any
) -> None:
    """B035, T47: the topic was recreated between two batches, with fewer rows."""
    name = topic()
    produce(kafka.bootstrap, name, number_values(6))

    def recreate(number: int) -> None:
        if number == 0:
            delete_topic(kafka.bootstrap, name)
            create_topic(kafka.bootstrap, name)
            produce(kafka.bootstrap, name, ["other"])

    options = {"startingOffsets": "earliest", "failOnDataLoss": "false", "maxOffsetsPerTrigger": 3}
    failed = flow.start(name, trigger=AVAILABLE_NOW, during=recreate, **options).failure()
    assert "[AVAILABLE_NOW_END_WENT_BACK]" in failed
    assert f"was to read {name}-0 up to 6, but the log is another one now, and ends at 1" in failed
    assert flow.take() == expect(name, 0, number_values(3))


def test_available_now_repeats_a_failed_batch_as_planned_after_partitions_were_added(
    flow: Flow, kafka: Any, topic: Any
) -> None:
    """B036, B040, T47, G11: the repeated batch has its own partitions, and no cap overflows."""
    name = topic(1)
    produce(kafka.bootstrap, name, ["a", "b", "c"])

    def fail_second(number: int) -> None:
        if number == 1:
            raise RuntimeError("made to fail")

    options = {"startingOffsets": "earliest", "trigger": AVAILABLE_NOW}
    flow.start(name, during=fail_second, maxOffsetsPerTrigger=1, **options).failure()
    add_partitions(kafka.bootstrap, name, 3)
    produce(kafka.bootstrap, name, ["x"], partition=2)
    flow.start(name, maxOffsetsPerTrigger=INT64_MAX, **options).finish()
    assert [(batch.number, batch.rows) for batch in flow.batches] == [
        (0, [(name, 0, 0, "a")]),
        (1, [(name, 0, 1, "b")]),
        (1, [(name, 0, 1, "b")]),
        (2, [(name, 0, 2, "c"), (name, 2, 0, "x")]),
    ]


def test_once_reads_everything_in_one_batch_whatever_the_limits(flow: Flow, kafka: Any, topic: Any) -> None:
    """B037, B038, B299: neither the cap nor the minimum counts."""
    name = topic(2)
    produce(kafka.bootstrap, name, ["a", "b", "c"])
    produce(kafka.bootstrap, name, ["x", "y"], partition=1)
    flow.start(name, trigger={"once": True}, startingOffsets="earliest", maxOffsetsPerTrigger=1).finish()
    assert [batch.rows for batch in flow.batches] == [
        expect(name, 0, ["a", "b", "c"]) + expect(name, 1, ["x", "y"])
    ]
    produce(kafka.bootstrap, name, ["d"])
    least = {"minOffsetsPerTrigger": 100, "maxTriggerDelay": "1h"}
    assert flow.start(name, trigger={"once": True}, **least).finish() == [(name, 0, 3, "d")]


def test_a_minimum_holds_a_batch_back_until_enough_rows_wait_or_the_delay_is_over(
    flow: Flow, kafka: Any, topic: Any
) -> None:
    """B038, B039: the first batch runs at once; a maximum cuts what the minimum let through."""
    name = topic()
    produce(kafka.bootstrap, name, ["0"])
    limits = {"minOffsetsPerTrigger": 4, "maxOffsetsPerTrigger": 5}
    flow.start(name, startingOffsets="earliest", maxTriggerDelay="10m", **limits)
    assert flow.drain() == expect(name, 0, ["0"])
    produce(kafka.bootstrap, name, ["1", "2", "3"])
    assert flow.drain() == []
    produce(kafka.bootstrap, name, ["4", "5", "6", "7"])
    assert flow.drain() == expect(name, 0, number_values(5, 1), start=1)  # 6 and 7 are too few
    flow.stop()
    flow.start(name, maxTriggerDelay="1500ms", **limits)
    assert flow.drain() == expect(name, 0, ["6", "7"], start=6)  # the first batch of a run
    produce(kafka.bootstrap, name, ["8"])
    wait_until(lambda: len(flow.batches) == 4, "the delay is over")
    assert flow.drain() == expect(name, 0, ["8"], start=8)
    before, after = [each for each in flow.progress if each["numInputRows"]]
    ran = [datetime.fromisoformat(each["timestamp"]) for each in (before, after)]
    # Spark's time is the start of a trigger, ours the moment its end was decided: allow for the difference.
    assert (ran[1] - ran[0]).total_seconds() >= 1.5 - after["durationMs"]["latestOffset"] / 1000


def test_nothing_is_looked_at_between_two_triggers(
    flow: Flow, make_flow: MakeFlow, kafka: Any, topic: Any
) -> None:
    """F4, F5: rows that arrive while a batch runs, or before the next trigger, are not known until then."""
    name = topic()
    produce(kafka.bootstrap, name, ["a"])

    def add_one(_number: int) -> None:
        produce(kafka.bootstrap, name, ["during"])

    slow = flow.start(
        name, trigger={"processingTime": "1000 days"}, before=add_one, startingOffsets="earliest"
    )
    slow.wait_for_batch(0)
    produce(kafka.bootstrap, name, ["between"])
    assert make_flow().run(name, startingOffsets="earliest") == expect(name, 0, ["a", "during", "between"])
    assert [batch.rows for batch in slow.batches] == [[(name, 0, 0, "a")]]
    assert not slow.offset_file(1).exists()
    slow.stop()
    slow.take()
    rows = flow.run(name, trigger={"processingTime": "100 milliseconds"})
    assert rows == expect(name, 0, ["during", "between"], start=1)
