"""`decisions --to-topic --follow` ends when it is told to, even while the brokers are away."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.apps.accesslog.blocking.decisions_topic import DecisionsTopic
from penstock.cli import main
from penstock.cli.commands.accesslog import decisions
from penstock.core.errors import BrokerError
from tests.support.accesslog.decisions_database import make_database

LONG_S = 60.0


@pytest.fixture
def follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Callable[[], int]]], int]:
    """Return a function that runs the verb with these attempts to send and returns its exit code."""
    monkeypatch.setattr(decisions, "_FOLLOW_EVERY_S", 0.01)
    make_database(tmp_path / "results.db")
    command = ["accesslog", "decisions", str(tmp_path / "results.db"), "--to-topic", "t", "--follow"]

    def run(attempts: list[Callable[[], int]]) -> int:
        left = iter(attempts)
        monkeypatch.setattr(DecisionsTopic, "send", lambda _: next(left)())
        return main([*command, "--bootstrap-server", "127.0.0.1:1"])

    return run


def fail() -> int:
    raise BrokerError("BROKER_UNREACHABLE", "The brokers are away.", retriable=True)


def ask_to_end(times: int = 1) -> int:
    """Send a signal during an attempt, which would go on for a long time unless it is ended."""
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(LONG_S)
    return 7


def test_an_attempt_in_vain_is_ended_by_the_first_signal(
    follow: Callable[[list[Callable[[], int]]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code shows that something could not be sent."""
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    assert follow([lambda: 2, fail, fail, ask_to_end]) == 1
    told = capsys.readouterr()
    assert told.out == "2 decisions sent to t.\n"
    assert told.err.count("[BROKER_UNREACHABLE]") == 1
    assert told.err.endswith("Not all decisions were sent; the next start sends the rest.\n")
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before


def test_any_attempt_is_ended_by_the_second_signal(
    follow: Callable[[list[Callable[[], int]]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert follow([lambda: 2, lambda: ask_to_end(2)]) == 1
    assert capsys.readouterr().out == "2 decisions sent to t.\n"


def test_an_attempt_that_may_succeed_is_waited_for(
    follow: Callable[[list[Callable[[], int]]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    def be_asked_and_send() -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return 3

    assert follow([lambda: 2, fail, lambda: 0, be_asked_and_send]) == 0
    assert capsys.readouterr().out == "5 decisions sent to t.\n"


def test_an_attempt_waits_no_longer_than_a_service_is_given_to_stop(
    follow: Callable[[list[Callable[[], int]]], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    make = DecisionsTopic.__init__

    def note(*some: object, patience_ms: int, **named: object) -> None:
        given.append(patience_ms)
        make(*some, patience_ms=patience_ms, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(DecisionsTopic, "__init__", note)

    def be_asked() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return 0

    assert follow([be_asked]) == 0
    assert given == [15_000]
