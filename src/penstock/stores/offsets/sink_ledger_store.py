"""The offsets that a SQL sink keeps with its results: to read, and to move by hand.

A stream that writes to such a sink starts where the sink says, no matter what another store says, so this is
the place to move it. Rules: only the stream's own writer saves here, together with results. A move takes the
stream over first, so a writer that is still running is fenced and cannot overwrite the move. A move opens a
new generation: earlier rows stay, and records that are read again are written again under the next
generation's number, so that an audit can tell them apart. `stores.sql.ledger.rewound_rows` decides what
happens to rows: in tables that keep provenance, the rows of records that are read again can be deleted in the
same transaction. Tables of sums are rebuilt or left alone.

    store = SinkOffsetStore("results.db")
    store.move("visits", change, RowRequest(delete_from=("visits",)))
"""

from __future__ import annotations

from typing import NoReturn

from penstock.core.errors import OffsetStoreError
from penstock.core.model import TopicPartition
from penstock.core.offsets.offset_store_contract import (
    KEEP_ROWS,
    Change,
    Moved,
    OffsetStore,
    RowRequest,
    check_stream_name,
    refuse_moved,
)
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.options.storage_addresses import GivenPlace, Place, as_place
from penstock.core.sinks.ledger_positions import find_ledger_position
from penstock.core.sinks.ledger_rules import Ledger, LedgerEntry
from penstock.stores.offsets.sql_store import SqlOffsetStore, note_change
from penstock.stores.sql.connections import database_timeouts
from penstock.stores.sql.connections.sql_sessions import Database, Session
from penstock.stores.sql.connections.versioned_tables import read_version
from penstock.stores.sql.ledger.batch_accounts import make_move_token, note_accounts
from penstock.stores.sql.ledger.ledger_tables import (
    LEDGER,
    WRITERS,
    delete_entries,
    lock_writer,
    raise_epoch,
    read_entries,
    read_generation,
    write_entries,
)
from penstock.stores.sql.ledger.rewound_rows import RowPlan, delete_rows, plan_rows

#: The namespace of the changes, in the tables of the offset store in the same database.
NAMESPACE = "sink ledger"


class SinkOffsetStore(OffsetStore):
    """The offset store in a SQL sink's database. It creates nothing but the table of changes."""

    keeps_results = True
    place: Place

    def __init__(self, place: GivenPlace) -> None:
        self.place = as_place(place)
        self._database = Database(self.place)
        self._database.run(self._demand_ledger)

    def __repr__(self) -> str:
        return f"SinkOffsetStore({str(self.place)!r})"

    def __str__(self) -> str:
        return f"the sink's ledger in {self.place}"

    def load(self, stream: str) -> StreamPosition | None:
        check_stream_name(stream)
        return self._database.run(
            lambda session: find_ledger_position(read_entries(session, stream, locked=False))
        )

    def save(self, stream: str, position: StreamPosition, *, may_go_back: bool = False) -> NoReturn:  # noqa: ARG002
        raise OffsetStoreError(
            "LEDGER_IS_THE_SINKS",
            "A sink's ledger is written only together with its results.",
            hint="Give the stream the sink itself, or another place as its offset store.",
        )

    def list_streams(self) -> list[str]:
        rows = self._database.run(lambda session: session.execute(f"SELECT stream FROM {WRITERS}"))
        return sorted(str(row[0]) for row in rows)

    def change(self, stream: str, change: Change) -> None:
        """Move the stream and keep all rows; refuse if records would count twice in a table of sums."""
        self.move(stream, change)

    def move(self, stream: str, change: Change, rows: RowRequest = KEEP_ROWS) -> Moved:
        """Move the stream and return what that did to rows. `rows` says what happens to rows of records that
        are read again."""
        check_stream_name(stream)
        # Create the tables of changes before the transaction: in MySQL, creating tables commits.
        SqlOffsetStore(self.place, namespace=NAMESPACE)
        changes = self.list_changes(stream)

        def make(session: Session) -> Moved:
            self._demand_ledger(session)
            epoch = 1 + lock_writer(session, stream)
            entries = read_entries(session, stream)
            plan, moved = self._plan(session, stream, change, changes, rows, entries)
            if moved.is_empty:
                return moved
            raise_epoch(session, stream, epoch, change.who, change.at_ms)
            mark = session.grammar.mark
            session.execute(
                f"UPDATE {WRITERS} SET generation = generation + 1 WHERE stream = {mark}", [stream]
            )
            token = make_move_token(read_generation(session, stream))
            note_accounts(session, stream, token, delete_rows(session, plan))
            after = _make_entries(change.after, token)
            write_entries(session, stream, after)
            delete_entries(session, stream, tuple(set(entries) - {each for each, _ in after}))
            note_change(session, NAMESPACE, stream, epoch, change)
            return moved

        return self._database.run(make, writes=True, limit_s=database_timeouts.BULK_TIMEOUT_S)

    def check_change(self, stream: str, change: Change) -> None:
        self.preview(stream, change)

    def list_warnings(self, stream: str) -> list[str]:  # noqa: ARG002
        return ["A writer that is still running is fenced."]

    def preview(self, stream: str, change: Change, rows: RowRequest = KEEP_ROWS) -> Moved:
        """Return what `move` would do, or raise what it would raise. Change nothing and wait for no lock."""
        check_stream_name(stream)
        changes = self.list_changes(stream)

        def look(session: Session) -> Moved:
            self._demand_ledger(session)
            entries = read_entries(session, stream, locked=False)
            return self._plan(session, stream, change, changes, rows, entries)[1]

        return self._database.run(look, limit_s=database_timeouts.BULK_TIMEOUT_S)

    def _plan(
        self,
        session: Session,
        stream: str,
        change: Change,
        changes: list[Change],
        rows: RowRequest,
        entries: Ledger,
    ) -> tuple[RowPlan, Moved]:
        named = next((each.batch for each in entries.values() if each.batch), "")
        if named:
            raise _follows_checkpoint(stream, named)
        refuse_moved(stream, find_ledger_position(entries), change)
        plan = plan_rows(session, stream, change, changes, rows)
        is_empty = change.before == change.after and plan.is_empty
        return plan, Moved({each.account.table: each.rows for each in plan.deletions}, plan.notes, is_empty)

    def list_changes(self, stream: str) -> list[Change]:
        return self.list_moves(stream, since=-1)

    def list_moves(self, stream: str, *, since: int) -> list[Change]:
        """Return the changes by hand that have fenced a writer of the epoch `since`, the oldest first."""
        try:
            store = SqlOffsetStore(self.place, namespace=NAMESPACE, create=False)
        except OffsetStoreError as error:
            if error.condition != "OFFSETS_NOT_FOUND":
                raise
            return []  # no change was ever recorded here
        # The number of a change is the epoch to which it has raised the writer's.
        return store.list_changes(stream, after=since)

    def _demand_ledger(self, session: Session) -> None:
        if read_version(session, LEDGER) is None:
            raise OffsetStoreError(
                "OFFSETS_NOT_FOUND",
                f"There is no sink ledger at {self.place}.",
                hint="Check the place: it must be the database that the stream's results are in.",
                facts={"place": str(self.place)},
            )


def _make_entries(position: StreamPosition, token: str) -> tuple[tuple[TopicPartition, LedgerEntry], ...]:
    kinds = ((position.offsets, False), (position.gone, True))
    return tuple(
        (
            each,
            LedgerEntry(
                offset,
                position.topic_ids.get(each.topic),
                token,
                position.leader_epochs.get(each),
                is_gone,
            ),
        )
        for offsets, is_gone in kinds
        for each, offset in sorted(offsets.items())
    )


def _follows_checkpoint(stream: str, batch: str) -> OffsetStoreError:
    return OffsetStoreError(
        "LEDGER_FOLLOWS_CHECKPOINT",
        f"The results of {stream} are those of a Structured Streaming query (its last batch is {batch}), "
        "which continues from its checkpoint.",
        hint="A move here alone would only stop it. Let the query write to new tables from a new checkpoint.",
        facts={"stream": stream, "batch": batch},
    )
