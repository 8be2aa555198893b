"""Attempts until a deadline, and what is reported meanwhile."""

from __future__ import annotations

import logging
import time

import pytest

from penstock.core.errors import BrokerError
from penstock.core.outages import STOP_PATIENCE_S, Patience, has_stopped, hearing_stop, waiting_for_servers
from penstock.kafka.transport import retries
from penstock.kafka.transport.deadlines import Deadline
from penstock.kafka.transport.retries import Attempts


def fail(attempts: Attempts, times: int) -> None:
    for number in attempts:
        with attempts.forgiving():
            raise BrokerError("BROKER_UNREACHABLE", "Nobody listens.", retriable=True)
        if number + 1 == times:
            return


def test_failures_that_last_are_told_and_told_again_with_what_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody should have to guess why nothing happens during a minute of attempts."""
    monkeypatch.setattr(retries, "TOLD_AFTER_S", 0.0)
    fail(Attempts(Deadline.after_ms(60_000, "a.limit"), "the metadata", 1), 4)
    (told,) = find_warnings(caplog)
    for part in ("the metadata", "a.limit", "Nobody listens."):
        assert part in told
    monkeypatch.setattr(retries, "TOLD_EVERY_S", 0.0)
    caplog.clear()
    with waiting_for_servers(Patience(900.0)):
        fail(Attempts(Deadline.after_ms(60_000, "a.limit"), "the metadata", 1), 4)
    assert len(find_warnings(caplog)) == 4
    assert all(
        "The stream waits up to 15 min in all (outageTimeout)." in each for each in find_warnings(caplog)
    )


def find_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def test_a_short_trouble_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    fail(Attempts(Deadline.after_ms(60_000, "a.limit"), "the metadata", 1), 3)
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_pauses_grow_to_their_limit_and_begin_again_when_something_came_forward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They never fall below the minimum, whatever is set; and the limit starts anew."""
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    attempts = Attempts(Deadline.after_ms(60_000, "a.limit"), "it", 0)
    for number in attempts:
        if number == 7:
            break
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    pauses.clear()
    attempts = Attempts(Deadline.after_ms(60_000), "it", 2, least_pause_ms=2, longest_pause_ms=5)
    for number in attempts:
        if number == 3:
            later = Deadline.after_ms(90_000, "a.later.limit")
            attempts.begin_again(later)
        if number == 5:
            break
    assert pauses == [0.002, 0.004, 0.005, 0.002, 0.004]
    assert attempts.deadline is later


def test_the_last_failure_with_time_left_is_told_and_a_final_one_is_raised() -> None:
    attempts = Attempts(Deadline.after_ms(60_000, "a.limit"), "it", 1)
    attempts.forgive(BrokerError("BROKER_UNREACHABLE", "Nobody listens.", retriable=True))
    attempts.begin_again(Deadline.after_ms(0, "a.limit"))
    attempts.forgive(BrokerError("BROKER_TIMEOUT", "No time left.", retriable=True))
    assert "The last failure was: [BROKER_UNREACHABLE] Nobody listens." in str(attempts.given_up())
    assert list(attempts) == []
    with pytest.raises(BrokerError, match="AUTHENTICATION_FAILED"):
        attempts.forgive(BrokerError("AUTHENTICATION_FAILED", "Not alice."))


def test_a_stop_ends_what_was_waited_for_and_is_named_as_the_reason() -> None:
    """Otherwise a stream that is asked to stop while its brokers are away would end a minute later."""
    now = time.monotonic()
    long_ago = Deadline(now + 30, 60_000, "a.limit")
    over = Deadline(now - 1, 60_000, "a.limit")
    with hearing_stop(lambda: now - STOP_PATIENCE_S):
        assert long_ago.expired
        assert long_ago.remaining_s() == 0.0
        with pytest.raises(BrokerError) as stopped:
            long_ago.slice_s("an answer")
        assert has_stopped(stopped.value)
        assert not stopped.value.retriable  # otherwise it would be retried
        assert "Gave up waiting for an answer: the stream was asked to stop." in str(stopped.value)
        assert over.timeout_error("an answer").condition == "BROKER_TIMEOUT"  # no stop has ended this one
        attempts = Attempts(long_ago, "the metadata", 1)
        fail(attempts, 2)
        assert has_stopped(attempts.given_up())
    assert long_ago.remaining_s() > 20
    assert not has_stopped(long_ago.timeout_error("an answer"))


def test_what_begins_after_a_stop_gets_a_moment() -> None:
    """The stop came while a database was waited for: brokers that are reachable are no reason to fail."""
    asked_at = time.monotonic() - 1000
    with hearing_stop(lambda: asked_at):
        later = Deadline.after_ms(60_000)
        assert STOP_PATIENCE_S - 2 < later.remaining_s() <= STOP_PATIENCE_S
        assert Deadline.after_ms(10).remaining_s() <= 0.01


def test_a_part_of_a_wait_gets_no_grace_of_its_own() -> None:
    """A request has nested parts: a connection, a login, an answer.

    With five seconds for each of them it would take many times as long.
    """
    now = time.monotonic()
    whole = Deadline(now + 59, 60_000, "a.limit")  # begun a second ago, and the stop came before it
    nearly_over = Deadline(now + 30, 60_000, "a.limit")
    with hearing_stop(lambda: now - 10):
        part = whole.or_sooner(30_000, "another.limit")
        assert part.name == "another.limit"
        assert part.remaining_s() <= STOP_PATIENCE_S - 1
        assert part.or_sooner(10_000, "a.third").remaining_s() <= STOP_PATIENCE_S - 1
        assert nearly_over.or_sooner(20_000, "another.limit").expired
    assert part.remaining_s() > 20


def test_who_may_be_asked_to_stop_blocks_for_a_moment_at_a_time() -> None:
    limit = Deadline.after_ms(60_000)
    assert limit.slice_s("an answer") > 30
    with hearing_stop(lambda: None):
        assert limit.slice_s("an answer") <= 1
        assert limit.remaining_s() > 30
