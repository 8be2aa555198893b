"""Loads Arrow columns into a table in bulk: COPY, LOAD DATA LOCAL, or executemany.

Rule: the table gets exactly what was given, or there is an error. Every value except null is quoted in the
text that the server reads, so it cannot mistake an empty text for a null or a line feed for the end of a row.
Bytes are sent as hexadecimal, and the server's own count is compared with ours. MySQL turns errors of such
loads into warnings, even in its strict mode, so one warning fails the load.

    load_rows(session, quote_table(session.dialect, "visits"), rows)
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from penstock.core.errors import SinkError
from penstock.core.options.storage_addresses import Dialect
from penstock.stores.sql.connections.sql_names import quote, quote_all
from penstock.stores.sql.connections.sql_sessions import Session
from penstock.stores.sql.sink.sql_column_types import find_kind, normalise_type

#: Rows that are turned into text at once.
PIECE_ROWS = 65_536
#: MySQL's and MariaDB's numbers for LOAD DATA LOCAL being disabled.
_LOADING_IS_OFF = (1148, 3948, 4166)
_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), dtype=np.uint16)


def normalise_rows(rows: pa.Table) -> pa.Table:
    """Return the same rows in the types that we load."""
    return rows.cast(pa.schema([pa.field(each.name, normalise_type(each.type)) for each in rows.schema]))


def load_rows(session: Session, quoted_table: str, rows: pa.Table) -> int:
    """Load rows into the table's columns of the same names; return how many the database has stored."""
    if not rows.num_rows:
        return 0
    rows = normalise_rows(rows)
    refuse_strange_numbers(session.dialect, rows)
    if session.dialect == "sqlite":
        return _load_sqlite(session, quoted_table, rows)
    if session.dialect == "mysql":
        return _load_mysql(session, quoted_table, rows)
    return _load_postgresql(session, quoted_table, rows)


def refuse_strange_numbers(dialect: Dialect, rows: pa.Table) -> None:
    """Refuse numbers that cannot be stored: SQLite makes NaN null, MySQL has neither NaN nor infinity."""
    if dialect == "postgresql":
        return
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if not pa.types.is_floating(column.type):
            continue
        strange = pc.is_nan(column) if dialect == "sqlite" else pc.invert(pc.is_finite(column))
        if pc.any(strange).as_py():
            raise SinkError(
                "NUMBER_NOT_STORABLE",
                f"The column {name} holds NaN{'' if dialect == 'sqlite' else ' or infinity'}, which "
                f"{'SQLite' if dialect == 'sqlite' else 'MySQL'} cannot keep.",
                hint="Replace it in the results (`nanvl`, `when`), with null for example.",
                facts={"column": name},
            )


# --- each database's own way ------------------------------------------------------------------------------


def _load_sqlite(session: Session, table: str, rows: pa.Table) -> int:
    statement = session.grammar.insert(table, [quote("sqlite", each) for each in rows.column_names])
    taken = 0
    for piece in rows.to_batches(max_chunksize=PIECE_ROWS):
        columns = [_for_sqlite(column).to_pylist() for column in piece.columns]
        cursor = session.connection.executemany(statement, zip(*columns, strict=True))
        taken += int(cursor.rowcount)
    return taken


def _for_sqlite(column: pa.Array) -> pa.Array:
    kind = find_kind(column.type)
    if kind == "boolean":
        return column.cast(pa.int8())
    if kind == "timestamp":
        return _forget_zone(column).cast(pa.string())
    return column.cast(pa.string()) if kind in ("decimal", "date") else column


def _load_postgresql(session: Session, table: str, rows: pa.Table) -> int:
    statement = f"COPY {table} ({quote_all('postgresql', rows.column_names)}) FROM STDIN (FORMAT csv)"
    with session.connection.cursor() as cursor:
        with cursor.copy(statement) as copy:
            for text in _write_text(rows, "postgresql"):
                copy.write(text)
        return int(cursor.rowcount)


def _load_mysql(session: Session, table: str, rows: pa.Table) -> int:
    file, path = tempfile.mkstemp(prefix="penstock-", suffix=".csv")
    try:
        with os.fdopen(file, "wb") as target:
            for text in _write_text(rows, "mysql"):
                target.write(text)
        return _load_file(session, _load_statement(table, rows.schema, session.connection.escape(path)), path)
    finally:
        os.unlink(path)


def _load_file(session: Session, statement: str, path: str) -> int:
    from pymysql.err import MySQLError

    connection = session.connection
    with connection.cursor() as cursor:
        try:
            with connection.offer_file(path):
                cursor.execute(statement)
        except MySQLError as error:
            if error.args[0] not in _LOADING_IS_OFF:
                raise
            raise SinkError(
                "LOCAL_INFILE_OFF",
                f"The server at {session.place} does not load files from clients (local_infile is off).",
                hint="Turn it on there (SET GLOBAL local_infile = ON, and in its configuration).",
                facts={"place": str(session.place)},
            ) from error
        taken, warned = int(cursor.rowcount), cursor.warning_count
        if warned:
            cursor.execute("SHOW WARNINGS LIMIT 3")
            said = "; ".join(str(each[2]) for each in cursor.fetchall())
            raise SinkError(
                "ROWS_REFUSED",
                f"The server has changed or left out values in {warned} rows or more: {said}.",
                hint="The table's columns are too small for the results, or a key occurs twice.",
                facts={"warnings": warned},
            )
        return taken


def _load_statement(table: str, schema: pa.Schema, path: str) -> str:
    """Return the load statement. Bytes come in hexadecimal through a variable, all else directly."""
    columns, settings = [], []
    for number, each in enumerate(schema):
        name = quote("mysql", each.name)
        if pa.types.is_binary(each.type):
            columns.append(f"@v{number}")
            settings.append(f"{name} = UNHEX(@v{number})")
        else:
            columns.append(name)
    return (
        f"LOAD DATA LOCAL INFILE {path} INTO TABLE {table} CHARACTER SET utf8mb4 "
        "FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"' ESCAPED BY '' LINES TERMINATED BY '\\n' "
        f"({', '.join(columns)})" + (f" SET {', '.join(settings)}" if settings else "")
    )


# --- text -------------------------------------------------------------------------------------------------


def _write_text(rows: pa.Table, dialect: Dialect) -> Iterator[pa.Buffer]:
    options = pyarrow.csv.WriteOptions(
        include_header=False,
        batch_size=PIECE_ROWS,
        quoting_style="all_valid",
        null_string="NULL" if dialect == "mysql" else "",
    )
    for piece in rows.to_batches(max_chunksize=PIECE_ROWS):
        columns = [_for_text(column, dialect) for column in piece.columns]
        target = pa.BufferOutputStream()
        pyarrow.csv.write_csv(pa.RecordBatch.from_arrays(columns, piece.schema.names), target, options)
        yield target.getvalue()


def _for_text(column: pa.Array, dialect: Dialect) -> pa.Array:
    kind = find_kind(column.type)
    if kind == "binary":
        digits = encode_hex(column)
        return pc.binary_join_element_wise("\\x", digits, "") if dialect == "postgresql" else digits
    if kind == "timestamp":
        return _forget_zone(column)
    return column.cast(pa.int8()) if kind == "boolean" and dialect == "mysql" else column


def _forget_zone(column: pa.Array) -> pa.Array:
    """Return the same moments in UTC, without a zone."""
    return column.cast(pa.timestamp("us")) if column.type.tz else column


def encode_hex(column: pa.BinaryArray) -> pa.StringArray:
    """Return two hexadecimal digits per byte, for all values at once."""
    _, offsets, data = column.buffers()
    places = np.frombuffer(offsets, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    raw = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
    digits = _HEX[raw[places[0] : places[-1]]]
    ends = (places - places[0]).astype(np.int64) * 2
    wide = pa.LargeStringArray.from_buffers(len(column), pa.py_buffer(ends), pa.py_buffer(digits))
    text = wide.cast(pa.string()) if ends[-1] < 2**31 else wide
    return pc.if_else(pc.is_valid(column), text, pa.scalar(None, text.type))
