"""The user's settings for a SQL sink: the database, its tables, and how rows go into each.

Modes: `append` adds rows; `upsert` replaces the row with the same key; `merge` adds the columns in `add` to
the existing values and replaces the others; `state` is an upsert that also removes the rows whose column
`penstock_deleted` is true, for a table that the stream itself reads again.

Rule: settings only. Nothing is opened here, so a sink can be made, compared and printed anywhere. Its
password is not printed.

    sink = SqlSink("postgresql://me:password@db.example/stats", Table("visits", mode="merge", key=("page",),
                   add=("hits",)))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from penstock.core.errors import OffsetStoreError, OptionError
from penstock.core.offsets.offset_store_contract import Change, RowRequest
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.options.storage_addresses import GivenPlace, Place, as_place
from penstock.core.sinks.sink_contract import Sink
from penstock.stores.sql.connections.sql_names import check_name, check_table_name

if TYPE_CHECKING:
    from penstock.stores.sql.sink.sink_writer import SqlWriter

Mode: TypeAlias = Literal["append", "upsert", "merge", "state"]
RowTransport: TypeAlias = Literal["auto", "driver", "single", "parallel"]
MODES: tuple[Mode, ...] = ("append", "upsert", "merge", "state")
STRATEGIES: tuple[RowTransport, ...] = ("auto", "driver", "single", "parallel")
#: The column that says which rows of a state table are deleted.
DELETED = "penstock_deleted"
#: Where a row came from: the columns of a table that keeps provenance.
PROVENANCE = ("penstock_topic", "penstock_partition", "penstock_offset")


@dataclass(frozen=True, slots=True)
class Table:
    """A table that results go into. With `provenance`, each row says which record it came from."""

    name: str
    mode: Mode = "append"
    key: tuple[str, ...] = ()
    add: tuple[str, ...] = ()
    provenance: bool = False

    def __post_init__(self) -> None:
        check_table_name(self.name)
        for field in ("key", "add"):
            names = getattr(self, field)
            names = (names,) if isinstance(names, str) else tuple(names)
            for name in names:
                check_name(name, "A column")
            object.__setattr__(self, field, names)
        wrong = _find_wrong(self)
        if wrong:
            raise OptionError(
                "TABLE_INVALID",
                f"The table {self.name} {wrong}.",
                hint="append takes no key; upsert, merge and state need one; `add` is for merge.",
                facts={"table": self.name},
            )

    @property
    def provenance_columns(self) -> tuple[str, ...]:
        return PROVENANCE if self.provenance else ()


def _find_wrong(table: Table) -> str:
    if table.mode not in MODES:
        return f"has mode {table.mode!r}, which is not one of {', '.join(MODES)}"
    if (table.mode == "append") == bool(table.key):
        return f"has mode {table.mode} and {'a' if table.key else 'no'} key"
    if (table.mode == "merge") != bool(table.add):
        return f"has mode {table.mode} and {'columns' if table.add else 'no column'} to add to"
    if len({*table.key, *table.add}) < len(table.key) + len(table.add):
        return "names a column twice"
    if {*table.key, *table.add} & {DELETED, *PROVENANCE}:
        return "has one of Penstock's columns in its key or among those to add to"
    return ""


@dataclass(frozen=True, init=False)
class SqlSink(Sink):
    """Tables of one database. `strategy` says how rows travel; see `engines.sinks.sql_frames`."""

    place: Place
    tables: tuple[Table, ...]
    strategy: RowTransport

    def __init__(self, place: GivenPlace, *tables: Table, strategy: RowTransport = "auto") -> None:
        object.__setattr__(self, "place", as_place(place))
        object.__setattr__(self, "tables", tables)
        object.__setattr__(self, "strategy", strategy)
        names = [table.name for table in tables]
        if not names or len(set(names)) < len(names) or strategy not in STRATEGIES:
            raise OptionError(
                "SINK_INVALID",
                f"A sink cannot have the tables {_list(names)} with the strategy {strategy!r}.",
                hint=f"Name one table or more, each once; strategies are {', '.join(STRATEGIES)}.",
                facts={"tables": names, "strategy": strategy},
            )

    def find_table(self, name: str) -> Table:
        for table in self.tables:
            if table.name == name:
                return table
        raise OptionError(
            "TABLE_UNKNOWN",
            f"The sink has no table {name!r}; it has {_list(each.name for each in self.tables)}.",
            hint="Name one of these, or add the table to the sink.",
            facts={"table": name},
        )

    def open(self, stream: str, *, owner: str = "") -> SqlWriter:
        """Return the stream's only writer. It takes Arrow tables; an engine's `open_sink` takes frames."""
        from penstock.stores.sql.sink.sink_writer import open_writer

        return open_writer(self, stream, owner=owner)

    def move(self, stream: str, plan: Callable[[StreamPosition], Change | None]) -> bool:
        """Carry out a move by hand, as `penstock offsets rewind` does; return False if the stream has nothing
        here yet.

        The move is recorded and opens a generation: records that are read again are written again, and an
        audit must be able to distinguish that from a batch written twice. A move back is refused if a table
        of the sink adds up records that the stream would read again. A new table holds none of them.
        """
        from penstock.stores.offsets.sink_ledger_store import SinkOffsetStore

        try:
            ledger = SinkOffsetStore(self.place)
        except OffsetStoreError as error:
            if error.condition not in ("OFFSETS_NOT_FOUND", "DATABASE_NOT_FOUND"):
                raise
            return False
        stored = ledger.load(stream)
        if stored is None:
            return False
        change = plan(stored)
        if change is not None:
            ledger.move(stream, change, RowRequest(written=frozenset(each.name for each in self.tables)))
        return True


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
