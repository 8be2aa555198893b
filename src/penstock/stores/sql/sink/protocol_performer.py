"""Carries out the steps of `core.sinks.sql_commit_protocol` in a real database, over one connection.

Rule: one connection, one transaction at a time, and any error ends both. Databases differ in what they
promise after an error (PostgreSQL refuses all further statements; MySQL has undone only one statement after a
lock timeout, but all of them after a deadlock), so we do not rely on it. Whatever fails is rolled back,
closed, and reported as `StepFailedError`. Only a failed COMMIT leaves an open question, which the protocol
resolves. An SQLite file that was replaced by another one accepts commits that will never be read (in WAL mode
silently), so each transaction checks, at its beginning and at its end, whether the path still leads to the
open file.

    epoch, ledger = drive(take_over("visits", owner), performer)
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from penstock.core.errors import OffsetStoreError, PenstockError, SinkError
from penstock.core.options.storage_addresses import Place
from penstock.core.sinks.ledger_rules import Stage
from penstock.core.sinks.sql_commit_protocol import (
    Abandon,
    Begin,
    Commit,
    InsertStages,
    LockWriter,
    RaiseEpoch,
    ReadLedger,
    Step,
    StepFailedError,
    SweepStages,
    WriteLedger,
)
from penstock.stores.sql.connections import (
    database_errors,
    database_outages,
    database_timeouts,
    sql_connections,
)
from penstock.stores.sql.connections.sql_sessions import Session
from penstock.stores.sql.ledger import ledger_tables
from penstock.stores.sql.ledger.batch_accounts import make_accounts, note_accounts
from penstock.stores.sql.ledger.publish_history import KEPT_BATCHES, merge_history, note_batch
from penstock.stores.sql.sink.publish_statements import insert_held, insert_stages
from penstock.stores.sql.sink.staging_tables import HeldRows, StagedRows, drop_stagings, list_dead_stagings
from penstock.stores.sql.sink.target_tables import Target


class Performer:
    """Carries out one writer's steps. `sources` says where the rows of each stage are; the writer sets it."""

    def __init__(self, place: Place, targets: Mapping[str, Target]) -> None:
        self.sources: Mapping[str, HeldRows | StagedRows] = {}
        self._place = place
        self._targets = targets
        self._connection: Any = None
        self._file: tuple[int, int] | None = None
        self._was_connected = False

    def __call__(self, step: Step) -> Any:
        if isinstance(step, Abandon):
            self.abandon()
            return None
        try:
            with database_errors.translate_errors(self._place), self._warn_of_silence(step):
                return self._perform(step)
        except SinkError:
            # The rows themselves are wrong, so a retry would fail the same way.
            self.abandon()
            raise
        except PenstockError as error:
            raise StepFailedError(str(error)) from error
        except BaseException:
            self.abandon()
            raise

    def _warn_of_silence(self, step: Step) -> contextlib.AbstractContextManager[None]:
        """Return a context that warns of a silent database, for steps that are slow only when they wait."""
        is_short = isinstance(step, Begin | LockWriter | Commit) and self._place.dialect != "sqlite"
        if not is_short:
            return contextlib.nullcontext()
        return database_outages.warn_of_silence(self._place, may_lock=isinstance(step, LockWriter))

    def abandon(self) -> None:
        """Roll back and close; a database that cannot be reached rolls back on its own."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with (
            contextlib.suppress(*database_errors.foreign_errors()),
            contextlib.closing(connection),
            sql_connections.limit_silence(self._place, connection),
        ):
            connection.rollback()

    # --- one step ---------------------------------------------------------------------------------------

    def _perform(self, step: Step) -> Any:
        if isinstance(step, Begin):
            self._begin()
            return None
        if isinstance(step, SweepStages):
            self._sweep(step)
            return None
        if self._connection is None:
            raise OffsetStoreError("DATABASE_UNREACHABLE", "There is no connection.", retriable=True)
        limit_s = database_timeouts.BULK_TIMEOUT_S if isinstance(step, InsertStages) else None
        with sql_connections.limit_silence(self._place, self._connection, limit_s):
            if isinstance(step, Commit):
                self._connection.commit()
                if self._is_replaced():
                    raise database_errors.explain_replaced_file(self._place, "was replaced, moved or removed")
                return None
            return self._work(step, Session(self._connection, self._place))

    def _work(self, step: Step, session: Session) -> Any:
        match step:
            case LockWriter(stream):
                return ledger_tables.lock_writer(session, stream)
            case RaiseEpoch(stream, epoch, owner):
                return ledger_tables.raise_epoch(session, stream, epoch, owner, _now_ms())
            case ReadLedger(stream):
                return ledger_tables.read_entries(session, stream)
            case InsertStages(table, stages):
                return self._insert(session, self._targets[table], stages)
            case WriteLedger(stream, entries, forgotten, batch, epoch):
                ledger_tables.write_entries(session, stream, entries)
                ledger_tables.delete_entries(session, stream, forgotten)
                if batch is not None:
                    note_batch(session, batch, epoch, _now_ms())
                    modes = {name: target.table.mode for name, target in self._targets.items()}
                    note_accounts(session, stream, batch.token, make_accounts(batch, modes))
                return None
        raise TypeError(f"{step} is not a step of this protocol")

    def _insert(self, session: Session, target: Target, stages: tuple[Stage, ...]) -> tuple[int, ...]:
        sources = [self.sources[stage.name] for stage in stages]
        held = [each for each in sources if isinstance(each, HeldRows)]
        if held:
            return insert_held(session, target, held)
        return insert_stages(session, target, [each for each in sources if isinstance(each, StagedRows)])

    def _sweep(self, step: SweepStages) -> None:
        if self._connection is None:
            self._begin()
        else:
            sql_connections.begin(self._place, self._connection)
        with sql_connections.limit_silence(self._place, self._connection, database_timeouts.BULK_TIMEOUT_S):
            session = Session(self._connection, self._place)
            dead = list_dead_stagings(session, step.stream, step.epoch)
            merge_history(session, step.stream, KEPT_BATCHES)
            self._connection.commit()
        drop_stagings(self._place, dead)

    # --- the connection ---------------------------------------------------------------------------------

    def _is_replaced(self) -> bool:
        """Return whether the path no longer leads to the open file."""
        return self._file is not None and sql_connections.identify_file(self._place) != self._file

    def _begin(self) -> None:
        if self._is_replaced():
            self.abandon()
            # Connecting would create an empty file.
            if sql_connections.identify_file(self._place) is None:
                raise database_errors.explain_replaced_file(
                    self._place, "is not there any more: it was moved or removed"
                )
        if self._connection is not None:
            dead: tuple[type[BaseException], ...] = (OffsetStoreError, *database_errors.foreign_errors())
            try:
                with sql_connections.limit_silence(
                    self._place, self._connection, database_timeouts.CONNECT_TIMEOUT_S
                ):
                    sql_connections.begin(self._place, self._connection)
            except dead:
                # The connection was idle since the last batch: it was closed, or its server is a standby now.
                self.abandon()
        if self._connection is None:
            wait_s = database_outages.find_wait_s() if self._was_connected else 0
            # Identify the file first, so that a replacement meanwhile is noticed and the new file is opened.
            file = sql_connections.identify_file(self._place)
            self._connection = database_outages.wait_out(
                self._place, lambda: sql_connections.connect(self._place, writes=True), wait_s
            )
            self._file = file or sql_connections.identify_file(self._place)
            self._was_connected = True
        with sql_connections.limit_silence(self._place, self._connection):
            sql_connections.limit_idleness(self._place, self._connection, database_timeouts.IDLE_TIMEOUT_S)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
