"""A stream's only writer to a sink's tables: it takes Arrow tables and writes each batch in one transaction.

It needs no Spark. Rule: a batch is written only through `core.sinks.sql_commit_protocol`. When the answer to
a COMMIT is missing and the database cannot be asked, the batch is remembered: if it is written again, the old
attempt is settled first, under its old token.

    with closing(SqlSink("results.db", Table("visits")).open("visits")) as writer:
        writer.write(rows, before, end)
"""

from __future__ import annotations

import socket
import uuid
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from os import getpid

import pyarrow as pa

from penstock.core.errors import OffsetStoreError, PenstockError, SinkError
from penstock.core.loggers import get_logger
from penstock.core.offsets.offset_store_contract import check_stream_name
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.sinks import sql_commit_protocol as protocol
from penstock.core.sinks.ledger_positions import find_ledger_position, plan_ledger_moves
from penstock.core.sinks.ledger_rules import Ledger, LedgerBatch, Stage, name_state
from penstock.core.sinks.sink_contract import BatchOutcome, SinkWriter
from penstock.stores.offsets.sink_ledger_store import SinkOffsetStore
from penstock.stores.sql.audit.provenance_digests import digest_rows
from penstock.stores.sql.connections.database_outages import find_wait_s
from penstock.stores.sql.connections.rollback_check import check_rollback
from penstock.stores.sql.connections.sql_sessions import Database, Session
from penstock.stores.sql.connections.versioned_tables import ensure_tables
from penstock.stores.sql.ledger.ledger_tables import LEDGER, read_entries, was_moved
from penstock.stores.sql.ledger.publish_history import KEPT_BATCHES, MERGE_EVERY, merge_history
from penstock.stores.sql.ledger.rewound_rows import refuse_repeats
from penstock.stores.sql.ledger.writer_rows import explain_fence
from penstock.stores.sql.sink.protocol_performer import Performer
from penstock.stores.sql.sink.sql_sink import SqlSink
from penstock.stores.sql.sink.staging_tables import (
    HeldRows,
    StagedRows,
    StageReport,
    Staging,
    drop_stagings,
    plan_staging,
)
from penstock.stores.sql.sink.table_state import read_table
from penstock.stores.sql.sink.target_tables import Target, find_target

log = get_logger(__name__)

#: Ledger states that a writer remembers, to distinguish those it has seen from another writer's.
KEPT_STATES = 1000


class SqlWriter(SinkWriter):
    """A stream's writer, made by `SqlSink.open`. It is for one thread."""

    def __init__(
        self, sink: SqlSink, stream: str, targets: Mapping[str, Target], performer: Performer, owner: str
    ) -> None:
        self.sink = sink
        self.stream = stream
        self.targets = targets
        self._performer = performer
        self._number = 0
        self._published = 0
        self._in_doubt: LedgerBatch | None = None
        self._asked: tuple[StreamPosition, StreamPosition, str] | None = None
        self.epoch, found = protocol.drive(protocol.take_over(stream, owner), performer)
        self._ledger: Ledger = dict(found)
        self._trail = deque([name_state(found)], maxlen=KEPT_STATES)

    @property
    def ledger(self) -> Ledger:
        """Return the stream's entries, as this writer has found or left them."""
        return self._ledger

    @property
    def position(self) -> StreamPosition | None:
        """Return how far the results go; None if this stream has written nothing here yet."""
        return find_ledger_position(self._ledger)

    @property
    def last_batch(self) -> str:
        """Return the name of the last published batch, empty if it had none."""
        return next((entry.batch for entry in self._ledger.values()), "")

    def write(
        self,
        results: pa.Table | Mapping[str, pa.Table],
        before: StreamPosition,
        end: StreamPosition,
        *,
        name: str = "",
        token: str = "",
    ) -> BatchOutcome:
        """Write a batch whose rows the driver holds, and return the outcome.

        `results` has the rows of the only table, or rows by table name.
        """
        return self.write_staged((), before, end, held=self.name_tables(results), name=name, token=token)

    def write_staged(
        self,
        reports: Sequence[StageReport],
        before: StreamPosition,
        end: StreamPosition,
        *,
        held: Mapping[str, pa.Table] | None = None,
        name: str = "",
        token: str = "",
    ) -> BatchOutcome:
        """Write a batch whose rows tasks have staged (the reported rows only), and return the outcome.

        `held` has the rows that the driver holds itself, for tables without staged rows.
        """
        sources: dict[str, HeldRows | StagedRows] = {}
        stages = []
        for table, rows in (held or {}).items():
            self.targets[table].check_schema(rows.schema)
            if rows.num_rows:
                keeps = self.targets[table].table.mode == "append"
                digests = tuple(digest_rows(rows).items()) if keeps else ()
                stages.append(Stage(f"held/{table}", rows.num_rows, table, digests))
                sources[f"held/{table}"] = HeldRows(rows)
        for each in reports:
            if each.rows:
                stage = each.staging.name_stage(each.number)
                stages.append(Stage(stage, each.rows, each.staging.target, each.digests))
                sources[stage] = StagedRows(each.staging, each.number)
        return self._publish(tuple(stages), sources, before, end, name, token)

    def plan_staging(self, schemas: Mapping[str, pa.Schema]) -> dict[str, Staging]:
        """Return the staging tables for one attempt at a batch, by target table."""
        self._number += 1
        return {
            table: plan_staging(
                self.sink.place,
                self.targets[table],
                schema,
                stream=self.stream,
                epoch=self.epoch,
                number=self._number,
                index=index,
                wait_s=find_wait_s(),
            )
            for index, (table, schema) in enumerate(schemas.items())
        }

    def drop_staging(self, stagings: Iterable[Staging]) -> None:
        """Drop what an attempt at a batch has left, whichever task filled it."""
        drop_stagings(self.sink.place, sorted({each.table for each in stagings}))

    def is_done(self, before: StreamPosition, end: StreamPosition, name: str = "") -> bool:
        """Return whether this very batch is in the results already, judged by its name or else its end."""
        if not self._ledger:
            return False
        if name:
            return self.last_batch == name
        now = self.position
        assert now is not None
        return (now.offsets, now.gone) == (dict(end.offsets), dict(end.gone)) and (
            (before.offsets, before.gone) != (end.offsets, end.gone)
        )

    def is_written(self, before: StreamPosition, end: StreamPosition, name: str = "") -> bool:
        """Settle an unanswered COMMIT; return whether this very batch is in the results.

        Call this before working on a batch again. The tables show what the previous attempt has left, so work
        based on them would be done twice, or be based on what another attempt changes meanwhile.
        """
        # A batch without records ends where it begins: only the attempt itself identifies it.
        was_asked = self._asked == (before, end, name)
        return (self._resolve_commit() and was_asked) or self.is_done(before, end, name)

    def check_writable(self) -> None:
        """Raise an error if the database takes no writes now, without waiting for it."""
        Database(self.sink.place).run(lambda session: session.execute("SELECT 1"), writes=True)

    def read_state(self, table: str, columns: Iterable[str] | None = None) -> pa.Table:
        """Return a table of the sink as of `position`: only this writer changes it. A writer that was
        replaced finds out when it publishes."""
        target = self.targets[self.sink.find_table(table).name]
        return read_table(self.sink.place, target, columns)

    def close(self) -> None:
        """Release the connections. What was written stays."""
        self._performer.abandon()

    def name_tables(self, results: object) -> dict[str, pa.Table]:
        """Return the results by table; those of a sink with one table need no name."""
        if isinstance(results, Mapping):
            return {self.sink.find_table(name).name: rows for name, rows in results.items()}
        if len(self.sink.tables) == 1:
            return {self.sink.tables[0].name: results}
        raise SinkError(
            "RESULTS_UNNAMED",
            f"The sink has {len(self.sink.tables)} tables, and the results do not say which they are for.",
            hint="Give results by table: {'visits': ..., 'errors': ...}.",
        )

    def _publish(
        self,
        stages: tuple[Stage, ...],
        sources: Mapping[str, HeldRows | StagedRows],
        before: StreamPosition,
        end: StreamPosition,
        name: str,
        token: str,
    ) -> BatchOutcome:
        if self.is_written(before, end, name):
            return BatchOutcome(0, was_repeated=True)
        moves = plan_ledger_moves(before, end, self._ledger)
        batch = LedgerBatch(self.stream, moves, stages, token or uuid.uuid4().hex, name, tuple(self._trail))
        if all(each.is_forgotten for each in batch.moves):
            # Nothing in the ledger would show that this batch was written.
            return _refuse_rows_from_nowhere(batch)
        self._performer.sources = sources
        self._in_doubt, self._asked = batch, (before, end, name)
        try:
            published = self._drive(protocol.publish(batch, self.epoch))
        except PenstockError as error:
            if error.condition != "COMMIT_IN_DOUBT":
                self._in_doubt = None
            raise
        self._note_published(batch)
        self._published += 1
        if self._published % MERGE_EVERY == 0:
            self._merge_history()
        return BatchOutcome(published.rows)

    def _drive(self, steps: protocol.Steps[protocol.Outcome]) -> protocol.Outcome:
        """Carry out the steps and return the outcome; a fenced writer's error says who or what fenced it."""
        try:
            return protocol.drive(steps, self._performer)
        except SinkError as error:
            if error.condition != "WRITER_FENCED":
                raise
            raise explain_fence(self.sink.place, self.stream, self.epoch, error) from None

    def _merge_history(self) -> None:
        try:
            Database(self.sink.place).run(
                lambda session: merge_history(session, self.stream, KEPT_BATCHES), writes=True
            )
        except OffsetStoreError as error:
            log.warning("The history of %s will be merged later: %s", self.stream, error)

    def _resolve_commit(self) -> bool:
        """Settle the batch whose COMMIT was not answered; return whether there is one and it was published.

        A batch that was not published is forgotten.
        """
        batch = self._in_doubt
        if batch is None:
            return False
        is_there = self._drive(protocol.resolve_commit(batch, self.epoch))
        if is_there:
            self._note_published(batch)
        self._in_doubt = None
        return is_there

    def _note_published(self, batch: LedgerBatch) -> None:
        self._ledger = protocol.list_entries(batch)
        self._trail.append(name_state(self._ledger))
        self._in_doubt = None


def _refuse_rows_from_nowhere(batch: LedgerBatch) -> BatchOutcome:
    if not batch.stages:
        return BatchOutcome(0)
    raise SinkError(
        "BATCH_WITHOUT_OFFSETS",
        f"A batch of the stream {batch.stream} has rows but no partition that they came from.",
        hint="Give the offsets that the rows came from: without any, nothing shows whether it was written.",
        facts={"stream": batch.stream},
    )


def open_writer(
    sink: SqlSink, stream: str, *, owner: str = "", performer_type: type[Performer] = Performer
) -> SqlWriter:
    """Check the place and its tables, then take over the stream and return its writer.

    `performer_type` is the class that carries out the steps. Tests pass one that watches, or that ends the
    program at a step.
    """
    check_stream_name(stream)

    def prepare(session: Session) -> tuple[dict[str, Target], bool]:
        ensure_tables(session, LEDGER)
        targets = {table.name: find_target(session, table) for table in sink.tables}
        return targets, was_moved(session, stream)

    try:
        targets, is_moved = Database(sink.place).run(prepare, writes=True)
    except OffsetStoreError as error:
        if error.condition != "DATABASE_REFUSED":
            raise
        raise _explain_refused(sink, error) from error
    if is_moved:
        _check_sums(sink, stream)
    check_rollback(sink.place, uuid.uuid4().hex)
    performer = performer_type(sink.place, targets)
    owner = owner or f"{socket.gethostname()}/{getpid()}/{uuid.uuid4().hex[:8]}"
    return SqlWriter(sink, stream, targets, performer, owner)


def _check_sums(sink: SqlSink, stream: str) -> None:
    """Refuse to add records to sums that already hold them because the stream was moved back."""
    try:
        changes = SinkOffsetStore(sink.place).list_changes(stream)
    except OffsetStoreError as error:
        if error.condition != "DATABASE_REFUSED":
            raise
        log.warning("Could not check whether sums of %s count records twice: %s", stream, error)
        return

    def check(session: Session) -> None:
        position = find_ledger_position(read_entries(session, stream, locked=False))
        if position is not None:
            refuse_repeats(session, stream, changes, sink.tables, position)

    Database(sink.place).run(check)


def _explain_refused(sink: SqlSink, error: OffsetStoreError) -> SinkError:
    return SinkError(
        "SINK_RIGHTS_MISSING",
        f"The sink's user may not read the ledger or a table at {sink.place}, or one is missing and the user "
        f"may not create it. {error.what}",
        hint="Let the owner of the tables call `create_tables(sink, ...)` once, then grant the sink's user "
        "the rights on rows that docs/guides/delivery.md lists.",
        facts={"place": str(sink.place)},
    )
