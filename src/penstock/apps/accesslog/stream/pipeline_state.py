"""The state of the pipeline between two batches: clocks, orders and settings, read from SQL and written back.

Rule: read before every batch, never remembered from the one before. What is in the database is what was
published with the offsets; a batch that failed has left nothing there, and nothing in memory either.

    before = read_standing(place, "log")
    before.clocks.watermark_us
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.apps.accesslog.events.log_clocks import NEVER, Clocks, LogClock
from penstock.apps.accesslog.stream import operator_orders as order_rows
from penstock.apps.accesslog.stream import pipeline_tables, table_names
from penstock.apps.accesslog.stream.operator_orders import Order, read_orders
from penstock.core.errors import OffsetStoreError, OptionError
from penstock.core.options.storage_addresses import Place
from penstock.stores.sql.connections.database_outages import RECONNECT_TIMEOUT_S
from penstock.stores.sql.connections.sql_sessions import Database, Session

#: Settings that the stored state depends on: a lane is a share of the clients, a clock one of a topic.
FIXED = ("lanes", "name", "topic")
_CLOCK_COLUMNS = ("partition", "maximum", "watermark", "seen_at", "is_idle", "idle_since")


@dataclass(frozen=True, slots=True)
class Standing:
    """What all earlier batches have left. `pending` counts the events that wait in the lanes."""

    clocks: Clocks
    idle_since: Mapping[int, int]
    orders: Sequence[Order]
    settings: Mapping[str, str]
    pending: int


def read_standing(place: Place, topic: str) -> Standing:
    """Return what all earlier batches have left, as of one moment."""

    def read(session: Session) -> tuple[list[tuple[Any, ...]], ...]:
        name, mark = session.grammar.name, session.grammar.mark
        clocks = session.execute(
            f"SELECT {', '.join(map(name, _CLOCK_COLUMNS))} FROM {name(table_names.CLOCKS)} "
            f"WHERE {name('topic')} = {mark}",
            [topic],
        )
        given = session.execute(
            f"SELECT {', '.join(map(name, order_rows.SCHEMA.names))} FROM {name(table_names.ORDERS)}"
        )
        settings = session.execute(
            f"SELECT {name('name')}, {name('value')} FROM {name(table_names.SETTINGS)}"
        )
        pending = session.execute(f"SELECT SUM({name('pending')}) FROM {name(table_names.LANES)}")
        return clocks, given, settings, pending

    clocks, given, settings, pending = Database(place, RECONNECT_TIMEOUT_S).run(read)
    partitions = {
        int(partition): LogClock(_time(maximum), bool(is_idle), _time(seen_at))
        for partition, maximum, _, seen_at, is_idle, _ in clocks
    }
    watermark = max((_time(row[2]) for row in clocks), default=NEVER)
    return Standing(
        Clocks(partitions, watermark),
        {int(row[0]): int(row[5]) for row in clocks if row[5] is not None},
        read_orders(given),
        dict(settings),
        int(pending[0][0] or 0),
    )


def read_format(place: Place) -> str | None:
    """Return the log format that has already parsed lines of this database; None if there is none."""

    def read(session: Session) -> str | None:
        if not (session.has_table(table_names.SETTINGS) and session.has_table(table_names.COUNTS)):
            return None
        name = session.grammar.name
        [[parsed]] = session.execute(f"SELECT SUM({name('parsed')}) FROM {name(table_names.COUNTS)}")
        table = name(table_names.SETTINGS)
        rows = session.execute(f"SELECT {name('value')} FROM {table} WHERE {name('name')} = 'log_format'")
        return str(rows[0][0]) if rows and parsed else None

    try:
        return Database(place).run(read)
    except OffsetStoreError as error:
        if error.condition != "DATABASE_NOT_FOUND":
            raise
        return None


def make_clock_rows(topic: str, before: Standing, after: Clocks, now_us: int) -> pa.Table | None:
    """Return the clocks that have changed; None if none has. `idle_since` is when a partition became idle."""
    moved = after.watermark_us != before.clocks.watermark_us
    rows = []
    for partition, clock in sorted(after.partitions.items()):
        if clock == before.clocks.partitions.get(partition) and not moved:
            continue
        since = before.idle_since.get(partition, now_us) if clock.is_idle else None
        times = (clock.max_us, after.watermark_us, clock.seen_at_us)
        maximum, watermark, seen_at = (None if time == NEVER else time for time in times)
        rows.append(
            {
                "topic": topic,
                "partition": partition,
                "maximum": maximum,
                "watermark": watermark,
                "seen_at": seen_at,
                "is_idle": clock.is_idle,
                "idle_since": since,
            }
        )
    return pa.Table.from_pylist(rows, schema=pipeline_tables.CLOCK_ROWS) if rows else None


def make_setting_rows(before: Standing, now: Mapping[str, str]) -> pa.Table | None:
    """Return the settings that are new; None if none is. Those that the state depends on cannot change."""
    for name in FIXED:
        stored = before.settings.get(name, now[name])
        if stored != now[name]:
            raise OptionError(
                "STATE_OF_ANOTHER",
                f"The state in this database was made with `{name}` {stored!r}, and now it is {now[name]!r}.",
                hint="Set it to what it was, or use another database: one holds one pipeline.",
                facts={"setting": name, "stored": stored, "asked": now[name]},
            )
    changed = {name: value for name, value in now.items() if before.settings.get(name) != value}
    if not changed:
        return None
    rows = {"name": list(changed), "value": list(changed.values())}
    return pa.table(rows, schema=pipeline_tables.SETTING_ROWS)


def _time(value: Any) -> int:
    return NEVER if value is None else int(value)
