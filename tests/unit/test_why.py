"""Why a stream does not move: each cause is named, and an outer one before an inner one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.core.model import TopicPartition
from penstock.core.why import Facts, Hold, PartitionNow, WriterNow, explain

ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)
NOW_MS = 100_000
WAITS = {ONE: PartitionNow(5, 0, 9, 9), TWO: PartitionNow(3, 0, 3, 3)}
ANN, BOB = WriterNow(1, "ann", 40_000), WriterNow(2, "bob", 90_000)
STILL = Facts("s", WAITS, moved=False, watched_s=5)


@pytest.mark.parametrize(
    ("facts", "condition", "words"),
    [
        (Facts("s", unreachable="refused"), "BROKERS_UNREACHABLE", "refused"),
        (Facts("s", WAITS, gone=(ONE,)), "TOPIC_GONE", "t-0"),
        (Facts("s", WAITS, recreated=("t",)), "TOPIC_RECREATED", "adopt"),
        (Facts("s", {ONE: PartitionNow(5), TWO: WAITS[TWO]}), "NO_LEADER", "t-0 has no leader"),
        (Facts("s", {ONE: PartitionNow(5, 0, 4, 4)}), "POSITION_BEYOND_END", "stands at 5"),
        (Facts("s", {ONE: PartitionNow(5, 7, 9, 9)}), "POSITION_AGED_OUT", "2 offsets have aged out"),
        (Facts("s", {TWO: PartitionNow(3, 0, 3, 3, 60_000)}), "NO_DATA", "the last record is 40 s old"),
        (Facts("s", {TWO: PartitionNow(0, 0, 0, 0)}), "NO_DATA", "all there is."),
        (
            Facts("s", {ONE: PartitionNow(3, 0, 3, 9, hold=Hold(3, 77, 90_000))}),
            "OPEN_TRANSACTION",
            "producer 77, silent for 10 s, hides 6 offsets from 3 on",
        ),
        (Facts("s", {ONE: PartitionNow(3, 0, 3, 9)}), "OPEN_TRANSACTION", "an open transaction hides"),
        (Facts("s", WAITS), "DATA_WAITS", "4 offsets"),
        (replace(STILL, moved=True), "IT_MOVES", "4 offsets"),
        (replace(STILL, writer_before=ANN, writer=BOB), "WRITER_FENCED", "bob took the stream over from ann"),
        (
            replace(STILL, writer_before=replace(ANN, is_locked=True), writer=replace(ANN, is_locked=True)),
            "LOCK_WAIT",
            "for 5 s another transaction",
        ),
        (
            replace(STILL, writer_before=ANN, writer=replace(ANN, is_locked=True)),  # a publish at work
            "STANDS_STILL",
            "Its writer is ann since 60 s",
        ),
        (replace(STILL, throttle_ms=300), "QUOTA", "300 ms"),
        (STILL, "STANDS_STILL", "Only its own log can tell"),
    ],
)
def test_the_first_cause_that_holds_is_named(facts: Facts, condition: str, words: str) -> None:
    answer = explain(facts, now_ms=NOW_MS)
    assert answer.condition == condition
    assert words in str(answer)


def test_an_outer_cause_hides_an_inner_one() -> None:
    """While the topic is another one, nothing can be said about the position in it."""
    partitions = {ONE: PartitionNow(50, 0, 9, 9), TWO: PartitionNow(1)}
    facts = Facts("s", partitions, "no answer", (ONE,), ("t",))
    seen = []
    for calmer in (
        {},
        {"unreachable": ""},
        {"gone": ()},
        {"recreated": ()},
        {"partitions": {ONE: partitions[ONE]}},
    ):
        facts = replace(facts, **calmer)
        seen.append(explain(facts, now_ms=NOW_MS).condition)
    assert seen == [
        "BROKERS_UNREACHABLE",
        "TOPIC_GONE",
        "TOPIC_RECREATED",
        "NO_LEADER",
        "POSITION_BEYOND_END",
    ]
