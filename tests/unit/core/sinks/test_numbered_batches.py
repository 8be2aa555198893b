"""Which batch of a numbered query may be written with which ledger."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.core.errors import OffsetStoreError
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.sinks.ledger_rules import Ledger, LedgerEntry
from penstock.core.sinks.numbered_batches import is_next, is_written

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NOWHERE = StreamPosition({})
AT = StreamPosition({T0: 5})


def make_ledger(last: str, **offsets: int) -> Ledger:
    known = offsets or {"t0": 5}
    return {{"t0": T0, "t1": T1}[each]: LedgerEntry(at, token="a", batch=last) for each, at in known.items()}


def ask(ledger: Ledger, batch_id: int, before: StreamPosition, end: StreamPosition) -> bool:
    return is_written(ledger, "s", "q", batch_id, before, end)


def test_the_next_batch_is_written_and_the_last_one_is_not_written_again() -> None:
    """C27: the results end with the previous batch, at the offsets that the checkpoint has for it."""
    end = StreamPosition({T0: 9, T1: 2})
    assert not ask({}, 0, NOWHERE, AT)
    assert not ask(make_ledger("q/0"), 1, AT, end)
    assert ask(make_ledger("q/0"), 0, NOWHERE, AT)
    assert ask(make_ledger("q/4"), 4, AT, AT)  # one that moved nothing
    gone = {T0: replace(make_ledger("q/0")[T0], is_gone=True)}
    assert not ask(gone, 1, StreamPosition({}, gone={T0: 5}), end)


def test_batches_from_before_there_was_a_partition_leave_nothing_in_the_ledger() -> None:
    """A pattern matches no topic yet, so such a batch has no offset under which it could be recorded."""
    assert not ask({}, 3, NOWHERE, AT)


@pytest.mark.parametrize(
    ("last", "batch_id", "condition"),
    [
        ("q/1", 3, r"LEDGER_WENT_BACK.*lacks batch 2 .*ends with batch 1.*query is at batch 3.*no offsets"),
        ("q/0", 3, r"LEDGER_WENT_BACK.*lacks the batches 1 to 2 .*ends with batch 0"),
        ("q/4", 3, "CHECKPOINT_WENT_BACK"),
        ("q/3", 3, "CHECKPOINT_WENT_BACK"),  # the same number, with other offsets
        ("other/2", 3, "CHECKPOINT_REPLACED.*query other"),
        ("", 3, "CHECKPOINT_REPLACED.*another engine"),
        ("q/0", 0, "CHECKPOINT_WENT_BACK"),
        ("other/0", 0, "CHECKPOINT_REPLACED"),
    ],
)
def test_a_ledger_that_does_not_end_with_the_batch_before_is_refused(
    last: str, batch_id: int, condition: str
) -> None:
    """C27: offsets do not show it, because the ledger is where the batch begins."""
    with pytest.raises(OffsetStoreError, match=condition) as raised:
        ask(make_ledger(last), batch_id, AT if batch_id else NOWHERE, StreamPosition({T0: 9}))
    assert not raised.value.retriable


def test_what_is_missing_is_named_by_batches_and_offsets() -> None:
    before = StreamPosition({T0: 8, T1: 3})
    with pytest.raises(OffsetStoreError, match=r"t-0 from 5 to 8, t-1 up to 3") as raised:
        ask(make_ledger("q/0"), 3, before, before)
    assert raised.value.facts["batches"] == 2
    assert raised.value.facts["offsets"] == {"t-0": [5, 8], "t-1": [None, 3]}


def test_the_error_names_the_page_that_tells_how_to_go_on() -> None:
    with pytest.raises(OffsetStoreError) as caught:
        ask(make_ledger("q/0"), 3, AT, AT)
    page, section = re.findall(r"(docs/\S+\.md) explains under `(.+)`\.", caught.value.hint)[0]
    assert f"\n## {section}\n" in (Path(__file__).parents[4] / page).read_text()


def test_a_checkpoint_that_was_moved_by_hand_is_refused() -> None:
    with pytest.raises(OffsetStoreError, match="CHECKPOINT_MOVED"):
        ask(make_ledger("q/2"), 3, StreamPosition({T0: 4}), AT)
    with pytest.raises(OffsetStoreError, match="CHECKPOINT_MOVED"):
        ask(make_ledger("q/2"), 3, StreamPosition({T0: 5, T1: 1}), AT)


def test_an_empty_ledger_is_refused_when_there_should_be_results() -> None:
    with pytest.raises(OffsetStoreError, match=r"LEDGER_EMPTY.* t-0 up to 5"):
        ask({}, 3, AT, AT)


def test_a_writer_that_is_kept_is_asked_only_about_the_next_batch() -> None:
    assert is_next({}, "q", 0)
    assert is_next(make_ledger("q/2"), "q", 3)
    assert not is_next(make_ledger("q/3"), "q", 3)
    assert not is_next({}, "q", 3)
