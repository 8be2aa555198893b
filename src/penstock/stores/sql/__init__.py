"""SQL databases: connections, sessions, and what is kept in their tables.

`SqlSink` and `Table` say where results go; `create_tables` creates the tables. Results and the offsets they
came from are written in one transaction.
"""

from typing import TYPE_CHECKING, Any

from penstock.stores.sql.sink.sql_sink import SqlSink, Table

if TYPE_CHECKING:
    from penstock.stores.sql.sink.table_creation import create_tables

__all__ = ["SqlSink", "Table", "create_tables"]


def __getattr__(name: str) -> Any:
    # `create_tables` needs pyarrow, which a loss ledger should not have to load.
    if name == "create_tables":
        from penstock.stores.sql.sink.table_creation import create_tables

        return create_tables
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
