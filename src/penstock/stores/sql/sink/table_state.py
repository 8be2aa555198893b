"""Reads a table of a sink as Arrow columns, as a stream with state does before each batch.

Rule: one statement reads everything, so all rows show the same moment. PostgreSQL is read with ADBC where
that is installed, which returns columns. The other drivers return rows, which are turned into columns in one
step.

    rows = read_table(place, target, columns=("page", "hits"))
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from penstock.core.errors import SinkError
from penstock.core.options.storage_addresses import Place, ServerPlace
from penstock.stores.sql.connections import database_errors
from penstock.stores.sql.connections.database_outages import find_wait_s
from penstock.stores.sql.connections.sql_names import quote_all
from penstock.stores.sql.connections.sql_sessions import Database
from penstock.stores.sql.sink.sql_column_types import Column
from penstock.stores.sql.sink.target_tables import Target
from penstock.stores.sql.sink.task_staging import has_adbc, open_adbc


def read_table(place: Place, target: Target, columns: Iterable[str] | None = None) -> pa.Table:
    """Return the whole table, or these columns of it."""
    known = [each.name for each in target.columns]
    names = known if columns is None else list(columns)
    missing = [each for each in names if each not in known]
    if missing or not names:
        raise SinkError(
            "COLUMN_NOT_FOUND",
            f"The table {target.name} has no column {', '.join(missing) or '(no name was given)'}.",
            hint=f"It has {', '.join(known)}.",
            facts={"table": target.name, "missing": missing},
        )
    statement = f"SELECT {quote_all(place.dialect, names)} FROM {target.quoted}"
    if isinstance(place, ServerPlace) and has_adbc(place):
        with (
            database_errors.translate_errors(place),
            open_adbc(place, writes=False) as connection,
            contextlib.closing(connection.cursor()) as cursor,
        ):
            cursor.execute(statement)
            return cursor.fetch_arrow_table()
    rows = Database(place, find_wait_s()).run(lambda session: session.execute(statement))
    values = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    return pa.table(
        {name: make_column(target.column(name), some) for name, some in zip(names, values, strict=True)}
    )


def make_column(column: Column, values: Sequence[Any]) -> pa.Array:
    """Return a driver's values as an Arrow column. SQLite and MySQL store booleans as numbers."""
    if column.kind == "boolean":
        return pa.array(values).cast(pa.bool_())
    kinds = {
        "integer": pa.int64(),
        "float": pa.float64(),
        "text": pa.string(),
        "binary": pa.binary(),
    }
    if column.kind == "decimal" and column.digits is not None:
        return pa.array(values, pa.decimal128(column.digits, column.scale or 0))
    return pa.array(values, kinds.get(column.kind))
