"""Stages a task's rows: all of them or none go into the staging table, and they are counted.

Rule: one transaction per stage. A reported stage is complete; any other is ignored. The first task that needs
the staging table creates it, so a batch whose tasks send few rows creates none.

PostgreSQL is loaded with ADBC, which sends Arrow columns as they are; if that package is missing, with COPY.

    report = fill_stage(staging, task_attempt_id, batches)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote as percent
from urllib.parse import urlencode

import pyarrow as pa

from penstock.core.errors import OffsetStoreError, SinkError
from penstock.core.loggers import in_stream
from penstock.core.model import TopicPartition
from penstock.core.options.storage_addresses import FilePlace, Place, ServerPlace
from penstock.core.sinks.offset_digests import OffsetDigest, sum_digests
from penstock.stores.sql.audit.provenance_digests import digest_rows
from penstock.stores.sql.connections import database_errors, database_timeouts, sql_connections
from penstock.stores.sql.connections.database_outages import RECONNECT_TIMEOUT_S, wait_out
from penstock.stores.sql.connections.sql_names import quote
from penstock.stores.sql.connections.sql_sessions import Database, Session
from penstock.stores.sql.sink.bulk_loading import PIECE_ROWS, load_rows
from penstock.stores.sql.sink.staging_tables import STAGE, StageReport, Staging, ensure_staging


def fill_stage(staging: Staging, number: int, batches: Iterable[pa.RecordBatch]) -> StageReport:
    """Load and commit the rows as stage `number`; return their number and where they came from."""
    with in_stream(staging.stream):
        return _fill_stage(staging, number, batches)


def _fill_stage(staging: Staging, number: int, batches: Iterable[pa.RecordBatch]) -> StageReport:
    database = Database(staging.place, staging.wait_s)  # the driver has reached it before
    try:
        database.run(lambda session: ensure_staging(session, staging), writes=True)
    except OffsetStoreError as error:
        if error.condition != "DATABASE_REFUSED":
            raise
        raise SinkError(
            "STAGING_REFUSED",
            f"The sink's user may not create tables at {staging.place}, and tasks stage their rows in such "
            f"tables. {error.what}",
            hint="Give it the right to create tables there (docs/guides/delivery.md has the statements), or "
            'let the rows go through the driver, which needs none: `SqlSink(..., strategy="driver")`.',
            facts={"place": str(staging.place)},
        ) from error
    counted = CountedRows(staging, number, batches)
    with database_errors.translate_errors(staging.place):
        if has_adbc(staging.place):
            _fill_with_adbc(staging, counted)
        else:
            _fill(staging, counted)
    return StageReport(staging, number, counted.rows, tuple(counted.digests.items()), counted.size)


class CountedRows:
    """A task's rows with their stage number, in the types of the staging table, counted as they are read."""

    def __init__(self, staging: Staging, number: int, batches: Iterable[pa.RecordBatch]) -> None:
        self.rows = 0
        self.size = 0
        self.digests: dict[TopicPartition, OffsetDigest] = {}
        self.schema = pa.schema([pa.field(STAGE, pa.int64()), *staging.schema])
        self._staging = staging
        self._number = number
        self._batches = batches

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            self.size += batch.nbytes
            stage = pa.repeat(pa.scalar(self._number, pa.int64()), batch.num_rows)
            columns = [
                column.cast(each.type)
                for column, each in zip(batch.columns, self._staging.schema, strict=True)
            ]
            if self._staging.is_digested:
                self.digests = sum_digests([self.digests, digest_rows(batch)])
            yield pa.RecordBatch.from_arrays([stage, *columns], schema=self.schema)


def _fill(staging: Staging, counted: CountedRows) -> None:
    place = staging.place
    opened = wait_out(place, lambda: sql_connections.connect(place, writes=True), staging.wait_s)
    with contextlib.closing(opened) as connection:
        session = Session(connection, place)
        for piece in _gather(counted):
            with sql_connections.limit_silence(place, connection, database_timeouts.BULK_TIMEOUT_S):
                load_rows(session, quote(place.dialect, staging.table), piece)
        with sql_connections.limit_silence(place, connection):
            connection.commit()


def _gather(counted: CountedRows) -> Iterator[pa.Table]:
    """Yield the batches in pieces large enough for a statement."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in counted:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= 4 * PIECE_ROWS:
            yield pa.Table.from_batches(waiting, counted.schema)
            waiting, rows = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting, counted.schema)


# --- ADBC -------------------------------------------------------------------------------------------------


def has_adbc(place: Place) -> bool:
    """Return whether this is a PostgreSQL server and the ADBC package is installed."""
    if place.dialect != "postgresql":
        return False
    try:
        import adbc_driver_postgresql.dbapi  # noqa: F401
    except ImportError:
        return False
    return True


def _fill_with_adbc(staging: Staging, counted: CountedRows) -> None:
    place = staging.place
    assert not isinstance(place, FilePlace)
    with (
        open_adbc(place, writes=True, wait_s=staging.wait_s) as connection,
        contextlib.closing(connection.cursor()) as cursor,
    ):
        reader = pa.RecordBatchReader.from_batches(counted.schema, counted)
        cursor.adbc_ingest(staging.table, reader, mode="append")
        connection.commit()


@contextlib.contextmanager
def open_adbc(place: ServerPlace, *, writes: bool, wait_s: float = RECONNECT_TIMEOUT_S) -> Iterator[Any]:
    """Yield an ADBC connection in a transaction. Its address holds the password, so it is made here and never
    shown. Wait for a database that is away: whatever loads or reads rows has reached it before."""
    from adbc_driver_postgresql import dbapi

    settings = {
        **sql_connections.list_settings(place),
        "application_name": "penstock",
        "connect_timeout": database_timeouts.CONNECT_TIMEOUT_S,
        "tcp_user_timeout": 1000 * database_timeouts.ANSWER_TIMEOUT_S,
    }
    password = place.password.reveal() if place.password else ""
    address = (
        f"postgresql://{percent(place.user, safe='')}:{percent(password, safe='')}@{place.show_hosts()}/"
        f"{percent(place.database, safe='')}?{urlencode(settings, quote_via=percent)}"
    )

    def connect() -> Any:
        connection = dbapi.connect(address)
        try:
            with contextlib.closing(connection.cursor()) as cursor:
                cursor.execute(sql_connections.make_begin_statement())
                sql_connections.refuse_read_only(place, cursor.fetchone(), writes=writes)
        except BaseException:
            connection.close()
            raise
        return connection

    with contextlib.closing(wait_out(place, connect, wait_s)) as connection:
        yield connection
        # ADBC has begun the next transaction. A pooler closes a session that is left in the middle of one.
        connection.adbc_connection.set_autocommit(True)
