"""What `penstock accesslog run` says while it runs, where there is no terminal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.apps.accesslog.defence.bans import DECISIONS
from penstock.apps.accesslog.monitoring.merging import ALERT_ROWS
from penstock.apps.accesslog.stream.pipeline import BatchNews
from penstock.cli.accesslog.run_pipeline import PLAIN_EVERY_S, Display
from penstock.core.stream_offsets import StreamPosition
from penstock.direct import BatchReport


def make_news(lines: int, too_late: int) -> BatchNews:
    report = BatchReport(1, 0, (), StreamPosition({}), None)
    numbers: dict[str, Any] = {"dead": 0, "late": 0, "pending": 0, "subjects": 1, "watermark_us": None}
    tables = {"decisions": DECISIONS.empty_table(), "alerts": ALERT_ROWS.empty_table()}
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
