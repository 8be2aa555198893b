"""A stream's only writer to the tables of a sink, without Spark: Arrow tables in, one transaction each.

Rule: a batch is written through `core.protocol` and in no other way. Where the answer to a COMMIT is missing
and nobody could be asked, the batch is remembered: written again, it is settled first, under its old token.

    with closing(SqlSink("results.db", Table("visits")).open("visits")) as writer:
        writer.write(rows, before, end)
"""

from __future__ import annotations

import logging
import socket
import uuid
from collections.abc import Iterable, Mapping, Sequence
from os import getpid

import pyarrow as pa

from penstock.core.errors import OffsetStoreError, PenstockError, SinkError
from penstock.core.moves import plan_moves, read_ledger
from penstock.core.offset_stores import check_stream_name
from penstock.core.protocol import Batch, Entry, Ledger, Stage, drive, publish, settle, take_over
from penstock.core.sinks import Written
from penstock.core.stream_offsets import StreamPosition
from penstock.stores.sql.digests import digest_rows
from penstock.stores.sql.history import KEPT_BATCHES, MERGE_EVERY, merge_history
from penstock.stores.sql.ledger import LEDGER
from penstock.stores.sql.performer import Performer
from penstock.stores.sql.schema import ensure_tables
from penstock.stores.sql.self_test import check_rollback
from penstock.stores.sql.sessions import Database, Session
from penstock.stores.sql.sink import SqlSink
from penstock.stores.sql.staging import (
    HeldRows,
    StagedRows,
    StageReport,
    Staging,
    drop_stagings,
    plan_staging,
)
from penstock.stores.sql.state import read_rows
from penstock.stores.sql.targets import Target, find_target

log = logging.getLogger(__name__)


class SqlWriter:
    """Made by `SqlSink.open`. For one thread."""

    def __init__(
        self, sink: SqlSink, stream: str, targets: Mapping[str, Target], performer: Performer, owner: str
    ) -> None:
        self.sink = sink
        self.stream = stream
        self.targets = targets
        self._performer = performer
        self._number = 0
        self._published = 0
        self._unsettled: Batch | None = None
        self.epoch, found = drive(take_over(stream, owner), performer)
        self._ledger: Ledger = dict(found)

    @property
    def position(self) -> StreamPosition | None:
        """How far the results go; None: this stream has written nothing here yet."""
        return read_ledger(self._ledger)

    @property
    def last_batch(self) -> str:
        """The name of the last batch that was published, if it had one."""
        return next((entry.batch for entry in self._ledger.values()), "")

    def write(
        self,
        results: pa.Table | Mapping[str, pa.Table],
        before: StreamPosition,
        end: StreamPosition,
        *,
        name: str = "",
        token: str = "",
    ) -> Written:
        """Make one batch durable that the driver holds: rows of the only table, or by the name of each."""
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
    ) -> Written:
        """Make one batch durable whose rows tasks have staged: those that were reported, and no others.

        `held` is what the driver has itself, of tables for which no task has staged anything.
        """
        sources: dict[str, HeldRows | StagedRows] = {}
        stages = []
        for table, rows in (held or {}).items():
            self.targets[table].check_rows(rows.schema)
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
        """Staging tables for one attempt at a batch, by the name of the table they are for."""
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
            )
            for index, (table, schema) in enumerate(schemas.items())
        }

    def drop_staging(self, stagings: Iterable[Staging]) -> None:
        """What an attempt at a batch has left, whoever filled it."""
        drop_stagings(self.sink.place, sorted({each.table for each in stagings}))

    def is_done(self, before: StreamPosition, end: StreamPosition, name: str = "") -> bool:
        """Whether this very batch is in the results already: by its name, else by where it ends."""
        if not self._ledger:
            return False
        if name:
            return self.last_batch == name
        now = self.position
        assert now is not None
        return (now.offsets, now.gone) == (dict(end.offsets), dict(end.gone)) and (
            (before.offsets, before.gone) != (end.offsets, end.gone)
        )

    def read_state(self, table: str, columns: Iterable[str] | None = None) -> pa.Table:
        """A table of the sink as of `position`: only this writer changes it, and one that was replaced finds
        out when it publishes what it made of it."""
        target = self.targets[self.sink.find_table(table).name]
        return read_rows(self.sink.place, target, columns)

    def close(self) -> None:
        """Give back connections. What was written stays."""
        self._performer.abandon()

    def name_tables(self, results: object) -> dict[str, pa.Table]:
        """Results by table; those of a sink with one table need no name."""
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
    ) -> Written:
        self._settle()
        if self.is_done(before, end, name):
            return Written(0, was_repeated=True)
        batch = Batch(
            self.stream, plan_moves(before, end, self._ledger), stages, token or uuid.uuid4().hex, name
        )
        if not batch.moves:
            return _refuse_rows_from_nowhere(batch)
        self._performer.sources = sources
        self._unsettled = batch
        try:
            published = drive(publish(batch, self.epoch), self._performer)
        except PenstockError as error:
            if error.condition != "COMMIT_IN_DOUBT":
                self._unsettled = None
            raise
        self._take(batch)
        self._published += 1
        if self._published % MERGE_EVERY == 0:
            self._merge_history()
        return Written(published.rows)

    def _merge_history(self) -> None:
        try:
            Database(self.sink.place).run(
                lambda session: merge_history(session, self.stream, KEPT_BATCHES), writes=True
            )
        except OffsetStoreError as error:
            log.warning("The history of %s is merged another time: %s", self.stream, error)

    def _settle(self) -> None:
        """Ask about the batch whose COMMIT nobody answered; if it is not there, it is not wanted any more."""
        if self._unsettled is None:
            return
        if drive(settle(self._unsettled, self.epoch), self._performer):
            self._take(self._unsettled)
        self._unsettled = None

    def _take(self, batch: Batch) -> None:
        kept = {each.partition: each for each in batch.moves if not each.is_forgotten}
        self._ledger = {
            partition: Entry(
                move.until, move.topic_id, batch.token, move.leader_epoch, move.is_gone, batch.name
            )
            for partition, move in kept.items()
        }
        self._unsettled = None


def _refuse_rows_from_nowhere(batch: Batch) -> Written:
    if not batch.stages:
        return Written(0)
    raise SinkError(
        "BATCH_WITHOUT_OFFSETS",
        f"A batch of the stream {batch.stream} has rows and no partition that they came from.",
        hint="Without an offset nothing could tell whether it was written already.",
        facts={"stream": batch.stream},
    )


def open_writer(
    sink: SqlSink, stream: str, *, owner: str = "", hands: type[Performer] = Performer
) -> SqlWriter:
    """Check the place and its tables, then take over the stream. `hands`: what carries out the steps; tests
    put one in that looks on, or that ends the program at a step."""
    check_stream_name(stream)

    def prepare(session: Session) -> dict[str, Target]:
        ensure_tables(session, sink.place, LEDGER)
        return {table.name: find_target(session, table) for table in sink.tables}

    targets = Database(sink.place).run(prepare, writes=True)
    check_rollback(sink.place, uuid.uuid4().hex)
    performer = hands(sink.place, targets)
    owner = owner or f"{socket.gethostname()}/{getpid()}/{uuid.uuid4().hex[:8]}"
    return SqlWriter(sink, stream, targets, performer, owner)
