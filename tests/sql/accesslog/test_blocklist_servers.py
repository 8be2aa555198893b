"""The blocklist in every kind of database: same list, same cursors, even when many processes update it."""

from __future__ import annotations

import threading

import pytest

from penstock.apps.accesslog.blocking.blocklist_changes import Listed, advance
from penstock.apps.accesslog.blocking.blocklists import Gate
from penstock.apps.accesslog.blocking.decision_records import read_decision, read_decisions
from penstock.apps.accesslog.stream.operator_orders import place_order
from penstock.apps.accesslog.stream.pipeline_tables import create_tables
from penstock.core.options.storage_addresses import Place, parse_place
from penstock.stores.sql.connections.sql_sessions import Database
from tests.sql.databases import OwnDatabase
from tests.support.accesslog.decisions_database import NOW_US, SECOND_US, decide, make_database

WRITERS = 6


@pytest.fixture
def place(own_database: OwnDatabase) -> Place:
    return make_database(own_database.url)


def test_decisions_orders_and_ends_make_the_list(place: Place) -> None:
    chosen = decide(place, "192.0.2.1", evidence='[{"request": "GET /\u00e9"}]')
    decide(place, "198.51.100.0/24", seconds=900)
    first = advance(place, now_us=NOW_US)
    assert [str(ban.network) for ban in first.bans] == ["192.0.2.1", "198.51.100.0/24"]
    place_order(place, "198.51.100.0/25", now_us=NOW_US, grace_us=0)
    later = advance(place, now_us=NOW_US + 600 * SECOND_US)
    delta = later.since(first.cursor, Gate())
    assert [str(ban.network) for ban in delta.added] == ["198.51.100.128/25"]
    assert list(map(str, delta.removed)) == ["192.0.2.1", "198.51.100.0/24"]
    database = Database(place)
    found = database.run(lambda session: read_decisions(session, client="192.0.2.1"))
    assert [each["decision_id"] for each in found] == [chosen]
    one = database.run(lambda session: read_decision(session, chosen))
    assert one is not None
    assert one["evidence"] == [{"request": "GET /\u00e9"}]
    assert database.run(lambda session: read_decisions(session, client="bad.example")) == []


def test_many_who_move_the_list_on_at_once_agree_on_its_cursors(place: Place) -> None:
    """Each process decides and updates; anyone who has seen every cursor has seen one list for each."""
    seen: list[Listed] = []
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(4):
                decide(place, f"192.0.{number}.{turn}")
                seen.append(advance(place, now_us=NOW_US))
        except BaseException as failure:
            failures.append(failure)
            raise

    threads = [threading.Thread(target=work, args=[number]) for number in range(WRITERS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(120)
    assert failures == []
    last = advance(place, now_us=NOW_US)
    assert len(last.bans) == WRITERS * 4
    for each in seen:
        delta = last.since(each.cursor, Gate())
        assert {ban.network for ban in (*each.bans, *delta.added)} == {ban.network for ban in last.bans}
        assert delta.removed == ()


def test_decisions_are_found_by_an_index_also_in_tables_that_had_none(own_database: OwnDatabase) -> None:
    """By id, and by who is still blocked; creating the tables again adds only what is missing."""
    place = parse_place(own_database.url)
    create_tables(place)
    assert list_indexed(place) == {"decision_id", "expires_at"}
    on = " ON accesslog_decisions" if place.dialect == "mysql" else ""
    own_database.run(f"DROP INDEX accesslog_decisions_expires_at{on}")
    assert list_indexed(place) == {"decision_id"}
    for _ in range(2):
        create_tables(place)
        assert list_indexed(place) == {"decision_id", "expires_at"}


def list_indexed(place: Place) -> set[str]:
    question = {
        "sqlite": "SELECT name FROM sqlite_master WHERE type = 'index'",
        "postgresql": "SELECT indexname FROM pg_indexes WHERE schemaname = current_schema()",
        "mysql": "SELECT index_name FROM information_schema.statistics WHERE table_schema = DATABASE()",
    }
    rows = Database(place).run(lambda session: session.execute(question[session.dialect]))
    beginning = "accesslog_decisions_"
    return {name.removeprefix(beginning) for (name,) in rows if name.startswith(beginning)}
