"""Which records a table holds twice after a stream was rewound, and when the table can be rebuilt."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.audit.audit_report import NotedRange, StreamFacts, TableBook
from penstock.core.audit.tables_after_rewinds import (
    ADDING,
    check_repeats,
    find_repeats,
    join_modes,
    list_awaited,
    list_held,
    list_repeated,
    plan_rebuild,
)
from penstock.core.losses.loss_ranges import Loss
from penstock.core.model import OffsetRange, TopicPartition
from penstock.core.offsets.offset_store_contract import Change
from penstock.core.offsets.stream_position import StreamPosition

ONE = TopicPartition("t", 0)


def note(token: str, generation: int, start: int, until: int) -> NotedRange:
    return NotedRange(token, generation, OffsetRange("t", 0, start, until))


def move(before: int, after: int, verb: str = "rewind", ids: tuple[int, int] = (1, 1)) -> Change:
    then, now = ({"t": bytes([each]) * 16} for each in ids)
    return Change(1, "ann", verb, StreamPosition({ONE: before}, then), StreamPosition({ONE: after}, now))


def make_facts(mode: str, *, changes: tuple[Change, ...] = (move(9, 6),), **book: object) -> StreamFacts:
    """Return facts with two generations: [0, 9), and from 6 to 12."""
    table = TableBook("totals", mode, frozenset({"a", "b"}), **book)  # type: ignore[arg-type]
    ranges = (note("a", 1, 0, 9), note("b", 2, 6, 12))
    return StreamFacts("s", 2, {ONE: 12}, ranges, (), changes, (table,))


@pytest.mark.parametrize("mode", ["merge", "state", "mixed"])
def test_what_adds_up_and_was_read_again_is_a_finding_with_its_remedy(mode: str) -> None:
    (found,) = check_repeats(make_facts(mode), None).findings
    assert (found.condition, found.subject, found.generation) == ("SUMS_COUNT_TWICE", "totals", 2)
    assert "count t-0 [6, 9) twice" in found.what
    assert "--to-start --rebuild totals" in found.what


def test_rows_that_are_replaced_or_added_are_told_and_are_no_finding() -> None:
    for mode, words in (("upsert", "end as they were"), ("append", "are there twice")):
        report = check_repeats(make_facts(mode), None)
        assert not report.findings
        assert words in report.notes[0]
    told = check_repeats(make_facts("append", keeps_provenance=True), None)
    assert not told.notes, "its rows themselves tell how often each offset is there"


def test_a_table_that_was_emptied_or_is_new_holds_nothing_of_before() -> None:
    assert not check_repeats(make_facts("merge", emptied=frozenset({2})), None).findings
    assert check_repeats(make_facts("merge", emptied=frozenset({1})), None).findings
    new = TableBook("totals", "merge", frozenset({"b"}))
    assert list_held(new, make_facts("merge").ranges) == [note("b", 2, 6, 12)]


def test_generations_that_do_not_overlap_are_no_repeat() -> None:
    book = TableBook("totals", "merge", frozenset("abc"))
    ahead = [note("a", 1, 0, 9), note("b", 2, 20, 30)]
    assert find_repeats(list_held(book, ahead), (move(9, 20, "skip"),)) == []
    # Back and then ahead again before anything was read: what lies between was read once.
    moves = (move(9, 3), move(3, 7, "skip"))
    assert find_repeats([note("a", 1, 0, 9), note("c", 3, 7, 12)], moves) == [(3, OffsetRange("t", 0, 7, 9))]
    assert find_repeats([note("a", 1, 0, 9), note("c", 3, 9, 12)], moves) == []


def test_another_log_under_the_same_name_repeats_nothing_and_an_adopted_one_does() -> None:
    noted = [note("a", 1, 0, 9), note("b", 2, 6, 12)]
    assert find_repeats(noted, (move(9, 6, "seek", (1, 2)),)) == []
    assert find_repeats(noted, (move(9, 6, "adopt", (1, 2)),)) == []  # the mirror ended at 6
    later = [*noted[:1], note("b", 2, 9, 12), note("c", 3, 4, 12)]
    adopted = (move(9, 9, "adopt", (1, 2)), move(12, 4, ids=(2, 2)))
    assert find_repeats(later, adopted) == [(3, OffsetRange("t", 0, 4, 12))]
    losses = [Loss("TOPIC_RECREATED", "t", 0, 9, 9)]
    report = check_repeats(make_facts("merge"), losses)
    assert not report.findings
    assert "totals" in report.unchecked[0]


def test_a_move_that_is_not_known_is_taken_for_one_within_the_same_log() -> None:
    assert check_repeats(make_facts("merge", changes=()), None).findings


def list_after(*changes: Change, noted: tuple[NotedRange, ...] = (), **book: Any) -> list[tuple[int, int]]:
    """Return what a table that holds [0, 9) of the first generation reads again after these moves."""
    table = TableBook("totals", "merge", frozenset("abc"), **book)
    ranges = (note("a", 1, 0, 9), *noted)
    repeated = list_repeated(table, ranges, changes, changes[-1].after)
    return [(each.start, each.until) for each in repeated]


def test_what_a_move_would_read_again_is_told_before() -> None:
    assert list_after(move(9, 6)) == [(6, 9)]
    for harmless in (move(9, 9), move(9, 12, "skip"), move(9, 6, "adopt"), move(9, 6, ids=(1, 2))):
        assert list_after(harmless) == []
    forgotten = Change(1, "ann", "import", StreamPosition({}), StreamPosition({ONE: 4}))
    assert list_after(forgotten) == [(4, 9)]


def test_a_stream_that_has_not_caught_up_reads_again_what_lies_before_its_mark() -> None:
    """However many moves there were, and wherever the stream is meanwhile."""
    assert list_after(move(9, 3), move(3, 7, "skip")) == [(7, 9)]
    assert list_after(move(9, 3), move(3, 3)) == [(3, 9)]
    assert list_after(move(9, 3), move(3, 3, "adopt", (1, 2))) == [(3, 9)]
    assert list_after(move(9, 3), move(12, 12)) == []
    assert list_after(move(9, 6, "adopt", (1, 2)), move(8, 20, "skip", (2, 2)), move(20, 8, ids=(2, 2))) == []
    # Recreated while the stream ran, between two moves or after the last.
    assert list_after(move(9, 3), move(4, 2, ids=(2, 2)), noted=(note("b", 2, 0, 4),)) == [(2, 4)]
    table = TableBook("totals", "merge", frozenset("a"))
    anew = StreamPosition({ONE: 1}, {"t": b"2" * 16})
    assert list_repeated(table, [note("a", 1, 0, 9)], [move(9, 3)], anew) == []


def test_what_somebody_allowed_to_count_twice_is_told_for_later_moves_only() -> None:
    assert list_after(move(9, 3), allowed=frozenset({2})) == []
    assert list_after(move(9, 3), move(3, 3), allowed=frozenset({2})) == []
    assert list_after(move(9, 3), move(5, 4), allowed=frozenset({2})) == [(4, 5)]
    assert list_after(move(9, 3), emptied=frozenset({2})) == []


def test_modes_are_joined_alike_whether_at_once_or_one_after_another() -> None:
    for modes, joined in (
        ((), ""),
        (("merge",), "merge"),
        (("append", "upsert"), "append+upsert"),
        (("append+upsert", "append"), "append+upsert"),
        (("append", "upsert", "merge"), "mixed"),
        (("append+upsert", "state"), "mixed"),
        (("mixed", "append"), "mixed"),
    ):
        assert join_modes(modes) == joined
        assert (joined in ADDING) == any(each in ADDING for each in modes)


def test_a_table_is_built_anew_from_its_first_record_of_the_log_that_is_there() -> None:
    assert plan_rebuild([note("a", 1, 3, 9), note("b", 2, 6, 12)], (move(9, 6),)).starts == {ONE: 3}
    assert plan_rebuild([note("a", 1, 3, 9), note("b", 2, 6, 12)], (move(9, 6),)).lost == ()
    recreated = plan_rebuild([note("a", 1, 3, 9), note("b", 1, 0, 2)], ())
    assert recreated.lost == (ONE,)
    assert plan_rebuild([note("a", 1, 3, 9)], (move(9, 0, "seek", (1, 2)),)).lost == (ONE,)
    assert plan_rebuild([note("a", 1, 3, 9)], (move(9, 6, "adopt", (1, 2)),)).lost == (ONE,)
    adopted = plan_rebuild([note("a", 1, 3, 9)], (move(9, 9, "adopt", (1, 2)),))
    assert (adopted.lost, adopted.adopted) == ((), (ONE,))  # that it can be read again is no proof


def test_records_of_a_log_that_is_gone_are_not_waited_for() -> None:
    noted = (note("a", 1, 0, 9), note("b", 2, 0, 3))
    back, anew = move(9, 0), move(9, 0, ids=(1, 2))
    assert list_awaited([StreamFacts("s", 2, {ONE: 3}, noted, (), (back,))]) == [OffsetRange("t", 0, 3, 9)]
    assert list_awaited([StreamFacts("s", 2, {ONE: 3}, noted, (), (anew,))]) == []


def test_a_log_made_anew_while_the_stream_ran_is_another_one() -> None:
    """No move mentions it, but the topic ids before and after two moves show it."""
    ran = (move(9, 9, "skip", (1, 1)), move(12, 0, ids=(2, 2)))
    noted = [note("a", 1, 0, 9), note("b", 3, 0, 12)]
    assert find_repeats(noted, ran) == []
    assert plan_rebuild(noted, ran).lost == (ONE,)


def test_what_is_read_twice_only_if_an_adoption_was_right_is_told_so() -> None:
    """What is certainly read twice is listed separately; neither may be rebuilt because of the adoption."""
    changes = (move(9, 9, "adopt", (1, 2)), move(12, 4, ids=(2, 2)))
    table = TableBook("totals", "merge", frozenset("abc"))
    noted = (note("a", 1, 0, 9), note("b", 2, 9, 12), note("c", 3, 4, 12))
    found = check_repeats(StreamFacts("s", 3, {ONE: 12}, noted, (), changes, (table,)), None).findings
    sure, doubtful = (each.what for each in found)
    assert "count t-0 [9, 12) twice:" in sure
    assert "count t-0 [4, 9) twice, if these are the same records: t was adopted (ann at 1970" in doubtful
    assert "--rebuild" not in sure + doubtful
