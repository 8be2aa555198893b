"""Writers of an SQL sink are killed before and after every step, and stopped in the middle of a publish."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.sql.sql_lives import FENCED, Plan, begin_life, check_rows, watch
from tests.sql.databases import OwnDatabase, make_database, make_file_database
from tests.sql.sinks import make_sink

SERVERS = [pytest.param(name, marks=pytest.mark.sql) for name in ("postgres", "mariadb")]
#: Taking over has six steps, and so has a publish. After one step is before the next, except after a COMMIT.
KILLS = [*((step, "before") for step in (*range(1, 13), 18)), (5, "after"), (12, "after")]


@pytest.fixture(params=["sqlite", *SERVERS])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OwnDatabase]:
    if request.param == "sqlite":
        yield make_file_database(tmp_path)
        return
    with make_database(request.getfixturevalue(request.param)) as database:
        yield database


def prepare(database: OwnDatabase) -> None:
    make_sink(database.url).open("s").close()


def test_a_writer_killed_before_or_after_any_step_leaves_each_row_once(database: OwnDatabase) -> None:
    """C15, D39, G5, G7, G16, G17: killed at every step, one life after another, then left to finish."""
    prepare(database)
    staged = "sqlite" not in database.url
    until = 0
    for step, when in KILLS:
        until += 20
        plan = Plan((until, until // 2), (12, 5), staged, step, when)  # type: ignore[arg-type]
        with begin_life(database.url, plan) as life:
            watch(life, database)
            assert life.was_killed, (plan, life.steps, life.code)
            assert len(life.steps) == step, (plan, life.steps)
        check_rows(database)
    with begin_life(database.url, Plan((until, until // 2), (100, 50), staged)) as life:
        watch(life, database)
        assert life.code == 0, life.steps
    assert check_rows(database) == until + until // 2
    if staged:
        like = "table_name LIKE 'penstock_stage_%'"
        here = "" if "postgres" in database.url else "AND table_schema = DATABASE()"
        left = database.run(f"SELECT table_name FROM information_schema.tables WHERE {like} {here}")
        assert left == []


@pytest.mark.parametrize("step", [7, 9, 12])
def test_a_writer_that_was_stopped_finds_its_stream_taken(database: OwnDatabase, step: int) -> None:
    """T39: SIGSTOP in mid-publish, then another writer starts, then SIGCONT. One of the two continues."""
    prepare(database)
    staged = "sqlite" not in database.url
    plan = Plan((60, 30), (20, 10), staged, step, "before", signal.SIGSTOP)
    with begin_life(database.url, plan) as zombie:
        assert watch(zombie, database, "stands") == "stands", zombie.steps
        holds_lock = step > (8 if staged else 7)
        with begin_life(database.url, Plan((60, 30), (30, 15), staged)) as successor:
            watch(successor, database)
            if holds_lock:
                assert successor.steps[-1] == ("START_FAILED" if staged else "DATABASE_BUSY")
            else:
                assert successor.code == 0, successor.steps
        zombie.go_on()
        watch(zombie, database)
        assert zombie.code == (0 if holds_lock else FENCED), zombie.steps
    assert check_rows(database) == 90
