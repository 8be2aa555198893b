"""Where rows wait until they are published: in memory on the driver, or in a table that tasks fill.

Rule: a staging table belongs to one attempt at one batch, a stage in it to one attempt at one task. So a task
that runs twice fills two stages, only the reported one is used, and late rows are never published. Why one
table per batch with a column for the stage, and not one table per task: upserts must see all rows of a batch
at once, and with many tasks, creating and dropping a table costs more than loading its rows.

    staging = plan_staging(place, target, schema, stream="visits", epoch=3, number=7, index=0)
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from penstock.core.errors import OffsetStoreError
from penstock.core.loggers import get_logger
from penstock.core.model import TopicPartition
from penstock.core.options.storage_addresses import Place
from penstock.core.sinks.offset_digests import OffsetDigest
from penstock.stores.sql.connections.database_outages import RECONNECT_TIMEOUT_S
from penstock.stores.sql.connections.sql_names import quote
from penstock.stores.sql.connections.sql_sessions import Database, Session
from penstock.stores.sql.sink.sql_column_types import find_kind, name_type, normalise_type
from penstock.stores.sql.sink.sql_sink import DELETED, PROVENANCE
from penstock.stores.sql.sink.target_tables import Target

log = get_logger(__name__)

#: The column that says which task attempt has written a row.
STAGE = "penstock_stage"
_PREFIX = "penstock_stage_"


@dataclass(frozen=True, slots=True)
class Staging:
    """A table that tasks fill. It can be pickled, and a task needs nothing else.

    `stream` is the stream of the rows. `wait_s` says how long a task waits for a database that is away.
    """

    place: Place
    table: str
    target: str
    schema: pa.Schema
    declared: str
    is_digested: bool = False
    stream: str = ""
    wait_s: float = RECONNECT_TIMEOUT_S

    def name_stage(self, number: int) -> str:
        return f"{self.table}/{number}"


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows that a task has left in a staging table."""

    staging: Staging
    number: int


@dataclass(frozen=True, slots=True)
class StageReport:
    """What a task reports when it is done: which stage it filled, how many rows, where they came from, and
    how many bytes were sent."""

    staging: Staging
    number: int
    rows: int
    digests: tuple[tuple[TopicPartition, OffsetDigest], ...] = ()
    size: int = 0


@dataclass(frozen=True, slots=True)
class HeldRows:
    """Rows that the driver holds itself."""

    rows: pa.Table


def plan_staging(
    place: Place,
    target: Target,
    schema: pa.Schema,
    *,
    stream: str,
    epoch: int,
    number: int,
    index: int,
    wait_s: float = RECONNECT_TIMEOUT_S,
) -> Staging:
    """Return a staging table for one attempt at a batch; the first task that needs it creates it."""
    settled = pa.schema([pa.field(each.name, normalise_type(each.type)) for each in schema])
    table = f"{_name_prefix(stream)}{epoch}_{number}_{index}"
    # Only rows that stay unchanged can be compared with their digest later.
    is_digested = target.table.mode == "append" and set(PROVENANCE) <= set(settled.names)
    columns = declare_columns(target, settled)
    return Staging(place, table, target.name, settled, columns, is_digested, stream, wait_s)


def ensure_staging(session: Session, staging: Staging) -> None:
    """Create the table unless another task has created it."""
    if session.has_table(staging.table):
        return
    session.lock_schema()
    # An unlogged table takes half the time, and the row count reveals one that a crash has emptied.
    kind = "UNLOGGED TABLE" if session.dialect == "postgresql" else "TABLE"
    end = " ENGINE=InnoDB" if session.dialect == "mysql" else ""
    session.execute(
        f"CREATE {kind} IF NOT EXISTS {quote(session.dialect, staging.table)} "
        f"({quote(session.dialect, STAGE)} BIGINT NOT NULL, {staging.declared}){end}"
    )


def declare_columns(target: Target, schema: pa.Schema) -> str:
    """Return the columns of a staging table in SQL: the results' types, with the target's collations."""
    declared = []
    for each in schema:
        kind = name_type(target.dialect, each.type)
        if find_kind(normalise_type(each.type)) == "text" and each.name != DELETED:
            collation = target.column(each.name).collation
            kind = f"LONGTEXT {collation}" if collation else kind
        declared.append(f"{quote(target.dialect, each.name)} {kind}")
    return ", ".join(declared)


def drop_stagings(place: Place, tables: Sequence[str]) -> None:
    """Drop staging tables. One that is still written to only takes space until the next start drops it."""
    for table in tables:
        statement = f"DROP TABLE IF EXISTS {quote(place.dialect, table)}"
        try:
            Database(place).run(partial(Session.change, statement=statement), writes=True)
        except OffsetStoreError as error:
            log.warning("The staging table %s is left behind: %s", table, error)


def list_dead_stagings(session: Session, stream: str, epoch: int) -> list[str]:
    """Return the staging tables of the stream's writers before this epoch."""
    if session.dialect == "sqlite":
        return []  # rows go through the driver
    begin = _name_prefix(stream)
    here = "current_schema()" if session.dialect == "postgresql" else "DATABASE()"
    found = session.execute(
        f"SELECT table_name FROM information_schema.tables WHERE table_schema = {here} "
        "AND LEFT(table_name, %s) = %s",
        [len(begin), begin],
    )
    return sorted(name for (name,) in found if int(name[len(begin) :].split("_")[0]) < epoch)


def _name_prefix(stream: str) -> str:
    """Return the prefix of the stream's staging table names; the stream's own name may be too long."""
    return f"{_PREFIX}{hashlib.sha256(stream.encode()).hexdigest()[:16]}_"
