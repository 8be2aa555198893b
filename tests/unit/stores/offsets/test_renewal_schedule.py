"""When offsets in a group are committed again: before they expire, and never at the expense of newer ones."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from penstock.core.errors import BrokerError
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import Offsets, StreamPosition
from penstock.engines.direct.offset_keeper import Keeper
from penstock.stores.offsets.commit_thread import CommitThread
from penstock.stores.offsets.memory_store import MemoryOffsetStore
from penstock.stores.offsets.renewal_schedule import (
    ASK_AFTER_S,
    BLIND_PERIOD_S,
    RenewalSchedule,
    choose_period_s,
)
from tests.support.waiting import wait_until

DAY_S = 86_400
T0 = TopicPartition("t", 0)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("retention_ms", "period_s"),
    [
        (60_000, 15),
        (3_600_000, 900),
        (7 * DAY_S * 1000, DAY_S),
        (400 * DAY_S * 1000, DAY_S),
        (None, DAY_S / 4),
    ],
)
def test_the_period_is_a_quarter_of_the_retention_and_at_most_a_day(
    retention_ms: int | None, period_s: float
) -> None:
    assert choose_period_s(retention_ms) == period_s


def test_what_an_earlier_program_has_committed_is_renewed_at_once_and_then_each_period() -> None:
    """Its age is unknown. The brokers are asked once per renewal, and not right after it."""
    clock, asked = Clock(), list[float]()

    def ask() -> int:
        asked.append(clock.now)
        return 60_000

    renewal = RenewalSchedule(ask, clock)
    assert renewal.is_due()
    assert asked == []
    renewal.note_renewal()
    assert not renewal.is_due()
    assert renewal.find_wait_s() == ASK_AFTER_S
    clock.now += 14
    assert not renewal.is_due()
    assert renewal.find_wait_s() == 1
    renewal.note_commit()
    clock.now += 14
    assert not renewal.is_due()
    assert asked == [1014.0]
    clock.now += 1
    assert renewal.is_due()
    renewal.note_renewal()
    clock.now += ASK_AFTER_S
    assert not renewal.is_due()
    assert asked == [1014.0, 1029.0 + ASK_AFTER_S]


def test_a_renewal_that_failed_is_tried_again_sooner() -> None:
    clock = Clock()
    renewal = RenewalSchedule(lambda: None, clock)
    renewal.note_commit()
    clock.now += BLIND_PERIOD_S
    assert renewal.is_due()
    renewal.note_failure()
    assert renewal.find_wait_s() == BLIND_PERIOD_S / 4
    renewal.note_commit()
    clock.now += 60
    assert renewal.find_wait_s() == BLIND_PERIOD_S - 60


def test_the_brokers_are_asked_before_the_shortest_retention_is_at_risk() -> None:
    """Kafka keeps an offset for a minute at least."""
    assert choose_period_s(60_000) > ASK_AFTER_S


def hurry(ask: Callable[[], int] = lambda: 4) -> RenewalSchedule:
    """Return a schedule that renews every millisecond, if the answer is 4."""
    return RenewalSchedule(ask, ask_after_s=0)


def test_a_queue_of_commits_renews_what_stands_when_nothing_comes(caplog: pytest.LogCaptureFixture) -> None:
    """The last commit is repeated again and again, even after a failure, and is not counted as a commit."""
    committed, renewed, failing = list[Offsets](), list[Offsets](), [True]

    def renew(offsets: Offsets) -> None:
        if failing.pop() if failing else False:
            raise BrokerError("BROKER_TIMEOUT", "Waited in vain.")
        renewed.append(offsets)

    commits = CommitThread[Offsets](committed.append, "g", renew=renew, renewal=hurry())
    with caplog.at_level(logging.WARNING):
        commits.offer({T0: 1})
        commits.offer({T0: 2})
        # The first offer may be committed, and renewed, before the second one comes.
        wait_until(lambda: renewed[-2:] == [{T0: 2}] * 2, "what stands is renewed again and again")
    assert committed[-1] == {T0: 2}
    assert "offsets of group g were not renewed" in caplog.text
    assert (commits.done, commits.failed) == (len(committed), 0)
    commits.close()
    commits._thread.join(10)
    assert not commits._thread.is_alive()


def test_a_slow_answer_about_the_retention_holds_up_no_commit() -> None:
    """Nothing is asked right after a commit, because the next commit may follow at once."""
    answer, committed = threading.Event(), list[Offsets]()

    def ask() -> int | None:
        answer.wait(60)
        return None

    commits = CommitThread[Offsets](
        committed.append, "g", renew=lambda offsets: None, renewal=RenewalSchedule(ask)
    )
    try:
        for number in range(3):
            commits.offer({T0: number})
            assert commits.flush(10)
    finally:
        answer.set()
        commits.close()
    assert committed == [{T0: 0}, {T0: 1}, {T0: 2}]


def test_what_is_dropped_while_the_brokers_are_asked_is_not_renewed() -> None:
    """And flushing does not wait for that answer when nothing is left to commit."""
    asking, answer, renewed = threading.Event(), threading.Event(), list[Offsets]()

    def ask() -> int:
        asking.set()
        answer.wait(60)
        return 4

    commits = CommitThread[Offsets](lambda offsets: None, "g", renew=renewed.append, renewal=hurry(ask))
    try:
        commits.offer({T0: 1})
        assert asking.wait(60)
        assert commits.flush(0)
        commits.drop(0)
        answer.set()
        commits.offer({T0: 9})
        wait_until(lambda: len(renewed) >= 2, "what was committed later is renewed")
    finally:
        answer.set()
        commits.close()
    assert {T0: 1} not in renewed


@pytest.fixture
def raised(monkeypatch: pytest.MonkeyPatch) -> list[BaseException | None]:
    """Collect the errors with which threads have ended."""
    raised: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda given: raised.append(given.exc_value))
    return raised


def test_an_unforeseen_error_ends_no_renewals(
    raised: list[BaseException | None], caplog: pytest.LogCaptureFixture
) -> None:
    """An idle stream offers what it has offered before, so nothing else would start them again."""
    failing, renewed = [True], list[Offsets]()

    def renew(offsets: Offsets) -> None:
        if failing.pop() if failing else False:
            raise ValueError("nobody foresaw this")
        renewed.append(offsets)

    commits = CommitThread[Offsets](lambda offsets: None, "g", renew=renew, renewal=hurry())
    commits.offer({T0: 1})
    wait_until(lambda: len(renewed) >= 2, "what stands is renewed again")
    commits.close()
    assert "nobody foresaw this" in caplog.text
    wait_until(lambda: len(raised) == 1, "the error was raised")


def test_an_unforeseen_error_while_the_brokers_are_asked_is_tried_again_later(
    raised: list[BaseException | None],
) -> None:
    def ask() -> int:
        raise ValueError("nobody foresaw this")

    renewal = hurry(ask)
    commits = CommitThread[Offsets](lambda offsets: None, "g", renew=lambda offsets: None, renewal=renewal)
    commits.offer({T0: 1})
    wait_until(lambda: len(raised) == 1, "it was raised")
    commits.offer({T0: 2})
    assert commits.flush(10)
    wait_until(lambda: len(raised) == 2, "it was asked again after the commit")
    assert commits._thread.is_alive()
    assert renewal.find_wait_s() > 0
    commits.close()


def test_an_unforeseen_error_of_a_callback_ends_no_renewals(raised: list[BaseException | None]) -> None:
    renewed = list[Offsets]()

    def tell(_what: Offsets, _error: BaseException | None) -> None:
        raise ValueError("unforeseen")

    commits = CommitThread[Offsets](lambda offsets: None, "g", renew=renewed.append, renewal=hurry())
    commits.offer({T0: 1}, tell)
    wait_until(lambda: len(renewed) >= 2, "what stands is renewed")
    commits.close()
    wait_until(lambda: len(raised) == 1, "the error was raised")


def test_what_was_moved_by_hand_is_not_renewed() -> None:
    """Once dropped, it stays dropped until something is committed again."""
    commits = CommitThread[Offsets](
        lambda offsets: None, "g", renew=lambda offsets: None, renewal=RenewalSchedule(lambda: None)
    )
    commits.offer({T0: 9})
    assert commits.flush(10)
    assert commits._find_wait_s() is not None
    commits.drop(10)
    assert commits._find_wait_s() is None
    commits.close()


class ExpiringStore(MemoryOffsetStore):
    def __init__(self) -> None:
        super().__init__()
        self.renewed: list[StreamPosition] = []

    def renew(self, stream: str, position: StreamPosition) -> None:
        self.renewed.append(position)


def test_a_keeper_renews_what_is_stored_and_nothing_before_that() -> None:
    store = ExpiringStore()
    keeper = Keeper(store, "s")
    keeper.renew()
    assert store.renewed == []
    keeper.keep(StreamPosition({T0: 5}))
    keeper.renew()
    assert store.renewed == [StreamPosition({T0: 5})]
    Keeper(MemoryOffsetStore(), "s").renew()
