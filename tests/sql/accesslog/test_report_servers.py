"""A report reads the same data from every kind of database."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from penstock.apps.accesslog.reporting.html_report import write_report
from penstock.apps.accesslog.reporting.report_data import read_report
from penstock.core.options.storage_addresses import parse_place
from tests.sql.databases import OwnDatabase
from tests.support.accesslog.monitoring_database import make_results

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_a_report_from_a_server_is_that_from_a_file(server_database: OwnDatabase, tmp_path: Path) -> None:
    path = str(tmp_path / "results.db")
    assert make_results(server_database.url) == make_results(path)
    ours = read_report(parse_place(server_database.url), made_at=NOW)
    theirs = read_report(parse_place(path), made_at=NOW)
    for name in theirs.__slots__:
        if name != "source":
            assert getattr(ours, name) == getattr(theirs, name), name
    assert theirs.alerts
    assert ours.source.count(":") <= 2, "no password"
    assert len(write_report(ours)) > 10_000
