"""What an operator orders while the pipeline runs: let this client, or this network, go for a while.

An order is a row that any program may write; the pipeline reads the table before each batch. Rule: from when
on an order counts is decided once, by the first batch that sees it, and stored with that batch: `taken_at`,
in the log's own time, is the order's moment, or the watermark if the log is past that already. Why not simply
when it is read: a batch that is done again after a crash, or one of another size, would let other lines pass.

    place_order(place, "192.0.2.7", now_us=now_us, grace_us=3_600_000_000, reason="our own scanner")
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.apps.accesslog.defence.clients import find_client
from penstock.apps.accesslog.defence.networks import demand_network
from penstock.core.errors import OffsetStoreError
from penstock.core.places import Place
from penstock.stores.sql.sessions import Database, Session

ORDERS = "accesslog_orders"
SCHEMA = pa.schema(
    [
        ("order_id", pa.string()),
        ("subject", pa.string()),
        ("ordered_at", pa.int64()),
        ("until", pa.int64()),
        ("reason", pa.string()),
        ("taken_at", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Order:
    """Nothing in `subject` is blocked from `taken_at` until `until`; times are microseconds since 1970.

    `taken_at` None: no batch has seen it yet.
    """

    order_id: str
    subject: str
    ordered_at: int
    until: int
    reason: str
    taken_at: int | None = None


def place_order(place: Place, subject: str, *, now_us: int, grace_us: int, reason: str = "") -> Order:
    """Write down that an address or a network is to be spared from now on, for so long.

    Of IPv6 the client is let go that the address belongs to, as that is what was blocked.
    """
    network = find_client(demand_network("subject", subject))
    order = Order(uuid.uuid4().hex, str(network), now_us, now_us + grace_us, reason)

    def write(session: Session) -> None:
        _demand_table(session)
        name = session.grammar.name
        session.execute(
            f"INSERT INTO {name(ORDERS)} ({', '.join(map(name, SCHEMA.names))}) "
            f"VALUES ({session.grammar.marks(len(SCHEMA))})",
            [getattr(order, column) for column in SCHEMA.names],
        )

    Database(place).run(write, writes=True)
    return order


def list_orders(place: Place) -> list[Order]:
    """All orders, in the order they were given."""

    def read(session: Session) -> Sequence[Sequence[object]]:
        _demand_table(session)
        name = session.grammar.name
        return session.execute(f"SELECT {', '.join(map(name, SCHEMA.names))} FROM {name(ORDERS)}")

    return read_orders(Database(place).run(read))


def read_orders(rows: Iterable[Sequence[object]]) -> list[Order]:
    """Orders from rows with the columns of `SCHEMA`."""
    orders = [Order(*row) for row in rows]  # type: ignore[arg-type]
    return sorted(orders, key=lambda each: (each.ordered_at, each.order_id))


def take_orders(orders: Iterable[Order], watermark_us: int) -> tuple[list[Order], list[Order]]:
    """The orders that count in a batch that begins at this watermark, and those it is the first to see."""
    counting, taken = [], []
    for each in orders:
        if each.taken_at is None:
            each = replace(each, taken_at=max(each.ordered_at, watermark_us))
            taken.append(each)
        assert each.taken_at is not None
        if each.until > watermark_us:
            counting.append(each)
    return counting, taken


def make_rows(orders: Sequence[Order]) -> pa.Table:
    """Orders as rows for the sink."""
    columns = {name: [getattr(each, name) for each in orders] for name in SCHEMA.names}
    return pa.table(columns, schema=SCHEMA)


def _demand_table(session: Session) -> None:
    if not session.has_table(ORDERS):
        raise OffsetStoreError(
            "ORDERS_NOT_FOUND",
            f"There is no table {ORDERS} at {session.place}.",
            hint="Check the place: it must be the database that `penstock accesslog run` writes to.",
            facts={"place": str(session.place), "table": ORDERS},
        )
