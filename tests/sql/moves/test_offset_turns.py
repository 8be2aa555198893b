"""Two programs store offsets of one stream at once in a database: the second waits, and then looks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock.core.errors import OffsetStoreError
from penstock.core.model import TopicPartition
from penstock.core.offsets.offset_store_contract import Change
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.options.storage_addresses import parse_place
from penstock.stores.offsets import sql_store
from penstock.stores.offsets.sql_store import SqlOffsetStore
from tests.sql.databases import OwnDatabase
from tests.support.waiting import wait_until

T0 = TopicPartition("t", 0)
#: Counts the sessions that wait for a row that another session holds.
WAITING = {
    "postgresql": "SELECT COUNT(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND wait_event_type = 'Lock'",
    "mysql": "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
}


def save(store: SqlOffsetStore) -> None:
    store.save("s", StreamPosition({T0: 6}))


def change(store: SqlOffsetStore) -> None:
    store.change("s", Change(1, "ann", "skip", StreamPosition({T0: 1}), StreamPosition({T0: 6})))


@pytest.mark.parametrize(("act", "condition"), [(save, "OFFSETS_WENT_BACK"), (change, "OFFSETS_MOVED")])
def test_who_waits_for_another_compares_with_what_that_one_has_left(
    server_database: OwnDatabase,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[SqlOffsetStore], None],
    condition: str,
) -> None:
    """T33: a program that compared before its turn would unknowingly go back behind the other."""
    database, waiting = server_database, WAITING[parse_place(server_database.url).dialect]
    first, second = SqlOffsetStore(database.url), SqlOffsetStore(database.url)
    first.save("s", StreamPosition({T0: 1}))
    refused: list[str] = []

    def act_second() -> None:
        try:
            act(second)
        except OffsetStoreError as error:
            refused.append(error.condition)

    other = threading.Thread(target=act_second)
    compare = sql_store.refuse_going_back

    def compare_until_another_waits(*compared: Any) -> None:
        compare(*compared)
        if threading.current_thread() is not other:
            other.start()
            # MariaDB refreshes this table only when nobody has looked for a tenth of a second.
            wait_until(lambda: database.run(waiting) == [(1,)], "the other one waits for us", every_s=0.2)

    monkeypatch.setattr(sql_store, "refuse_going_back", compare_until_another_waits)
    first.save("s", StreamPosition({T0: 9}))
    other.join(60)
    assert refused == [condition]
    assert first.load("s") == StreamPosition({T0: 9})
