"""A stream with a table of sums is rewound: no total is silently wrong, and the remedy is shown."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.cli import main
from penstock.core.errors import OptionError
from penstock.direct import Batch, DirectStream, Subscribe
from penstock.sinks import SqlSink, Table, create_tables, keep_provenance
from tests.sql.databases import make_file_database
from tests.support.kafka.topic_filling import produce

ITEMS = ("apple", "pear", "plum")


def test_totals_are_true_after_a_rewind_or_it_is_refused(
    spark: SparkSession, kafka: Any, topic: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One table of rows and one of sums, rewound by time, with only the rows deleted."""
    name, database = topic(1), make_file_database(tmp_path)
    sink = SqlSink(
        database.url, Table("raw", provenance=True), Table("totals", mode="merge", key=("item",), add=("n",))
    )
    create_tables(sink, {"raw": "item string", "totals": "item string, n bigint"})
    now_ms = time.time_ns() // 10**6
    for hours_ago, count in ((2, 6), (1, 4)):
        produce(kafka.bootstrap, name, ITEMS * count, timestamp_ms=now_ms - hours_ago * 3_600_000)

    def split(batch: Batch) -> dict[str, DataFrame]:
        rows = batch.frame.selectExpr("cast(value as string) as item", "topic", "partition", "offset")
        return {"raw": keep_provenance(rows), "totals": rows.groupBy("item").count().toDF("item", "n")}

    def run(**how: Any) -> None:
        settings = {"bootstrap.servers": kafka.bootstrap, "auto.offset.reset": "earliest"}
        stream = DirectStream(spark, Subscribe(name), settings, interval=0, name="shop", **how)
        stream.write(sink, split).run(until_idle=True)

    def ask(*arguments: str) -> int:
        capsys.readouterr()
        brokers = ("--bootstrap-server", kafka.bootstrap)
        return main(["offsets", "rewind", "--at", f"sink:{database.url}", "shop", *arguments, *brokers])

    def audit() -> dict[str, Any]:
        capsys.readouterr()
        assert main(["audit", database.url, "--json"]) in (0, 1)
        told: dict[str, Any] = json.loads(capsys.readouterr().out)
        return told

    def list_totals() -> dict[str, int]:
        return dict(database.run("SELECT item, n FROM totals"))

    run()
    truth = dict.fromkeys(ITEMS, 10)
    assert list_totals() == truth
    back = ("--to-time", "90m", "--delete-from", "raw")
    for more in ((), ("--yes", "--watch", "0s")):
        assert ask(*back, *more) == 1
        printed = capsys.readouterr().err
        assert "[SUMS_WOULD_COUNT_TWICE]" in printed
        assert "totals" in printed
        assert "--rebuild totals" in printed
    with pytest.raises(OptionError, match=r"SUMS_WOULD_COUNT_TWICE.*totals"):
        run(seek={(name, 0): 18})
    assert database.run("SELECT COUNT(*) FROM raw") == [(30,)]
    assert (list_totals(), audit()["findings"]) == (truth, [])

    # Requested by name, it is done, and the audit remembers it forever.
    assert ask(*back, "--sums-count-twice", "--yes", "--watch", "0s") == 0
    assert "12 rows of raw" in capsys.readouterr().out
    run()
    assert list_totals() == dict.fromkeys(ITEMS, 14)
    (found,) = audit()["findings"]
    assert (found["condition"], found["subject"]) == ("SUMS_COUNT_TWICE", "totals")
    assert "[18, 30)" in found["what"]
    assert "--rebuild totals" in found["what"]

    # Following the audit's advice makes the totals right again.
    assert ask("--to-start", "--delete-from", "raw", "--rebuild", "totals", "--yes", "--watch", "0s") == 0
    run()
    assert list_totals() == truth
    assert database.run("SELECT COUNT(*), COUNT(DISTINCT penstock_offset) FROM raw") == [(30, 30)]
    assert audit()["findings"] == []
