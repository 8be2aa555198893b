"""Direct streams on Spark into SQL sinks, with a few faults each; the long campaign is in tests/proof."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.testing.proxy import FaultProxy
from tests.crash.acknowledged import fill_topic
from tests.crash.sql.sql_crew import Crew, crew
from tests.crash.sql.sql_drill import Place, SqlDrill
from tests.sql.databases import make_database
from tests.sql.sinks import lead_through

pytestmark = [pytest.mark.spark, pytest.mark.sql]
RECORDS = (500, 300, 220)
#: Faults that leave the shared servers running; servers are killed in a separate file, and in the campaign.
CASES = [
    ("postgres", ("task", "driver", "cut-answer-of-commit")),
    ("mariadb", ("zombie", "lock", "cut-commit")),
]


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    with crew(tmp_path_factory.mktemp("drivers"), "local[2,4]") as made:
        yield made


@pytest.mark.parametrize(("server", "faults"), CASES)
def test_each_acknowledged_record_is_in_the_table_once_whatever_breaks(
    request: pytest.FixtureRequest,
    kafka: Any,
    topic: Any,
    drivers: Crew,
    server: str,
    faults: tuple[str, ...],
) -> None:
    """With Spark, compared with the producer's ledger at every look."""
    sent = fill_topic(kafka.bootstrap, topic(len(RECORDS)), RECORDS)
    with make_database(request.getfixturevalue(server)) as database, FaultProxy() as proxy:
        place = Place(database, lead_through(proxy, database.url), kafka, sent, proxy=proxy)
        drill = SqlDrill(7, place, drivers)
        drill.run(faults, parallel=server == "postgres")
    assert drill.rows == sum(RECORDS)
    assert {each["fault"] for each in drill.log} == set(faults)
    assert drill.snapshots > 10
