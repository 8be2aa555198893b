"""Compares writes to SQL databases: exactly once with a sink, at least once with Spark's JDBC writer.

    python -m bench.sql                       # PostgreSQL, MariaDB, SQLite
    python -m bench.sql postgres --runs 3 --save docs/proof/bench-sql.json

2 M rows of a frame of four columns, cached in the session beforehand, are added to a table. `penstock` is a
batch of a running stream. `first batch` opens the sink and writes a stream's first batch, which is staged by
tasks, because its size is not known yet. `no ledger` loads the same rows into a table in the same way,
without offsets and checks: what is above it is the cost of exactly once. The peers are Spark's JDBC writer
with `batchsize` 10,000, and the same with the driver's rewriting of inserts (`reWriteBatchedInserts`,
`useBulkStmts`). SQLite has no peer in Spark.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from bench.read import PACKAGES
from bench.sampling import Samples, describe_machine, print_ratios, save, take_turns
from bench.stream_session import end_jvm
from penstock.cluster import LocalMariaDB, LocalPostgres
from penstock.cluster.downloads.jars import fetch_jars
from penstock.cluster.processes.python_launcher import make_launcher
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.engines.sinks import open_sink
from penstock.sinks import SqlSink, Table, create_tables
from penstock.stores.sql.connections.sql_names import quote
from penstock.stores.sql.connections.sql_sessions import Database
from penstock.stores.sql.sink.bulk_loading import load_rows

ROWS = 2_000_000
SCHEMA = "id bigint, item string, price double, at timestamp"
DRIVERS = ("org.postgresql:postgresql:42.7.4", "org.mariadb.jdbc:mariadb-java-client:3.4.1")
CASES = ("postgres", "mariadb", "sqlite")
_T0 = TopicPartition("t", 0)
_numbers = itertools.count(1)


class SqlSides:
    """The sides of a comparison, in one session and one database."""

    def __init__(self, spark: Any, url: str, closing: ExitStack) -> None:
        self.spark, self.url, self.closing = spark, url, closing
        frame = spark.range(0, ROWS, 1, 4).selectExpr(
            "id", "concat('item-', id % 1000) as item", "cast(id / 7 as double) as price",
            "timestamp_micros(1700000000000000 + id) as at",
        )  # fmt: skip
        self.frame = frame.cache()
        assert self.frame.count() == ROWS

    def running(self) -> Callable[[], None]:
        """Return a function that writes one batch after the other of one stream."""
        sink = self._make_sink("running")
        writer = self.closing.enter_context(closing(open_sink(sink, "running", self.spark)))
        turns = itertools.count()

        def write() -> None:
            begin = next(turns) * ROWS
            done = writer.write(self.frame, _at(begin), _at(begin + ROWS))
            assert done.rows == ROWS

        return write

    def first(self) -> None:
        """Open the sink, then write and publish a stream's first batch."""
        name = f"first_{next(_numbers)}"
        with closing(open_sink(self._make_sink(name), name, self.spark)) as writer:
            assert writer.write(self.frame, _at(0), _at(ROWS)).rows == ROWS

    def no_ledger(self) -> Callable[[], None]:
        sink = self._make_sink("no_ledger")

        def write() -> None:
            rows = self.frame.toArrow()
            table = quote(sink.place.dialect, "no_ledger")
            taken = Database(sink.place).run(lambda session: load_rows(session, table, rows), writes=True)
            assert taken == ROWS

        return write

    def _make_sink(self, name: str) -> SqlSink:
        sink = SqlSink(self.url, Table(name))
        create_tables(sink, {name: SCHEMA})
        return sink

    def jdbc(self, rewrite: bool) -> Callable[[], None]:
        def write() -> None:
            self._jdbc("jdbc_rewriting" if rewrite else "jdbc_default", rewrite)

        return write

    def _jdbc(self, table: str, rewrite: bool) -> None:
        scheme, _, rest = self.url.partition("://")
        login, _, place = rest.rpartition("@")
        user, _, password = login.partition(":")
        is_postgres = scheme.startswith("postgres")
        if is_postgres:
            address = f"jdbc:postgresql://{place}?reWriteBatchedInserts={str(rewrite).lower()}"
        else:  # Spark knows MySQL's dialect by this scheme, and MariaDB's driver accepts it when allowed to
            address = f"jdbc:mysql://{place}?permitMysqlScheme&useBulkStmts={str(rewrite).lower()}"
        driver = "org.postgresql.Driver" if is_postgres else "org.mariadb.jdbc.Driver"
        properties = {"user": user, "password": password, "driver": driver, "batchsize": "10000"}
        self.frame.write.jdbc(address, table, mode="append", properties=properties)


def _at(offset: int) -> StreamPosition:
    return StreamPosition({_T0: offset})


def run_case(
    spark: Any, url: str, case: str, runs: int, peers: tuple[bool, ...], goals: dict[str, float]
) -> dict[str, Samples]:
    """Return the samples of each side. `peers` are Spark's writer, without and with rewriting."""
    with ExitStack() as stack:
        sides = SqlSides(spark, url, stack)
        names = {False: "jdbc", True: "jdbc rewriting"}
        samples = take_turns(
            {
                "penstock": sides.running(),
                "first batch": sides.first,
                "no ledger": sides.no_ledger(),
                **{names[rewrite]: sides.jdbc(rewrite) for rewrite in peers},
            },
            runs=runs,
        )
        sides.frame.unpersist()
    print_ratios(f"{case}: {ROWS} rows exactly once", samples, "penstock", goals)
    over = samples["penstock"].median / samples["no ledger"].median
    print(f"  penstock / no ledger = {over:.2f}  goal at most 1.1: {'met' if over <= 1.1 else 'MISSED'}")
    return samples


def run_database(spark: Any, case: str, folder: Path, runs: int) -> dict[str, Samples]:
    if case == "sqlite":
        return run_case(spark, str(folder / "bench.db"), case, runs, (), {})
    server, goals = {
        "postgres": (LocalPostgres, {"jdbc": 2.0, "jdbc rewriting": 1.0}),
        "mariadb": (LocalMariaDB, {"jdbc": 2.0}),
    }[case]
    with server() as running:
        return run_case(spark, running.url, case, runs, (False, True), goals)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"some of {', '.join(CASES)}; default all")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--save", type=Path)
    given = parser.parse_args()
    wanted = given.cases or CASES
    os.environ["PYSPARK_PYTHON"] = make_launcher()
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
            for case in wanted:
                results[case] = run_database(spark, case, Path(folder), given.runs)
        finally:
            spark.stop()
            end_jvm()
    if given.save:
        plain = {case: {side: each.seconds for side, each in some.items()} for case, some in results.items()}
        save(given.save, machine, plain)


if __name__ == "__main__":
    main()
