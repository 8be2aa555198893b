"""A bar on a terminal that leaves nothing behind, plain lines elsewhere, and an error that stays readable."""

from __future__ import annotations

import fcntl
import io
import logging
import math
import os
import pty
import re
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TextIO

import numba
import pytest

from penstock.cli import main
from penstock.cli.shared import compilation_progress, progress_bar, terminal
from penstock.cli.shared.compilation_progress import showing_compilation
from penstock.cli.shared.progress_bar import COMPLETE, ProgressBar, end_bars, hide_bars
from penstock.kafka.records import record_warmup
from penstock.kernels import compilation_lock
from tests.support.stopped_lock_holder import hold_lock
from tests.support.waiting import wait_until

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


class Clock:
    """A clock whose time passes when the test says so."""

    def __init__(self) -> None:
        self.now_s, self.looks = 100.0, 0

    def __call__(self) -> float:
        self.looks += 1
        return self.now_s


class Screen:
    """One side of a pseudo-terminal: what was written to the other side, and what the screen shows now."""

    def __init__(self, end: int) -> None:
        os.set_blocking(end, False)
        self._end = end
        self.written = ""

    def read(self) -> str:
        while True:
            try:
                self.written += os.read(self._end, 65_536).decode()
            except BlockingIOError:
                return self.written

    @property
    def lines(self) -> list[str]:
        """Return what a person sees: a carriage return goes back, an erasure removes the rest of the line."""
        shown = []
        for line in self.read().replace("\r\n", "\n").split("\n"):
            shown.append(line.rpartition("\x1b[K")[2].rpartition("\r")[2])
        return shown


@contextmanager
def open_terminal(columns: int = 100) -> Iterator[tuple[TextIO, Screen]]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    try:
        with os.fdopen(theirs, "w") as stream:
            yield stream, Screen(ours)
    finally:
        os.close(ours)


@pytest.fixture(autouse=True)
def ordinary_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TERM", "xterm")
    yield
    end_bars()


def test_on_a_terminal_a_bar_with_an_estimate_appears_and_one_plain_line_is_left() -> None:
    clock = Clock()
    with open_terminal() as (stream, screen):
        bar = ProgressBar("Fetching", stream=stream, clock=clock)
        bar(0, 92, "asking")
        clock.now_s += 10
        bar(23, 92, "kafka-clients 4.3.0")
        told = "23/92, 10 s, about 30 s left: kafka-clients 4.3.0"
        assert screen.lines == [f"Fetching [#######-----------------------] {told}"]
        clock.now_s += 30
        bar(92, 92, COMPLETE)
        assert screen.lines == ["Fetching: done in 40 s.", ""]


def test_a_bar_goes_on_by_the_clock_when_nothing_is_told() -> None:
    """A big jar takes a minute, and a line that does not change looks like a program that hangs."""
    clock = Clock()
    with open_terminal() as (stream, screen), ProgressBar("Fetching", stream=stream, clock=clock) as bar:
        bar(1, 2, "a big jar")
        assert "0 s" in screen.lines[0]
        clock.now_s += 33
        wait_until(lambda: "33 s" in screen.lines[0], "the line tells the time")


def test_a_failure_leaves_the_line_clean_and_the_cause_on_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open_terminal() as (stream, screen):
        monkeypatch.setattr("sys.stderr", stream)
        with ProgressBar("Fetching") as bar:
            bar(1, 2, "a jar")
            terminal.complain("[FETCH_FAILED] no network")
        assert screen.lines == ["[FETCH_FAILED] no network", ""]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, None])
def test_a_command_that_ends_leaves_no_bar_behind(
    error: type[BaseException] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds after Ctrl-C too, which prints nothing."""

    def run(_arguments: object) -> int:
        ProgressBar("Fetching")(1, 2, "a jar")
        if error is not None:
            raise error
        return 0

    monkeypatch.setattr("penstock.cli.commands.warmup.run", run)
    with open_terminal() as (stream, screen):
        monkeypatch.setattr("sys.stderr", stream)
        with pytest.raises(RuntimeError) if error is RuntimeError else nullcontext():
            assert main(["warmup"]) == (0 if error is None else 130)
        assert "Fetching [" in screen.read()
        assert screen.lines == [""]
        written = screen.written
        hide_bars()
        end_bars()
        assert screen.read() == written


def test_a_narrow_terminal_gets_no_second_line() -> None:
    with open_terminal(columns=30) as (stream, screen), ProgressBar("Fetching", stream=stream) as bar:
        bar(1, 2, "x" * 200)
        assert max(map(len, screen.lines)) <= 29


def test_without_a_terminal_there_is_a_line_at_the_start_at_most_one_each_ten_seconds_and_one_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress_bar, "_DRAWN_EVERY_S", 0.01)
    clock, stream = Clock(), io.StringIO()
    bar = ProgressBar("Fetching", stream=stream, clock=clock, escape=terminal.escape)
    bar(0, 92, "asking")
    for done in range(1, 20):
        bar(done, 92, f"jar {done} \x1b[31m")
    assert stream.getvalue() == "Fetching ...\n"
    clock.now_s += 11
    wait_until(lambda: stream.getvalue().count("\n") == 2, "a line after ten seconds")
    looks = clock.looks
    wait_until(lambda: clock.looks > looks + 5, "it looks at a clock that stands still")
    clock.now_s += 9
    bar(92, 92, COMPLETE)
    assert stream.getvalue().splitlines() == [
        "Fetching ...",
        "Fetching: 19/92, 11 s, about 42 s left: jar 19 \\x1b[31m",
        "Fetching: done in 20 s.",
    ]
    assert not CONTROL.search(stream.getvalue())


def test_what_was_there_already_is_not_talked_about() -> None:
    stream = io.StringIO()
    ProgressBar("Fetching", stream=stream)(0, None, COMPLETE)
    assert stream.getvalue() == ""


def test_a_bar_can_begin_again() -> None:
    """One bar for several servers, one after the other."""
    clock, stream = Clock(), io.StringIO()
    bar = ProgressBar("Fetching servers", stream=stream, clock=clock)
    for seconds in (3, 200):
        bar(0, None, "asking")
        clock.now_s += seconds
        bar(1, 1, COMPLETE)
    assert stream.getvalue().splitlines() == [
        "Fetching servers ...",
        "Fetching servers: done in 3 s.",
        "Fetching servers ...",
        "Fetching servers: done in 3 min 20 s.",
    ]


def test_a_terminal_that_cannot_erase_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with open_terminal() as (stream, screen), ProgressBar("Fetching", stream=stream) as bar:
        bar(1, 2, "a jar")
        assert screen.lines == ["Fetching ...", ""]


@pytest.mark.parametrize("is_there", [False, True], ids=["none", "closed"])
def test_without_a_stream_to_write_to_the_work_goes_on(
    is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `2>&-` Python has no `sys.stderr` at all, and a library may also have closed it."""

    @numba.njit  # type: ignore[untyped-decorator]
    def add_four(number: int) -> int:
        return number + 4

    stream = io.StringIO() if is_there else None
    if stream is not None:
        stream.close()
    monkeypatch.setattr("sys.stderr", stream)
    with showing_compilation(1):
        assert add_four(38) == 42
    with ProgressBar("Fetching") as bar:
        bar(1, 2, "a jar")
        hide_bars()
        bar(2, 2, COMPLETE)


def test_a_complaint_without_a_stderr_is_not_mixed_into_the_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With `penstock consume t --raw 2>&- > values`, `print` would use stdout because there is no stderr."""
    monkeypatch.setattr("sys.stderr", None)
    terminal.complain("3 messages shown.")
    terminal.say("a message")
    assert capsys.readouterr().out == "a message\n"


def test_a_first_compilation_shows_a_bar_and_a_second_call_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    @numba.njit  # type: ignore[untyped-decorator]
    def add_one(number: int) -> int:
        return number + 1

    with open_terminal() as (stream, screen):
        monkeypatch.setattr("sys.stderr", stream)
        with showing_compilation(1):
            assert add_one(41) == 42
        assert "Compiling kernels, once on this computer [" in screen.read()
        assert "add_one" in screen.written
        assert [line.partition(" in ")[0] for line in screen.lines] == [
            "Compiling kernels, once on this computer: done",
            "",
        ]
        written = screen.written
        with showing_compilation(1):
            assert add_one(1) == 2
        assert screen.read() == written


def test_the_bar_of_a_compilation_ends_when_nothing_more_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline compiles for a minute and then runs for months inside the same block."""

    @numba.njit  # type: ignore[untyped-decorator]
    def add_two(number: int) -> int:
        return number + 2

    monkeypatch.setattr(compilation_progress, "_IDLE_S", 0.05)
    with open_terminal() as (stream, screen):
        monkeypatch.setattr("sys.stderr", stream)
        with showing_compilation(217):
            assert add_two(40) == 42
            wait_until(lambda: screen.lines[-1] == "" and len(screen.lines) == 2, "the bar is gone")
            assert screen.lines[0].startswith("Compiling kernels, once on this computer: done in ")
            shown = len(screen.written)
            assert add_two(40.5) == 42.5  # another type is another compilation
            wait_until(lambda: screen.lines[-1] == "" and len(screen.lines) == 3, "and again")
            again = screen.written[shown:]
            # It counts from the beginning, because an estimate from what was done before would be far off.
            assert re.search(r"\] \d+ s: add_two", again)
            assert "/217" not in again


def test_a_verb_that_compiles_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @numba.njit  # type: ignore[untyped-decorator]
    def add_three(number: int) -> int:
        return number + 3

    def run(_arguments: object) -> int:
        return int(add_three(-3))

    monkeypatch.setattr(progress_bar, "_TOLD_EVERY_S", math.inf)  # however long it takes
    monkeypatch.setattr("penstock.cli.commands.accesslog.run_pipeline.run", run)
    given = ["accesslog", "run", "--topic", "t", "--database", "x.db"]
    assert main(given) == 0
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "Compiling kernels, once on this computer ..."
    assert told[1].startswith("Compiling kernels, once on this computer: done in ")
    assert len(told) == 2
    assert main(given) == 0
    assert capsys.readouterr().err == ""


def test_who_waits_for_the_compilation_of_another_process_is_told_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(record_warmup, "_done", False)
    monkeypatch.setattr(compilation_lock, "_cache_place", lambda: tmp_path)
    monkeypatch.setattr(compilation_lock, "LOCK_PATIENCE_S", 0.1)
    with open_terminal(columns=140) as (stream, screen), hold_lock(tmp_path / "penstock-records.lock"):
        monkeypatch.setattr("sys.stderr", stream)
        with caplog.at_level(logging.INFO, "penstock"), showing_compilation(22):
            record_warmup.ensure_compiled()
        assert "waiting for another process to compile them" in screen.read()
        assert screen.lines[0].startswith("Compiling kernels, once on this computer: done in ")
    told = [record.getMessage() for record in caplog.records]
    assert told[0] == "Another process is compiling these kernels. Waiting for it, at most 0.1 s."


def test_a_compilation_that_fails_leaves_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    @numba.njit  # type: ignore[untyped-decorator]
    def add_text(number: int) -> int:
        return number + "no number"  # type: ignore[operator,no-any-return]

    with open_terminal() as (stream, screen):
        monkeypatch.setattr("sys.stderr", stream)
        with pytest.raises(numba.TypingError, match="add"), showing_compilation(1):
            add_text(1)
        assert "add_text" in screen.read()
        assert screen.lines == [""]


def test_the_library_itself_only_logs_that_it_compiles(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """House rule 9: it never prints; a program that needs it shows the log at INFO."""
    monkeypatch.setattr(record_warmup, "_done", False)
    monkeypatch.setattr(compilation_lock, "_cache_place", lambda: tmp_path)
    with caplog.at_level(logging.INFO, "penstock"):
        record_warmup.ensure_compiled()
        told = [record.getMessage() for record in caplog.records]
        assert [text.partition(",")[0].partition(" in ")[0] for text in told] == [
            "Compiling the decoding kernels",
            "Compiled the decoding kernels",
        ]
        monkeypatch.setattr(record_warmup, "_done", False)
        record_warmup.ensure_compiled()
        assert len(caplog.records) == 2
    assert capfd.readouterr() == ("", "")
