"""Rows into SQL databases: exactly once through a sink, against Spark's JDBC writer, which is at least once.

    python -m bench.sql                       # PostgreSQL, MariaDB, SQLite
    python -m bench.sql postgres --runs 3 --save docs/proof/bench-sql.json

2 M rows of a frame of four columns, cached in the session beforehand, go into an empty table. Peers: Spark's
JDBC writer with `batchsize` 10,000, and the same with the driver's rewriting of inserts
(`reWriteBatchedInserts`, `useBulkStmts`). `no ledger` is our own load without the transaction that moves the
offsets: staged and inserted in the same way, only the ledger is missing. SQLite has no peer in Spark.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from bench.read import PACKAGES
from bench.sampling import Samples, describe_machine, print_ratios, save, take_turns
from bench.stream_session import end_jvm
from penstock.cluster import LocalMariaDB, LocalPostgres
from penstock.cluster.jars import fetch_jars
from penstock.core.model import TopicPartition
from penstock.core.stream_offsets import StreamPosition
from penstock.engines.sinks import open_sink
from penstock.sinks import SqlSink, Table, create_tables

ROWS = 2_000_000
SCHEMA = "id bigint, item string, price double, at timestamp"
DRIVERS = ("org.postgresql:postgresql:42.7.4", "org.mariadb.jdbc:mariadb-java-client:3.4.1")
CASES = ("postgres", "mariadb", "sqlite")
_T0 = TopicPartition("t", 0)
_numbers = itertools.count(1)


class SqlSides:
    """One session, one database."""

    def __init__(self, spark: Any, url: str, folder: Path) -> None:
        self.spark, self.url, self.folder = spark, url, folder
        frame = spark.range(0, ROWS, 1, 4).selectExpr(
            "id", "concat('item-', id % 1000) as item", "cast(id / 7 as double) as price",
            "timestamp_micros(1700000000000000 + id) as at",
        )  # fmt: skip
        self.frame = frame.cache()
        assert self.frame.count() == ROWS

    def ours(self) -> None:
        """Opened, written, published, as a stream's first batch."""
        number = next(_numbers)
        sink = SqlSink(self.url, Table(f"ours_{number}"))
        create_tables(sink, {f"ours_{number}": SCHEMA})
        with closing(open_sink(sink, f"bench-{number}", self.spark)) as writer:
            done = writer.write(self.frame, StreamPosition({_T0: 0}, starts={}), _until(ROWS))
        assert done.rows == ROWS

    def jdbc(self, rewrite: bool) -> Callable[[], None]:
        def write() -> None:
            self._jdbc(f"jdbc_{next(_numbers)}", rewrite)

        return write

    def _jdbc(self, table: str, rewrite: bool) -> None:
        scheme, _, rest = self.url.partition("://")
        login, _, place = rest.rpartition("@")
        user, _, password = login.partition(":")
        is_postgres = scheme.startswith("postgres")
        if is_postgres:
            address = f"jdbc:postgresql://{place}?reWriteBatchedInserts={str(rewrite).lower()}"
        else:  # Spark knows MySQL's dialect by this scheme, and MariaDB's driver takes it when allowed to
            address = f"jdbc:mysql://{place}?permitMysqlScheme&useBulkStmts={str(rewrite).lower()}"
        driver = "org.postgresql.Driver" if is_postgres else "org.mariadb.jdbc.Driver"
        properties = {"user": user, "password": password, "driver": driver, "batchsize": "10000"}
        self.frame.write.jdbc(address, table, mode="append", properties=properties)


def _until(offset: int) -> StreamPosition:
    return StreamPosition({_T0: offset}, starts={_T0: 0})


def run_server(
    spark: Any, server: Any, folder: Path, runs: int, goals: dict[str, float]
) -> dict[str, Samples]:
    sides = SqlSides(spark, server.url, folder)
    samples = take_turns(
        {"penstock": sides.ours, "jdbc": sides.jdbc(False), "jdbc rewriting": sides.jdbc(True)}, runs=runs
    )
    print_ratios(f"{server.scheme}: {ROWS} rows exactly once", samples, "penstock", goals)
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; default all")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--save", type=Path)
    given = parser.parse_args()
    wanted = given.cases or CASES
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    machine = describe_machine((*PACKAGES, "psycopg", "PyMySQL", "adbc-driver-postgresql"))
    for name, value in machine.items():
        print(f"{name:<14} {value}")
    jars = fetch_jars("jdbc-drivers", DRIVERS, expected_jars=len(DRIVERS))
    results: dict[str, dict[str, Samples]] = {}
    with tempfile.TemporaryDirectory() as folder:
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.jars", ",".join(str(each) for each in jars.glob("*.jar")))
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.memory", "4g")
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        try:
            if "postgres" in wanted:
                with LocalPostgres() as server:
                    goals = {"jdbc": 2.0, "jdbc rewriting": 1.0}
                    results["postgres"] = run_server(spark, server, Path(folder), given.runs, goals)
            if "mariadb" in wanted:
                with LocalMariaDB() as server:
                    results["mariadb"] = run_server(spark, server, Path(folder), given.runs, {"jdbc": 2.0})
            if "sqlite" in wanted:
                sides = SqlSides(spark, str(Path(folder) / "bench.db"), Path(folder))
                results["sqlite"] = take_turns({"penstock": sides.ours}, runs=given.runs)
                print_ratios(f"sqlite: {ROWS} rows exactly once", results["sqlite"], "penstock", {})
        finally:
            spark.stop()
            end_jvm()
    if given.save:
        plain = {case: {side: each.seconds for side, each in some.items()} for case, some in results.items()}
        save(given.save, machine, plain)


if __name__ == "__main__":
    main()
