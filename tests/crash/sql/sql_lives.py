"""Writers of an SQL sink in separate processes, killed and stopped at the steps of the protocol.

Each life is a fork of a process that has loaded everything and opened nothing, so it costs milliseconds. It
takes over the stream, writes batches until all are there, and reports each step through a pipe. A plan says
before or after which step it dies or is stopped. Rows are made up, or read from a broker with the reader that
tasks use, in which case reading is a step too. Meanwhile the parent looks: at every moment there must be as
many rows as offsets stored.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

# Imports that would take a second or two at their first use: done once here, not in every fork.
import adbc_driver_postgresql.dbapi  # noqa: F401
import pandas  # noqa: F401
import psycopg  # noqa: F401
import pyarrow as pa
import pyarrow.csv

from penstock.core.errors import PenstockError
from penstock.core.model import WorkOrder
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.options.direct_options import DirectOptions, parse_direct_options
from penstock.core.options.direct_strategies import Subscribe
from penstock.core.sinks.sql_commit_protocol import Step
from penstock.core.streaming.next_batch import plan_batch
from penstock.engines.reading.kafka_log import KafkaLog
from penstock.kafka.reading.kafka_reader import KafkaReader  # noqa: F401
from penstock.stores.sql import SqlSink, Table, create_tables
from penstock.stores.sql.connections import database_timeouts
from penstock.stores.sql.connections.mysql_connection import MySqlConnection  # noqa: F401
from penstock.stores.sql.sink.protocol_performer import Performer
from penstock.stores.sql.sink.sink_writer import SqlWriter, open_writer
from penstock.stores.sql.sink.task_staging import fill_stage
from tests.crash.acknowledged import Sent
from tests.sql.databases import OwnDatabase
from tests.sql.sinks import at, make_numbers

LIFE_TIMEOUT_S = 120.0
LOOK_S = 0.02
FENCED, FAILED = 3, 4
When: TypeAlias = Literal["before", "after"]
#: One row per record: where it was, and what was in it.
ROWS = pa.schema([("partition_id", pa.int32()), ("number", pa.int64()), ("payload", pa.string())])


@dataclass(frozen=True)
class Plan:
    """What a life is to do: offsets of two partitions, batch size, transport, and a signal at a step.

    `source` says whose topic `t` the rows are read from.
    """

    until: tuple[int, int]
    size: tuple[int, int]
    staged: bool = False
    step: int | None = None
    when: When = "before"
    number: signal.Signals = signal.SIGKILL
    source: DirectOptions | None = None


class Life:
    """A forked writer. `steps` are those it has reached."""

    def __init__(self, url: str, plan: Plan) -> None:
        self.steps: list[str] = []
        self._end: int | None = None
        self._pipe, told = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._pipe)
            os._exit(_live(url, plan, told))
        os.close(told)
        os.set_blocking(self._pipe, False)

    def look(self) -> Literal["runs", "stands", "over"]:
        """Return the state of the process, without waiting."""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._pipe, 65536):
                self.steps += piece.decode().split()
        if self._end is not None:
            return "over"
        pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            return "runs"
        if os.WIFSTOPPED(status):
            return "stands"
        self._end = status
        return "over" if self.look() == "over" else "runs"

    @property
    def was_killed(self) -> bool:
        return self._end is not None and os.WIFSIGNALED(self._end)

    @property
    def code(self) -> int | None:
        return None if self._end is None or self.was_killed else os.WEXITSTATUS(self._end)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        if self._end is None:
            os.kill(self.pid, signal.SIGKILL)
            _, self._end = os.waitpid(self.pid, 0)
        os.close(self._pipe)


@contextlib.contextmanager
def begin_life(url: str, plan: Plan) -> Iterator[Life]:
    life = Life(url, plan)
    try:
        yield life
    finally:
        life.close()


def watch(life: Life, database: OwnDatabase, until: Literal["stands", "over"] = "over") -> str:
    """Wait for the process, and check the database meanwhile: rows and offsets must agree at every moment."""
    deadline = time.monotonic() + LIFE_TIMEOUT_S
    while (state := life.look()) not in (until, "over"):
        check_moment(database)
        select.select([], [], [], LOOK_S)
        assert time.monotonic() < deadline, f"it still {state} after {life.steps}"
    check_moment(database)
    return state


def count_moment(database: OwnDatabase) -> tuple[int, int]:
    """Return the number of rows and the sum of the offsets at one moment."""
    ((rows, offsets),) = database.run(
        "SELECT (SELECT COUNT(*) FROM numbers), "
        "(SELECT COALESCE(SUM(next_offset), 0) FROM penstock_sink_positions)"
    )
    return int(rows), int(offsets)


def check_moment(database: OwnDatabase) -> None:
    rows, offsets = count_moment(database)
    assert rows == offsets, f"{rows} rows, offsets add up to {offsets}"


def check_rows(database: OwnDatabase) -> int:
    """Check that each row below the stored offsets is there once, and no other; return how many there are."""
    found = sorted(database.run("SELECT partition_id, number FROM numbers"))
    stored = sorted(database.run("SELECT partition_id, next_offset FROM penstock_sink_positions"))
    assert found == [(partition, number) for partition, until in stored for number in range(until)]
    return len(found)


def prepare_rows(database: OwnDatabase) -> None:
    """Create the table for records, and the ledger beside it."""
    sink = SqlSink(database.url, Table("numbers"))
    create_tables(sink, {"numbers": ROWS})
    sink.open("s").close()


def check_sent(database: OwnDatabase, sent: Sent) -> int:
    """Check that exactly the acknowledged records below the stored offsets are there, whole and once each."""
    found = database.run("SELECT partition_id, number, payload FROM numbers ORDER BY partition_id, number")
    stored = database.run("SELECT partition_id, next_offset FROM penstock_sink_positions")
    expected = sent.below(dict(stored))
    wrong = sorted(set(map(tuple, found)) ^ set(expected))[:5]
    assert list(map(tuple, found)) == expected, f"{len(found)} rows, {len(expected)} sent; among them {wrong}"
    return len(found)


def read_from(bootstrap: str) -> DirectOptions:
    """Return the source of a plan: the topic `t` of a broker."""
    kafka = {"bootstrap.servers": bootstrap}
    return parse_direct_options(Subscribe("t"), kafka, {}, {}, interval_ms=1000, unique="lives")


def hold_writer_row(database: OwnDatabase, undo: ExitStack) -> bool:
    """Lock the stream's row against its writer, if it is free, until `undo` is closed."""
    holder = undo.enter_context(closing(database.connect()))
    cursor = holder.cursor()
    is_file = "sqlite" in database.url
    is_postgres = "postgres" in database.url
    if is_file:
        cursor.execute("PRAGMA busy_timeout = 200")
    else:
        cursor.execute("SET lock_timeout = '200ms'" if is_postgres else "SET innodb_lock_wait_timeout = 1")
    try:
        cursor.execute("BEGIN IMMEDIATE" if is_file else "BEGIN")
        cursor.execute("UPDATE penstock_sink_writers SET owner = 'somebody' WHERE stream = 's'")
    except (
        Exception
    ) as error:  # the drivers share no class; that the writer already holds it is a valid case too
        if "lock" not in str(error).lower():
            raise
        return False
    return True


# --- in the fork ------------------------------------------------------------------------------------------


class Course:
    """Counts and reports the steps of a life, and ends or stops it at the step that the plan names."""

    def __init__(self, plan: Plan, told: int) -> None:
        self._plan, self._told, self._seen = plan, told, 0

    def take(self, name: str, step: Callable[[], Any]) -> Any:
        plan = self._plan
        self._seen += 1
        os.write(self._told, f" {name}".encode())
        if (self._seen, "before") == (plan.step, plan.when):
            os.kill(os.getpid(), plan.number)
        answer = step()
        if (self._seen, "after") == (plan.step, plan.when):
            os.kill(os.getpid(), plan.number)
        return answer


def _live(url: str, plan: Plan, told: int) -> int:
    try:
        database_timeouts.LOCK_TIMEOUT_S = 2
        course = Course(plan, told)
        with closing(_open(url, course)) as writer:
            _write_all(writer, plan, course)
    except PenstockError as error:
        os.write(told, f" {error.condition}".encode())
        return FENCED if error.condition == "WRITER_FENCED" else FAILED
    except BaseException as error:
        os.write(told, f" {type(error).__name__}:{str(error)[:200].replace(' ', '_')}".encode())
        raise
    return 0


def _open(url: str, course: Course) -> SqlWriter:
    class Mortal(Performer):
        def __call__(self, step: Step) -> Any:
            return course.take(type(step).__name__, lambda: super(Mortal, self).__call__(step))

    return open_writer(SqlSink(url, Table("numbers")), "s", performer_type=Mortal)


def _write_all(writer: SqlWriter, plan: Plan, course: Course) -> None:
    """Write like an engine: start where the sink is, and repeat a batch that may be repeated."""
    while True:
        before = writer.position or at(0, 0)
        offsets = [before.offsets[each] for each in sorted(before.offsets)]
        ends = [
            min(most, begin + size) for most, begin, size in zip(plan.until, offsets, plan.size, strict=True)
        ]
        if ends == offsets:
            return
        end = at(*ends)
        attempts = 0
        while True:
            try:
                _write(writer, plan, before, end, course)
                break
            except PenstockError as error:
                attempts += 1
                if not error.retriable or attempts == 5:
                    raise


def _write(
    writer: SqlWriter, plan: Plan, before: StreamPosition, end: StreamPosition, course: Course
) -> None:
    source = plan.source
    if source is None:
        rows = make_numbers(before, end)
    else:
        rows = course.take("Read", lambda: _read(source, before, end))
    if not plan.staged:
        writer.write(rows, before, end)
        return
    staging = writer.plan_staging({"numbers": rows.schema})["numbers"]
    half = rows.num_rows // 2
    # Two tasks, one of which ran twice: its first attempt left half of its rows and reports nothing.
    fill_stage(staging, 7, rows.slice(0, half // 2).to_batches())
    parts = ((1, rows.slice(0, half)), (2, rows.slice(half)))
    reports = [fill_stage(staging, number, some.to_batches()) for number, some in parts]
    writer.write_staged(reports, before, end)
    writer.drop_staging([staging])


def _read(source: DirectOptions, before: StreamPosition, end: StreamPosition) -> pa.Table:
    """Read exactly these ranges, as tasks do."""
    reader = KafkaLog(source.stream.client).open_reader(repeated=False, report=lambda loss: None)
    columns = ("partition", "offset", "value")
    batches = [
        batch
        for task in plan_batch(before, end, source.stream.limits)
        for batch in reader.read(WorkOrder(task, source.stream.executor_client, columns))
    ]
    found = pa.Table.from_batches(batches)
    return pa.table([found["partition"], found["offset"], found["value"].cast(pa.string())], schema=ROWS)
