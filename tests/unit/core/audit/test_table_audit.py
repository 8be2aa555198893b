"""The audit's judgement: which facts are findings, and what is reported as unchecked."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.audit.audit_report import (
    NotedBatch,
    NotedRange,
    Report,
    Reread,
    StreamFacts,
    TableFacts,
)
from penstock.core.audit.ledger_tiling import check_tiling
from penstock.core.audit.skipped_ranges import check_gaps
from penstock.core.audit.table_audit import check_reread, check_table
from penstock.core.losses.loss_ranges import Loss
from penstock.core.model import OffsetRange, TopicPartition
from penstock.core.offsets.offset_store_contract import Change
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.sinks.offset_digests import HeldOffsets, OffsetDigest

ONE = TopicPartition("t", 0)


def make_facts(
    *pieces: tuple[int, int], until: int, batches: tuple[NotedBatch, ...] | None = None
) -> StreamFacts:
    noted = tuple(NotedRange(f"b{n}", 1, OffsetRange("t", 0, *each)) for n, each in enumerate(pieces))
    mine = tuple(NotedBatch(each.token, 1, 3, 3) for each in noted) if batches is None else batches
    return StreamFacts("s", 1, {ONE: until}, noted, mine)


def name(report: Report) -> list[str]:
    return [each.condition for each in report.findings]


@pytest.mark.parametrize(
    ("pieces", "until", "found"),
    [
        ([(0, 5), (5, 9)], 9, []),
        ([(5, 9), (0, 5)], 9, []),
        ([(0, 5), (6, 9)], 9, ["RANGE_MISSING"]),
        ([(0, 5), (4, 9)], 9, ["RANGES_OVERLAP"]),
        ([(0, 9), (3, 5)], 9, ["RANGES_OVERLAP"]),
        ([(0, 5), (5, 9)], 8, ["POSITION_ELSEWHERE"]),
        ([(0, 5), (5, 9)], 10, ["POSITION_ELSEWHERE"]),
        ([(0, 5), (9, 9)], 9, ["RANGE_MISSING"]),
        ([], 7, []),
    ],
)
def test_ranges_must_abut_up_to_the_position(
    pieces: list[tuple[int, int]], until: int, found: list[str]
) -> None:
    report = check_tiling(make_facts(*pieces, until=until), None)
    assert name(report) == found
    assert bool(report.checked) == (not found and bool(pieces))


def test_a_gap_that_the_loss_ledger_explains_is_no_finding() -> None:
    facts = make_facts((0, 5), (9, 12), until=12)
    losses = [
        Loss("DATA_LOST", "t", 0, 5, 7),
        Loss("DATA_LOST", "t", 0, 7, 9),
        Loss("DATA_LOST", "u", 0, 0, 9),
    ]
    report = check_tiling(facts, losses)
    assert not report.findings
    assert "[5, 9) was lost and stepped over" in report.notes[0]
    assert name(check_tiling(facts, losses[1:])) == ["RANGE_MISSING"]
    assert "--losses" in check_tiling(facts, None).findings[0].what
    assert "--losses" not in check_tiling(facts, []).findings[0].what
    recreated = check_tiling(make_facts((50, 60), (0, 5), until=5), [Loss("TOPIC_RECREATED", "t", 0, 60, 60)])
    assert not recreated.findings
    assert "recreated" in recreated.unchecked[0]
    cut_off = check_tiling(make_facts((0, 60), (50, 70), until=70), [Loss("LOG_TRUNCATED", "t", 0, 50, 60)])
    assert not cut_off.findings
    assert "cut off" in cut_off.unchecked[0]


def test_a_generation_begins_where_the_stream_was_moved_to_and_ends_where_it_was_moved_from() -> None:
    change = Change(1, "ann", "rewind", StreamPosition({ONE: 9}), StreamPosition({ONE: 4}))

    batches = (NotedBatch("a", 1, 1, 1), NotedBatch("b", 2, 1, 1))

    def judge(first: tuple[int, int], second: tuple[int, int], **more: Any) -> Report:
        ranges = (
            NotedRange("a", 1, OffsetRange("t", 0, *first)),
            NotedRange("b", 2, OffsetRange("t", 0, *second)),
        )
        facts = StreamFacts("s", 2, {ONE: 12}, ranges, **{"changes": (change,), "batches": batches} | more)
        return check_tiling(facts, None)

    assert name(judge((0, 9), (4, 12))) == []
    assert [(each.condition, each.generation) for each in judge((0, 8), (5, 12)).findings] == [
        ("POSITION_ELSEWHERE", 1),
        ("RANGE_MISSING", 2),
    ]
    unknown = judge((0, 8), (5, 12), changes=())
    assert not unknown.findings
    assert any("moves by hand" in each for each in unknown.unchecked)


def test_a_move_ahead_is_told_by_what_it_left_unread_of_the_same_log() -> None:
    def stand(offset: int, topic: int) -> StreamPosition:
        return StreamPosition({ONE: offset}, {"t": bytes([topic]) * 16})

    def judge(*changes: Change, position: int) -> list[bool]:
        read = NotedRange("a", 1, OffsetRange("t", 0, 0, 9))
        facts = StreamFacts("s", len(changes) + 1, {ONE: position}, (read,), changes=changes)
        return ["past t-0 [9, 12)" in each for each in check_gaps(facts).notes]

    back = Change(1, "ann", "rewind", stand(9, 1), stand(4, 1))
    assert judge(back, Change(1, "ann", "skip", stand(4, 1), stand(9, 1)), position=9) == []
    assert judge(back, Change(1, "ann", "skip", stand(4, 1), stand(12, 1)), position=12) == [True]
    skip = Change(1, "ann", "skip", stand(9, 1), stand(12, 1))
    assert judge(skip, Change(1, "ann", "rewind", stand(12, 1), stand(0, 1)), position=0) == []
    assert judge(skip, Change(1, "ann", "rewind", stand(12, 1), stand(0, 2)), position=0) == [True]
    assert judge(Change(1, "ann", "skip", stand(9, 1), stand(12, 2)), position=12) == []
    assert judge(Change(1, "ann", "seek", None, stand(12, 1)), position=12) == []


def test_batches_their_ranges_and_their_accounts_must_agree() -> None:
    batches = (NotedBatch("b0", 1, 3, 2), NotedBatch("x", 1, 4, 4), NotedBatch("empty", 1, 0, 0))
    report = check_tiling(make_facts((0, 5), (5, 9), until=9, batches=batches), None)
    assert name(report) == ["BOOKS_DISAGREE", "RANGE_MISSING", "BOOKS_DISAGREE"]


def kept(rows: int, distinct: int | None = None, total: int = 0) -> HeldOffsets:
    return HeldOffsets(OffsetDigest(rows, total, total), rows if distinct is None else distinct, 0, 9)


@pytest.mark.parametrize(
    ("facts", "found", "unchecked"),
    [
        (TableFacts("v", None, 3, "append"), ["TABLE_GONE"], []),
        (TableFacts("v", 3, 3, "append"), [], ["no provenance"]),
        (TableFacts("v", 2, 3, "append"), ["ROWS_MISSING"], ["no provenance"]),
        (TableFacts("v", 4, 3, "append"), ["ROWS_TOO_MANY"], ["no provenance"]),
        (TableFacts("v", 4, None, "merge"), [], ["mode is merge", "no provenance"]),
        (TableFacts("v", 4, None, ""), [], ["no batch in the ledger names it", "no provenance"]),
        (TableFacts("v", 3, 3, "append", (), {ONE: kept(3)}, {ONE: OffsetDigest(3)}), [], []),
        (TableFacts("v", 3, 3, "append", (), {ONE: kept(3)}), [], ["against digests"]),
        (TableFacts("v", 3, 3, "append", (), {ONE: kept(3, 2)}), ["OFFSETS_TWICE"], ["against digests"]),
        (TableFacts("v", 3, 3, "append", (), {ONE: kept(3, 2)}, {ONE: OffsetDigest(3)}), [], []),
        (
            TableFacts("v", 3, 3, "append", (), {ONE: kept(3)}, {ONE: OffsetDigest(3, 1, 1)}),
            ["DIGEST_DIFFERS"],
            [],
        ),
        (TableFacts("v", 0, 0, "append", (), {}, {ONE: OffsetDigest(1, 1, 1)}), ["DIGEST_DIFFERS"], []),
        (
            TableFacts("v", 4, 4, "append", (), {ONE: kept(3)}, {ONE: OffsetDigest(3)}),
            ["ROWS_WITHOUT_ORIGIN"],
            [],
        ),
        (
            TableFacts("v", 3, None, "upsert", (), {ONE: kept(3, 2)}, strays={ONE: kept(1)}),
            ["OFFSETS_OUTSIDE"],
            ["mode is upsert"],
        ),
    ],
)
def test_a_table_is_judged_by_the_evidence_there_is(
    facts: TableFacts, found: list[str], unchecked: list[str]
) -> None:
    report = check_table(facts)
    assert name(report) == found
    assert len(report.unchecked) == len(unchecked)
    for said, words in zip(report.unchecked, unchecked, strict=True):
        assert words in said
    assert all(each.evidence for each in report.findings)


def test_a_second_reading_says_what_is_missing_and_what_has_aged_out() -> None:
    span = OffsetRange("t", 0, 0, 9)
    assert not check_reread(Reread("v", ONE, (span,), records=9), leaves_out=False).findings
    wrong = Reread("v", ONE, (span,), (span,), (span,), 9, 2, (3, 4), 1, (7,))
    assert name(check_reread(wrong, leaves_out=False)) == [
        "LOG_ENDS_BEFORE",
        "RECORDS_WITHOUT_ROW",
        "ROWS_WITHOUT_RECORD",
    ]
    told = check_reread(wrong, leaves_out=False).findings[1].what
    assert "say --filters" in told
    assert "aborted transactions" in told
    assert "--set isolation.level=read_committed" in told
    assert "aged out" in check_reread(wrong, leaves_out=False).unchecked[0]
    assert name(check_reread(wrong, leaves_out=True)) == ["LOG_ENDS_BEFORE", "ROWS_WITHOUT_RECORD"]
    assert check_reread(Reread("v", ONE, problem="gone"), leaves_out=False).unchecked
