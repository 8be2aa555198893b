"""PostgreSQL behind a real PgBouncer: sinks and stores work in session and in transaction pooling."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise

import pytest

from penstock.cluster import LocalPostgres
from penstock.core.errors import OffsetStoreError
from penstock.core.losses.loss_ranges import Loss
from penstock.stores.loss_ledger import open_loss_ledger
from penstock.stores.offsets.sql_store import SqlOffsetStore
from penstock.stores.sql.ledger.writer_rows import look_at_writer
from penstock.stores.sql.sink.task_staging import fill_stage, has_adbc
from tests.sql.databases import OwnDatabase
from tests.sql.sinks import at, make_numbers, make_sink, read_numbers
from tests.support.servers.pgbouncer import CONNECTIONS, LocalPgBouncer

pytestmark = pytest.mark.sql


@pytest.fixture(params=["session", "transaction"])
def pooler(request: pytest.FixtureRequest, postgres: LocalPostgres) -> Iterator[LocalPgBouncer]:
    with LocalPgBouncer(postgres, request.param) as pooler:
        yield pooler


def test_staged_and_held_rows_state_and_offsets_pass_a_pooler(
    pooler: LocalPgBouncer, postgres_database: OwnDatabase
) -> None:
    """A pooler refuses settings sent with the login, and gives each transaction another session."""
    url = pooler.lead(postgres_database.url)
    sink = make_sink(url)
    assert has_adbc(sink.place)
    ends = [at(0, 0), at(40, 20), at(50, 60)]
    store = SqlOffsetStore(url)
    with closing(sink.open("s", owner="ann")) as writer:
        for before, end in pairwise(ends):
            rows = make_numbers(before, end)
            staging = writer.plan_staging({"numbers": rows.schema})["numbers"]
            parts = ((1, rows.slice(0, 25)), (2, rows.slice(25)))
            reports = [fill_stage(staging, number, part.to_batches()) for number, part in parts]
            assert writer.write_staged(reports, before, end).rows == rows.num_rows
            writer.drop_staging([staging])
            store.save("s", end)
        last = at(51, 60)
        assert writer.write(make_numbers(ends[-1], last), ends[-1], last).rows == 1
        assert writer.read_state("numbers").num_rows == 111
    expected = [(0, number) for number in range(51)] + [(1, number) for number in range(60)]
    assert read_numbers(postgres_database) == expected
    assert store.load("s") == ends[-1]
    seen = look_at_writer(sink.place, "s")
    assert seen is not None
    assert (seen.owner, seen.is_locked) == ("ann", False)


def test_an_upsert_and_a_loss_ledger_pass_a_pooler(
    pooler: LocalPgBouncer, postgres_database: OwnDatabase
) -> None:
    """A sink's temporary tables live only as long as its transaction."""
    url = pooler.lead(postgres_database.url)
    sink = make_sink(url, mode="upsert", key=("partition_id", "number"))
    with closing(sink.open("s")) as writer:
        writer.write(make_numbers(at(0), at(5)), at(0), at(5))
        writer.write(make_numbers(at(3), at(9)), at(5), at(9))
    assert len(read_numbers(postgres_database)) == 9
    ledger = open_loss_ledger(url)
    ledger.record([Loss("AGED_OUT", "t", 0, 3, 7)], seen_ms=1)
    assert [(each.loss.start, each.loss.until) for each in ledger.read()] == [(3, 7)]


def test_statement_pooling_is_refused_with_what_to_use_instead(
    postgres: LocalPostgres, postgres_database: OwnDatabase
) -> None:
    with (
        LocalPgBouncer(postgres, "statement") as pooler,
        pytest.raises(
            OffsetStoreError, match=r"DATABASE_UNREACHABLE.*must use session or transaction pooling"
        ),
    ):
        SqlOffsetStore(pooler.lead(postgres_database.url))


def test_the_next_one_gets_a_session_as_it_was(
    pooler: LocalPgBouncer, postgres_database: OwnDatabase
) -> None:
    """Our settings apply to one transaction, and we leave no open transaction for the pooler to end."""
    url = pooler.lead(postgres_database.url)
    plain = postgres_database.run("SHOW lock_timeout")
    sink = make_sink(url)
    with closing(sink.open("s")) as writer:
        writer.write(make_numbers(at(0), at(3)), at(0), at(3))
        writer.read_state("numbers")
    after = OwnDatabase(url)
    assert [after.run("SHOW lock_timeout") for _ in range(2 * CONNECTIONS)] == [plain] * 2 * CONNECTIONS
    assert "while server was not ready" not in pooler.logs
