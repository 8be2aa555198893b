"""The database itself is killed: between the last stage and the publish, and during the publish."""

from __future__ import annotations

from contextlib import closing

import pytest

from penstock.cluster import LocalPostgres
from penstock.cluster.servers.local_server import LocalDatabase
from penstock.core.errors import SinkError
from penstock.core.sinks.sql_commit_protocol import Commit, Step
from penstock.stores.sql.sink.sink_writer import SqlWriter
from penstock.stores.sql.sink.staging_tables import StageReport
from penstock.stores.sql.sink.task_staging import fill_stage
from tests.crash.sql.sql_lives import check_rows
from tests.sql.databases import OwnDatabase
from tests.sql.sinks import at, make_numbers, make_sink, open_watched

pytestmark = pytest.mark.sql
FIRST, SECOND, THIRD = at(0, 0), at(40, 20), at(50, 60)


def stage(writer: SqlWriter, begin: int) -> list[StageReport]:
    before, end = (FIRST, SECOND) if begin == 0 else (SECOND, THIRD)
    rows = make_numbers(before, end)
    staging = writer.plan_staging({"numbers": rows.schema})["numbers"]
    parts = ((1, rows.slice(0, 25)), (2, rows.slice(25)))
    return [fill_stage(staging, number, part.to_batches()) for number, part in parts]


def test_a_database_killed_around_a_publish_loses_nothing_and_doubles_nothing(server: LocalDatabase) -> None:
    """C15, G5, G16: what PostgreSQL had staged is gone; the batch reports that and is repeated."""
    database = OwnDatabase(server.url)
    kills: list[str] = []

    def kill_at_commit(step: Step) -> None:
        kills.append(type(step).__name__)
        if isinstance(step, Commit) and kills.count("Commit") == 3:
            server.kill()
            server.start()

    with closing(open_watched(make_sink(server.url), kill_at_commit)) as writer:
        reports = stage(writer, 0)
        server.kill()
        server.start()
        if isinstance(server, LocalPostgres):
            with pytest.raises(SinkError, match=r"STAGE_INCOMPLETE.*holds 0 rows.*wrote 25") as caught:
                writer.write_staged(reports, FIRST, SECOND)
            assert caught.value.retriable
            assert check_rows(database) == 0
            reports = stage(writer, 0)
        assert writer.write_staged(reports, FIRST, SECOND).rows == 60
        assert check_rows(database) == 60
        again = stage(writer, 1)
        # The transaction died with the server, so its rows are staged again (or, in InnoDB, are still there).
        if isinstance(server, LocalPostgres):
            with pytest.raises(SinkError, match="STAGE_INCOMPLETE"):
                writer.write_staged(again, SECOND, THIRD)
            again = stage(writer, 1)
        assert writer.write_staged(again, SECOND, THIRD).rows == 50
    assert check_rows(database) == 110
