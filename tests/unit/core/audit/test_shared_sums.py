"""Which records two streams added to one table of sums: from the same log, since it was last emptied."""

from __future__ import annotations

import pytest

from penstock.core.audit.audit_report import NotedRange, StreamFacts, TableBook
from penstock.core.audit.shared_sums import check_sharing
from penstock.core.losses.loss_ranges import Loss
from penstock.core.model import OffsetRange, TopicPartition
from penstock.core.offsets.offset_store_contract import Change
from penstock.core.offsets.stream_position import StreamPosition

ONE = TopicPartition("t", 0)


def name_log(number: int) -> dict[str, bytes]:
    return {"t": bytes([number]) * 16} if number else {}


def move(before: int, after: int, ids: tuple[int, int], verb: str = "rewind") -> Change:
    then, now = map(name_log, ids)
    return Change(1, "ann", verb, StreamPosition({ONE: before}, then), StreamPosition({ONE: after}, now))


def make_stream(
    name: str, *read: tuple[int, int], log: int = 1, changes: tuple[Change, ...] = (), mode: str = "merge"
) -> StreamFacts:
    """Return facts with one range of `read` per generation. `log`: the current one; 0 if unknown."""
    noted = tuple(
        NotedRange(f"{name}{number}", number, OffsetRange("t", 0, *each))
        for number, each in enumerate(read, 1)
    )
    books = (TableBook("totals", mode, frozenset(each.token for each in noted)),)
    position = {ONE: read[-1][1]}
    return StreamFacts(name, len(read), position, noted, (), changes, books, name_log(log))


def find(one: StreamFacts, other: StreamFacts) -> str:
    """Return the text of the only finding, which is the same from both sides; empty if there is none."""
    found = check_sharing([one, other], [], None).findings
    assert len(found) <= 1
    assert check_sharing([other], [one], None).findings == found
    return found[0].what if found else ""


@pytest.mark.parametrize(("mode", "is_found"), [("merge", True), ("state", True), ("upsert", False)])
def test_only_rows_that_are_added_to_count_twice(mode: str, is_found: bool) -> None:
    assert bool(find(make_stream("a", (0, 9)), make_stream("b", (6, 12), mode=mode))) == is_found


def test_a_log_whose_id_is_not_known_counts_as_the_same() -> None:
    for first, second, words in ((1, 1, "t-0 [6, 9) from a"), (0, 1, "t-0 [6, 9) from a"), (1, 2, "")):
        told = find(make_stream("a", (0, 9), log=first), make_stream("b", (6, 12), log=second))
        assert words in told
        assert bool(told) == bool(words)


def test_each_generation_is_of_the_log_that_it_has_read() -> None:
    """The first stream went from one topic to its namesake, and shares with each what it read of it."""
    moved = make_stream("a", (0, 9), (0, 4), log=2, changes=(move(9, 0, (1, 2)),))
    assert "t-0 [2, 9) from" in find(moved, make_stream("b", (2, 12), log=1))
    assert "t-0 [2, 4) from" in find(moved, make_stream("b", (2, 12), log=2))
    assert not find(moved, make_stream("b", (2, 12), log=3))
    unknown = make_stream("a", (0, 9), (0, 4), log=2)  # its moves are not recorded
    assert "t-0 [2, 9) from" in find(unknown, make_stream("b", (2, 12), log=1))


def test_an_adopted_topic_is_taken_at_its_word_as_far_as_it_went() -> None:
    """A mirror that ended earlier holds other records beyond its end."""
    adopted = make_stream("a", (0, 9), (7, 12), log=2, changes=(move(9, 7, (1, 2), "adopt"),))
    told = find(adopted, make_stream("b", (3, 7), log=2))
    assert "t-0 [3, 7) from" in told
    assert "if they are the same records: t was adopted (ann at" in told
    assert "t-0 [7, 9) from" not in find(adopted, make_stream("b", (9, 12), log=2))
    told = find(adopted, make_stream("b", (3, 9), log=1))
    assert "t-0 [3, 9) from" in told
    assert "adopted" not in told, "both have read the topic that was there before"


def test_a_log_that_was_made_anew_while_a_stream_ran_is_not_judged() -> None:
    lost = Loss("TOPIC_RECREATED", "t", 0, 9, 9)
    report = check_sharing([make_stream("a", (0, 9)), make_stream("b", (6, 12))], [], [lost])
    assert not report.findings
    (told,) = report.unchecked
    assert told == "totals: whether a and b have added the same records of t-0; see above."
