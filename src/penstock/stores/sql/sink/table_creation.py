"""Creates the tables of a sink and its ledger: a separate step, done once, by a user who has the rights.

Rule: a running stream never creates or changes a user's tables. Types, keys and rights are a decision; one
made by accident at three in the morning, from whatever the first batch looked like, is permanent. The stream
itself then needs rights on rows only, and where tasks stage rows, the right to create staging tables.

    create_tables(sink, {"visits": pa.schema([("page", pa.string()), ("hits", pa.int64())])})
    create_tables(sink, {"visits": "page STRING, hits BIGINT"})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from penstock.core.errors import OptionError
from penstock.core.options.storage_addresses import Dialect
from penstock.stores.sql.connections.sql_names import check_name, quote, quote_all, quote_table
from penstock.stores.sql.connections.sql_sessions import Database, Session
from penstock.stores.sql.connections.versioned_tables import ensure_tables
from penstock.stores.sql.ledger.ledger_tables import LEDGER
from penstock.stores.sql.sink.sql_column_types import name_type
from penstock.stores.sql.sink.sql_sink import PROVENANCE, SqlSink, Table

_PROVENANCE = pa.schema(list(zip(PROVENANCE, (pa.string(), pa.int32(), pa.int64()), strict=True)))


def create_tables(sink: SqlSink, schemas: Mapping[str, Any]) -> None:
    """Create the sink's ledger and the named tables that are missing, from Arrow schemas, Spark's types, or
    Spark's text form."""
    statements = [
        _make_statement(sink.place.dialect, sink.find_table(name), convert_schema(schema))
        for name, schema in schemas.items()
    ]

    def make(session: Session) -> None:
        ensure_tables(session, LEDGER)
        session.lock_schema()
        for statement in statements:
            session.execute(statement)

    Database(sink.place).run(make, writes=True)


def convert_schema(schema: Any) -> pa.Schema:
    """Return the Arrow schema for an Arrow schema, a Spark schema, or text, which a running Spark parses."""
    if isinstance(schema, pa.Schema):
        return schema
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType, _parse_datatype_string

    if isinstance(schema, str):
        schema = _parse_datatype_string(schema)
    if not isinstance(schema, StructType):
        raise OptionError(
            "SCHEMA_INVALID",
            f"A table cannot be made from {type(schema).__name__}.",
            hint="Give an Arrow schema, a StructType, or text such as 'page STRING, hits BIGINT'.",
        )
    return to_arrow_schema(schema, timezone="UTC")


def _make_statement(dialect: Dialect, table: Table, schema: pa.Schema) -> str:
    if table.provenance:
        schema = pa.schema([*(each for each in schema if each.name not in PROVENANCE), *_PROVENANCE])
    missing = [each for each in (*table.key, *table.add) if each not in schema.names]
    if missing or len(set(schema.names)) < len(schema.names):
        raise OptionError(
            "SCHEMA_INVALID",
            f"The schema of {table.name} has no column {', '.join(missing)}."
            if missing
            else f"The schema of {table.name} has a column twice.",
            hint="Give all columns of the table's key and those to add to, each once.",
            facts={"table": table.name, "missing": missing},
        )
    columns = []
    for each in schema:
        check_name(each.name, "A column")
        required = " NOT NULL" if each.name in table.key else ""
        kind = name_type(dialect, each.type, in_key=each.name in table.key)
        columns.append(f"{quote(dialect, each.name)} {kind}{required}")
    if table.key:
        columns.append(f"PRIMARY KEY ({quote_all(dialect, table.key)})")
    end = " ENGINE=InnoDB CHARACTER SET utf8mb4" if dialect == "mysql" else ""
    return f"CREATE TABLE IF NOT EXISTS {quote_table(dialect, table.name)} ({', '.join(columns)}){end}"
