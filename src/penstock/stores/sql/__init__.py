"""SQL databases: connections, sessions, and what is kept in their tables.

`SqlSink` and `Table` say where results go, `create_tables` makes the tables: results and the offsets they
came from, in one transaction.
"""

from typing import TYPE_CHECKING, Any

from penstock.stores.sql.sink.sql_sink import SqlSink, Table

if TYPE_CHECKING:
    from penstock.stores.sql.sink.table_creation import create_tables

__all__ = ["SqlSink", "Table", "create_tables"]


def __getattr__(name: str) -> Any:
    if name == "create_tables":  # it needs pyarrow, and a loss ledger should not have to load that
        from penstock.stores.sql.sink.table_creation import create_tables

        return create_tables
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
