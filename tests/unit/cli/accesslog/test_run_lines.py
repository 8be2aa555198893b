"""What a run prints over time, how it describes a client with several bans, and bans that came too late."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock.apps.accesslog.blocking.blocklists import read_bans
from penstock.apps.accesslog.defence.defence_settings import DECISIONS
from penstock.apps.accesslog.monitoring.load_merging import ALERT_ROWS
from penstock.apps.accesslog.reporting.attacker_rows import list_attackers
from penstock.apps.accesslog.reporting.report_data import _read_decisions
from penstock.apps.accesslog.stream.pipeline import BatchNews
from penstock.cli.accesslog.live_numbers import IDLE_EVERY_S, PLAIN_EVERY_S, Display
from penstock.cli.commands.accesslog import run_pipeline
from penstock.core.model import OffsetRange
from penstock.core.offsets.stream_position import StreamPosition
from penstock.direct import BatchReport
from penstock.stores.sql.connections.sql_sessions import Database
from tests.support.accesslog.decisions_database import (
    NOW_US,
    SECOND_US,
    add_decisions,
    make_database,
    make_decision,
)


def make_report(records: int = 0, attempts: int = 1) -> BatchReport:
    ranges = (OffsetRange("log", 0, 0, records),) if records else ()
    return BatchReport(1, 0, ranges, StreamPosition({}), None, attempts=attempts)


def make_news(lines: int = 0, decisions: tuple[dict[str, Any], ...] = ()) -> BatchNews:
    numbers: dict[str, Any] = {"dead": 0, "late": 0, "pending": 0, "subjects": 1, "watermark_us": None}
    tables = {
        "decisions": pa.Table.from_pylist(list(decisions), schema=DECISIONS),
        "alerts": ALERT_ROWS.empty_table(),
    }
    return BatchNews(make_report(), lines=lines, parsed=lines, **numbers, **tables)


class Watched:
    """A display with a clock that is set by hand."""

    def __init__(self, in_lists: int | None = 0) -> None:
        self.seconds, self.in_lists, self.wall_us = 0.0, in_lists, NOW_US
        self.stream = SimpleNamespace(stop_reason=None)
        pipeline: Any = SimpleNamespace(measure_lag=lambda: 7, stream=self.stream)
        self.display = Display(
            pipeline,
            lambda *, has_news=False: self.in_lists,
            clock=lambda: self.seconds,
            wall_us=lambda: self.wall_us,
        )

    def run_batch(self, lines: int = 0, decisions: tuple[dict[str, Any], ...] = ()) -> None:
        self.display.watch("submitted", make_report(lines))
        self.display.watch("started", make_report(lines))
        self.display.show(make_news(lines, decisions))
        self.display.watch("completed", make_report(lines))

    def pass_by(self, seconds: int) -> None:
        """Let time pass in which nothing happens except on the clock."""
        for _ in range(2 * seconds):
            self.seconds += 0.5
            self.display.tick()


# --- by the clock -----------------------------------------------------------------------------------------


def test_an_idle_run_writes_a_line_each_minute_with_batches_and_without(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Otherwise it looks like one that hangs."""
    watched = Watched()
    for _ in range(5 * 60):  # empty batches, each second
        watched.seconds += 1
        watched.run_batch()
    assert len(capsys.readouterr().out.splitlines()) == 5
    watched.pass_by(5 * 60)  # no batches: a long interval, or brokers that are away
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 5
    expected = "Nothing new for 60 s; at the last batch: 0 lines/s, lag 7, 0 clients blocked"
    assert all(line.startswith(expected) for line in told)


def test_a_busy_run_writes_a_line_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    watched = Watched()
    for _ in range(60):
        watched.pass_by(1)
        watched.run_batch(lines=100)
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 6
    assert all(line.startswith("100 lines/s, lag 7, ") for line in told)


def test_a_batch_that_runs_on_is_told_and_never_as_no_lines(capsys: pytest.CaptureFixture[str]) -> None:
    watched = Watched()
    watched.display.watch("submitted", make_report(1_200_000))
    watched.display.watch("started", make_report(1_200_000))
    watched.pass_by(9)
    assert capsys.readouterr().out == ""
    watched.pass_by(16)
    first = "a batch of 1,200,000 offsets has been running for {} s; it is the first of this run"
    assert capsys.readouterr().out.splitlines() == [first.format(10), first.format(20)]
    watched.display.show(make_news(1_200_000))
    watched.display.watch("completed", make_report(1_200_000))
    [line] = capsys.readouterr().out.splitlines()
    assert ", 1,200,000 lines, " in line
    watched.pass_by(10)
    watched.run_batch(5)
    [line] = capsys.readouterr().out.splitlines()
    assert ", 1,200,005 lines, " in line
    watched.display.watch("submitted", make_report(1))
    watched.display.watch("started", make_report(1, attempts=3))
    watched.pass_by(10)
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("a batch of 1 offset has been running for 10 s (attempt 3); before it: ")
    assert line.endswith("1 remembered")


def test_batches_that_all_take_long_are_told_with_their_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    """The line of a running batch must not replace the numbers at its end."""
    watched = Watched()
    for number in range(1, 4):
        watched.display.watch("submitted", make_report(100))
        watched.pass_by(12)
        watched.display.show(make_news(100))
        watched.display.watch("completed", make_report(100))
        running, numbers = capsys.readouterr().out.splitlines()
        assert running.startswith("a batch of 100 offsets has been running for 10 s; ")
        assert f", {number * 100} lines, " in numbers


def test_at_a_terminal_the_live_line_goes_on_while_a_batch_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    watched = Watched()
    watched.display.watch("submitted", make_report(40))
    watched.pass_by(3)
    drawn = [piece for piece in capsys.readouterr().out.split("\r\x1b[K") if piece]
    assert drawn[0].startswith("a batch of 40 offsets has been running for 2 s; ")
    assert drawn[-1].startswith("a batch of 40 offsets has been running for 3 s; ")


def test_a_stop_that_waits_for_a_batch_is_told_once_and_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    watched = Watched()
    watched.display.watch("submitted", make_report(40))
    watched.display.tick()
    watched.stream.stop_reason = "SIGTERM"
    watched.pass_by(5)
    assert capsys.readouterr().out == "Stopping: the running batch is finished first.\n"
    idle = Watched()
    idle.display.watch("submitted", make_report(40))
    idle.display.show(make_news(40))  # done, and whatever hears of it may ask to stop
    idle.stream.stop_reason = "stop()"
    idle.pass_by(5)
    assert capsys.readouterr().out == ""


def test_the_clock_is_looked_at_while_the_batch_has_the_main_thread() -> None:
    watched = Watched()
    ticked = threading.Event()
    watched.display.tick = ticked.set  # type: ignore[method-assign]
    with watched.display.ticking(every_s=0.001):
        assert ticked.wait(60)
        assert [each.name for each in threading.enumerate()].count("penstock-display") == 1
    assert "penstock-display" not in [each.name for each in threading.enumerate()]


def test_the_help_of_run_has_the_times_of_its_lines() -> None:
    told = " ".join((run_pipeline.__doc__ or "").split())
    assert f"a plain line every {PLAIN_EVERY_S:.0f} seconds while something changes or a batch is" in told
    assert "one a minute while nothing does" in told
    assert IDLE_EVERY_S == 60


# --- one client, several bans -----------------------------------------------------------------------------


def test_a_client_has_one_class_in_the_live_line_the_list_and_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is the class of the ban that ends last; among those that end together, of the first decided."""
    place = make_database(tmp_path / "results.db")
    courses = {
        "192.0.2.66": [("web_shell", 1, 600), ("bad_agent", 2, 600), ("cve_probe", 3, 600)],
        "192.0.2.67": [("web_shell", 1, 600), ("bad_agent", 2, 1200), ("cve_probe", 3, 900)],
        "192.0.2.68": [("xss", 1, 1200), ("flood", 1, 1200)],
    }
    decisions = [
        make_decision(who, decided_at=NOW_US - 10 * SECOND_US + at, seconds=until, **{"class": attack})
        for who, some in courses.items()
        for attack, at, until in some
    ]
    decisions.sort(key=lambda each: (each["decided_at"], each["client"], each["decision_id"]))
    add_decisions(place, decisions)
    bans = Database(place).run(lambda session: read_bans(session, now_us=NOW_US))
    listed = {str(each.network): each.attack for each in bans}
    assert listed["192.0.2.66"] == "web_shell"
    assert listed["192.0.2.67"] == "bad_agent"
    watched = Watched(in_lists=3)
    watched.seconds = PLAIN_EVERY_S
    watched.run_batch(9, tuple(decisions))
    told = capsys.readouterr().out
    reported = list_attackers(Database(place).run(_read_decisions))
    assert {each.who: each.of_class for each in reported} == listed
    for who, attack in listed.items():
        assert f"{who} ({attack})" in told


# --- bans that came too late ------------------------------------------------------------------------------


def close(watched: Watched, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    watched.display.close("asked")
    return capsys.readouterr().out.splitlines()[1]


def test_bans_that_had_ended_before_they_were_decided_are_not_told_as_blocks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ban counts from the time in the log: after an outage of an hour it has ended when it is found."""
    watched = Watched()
    watched.wall_us = NOW_US + 3600 * SECOND_US
    watched.seconds = PLAIN_EVERY_S
    watched.run_batch(40, tuple(make_decision(f"192.0.2.{n}") for n in range(4)))
    assert ", 0 clients blocked (4 decided in this run), " in capsys.readouterr().out
    assert close(watched, capsys) == (
        "4 clients decided upon in this run, by 4 decisions (a client that goes on gets more of them); 0 in "
        "the lists now: their bans had ended before the decision, since a ban counts from the time in the "
        "log."
    )
    watched.in_lists = 1
    watched.run_batch(40, (make_decision("192.0.2.3", seconds=7200),))
    assert "; 1 in the lists now: the bans of 3 had ended before the decision" in close(watched, capsys)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    live = Watched()
    live.wall_us = watched.wall_us
    live.run_batch(1, (make_decision("192.0.2.1"),))
    told = capsys.readouterr().out
    assert "found too late to be blocked (the ban has ended) 192.0.2.1: sqli.union-select" in told


def test_bans_that_have_ended_since_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    watched = Watched(in_lists=2)
    watched.run_batch(40, tuple(make_decision(f"192.0.2.{n}", seconds=600 + n) for n in range(2)))
    assert close(watched, capsys).endswith("gets more of them); 2 in the lists now.")
    watched.wall_us, watched.in_lists = NOW_US + 600 * SECOND_US, None
    assert close(watched, capsys).endswith("gets more of them); 1 ban ended since.")
