"""Writers of an SQL sink in processes of their own, killed and stopped at the steps of the protocol.

Each life is a fork of a process that has loaded everything and opened nothing, so it costs milliseconds. It
takes over the stream, writes batches of numbered rows until all are there, and tells each step it comes to
through a pipe; a plan says before or after which step it dies or stands still. Meanwhile the parent looks: at
every moment there must be as many rows as offsets stored.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

# What would be loaded at its first use, for a second or two: once here, not in every fork.
import adbc_driver_postgresql.dbapi  # noqa: F401
import pandas  # noqa: F401
import psycopg  # noqa: F401
import pyarrow.csv  # noqa: F401

from penstock.core.errors import PenstockError
from penstock.core.protocol import Step
from penstock.core.stream_offsets import StreamPosition
from penstock.stores.sql import SqlSink, Table, connections
from penstock.stores.sql.filling import fill_stage
from penstock.stores.sql.mysql import MySqlConnection  # noqa: F401
from penstock.stores.sql.performer import Performer
from penstock.stores.sql.writer import SqlWriter, open_writer
from tests.sql.databases import OwnDatabase
from tests.sql.sinks import at, make_numbers

LIFE_TIMEOUT_S = 120.0
LOOK_S = 0.02
FENCED, FAILED = 3, 4
When: TypeAlias = Literal["before", "after"]


@dataclass(frozen=True)
class Plan:
    """What a life is to do: how many offsets in each of two partitions, in batches of how many, by which way;
    and at which step (the how many-th) it gets which signal."""

    until: tuple[int, int]
    size: tuple[int, int]
    staged: bool = False
    step: int | None = None
    when: When = "before"
    number: signal.Signals = signal.SIGKILL


class Life:
    """A forked writer. `steps` are those it has come to."""

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
        """What has become of it, without waiting."""
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
    """Wait for it, and look at the database meanwhile: rows and offsets must agree at every moment."""
    deadline = time.monotonic() + LIFE_TIMEOUT_S
    while (state := life.look()) not in (until, "over"):
        check_moment(database)
        select.select([], [], [], LOOK_S)
        assert time.monotonic() < deadline, f"it still {state} after {life.steps}"
    check_moment(database)
    return state


def count_moment(database: OwnDatabase) -> tuple[int, int]:
    """Rows and the sum of offsets, of one moment."""
    ((rows, offsets),) = database.run(
        "SELECT (SELECT COUNT(*) FROM numbers), "
        "(SELECT COALESCE(SUM(next_offset), 0) FROM penstock_sink_positions)"
    )
    return int(rows), int(offsets)


def check_moment(database: OwnDatabase) -> None:
    rows, offsets = count_moment(database)
    assert rows == offsets, f"{rows} rows, offsets add up to {offsets}"


def check_rows(database: OwnDatabase) -> int:
    """Each row below the stored offsets is there once, and no other; how many there are."""
    found = sorted(database.run("SELECT partition_id, number FROM numbers"))
    stored = sorted(database.run("SELECT partition_id, next_offset FROM penstock_sink_positions"))
    assert found == [(partition, number) for partition, until in stored for number in range(until)]
    return len(found)


# --- in the fork ------------------------------------------------------------------------------------------


def _live(url: str, plan: Plan, told: int) -> int:
    try:
        connections.LOCK_TIMEOUT_S = 2
        with contextlib.closing(_open(url, plan, told)) as writer:
            _write_all(writer, plan)
    except PenstockError as error:
        os.write(told, f" {error.condition}".encode())
        return FENCED if error.condition == "WRITER_FENCED" else FAILED
    except BaseException as error:
        os.write(told, f" {type(error).__name__}:{str(error)[:200].replace(' ', '_')}".encode())
        raise
    return 0


def _open(url: str, plan: Plan, told: int) -> SqlWriter:
    class Mortal(Performer):
        seen = 0

        def __call__(self, step: Step) -> Any:
            self.seen += 1
            os.write(told, f" {type(step).__name__}".encode())
            if (self.seen, "before") == (plan.step, plan.when):
                os.kill(os.getpid(), plan.number)
            answer = super().__call__(step)
            if (self.seen, "after") == (plan.step, plan.when):
                os.kill(os.getpid(), plan.number)
            return answer

    return open_writer(SqlSink(url, Table("numbers")), "s", hands=Mortal)


def _write_all(writer: SqlWriter, plan: Plan) -> None:
    """As an engine does: from where the sink stands; a batch that may be repeated is."""
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
                _write(writer, plan, before, end)
                break
            except PenstockError as error:
                attempts += 1
                if not error.retriable or attempts == 5:
                    raise


def _write(writer: SqlWriter, plan: Plan, before: StreamPosition, end: StreamPosition) -> None:
    rows = make_numbers(before, end)
    if not plan.staged:
        writer.write(rows, before, end)
        return
    staging = writer.plan_staging({"numbers": rows.schema})["numbers"]
    half = rows.num_rows // 2
    # Two tasks, and one that ran twice: its first attempt has left half of its rows and reports nothing.
    fill_stage(staging, 7, rows.slice(0, half // 2).to_batches())
    parts = ((1, rows.slice(0, half)), (2, rows.slice(half)))
    reports = [fill_stage(staging, number, some.to_batches()) for number, some in parts]
    writer.write_staged(reports, before, end)
    writer.drop_staging([staging])
