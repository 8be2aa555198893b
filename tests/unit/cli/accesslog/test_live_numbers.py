"""What `penstock accesslog run` shows while it runs, with and without a terminal."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock.apps.accesslog.defence.defence_settings import DECISIONS
from penstock.apps.accesslog.monitoring.load_merging import ALERT_ROWS
from penstock.apps.accesslog.stream.operator_orders import place_order
from penstock.apps.accesslog.stream.pipeline import BatchNews
from penstock.apps.accesslog.stream.pipeline_settings import PipelineSettings
from penstock.cli.accesslog.blocked_count import BlockedCount
from penstock.cli.accesslog.live_numbers import PLAIN_EVERY_S, Display, cut
from penstock.cli.accesslog.spared_clients import Sparing
from penstock.cli.shared.terminal import complain
from penstock.core.offsets.stream_position import StreamPosition
from penstock.direct import BatchReport
from penstock.stores.sql.connections.sql_sessions import Session
from tests.support.accesslog.decisions_database import NOW_US, add_decisions, make_database, make_decision

DATE = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


def make_news(lines: int, too_late: int = 0, blocked: tuple[str, ...] = ()) -> BatchNews:
    report = BatchReport(1, 0, (), StreamPosition({}), None)
    numbers: dict[str, Any] = {"dead": 0, "late": 0, "pending": 0, "subjects": 1, "watermark_us": None}
    decisions = pa.Table.from_pylist([make_decision(each) for each in blocked], schema=DECISIONS)
    tables = {"decisions": decisions, "alerts": ALERT_ROWS.empty_table()}
    return BatchNews(report, lines=lines, parsed=lines, **numbers, **tables, too_late=too_late)


def count_none(*, has_news: bool = False) -> int:  # noqa: ARG001
    return 0


def test_lines_that_are_in_no_table_of_the_load_are_told_as_soon_as_there_are_any(
    capsys: pytest.CaptureFixture[str],
) -> None:
    moments = iter(number * PLAIN_EVERY_S for number in range(10))
    pipeline: Any = SimpleNamespace(measure_lag=lambda: 0)
    display = Display(pipeline, count_none, clock=lambda: next(moments))
    for too_late in (0, 1200, 1200):
        display.show(make_news(5, too_late))
    display.close("asked")
    first, second, third, *end = capsys.readouterr().out.splitlines()
    assert "too late" not in first
    assert "1,200 too late for the load" in second
    assert "1,200 too late for the load" in third
    assert end[1].startswith("1200 lines since the beginning came too late")


def test_dead_letters_of_this_run_are_in_the_line_as_soon_as_there_are_any(
    capsys: pytest.CaptureFixture[str],
) -> None:
    moments = iter(number * PLAIN_EVERY_S for number in range(10))
    pipeline: Any = SimpleNamespace(measure_lag=lambda: 0)
    display = Display(pipeline, count_none, clock=lambda: next(moments))
    for dead in (0, 1, 1_199):
        display.show(replace(make_news(1_200), dead=dead))
    first, second, third = capsys.readouterr().out.splitlines()
    assert "dead" not in first
    assert ", 2,400 lines, 1 dead letter in this run, " in second
    assert ", 3,600 lines, 1,200 dead letters in this run, " in third


def test_at_a_terminal_a_client_is_named_once_and_no_line_is_wider_than_the_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrapped line cannot be overwritten, and one attacker must not fill the screen."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    pipeline: Any = SimpleNamespace(measure_lag=lambda: 1_234_567)
    display = Display(pipeline, count_none, clock=iter(range(100)).__next__)
    clients = tuple(f"2001:db8:{number:x}::/64" for number in range(3))
    for _ in range(5):
        display.show(make_news(50_000, blocked=clients))
    display.close("asked")
    written = capsys.readouterr().out
    live, _, end = written.partition("Stopped")
    pieces = [piece for line in live.split("\n") for piece in line.split("\r\x1b[K") if piece]
    assert max(map(len, pieces)) <= 59
    assert sum(piece.startswith("blocked ") for piece in pieces) == 3
    assert any(piece.endswith("...") for piece in pieces)
    assert "3 clients decided upon in this run, by 15 decisions" in end


def test_a_lag_that_no_broker_tells_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    pipeline: Any = SimpleNamespace(measure_lag=lambda: None)
    display = Display(pipeline, count_none, clock=iter(range(0, 1000, 100)).__next__)
    display.show(make_news(5))
    assert " lines/s, lag unknown, " in capsys.readouterr().out


def test_a_complaint_at_a_terminal_stands_on_a_line_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", sys.stdout)  # one terminal for both
    pipeline: Any = SimpleNamespace(measure_lag=lambda: 0)
    display = Display(pipeline, count_none, clock=iter(range(100)).__next__)
    display.show(make_news(5))
    complain("[BLOCKLIST_NOT_WRITTEN] The blocklist cannot be written.")
    display.show(make_news(5))
    display.close("asked")
    complain("The end.")
    written = capsys.readouterr().out
    lines = [line.rpartition("\r\x1b[K")[2] for line in written.split("\n")]
    assert lines == [
        "[BLOCKLIST_NOT_WRITTEN] The blocklist cannot be written.",
        "Stopped (asked): 10 lines, 0 of them dead letters, 0 out of order.",
        "The end.",
        "",
    ]
    assert not written.partition("Stopped")[2].count("\x1b")  # the finished line is not erased again


@pytest.fixture
def settings(tmp_path: Path) -> PipelineSettings:
    made = PipelineSettings(
        "log", tmp_path / "results.db", {"bootstrap.servers": "b:9092"}, allow=("192.0.2.9",)
    )
    make_database(made.place)
    return made


def test_the_line_says_how_many_are_in_the_lists_also_when_no_line_comes_any_more(
    settings: PipelineSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    """Decisions come a batch after their lines, and a continued run finds the bans of the previous one."""
    now_us, seconds = NOW_US, 0.0
    pipeline: Any = SimpleNamespace(measure_lag=lambda: 0)

    def start() -> Display:
        blocked = BlockedCount(settings, clock=lambda: seconds, wall_us=lambda: now_us)
        return Display(pipeline, blocked, clock=lambda: seconds)

    def show(display: Display, lines: int = 0, blocked: tuple[str, ...] = ()) -> None:
        nonlocal seconds
        seconds += PLAIN_EVERY_S
        display.show(make_news(lines, blocked=blocked))

    display = start()
    clients = ("192.0.2.1", "192.0.2.2", "192.0.2.9", "10.0.0.5", "host.example")
    show(display, lines=40)
    add_decisions(settings.place, [make_decision(each) for each in clients])
    show(display, blocked=clients)
    show(display)
    place_order(settings.place, "192.0.2.2", now_us=now_us, grace_us=0)
    for _ in range(2):
        show(display)
    now_us += 3600 * 1_000_000
    for _ in range(2):
        show(display)
    now_us = NOW_US
    show(start())
    told = [re.search(r"([0-9]+) clients? blocked", line) for line in capsys.readouterr().out.splitlines()]
    assert [int(found[1]) for found in told if found] == [0, 2, 1, 0, 1]


def test_a_client_that_is_spared_is_counted_and_named(
    settings: PipelineSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    moments = iter(number * PLAIN_EVERY_S for number in range(100))
    pipeline: Any = SimpleNamespace(measure_lag=lambda: 0)
    display = Display(
        pipeline,
        BlockedCount(settings),
        clock=lambda: next(moments),
        describe_spared=Sparing.of(settings).describe,
    )
    news = make_news(40)
    spared = [make_decision(each, action="allowed") for each in ("192.0.2.9", "10.0.0.5", "10.0.0.5")]
    display.show(replace(news, decisions=pa.Table.from_pylist(spared, schema=DECISIONS)))
    display.close("asked")
    told = capsys.readouterr()
    assert ", 2 clients spared" in told.out
    when, _, words = told.err.partition(" ")
    assert re.fullmatch(DATE, when)
    assert words.startswith("2 clients spared that a rule wanted blocked: 192.0.2.9 (allowed); 10.0.0.5 (a")


def test_names_of_hosts_are_told_as_being_in_no_list(
    settings: PipelineSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    """No list can hold them, so reporting them as blocked would be wrong."""
    moments = iter(number * PLAIN_EVERY_S for number in range(100))
    pipeline: Any = SimpleNamespace(measure_lag=lambda: 0)
    blocked = BlockedCount(settings, wall_us=lambda: NOW_US)
    display = Display(pipeline, blocked, clock=lambda: next(moments))
    clients = ("a.example", "b.example", "192.0.2.1", "c.example", "a.example")
    add_decisions(settings.place, [make_decision(each) for each in dict.fromkeys(clients)])
    for _ in range(2):
        display.show(make_news(40, blocked=clients))
    display.close("asked")
    told = capsys.readouterr()
    line, *_, end = told.out.splitlines()
    assert ", 1 client blocked, " in line
    assert ", 3 named, not in any list; top: 192.0.2.1 (sql_injection); " in line
    assert end.startswith("1 client decided upon in this run, by 2 decisions ")
    when, _, words = told.err.partition(" ")
    assert re.fullmatch(DATE, when)
    assert words.startswith(
        "3 clients named by a rule and not in any list: a.example, b.example, c.example. Lists hold addresses"
    )


def test_at_a_terminal_a_name_is_not_said_to_be_blocked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    pipeline: Any = SimpleNamespace(measure_lag=lambda: 0)
    display = Display(pipeline, count_none, clock=iter(range(100)).__next__)
    display.show(make_news(5, blocked=("a.example",)))
    told = capsys.readouterr().out
    assert "found (no list can hold it) a.example: sqli.union-select" in told
    assert "blocked a.example" not in told


def test_lists_are_not_counted_more_often_than_they_may_be(
    settings: PipelineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, reads = [100.0], list[float]()
    blocked = BlockedCount(settings, clock=lambda: seconds[0])

    def read(_session: Session) -> int:
        reads.append(seconds[0])
        seconds[0] += 2.0
        return len(reads)

    monkeypatch.setattr(blocked, "read", read)
    for _ in range(50):
        blocked(has_news=True)
        seconds[0] += 1.0
    assert reads == [100.0, 120.0, 140.0]
    monkeypatch.undo()
    Path(str(settings.database)).unlink()
    seconds[0] += 100
    assert blocked() is None


def test_a_line_is_cut_only_where_it_does_not_fit() -> None:
    assert cut("a" * 79, 80) == "a" * 79
    assert cut("a" * 80, 80) == "a" * 76 + "..."
