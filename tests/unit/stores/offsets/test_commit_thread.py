"""Commits in a separate thread: in order, merged, and each caller notified about its own position."""

from __future__ import annotations

import threading

import pytest

from penstock.core.errors import BrokerError
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.stores.offsets.commit_thread import CommitThread
from penstock.stores.offsets.kafka_store import merge_positions
from tests.support.waiting import wait_until

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
Told = tuple[StreamPosition, str | None]


class Coordinator:
    """A coordinator that commits when it is allowed to, and fails when it is told to."""

    def __init__(self) -> None:
        self.seen: list[StreamPosition] = []
        self.entered, self.may_go_on = threading.Event(), threading.Event()
        self.may_go_on.set()
        self.fails = 0

    def commit(self, position: StreamPosition) -> None:
        self.entered.set()
        assert self.may_go_on.wait(10)
        if self.fails:
            self.fails -= 1
            raise BrokerError("BROKER_TIMEOUT", "Waited in vain.")
        self.seen.append(position)


class Listener:
    def __init__(self) -> None:
        self.told: list[Told] = []

    def __call__(self, position: StreamPosition, error: BaseException | None) -> None:
        self.told.append((position, getattr(error, "condition", None)))


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def commits(coordinator: Coordinator) -> CommitThread[StreamPosition]:
    return CommitThread(coordinator.commit, "g", merge_positions)


def at(first: int, second: int = 0) -> StreamPosition:
    return StreamPosition({T0: first, T1: second})


def test_what_was_offered_last_is_committed_once_more(
    coordinator: Coordinator, commits: CommitThread[StreamPosition]
) -> None:
    """Also while that commit is running, and if it has failed; without an offer there is nothing to do."""
    commits.repeat()
    assert commits.flush(10)
    coordinator.may_go_on.clear()
    commits.offer(at(1))
    assert coordinator.entered.wait(10)
    commits.repeat()
    coordinator.may_go_on.set()
    assert commits.flush(10)
    assert coordinator.seen == [at(1), at(1)]
    coordinator.fails = 1
    commits.offer(at(2))
    assert commits.flush(10)
    assert coordinator.seen[-1] == at(1)
    commits.repeat()
    assert commits.flush(10)
    assert coordinator.seen[-1] == at(2)


def test_what_waits_is_merged_to_the_highest_end_of_each_partition(
    coordinator: Coordinator, commits: CommitThread[StreamPosition]
) -> None:
    """B229, D37: each callback gets the position it was given, not the newest."""
    listener = Listener()
    coordinator.may_go_on.clear()
    commits.offer(at(1), listener)
    assert coordinator.entered.wait(10)
    for position in (at(5, 2), at(4, 9), at(3, 3)):
        commits.offer(position, listener)
    coordinator.may_go_on.set()
    assert commits.flush(10)
    assert coordinator.seen == [at(1), at(5, 9)]
    assert listener.told == [(position, None) for position in (at(1), at(5, 2), at(4, 9), at(3, 3))]
    assert (commits.done, commits.failed, commits.is_settled) == (2, 0, True)


def test_a_failed_commit_is_told_counted_and_goes_with_the_next(
    coordinator: Coordinator, commits: CommitThread[StreamPosition], caplog: pytest.LogCaptureFixture
) -> None:
    """D36: the callback gets the error; nothing stops, and nothing is lost."""
    listener = Listener()
    coordinator.fails = 1
    commits.offer(at(7, 1), listener)
    assert commits.flush(10)
    assert not commits.is_settled
    assert listener.told == [(at(7, 1), "BROKER_TIMEOUT")]
    assert "not committed to group g" in caplog.text
    commits.offer(at(6, 2), listener)
    assert commits.flush(10)
    assert coordinator.seen == [at(7, 2)]
    assert listener.told[1:] == [(at(6, 2), None)]
    assert (commits.done, commits.failed, commits.is_settled) == (1, 1, True)


def test_what_failed_last_can_be_tried_again(
    coordinator: Coordinator, commits: CommitThread[StreamPosition]
) -> None:
    """T32: at the end there is no next one."""
    coordinator.fails = 1
    commits.offer(at(7))
    assert commits.flush(10)
    commits.retry()
    assert commits.flush(10)
    assert (coordinator.seen, commits.is_settled) == ([at(7)], True)
    commits.retry()  # nothing is left
    assert commits.flush(10)
    assert coordinator.seen == [at(7)]


def test_a_callback_that_raises_keeps_nobody_from_being_told(
    coordinator: Coordinator, commits: CommitThread[StreamPosition], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error belongs to the caller and ends the thread; the next offer starts another thread."""
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda given: raised.append(given.exc_value))
    listener = Listener()

    def fail(_position: StreamPosition, _error: BaseException | None) -> None:
        raise ZeroDivisionError

    coordinator.may_go_on.clear()
    commits.offer(at(1), fail)
    assert coordinator.entered.wait(10)
    coordinator.may_go_on.set()
    commits.offer(at(2), fail)
    commits.offer(at(3), listener)
    assert commits.flush(10)
    commits.offer(at(4), listener)
    assert commits.flush(10)
    assert coordinator.seen[-1] == at(4)
    assert listener.told == [(at(3), None), (at(4), None)]
    assert all(isinstance(each, ZeroDivisionError) for each in raised)


def test_what_was_offered_before_a_move_by_hand_does_not_come_after_it(
    coordinator: Coordinator, commits: CommitThread[StreamPosition]
) -> None:
    """T33: not even through a commit that was running and failed; the caller who offered it is notified."""
    listener = Listener()
    coordinator.may_go_on.clear()
    coordinator.fails = 1
    commits.offer(at(8))
    assert coordinator.entered.wait(10)
    commits.offer(at(9), listener)
    dropping = threading.Thread(target=commits.drop, args=(10,))
    dropping.start()
    wait_until(lambda: listener.told == [(at(9), "OFFSETS_MOVED")], "what waits is dropped")
    coordinator.may_go_on.set()
    dropping.join(10)
    commits.offer(at(2))
    assert commits.flush(10)
    assert coordinator.seen == [at(2)]


def test_a_topic_made_anew_is_not_held_at_its_old_end() -> None:
    """T33: the highest end counts within one topic; another id is another topic."""
    old = StreamPosition({T0: 90, T1: 8}, {"t": b"\x01" * 16}, {T0: 4, T1: 4})
    same = StreamPosition({T0: 80, T1: 9}, {"t": b"\x01" * 16}, {T0: 3, T1: 5})
    anew = StreamPosition({T0: 2, T1: 0}, {"t": b"\x02" * 16}, {T0: 0})
    assert merge_positions(old, anew) == anew
    assert merge_positions(old, same) == StreamPosition({T0: 90, T1: 9}, same.topic_ids, {T0: 4, T1: 5})
    assert merge_positions(old, StreamPosition({T1: 1})) == StreamPosition({T1: 8}, {}, {T1: 4})


def test_a_closed_queue_ends_its_thread(
    coordinator: Coordinator, commits: CommitThread[StreamPosition]
) -> None:
    commits.offer(at(1))
    commits.close()
    commits._thread.join(10)
    assert not commits._thread.is_alive()
    assert coordinator.seen == [at(1)]
