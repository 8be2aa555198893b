"""Tries until a deadline: what is told while they go on."""

from __future__ import annotations

import logging

import pytest

from penstock.core.errors import BrokerError
from penstock.kafka import deadline
from penstock.kafka.deadline import Attempts, Deadline


def fail(attempts: Attempts, times: int) -> None:
    for number in attempts:
        with attempts.forgiving():
            raise BrokerError("BROKER_UNREACHABLE", "Nobody listens.", retriable=True)
        if number + 1 == times:
            return


def test_failures_that_last_are_told_once_with_what_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody should have to guess why nothing happens during a minute of trying."""
    monkeypatch.setattr(deadline, "_TOLD_AFTER_S", 0.1)
    fail(Attempts(Deadline.after_ms(60_000, "a.limit"), "the metadata", 50), 4)
    (told,) = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    for part in ("the metadata", "a.limit", "Nobody listens."):
        assert part in told


def test_a_short_trouble_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    fail(Attempts(Deadline.after_ms(60_000, "a.limit"), "the metadata", 1), 3)
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
