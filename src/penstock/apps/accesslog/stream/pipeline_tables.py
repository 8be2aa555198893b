"""The tables of the pipeline: what each holds, how rows go into it, and the step that creates them.

Rules: all of them are updated in one transaction with the offsets, so any two agree at any moment. The
pipeline creates no tables: that is a separate step (`create_tables`), taken once by a user with the right to.
What is stored has a version: the tables as a whole (in `penstock_meta`), and each piece of state in its own
first bytes. A newer version is refused, never guessed at.

    create_tables("results.db")
    sink = make_sink("results.db")
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from penstock.apps.accesslog.defence import defence_settings
from penstock.apps.accesslog.monitoring.load_merging import ALERT_ROWS
from penstock.apps.accesslog.monitoring.minute_tables import MINUTE_ROWS, SECOND_ROWS, TOP_ROWS
from penstock.apps.accesslog.stream import dead_letter_rows, operator_orders
from penstock.apps.accesslog.stream import table_names as names
from penstock.apps.accesslog.stream.lane_stage import LANE_COUNTS, LANE_LEVELS
from penstock.core.errors import OffsetStoreError
from penstock.core.options.storage_addresses import GivenPlace, as_place
from penstock.sinks import SqlSink, Table
from penstock.sinks import create_tables as make_tables
from penstock.stores.sql.connections.sql_sessions import Database, Session
from penstock.stores.sql.connections.versioned_tables import TableSet, ensure_tables, read_version

#: A setting: how many parsed lines came too late to be in any second, since the beginning.
TOO_LATE = "too_late"
#: A setting: whether local addresses were to be blocked: `true` or `false`.
BLOCK_PRIVATE = "block_private"
#: A setting: whether the addresses of search engines were to be spared.
TRUST_CRAWLERS = "trust_crawlers"

#: What a lane keeps from batch to batch, in pieces of at most 1 MiB.
STATE_ROWS = pa.schema([("lane", pa.int32()), ("part", pa.int32()), ("content", pa.binary())])
#: How far each partition's own time has come, and since when it is not waited for. Times of the log and of
#: the wall clock (`seen_at`, `idle_since`) are microseconds since 1970.
CLOCK_ROWS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("maximum", pa.int64()),
        ("watermark", pa.int64()),
        ("seen_at", pa.int64()),
        ("is_idle", pa.bool_()),
        ("idle_since", pa.int64()),
    ]
)
#: lines = parsed + dead; `late` of the parsed ones were moved up to their partition's clock.
COUNT_ROWS = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32())]
    + [(name, pa.int64()) for name in ("lines", "parsed", "dead", "late")]
)
#: What each lane has folded since the beginning, and what it holds now.
LANE_ROWS = pa.schema([("lane", pa.int32())] + [(name, pa.int64()) for name in (*LANE_COUNTS, *LANE_LEVELS)])
SETTING_ROWS = pa.schema([("name", pa.string()), ("value", pa.string())])
#: How many characters of an id an index covers, for databases that need a number.
_ID_LENGTH = 64

TABLES: Mapping[Table, pa.Schema] = {
    Table(names.STATE, mode="state", key=("lane", "part")): STATE_ROWS,
    Table(names.CLOCKS, mode="upsert", key=("topic", "partition")): CLOCK_ROWS,
    Table(
        names.COUNTS, mode="merge", key=("topic", "partition"), add=("lines", "parsed", "dead", "late")
    ): COUNT_ROWS,
    Table(names.LANES, mode="merge", key=("lane",), add=LANE_COUNTS): LANE_ROWS,
    Table(names.DECISIONS): defence_settings.DECISIONS,
    Table(names.DEAD_LETTERS, provenance=True): dead_letter_rows.SCHEMA,
    Table(names.ORDERS, mode="upsert", key=("order_id",)): operator_orders.SCHEMA,
    Table(names.SECONDS, mode="upsert", key=("second", "server")): SECOND_ROWS,
    Table(names.MINUTES, mode="upsert", key=("minute", "server")): MINUTE_ROWS,
    Table(names.TOPS, mode="upsert", key=("minute", "server", "kind", "rank")): TOP_ROWS,
    Table(names.ALERTS, mode="upsert", key=("alert_id",)): ALERT_ROWS,
    Table(names.SETTINGS, mode="upsert", key=("name",)): SETTING_ROWS,
}


def make_sink(place: GivenPlace) -> SqlSink:
    """Return a sink for all tables of the pipeline. Rows go through the driver: they are few."""
    return SqlSink(place, *TABLES, strategy="driver")


def create_tables(place: GivenPlace) -> None:
    """Create the tables and indexes that are missing."""
    sink = make_sink(place)
    make_tables(sink, {table.name: schema for table, schema in TABLES.items()})

    def make(session: Session) -> None:
        ensure_tables(session, _VERSIONED)
        session.lock_schema()
        _make_indexes(session)  # also if the tables are older than an index

    Database(sink.place).run(make, writes=True)


def check_tables(place: GivenPlace) -> None:
    """Refuse a place without tables, or with those of a newer version."""
    found = as_place(place)
    try:
        version = Database(found).run(lambda session: read_version(session, _VERSIONED))
    except OffsetStoreError as error:
        if error.condition != "DATABASE_NOT_FOUND":
            raise
        version = None
    if version is None:
        raise OffsetStoreError(
            "TABLES_NOT_FOUND",
            f"There are no tables of the access-log application at {found}.",
            hint="Create them once: `penstock accesslog run --create-tables ...`, or `create_tables(place)`.",
            facts={"place": str(found)},
        )


def _make_indexes(session: Session) -> None:
    """Create the indexes for look-ups of decisions by id and by end of the ban. Existing ones stay.

    MySQL cannot create an index only if it is missing, and of a text of any length it indexes only a prefix,
    which may be longer than an id is.
    """
    name, is_mysql = session.grammar.name, session.dialect == "mysql"
    there = set[str]()
    if is_mysql:
        rows = session.execute(
            "SELECT DISTINCT INDEX_NAME FROM INFORMATION_SCHEMA.STATISTICS "
            f"WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = {session.grammar.mark}",
            [names.DECISIONS],
        )
        there = {str(index) for (index,) in rows}
    for column, length in (("decision_id", _ID_LENGTH), ("expires_at", None)):
        index = f"{names.DECISIONS}_{column}"
        if index in there:
            continue
        cut = f"({length})" if is_mysql and length else ""
        missing = "" if is_mysql else "IF NOT EXISTS "
        session.execute(
            f"CREATE INDEX {missing}{name(index)} ON {name(names.DECISIONS)} ({name(column)}{cut})"
        )


def _make_nothing(session: Session) -> None:
    """Do nothing: the sink's own step creates the tables, `create_tables` creates the indexes."""


_VERSIONED = TableSet("accesslog", 1, _make_nothing, "tables of the access-log application", "TABLES_TOO_NEW")
