"""The access-log pipeline into SQLite, PostgreSQL and MariaDB: the same rows, the same decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.apps.accesslog.defence.defence_settings import DECISIONS
from penstock.apps.accesslog.stream.operator_orders import list_orders, place_order
from penstock.apps.accesslog.stream.pipeline import Pipeline
from penstock.apps.accesslog.stream.pipeline_tables import create_tables
from penstock.core.errors import OffsetStoreError
from penstock.core.options.storage_addresses import parse_place
from penstock.stores.sql.connections.sql_dialects import GRAMMARS
from tests.sql.databases import OwnDatabase
from tests.support.accesslog.accesslog_traffic import (
    decide_in_memory,
    make_settings,
    make_traffic,
    send_traffic,
    sort_decisions,
)

pytestmark = pytest.mark.usefixtures("accesslog_kernels")


def find_quote(database: OwnDatabase) -> str:
    return GRAMMARS[parse_place(database.url).dialect].quote


def read_decisions(database: OwnDatabase) -> list[dict[str, Any]]:
    quote = find_quote(database)
    columns = ", ".join(f"{quote}{name}{quote}" for name in DECISIONS.names)
    rows = database.run(f"SELECT {columns} FROM accesslog_decisions")
    return sort_decisions(dict(zip(DECISIONS.names, row, strict=True)) for row in rows)


def test_decisions_counts_and_state_are_in_any_database_what_the_engine_says(
    spark: SparkSession, kafka: Any, topic: Any, own_database: OwnDatabase, tmp_path: Path
) -> None:
    """It is stopped in the middle and started again; the sums of all tables agree with each other."""
    traffic = make_traffic(4, benign=600)
    expected = decide_in_memory(traffic)
    name = topic(len(traffic))
    send_traffic(kafka.bootstrap, name, traffic)
    create_tables(own_database.url)
    create_tables(own_database.url)  # existing tables stay
    for batches in (2, None):
        settings = make_settings(kafka.bootstrap, name, own_database.url, tmp_path, most_lines=350)
        Pipeline(spark, settings).run(batches=batches, until_idle=True)
    assert read_decisions(own_database) == expected
    quote = find_quote(own_database)
    sums = ", ".join(f"SUM({quote}{name}{quote})" for name in ("lines", "parsed", "dead"))
    ((lines, parsed, dead),) = own_database.run(f"SELECT {sums} FROM accesslog_counts")
    assert lines == parsed + dead == sum(map(len, traffic.values()))
    for table, column, wanted in (
        ("seconds", "requests", parsed),
        ("lanes", "pending", 0),
        ("dead_letters", "1", dead),
    ):
        ((found,),) = own_database.run(f"SELECT SUM({column}) FROM accesslog_{table}")
        assert found == wanted, table
    ((largest,),) = own_database.run("SELECT MAX(LENGTH(content)) FROM accesslog_state")
    assert 0 < largest <= 1 << 20


def test_orders_are_written_by_anybody_and_taken_by_a_batch(
    spark: SparkSession, kafka: Any, topic: Any, own_database: OwnDatabase, tmp_path: Path
) -> None:
    name = topic(1)
    create_tables(own_database.url)
    place = parse_place(own_database.url)
    given = place_order(place, "2001:db8::/48", now_us=7, grace_us=5, reason="ours")
    assert list_orders(place) == [given]
    settings = make_settings(kafka.bootstrap, name, own_database.url, tmp_path)
    Pipeline(spark, settings).run(until_idle=True)
    (taken,) = list_orders(place)
    assert (taken.order_id, taken.taken_at, taken.reason) == (given.order_id, 7, "ours")


def test_tables_are_made_by_a_step_of_their_own_and_newer_ones_are_refused(
    spark: SparkSession, own_database: OwnDatabase, tmp_path: Path
) -> None:
    settings = make_settings("127.0.0.1:9", "log", own_database.url, tmp_path)
    with pytest.raises(OffsetStoreError, match="TABLES_NOT_FOUND"):
        Pipeline(spark, settings)
    create_tables(own_database.url)
    Pipeline(spark, settings)
    own_database.run("UPDATE penstock_meta SET version = 99 WHERE component = 'accesslog'")
    with pytest.raises(OffsetStoreError, match="TABLES_TOO_NEW"):
        Pipeline(spark, settings)
