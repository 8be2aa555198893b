"""Two streams add the same records to one table of sums: the audit of either stream reports it."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.cli import main
from penstock.stores.sql import SqlSink, Table, create_tables
from tests.sql.databases import OwnDatabase, make_file_database
from tests.sql.sinks import at

OLD, NEW = {"t": b"\x01" * 16}, {"t": b"\x02" * 16}


@pytest.fixture
def database(tmp_path: Path) -> OwnDatabase:
    return make_file_database(tmp_path)


def add_up(url: str, stream: str, start: int, until: int, name: str = "totals", **more: Any) -> None:
    """Let a stream add the number of records it has read to the only row."""
    sink = SqlSink(url, Table(name, mode="merge", key=("item",), add=("n",)))
    create_tables(sink, {name: pa.schema([("item", pa.string()), ("n", pa.int64())])})
    with closing(sink.open(stream)) as writer:
        rows = pa.table({"item": ["all"], "n": [until - start]})
        writer.write(rows, at(start, **more), at(until, **more))


def audit(url: str, capsys: pytest.CaptureFixture[str], *more: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    code = main(["audit", url, *more, "--json"])
    findings: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["findings"]
    assert code == bool(findings)
    return findings


def test_records_that_two_streams_add_to_one_table_are_a_finding(
    database: OwnDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ledger of each stream is right on its own, and the sum is not."""
    add_up(database.url, "visits", 0, 10)
    assert audit(database.url, capsys) == []
    add_up(database.url, "visits2", 4, 12, "main.totals")  # the same table, however it is spelled
    assert database.run("SELECT n FROM totals") == [(18,)]
    for named in ((), ("visits",), ("visits2",)):
        (found,) = audit(database.url, capsys, *named)
        assert (found["condition"], found["subject"]) == ("SUMS_SHARED_BY_STREAMS", "totals")
        assert "t-0 [4, 10) from visits and from visits2" in found["what"]
        assert "if both add to the same keys, these records count twice" in found["what"].lower()


def test_what_no_two_streams_share_is_no_finding(
    database: OwnDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    """Adjacent ranges, a topic that was recreated under the same name, and other tables."""
    add_up(database.url, "visits", 0, 10, topic_ids=OLD)
    add_up(database.url, "further", 10, 20, topic_ids=OLD)
    add_up(database.url, "anew", 0, 20, topic_ids=NEW)
    add_up(database.url, "elsewhere", 0, 20, "others", topic_ids=OLD)
    assert audit(database.url, capsys) == []
    add_up(database.url, "again", 0, 15, topic_ids=NEW)
    found = audit(database.url, capsys)
    assert ["[0, 15) from again and from anew" in each["what"] for each in found] == [True]
    assert audit(database.url, capsys, "visits") == []
