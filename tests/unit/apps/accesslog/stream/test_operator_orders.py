"""Operator orders: how wide they may be, and how they are withdrawn."""

from __future__ import annotations

import pytest

from penstock.apps.accesslog.blocking.blocklists import read_bans
from penstock.apps.accesslog.defence.defence_settings import OrdersInForce
from penstock.apps.accesslog.stream.operator_orders import (
    SCHEMA,
    list_orders,
    make_rows,
    place_order,
    take_orders,
    withdraw_orders,
)
from penstock.apps.accesslog.stream.table_names import ORDERS
from penstock.cli import main
from penstock.core.errors import OptionError
from penstock.core.options.storage_addresses import Place
from penstock.stores.sql.connections.sql_sessions import Database, Session
from tests.support.accesslog.decisions_database import NOW_US, SECOND_US, decide

HOUR_US = 3600 * SECOND_US


def list_blocked(place: Place) -> list[str]:
    return [str(ban.network) for ban in Database(place).run(lambda s: read_bans(s, now_us=NOW_US))]


@pytest.mark.parametrize("wide", ["0.0.0.0/0", "192.0.0.0/15", "::/0", "2001::/31"])
def test_a_network_that_is_half_the_world_is_let_go_only_with_a_yes(
    place: Place, wide: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["accesslog", "unban", str(place), wide]) == 1
    assert "[NETWORK_TOO_WIDE]" in capsys.readouterr().err
    assert list_orders(place) == []
    assert main(["accesslog", "unban", str(place), wide, "--yes"]) == 0
    assert [each.subject for each in list_orders(place)] == [wide]


@pytest.mark.parametrize("narrow", ["192.0.0.0/16", "2001:db8::/32", "192.0.2.7"])
def test_a_network_of_one_owner_needs_no_yes(place: Place, narrow: str) -> None:
    assert place_order(place, narrow, now_us=NOW_US, grace_us=HOUR_US).subject == narrow


def test_a_withdrawn_order_lets_bans_count_again_and_ends_its_grace(place: Place) -> None:
    """At once in lists, and for the rules from that moment of the log on; the list of orders shows both."""
    decide(place, "192.0.2.7")
    given = place_order(place, "192.0.2.0/24", now_us=NOW_US - 5, grace_us=HOUR_US)
    other = place_order(place, "198.51.100.7", now_us=NOW_US - 4, grace_us=HOUR_US)
    assert list_blocked(place) == []
    (withdrawn,) = withdraw_orders(place, "192.0.2.0/24", now_us=NOW_US, reason="a slip")
    assert (withdrawn.order_id, withdrawn.withdrawn_at) == (given.order_id, NOW_US)
    assert list_blocked(place) == ["192.0.2.7"]
    counting, taken = take_orders(list_orders(place), NOW_US - 10)
    assert OrdersInForce.of(counting).graces == (
        ("192.0.2.0/24", NOW_US - 5, NOW_US),
        ("198.51.100.7", NOW_US - 4, other.until),
    )
    assert len(taken) == 3
    later, _ = take_orders(list_orders(place), NOW_US)
    assert [each.subject for each in later] == ["198.51.100.7"]
    assert [(each.withdraws, each.reason) for each in list_orders(place)][2] == (True, "a slip")


def test_a_batch_that_writes_an_order_back_does_not_undo_its_withdrawal(place: Place) -> None:
    """It read the order before, and stores from when on it counts afterwards."""
    place_order(place, "192.0.2.7", now_us=NOW_US - 5, grace_us=HOUR_US)
    _, taken = take_orders(list_orders(place), NOW_US - 10)
    withdraw_orders(place, "192.0.2.7", now_us=NOW_US)
    (row,) = make_rows(taken).to_pylist()

    def store(session: Session) -> None:
        session.execute(f"DELETE FROM {ORDERS} WHERE order_id = ?", [row["order_id"]])
        session.execute(
            f"INSERT INTO {ORDERS} VALUES ({session.grammar.marks(len(SCHEMA))})", [*row.values()]
        )

    Database(place).run(store, writes=True)
    assert [each.withdrawn_at for each in list_orders(place) if not each.withdraws] == [NOW_US]


def test_after_a_withdrawal_it_can_be_let_go_again(place: Place) -> None:
    decide(place, "192.0.2.7")
    for _ in range(2):
        now_us = NOW_US + 10 * len(list_orders(place))
        place_order(place, "192.0.2.7", now_us=now_us, grace_us=HOUR_US)
        assert list_blocked(place) == []
        withdraw_orders(place, "192.0.2.7", now_us=now_us + 1)
        assert list_blocked(place) == ["192.0.2.7"]
    with pytest.raises(OptionError, match="ORDER_NOT_FOUND"):
        withdraw_orders(place, "192.0.2.7", now_us=NOW_US + 99)


def test_orders_are_withdrawn_at_the_terminal(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["accesslog", "unban", str(place), "192.0.2.7"]
    assert main([*arguments, "--withdraw"]) == 1
    assert "[ORDER_NOT_FOUND]" in capsys.readouterr().err
    assert main(arguments) == 0
    assert main([*arguments, "--withdraw", "--reason", "a slip"]) == 0
    assert "192.0.2.7: 1 order withdrawn." in capsys.readouterr().out
    assert main(["accesslog", "unban", str(place), "--list"]) == 0
    order, withdrawal = capsys.readouterr().out.splitlines()[1:]
    assert order.split()[-1].endswith("Z")
    assert "withdraws" in withdrawal
    assert "a slip" in withdrawal
