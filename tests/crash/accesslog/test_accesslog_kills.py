"""The access-log pipeline, killed at steps of its batches, leaves the same tables as one never killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.accesslog.accesslog_lives import PROGRAM, LogOrder, LogRound, compare, dump_tables
from tests.crash.sql.sql_crew import Crew
from tests.sql.databases import make_file_database
from tests.support.accesslog.accesslog_traffic import (
    decide_in_memory,
    make_traffic,
    send_traffic,
    warm_kernels,
)

pytestmark = [pytest.mark.spark]
ROUNDS = {
    "in the stages": [("stage", "after"), ("lanes", "after"), ("plan", "after")],
    "in the transaction": [("InsertStages", "after"), ("Commit", "before"), ("Commit", "after")],
}


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    warm_kernels()
    made = Crew(tmp_path_factory.mktemp("drivers"), "local[2,4]", PROGRAM)
    yield made
    made.close()


@pytest.mark.timeout(600)
def test_a_pipeline_killed_at_any_step_leaves_the_tables_of_one_that_was_not(
    kafka: Any, topic: Any, drivers: Crew, tmp_path: Path
) -> None:
    """H15: decisions, counts, clocks and state are equal, row by row and byte by byte."""
    traffic = make_traffic(5, benign=700)
    expected = decide_in_memory(traffic)
    name = topic(len(traffic))
    send_traffic(kafka.bootstrap, name, traffic)

    def begin(folder: str) -> LogRound:
        (tmp_path / folder).mkdir()
        url = make_file_database(tmp_path / folder).url
        return LogRound(7, drivers, LogOrder(kafka.bootstrap, name, url, str(tmp_path / folder), 130))

    alone = begin("alone")
    alone.run(0)
    undisturbed = dump_tables(make_file_database(tmp_path / "alone"))
    assert len(undisturbed["accesslog_decisions"]) == len(expected) > 10
    for where, steps in ROUNDS.items():
        killed = begin(where)
        killed.run(len(steps), steps)
        compare(dump_tables(make_file_database(tmp_path / where)), undisturbed, killed.log)
