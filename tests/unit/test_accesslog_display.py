"""What `penstock accesslog run` says while it runs, at a terminal and where there is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock.apps.accesslog.defence.bans import DECISIONS
from penstock.apps.accesslog.monitoring.merging import ALERT_ROWS
from penstock.apps.accesslog.stream.pipeline import BatchNews
from penstock.cli.accesslog.display import PLAIN_EVERY_S, Display, cut
from penstock.core.stream_offsets import StreamPosition
from penstock.direct import BatchReport
from tests.decided import make_decision


def make_news(lines: int, too_late: int = 0, blocked: tuple[str, ...] = ()) -> BatchNews:
    report = BatchReport(1, 0, (), StreamPosition({}), None)
    numbers: dict[str, Any] = {"dead": 0, "late": 0, "pending": 0, "subjects": 1, "watermark_us": None}
    decisions = pa.Table.from_pylist([make_decision(each) for each in blocked], schema=DECISIONS)
    tables = {"decisions": decisions, "alerts": ALERT_ROWS.empty_table()}
    return BatchNews(report, lines=lines, parsed=lines, **numbers, **tables, too_late=too_late)


def test_lines_that_are_in_no_table_of_the_load_are_told_as_soon_as_there_are_any(
    capsys: pytest.CaptureFixture[str],
) -> None:
    moments = iter(number * PLAIN_EVERY_S for number in range(10))
    pipeline: Any = SimpleNamespace(measure_lag=lambda: 0)
    display = Display(pipeline, clock=lambda: next(moments))
    for too_late in (0, 1200, 1200):
        display.show(make_news(5, too_late))
    display.close("asked")
    first, second, third, *end = capsys.readouterr().out.splitlines()
    assert "too late" not in first
    assert "1,200 too late for the load" in second
    assert "1,200 too late for the load" in third
    assert end[1].startswith("1200 lines since the beginning came too late")


def test_at_a_terminal_a_client_is_named_once_and_no_line_is_wider_than_the_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that wraps cannot be written over, and one attacker must not fill the screen."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    pipeline: Any = SimpleNamespace(measure_lag=lambda: 1_234_567)
    display = Display(pipeline, clock=iter(range(100)).__next__)
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
    assert "3 clients blocked in this run, by 15 decisions" in end


def test_a_line_is_cut_only_where_it_does_not_fit() -> None:
    assert cut("a" * 79, 80) == "a" * 79
    assert cut("a" * 80, 80) == "a" * 76 + "..."
