"""Orders of an operator while the pipeline runs: unban this client, or this network, for a while.

An order is a row that any program may write; the pipeline reads the table before each batch. Rule: the first
batch that sees an order decides when it takes effect, and stores that as `taken_at`, in the log's own time:
the time of the order, or the watermark if the log is past that already. Why not simply the time it is read: a
batch that is repeated after a crash, or one of another size, would let other lines pass.

Only `taken_at` is ever changed here, and nothing is deleted: orders are withdrawn by one more row, with the
same subject and `until` 0. A batch that has just read an order and is about to write it back cannot undo
that.

    place_order(place, "192.0.2.7", now_us=now_us, grace_us=3_600_000_000, reason="our own scanner")
    withdraw_orders(place, "192.0.2.7", now_us=now_us)
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.apps.accesslog.events.networks import demand_network
from penstock.apps.accesslog.events.subjects import find_client
from penstock.apps.accesslog.stream.table_names import ORDERS
from penstock.core.errors import OffsetStoreError, OptionError
from penstock.core.options.storage_addresses import Place
from penstock.stores.sql.connections.sql_sessions import Database, Session

#: Wider networks are unbanned only with `even_if_wide`: a typo would end the defence.
WIDEST_PREFIX = {4: 16, 6: 32}
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
    """An order to block nothing in `subject` from `taken_at` until `until`, in microseconds since 1970.

    If `taken_at` is None, no batch has seen the order yet. `withdrawn_at` is when a later row withdrew it; it
    is not a column.
    """

    order_id: str
    subject: str
    ordered_at: int
    until: int
    reason: str
    taken_at: int | None = None
    withdrawn_at: int | None = None

    @property
    def withdraws(self) -> bool:
        """Return whether it withdraws the earlier orders about its subject instead of sparing anyone."""
        return self.until == 0


def place_order(
    place: Place, subject: str, *, now_us: int, grace_us: int, reason: str = "", even_if_wide: bool = False
) -> Order:
    """Store an order that spares an address or a network from now on, for `grace_us`, and return it.

    An IPv6 address stands for the client that it belongs to, which is what was blocked.
    """
    network = find_client(demand_network("subject", subject))
    widest = WIDEST_PREFIX[network.version]
    if network.prefix < widest and not even_if_wide:
        raise OptionError(
            "NETWORK_TOO_WIDE",
            f"{network} is wider than a /{widest}: nobody in it would be blocked, whatever they do.",
            hint="Name a smaller network, or pass --yes if you mean this one.",
            facts={"network": str(network)},
        )
    order = Order(uuid.uuid4().hex, str(network), now_us, now_us + grace_us, reason)
    _write(place, order)
    return order


def withdraw_orders(place: Place, subject: str, *, now_us: int, reason: str = "") -> list[Order]:
    """Withdraw the orders about exactly this address or network; return them.

    What the rules have decided meanwhile stays. Bans from before the orders that still run count again.
    """
    network = str(find_client(demand_network("subject", subject)))
    standing = [
        each
        for each in list_orders(place)
        if each.subject == network and each.withdrawn_at is None and each.until > now_us
    ]
    if not standing:
        raise OptionError(
            "ORDER_NOT_FOUND",
            f"No order about {network} is in force.",
            hint="`penstock accesslog unban DATABASE --list` shows all orders, with their subjects.",
            facts={"subject": network},
        )
    _write(place, Order(uuid.uuid4().hex, network, now_us, 0, reason))
    return [replace(each, withdrawn_at=now_us) for each in standing]


def _write(place: Place, order: Order) -> None:
    database = Database(place)
    _demand_database(database, place)

    def write(session: Session) -> None:
        _demand_table(session)
        name = session.grammar.name
        statement = session.grammar.insert(name(ORDERS), [name(column) for column in SCHEMA.names])
        session.execute(statement, [getattr(order, column) for column in SCHEMA.names])

    database.run(write, writes=True)


def list_orders(place: Place) -> list[Order]:
    """Return all orders, in the order they were given."""

    def read(session: Session) -> Sequence[Sequence[object]]:
        _demand_table(session)
        name = session.grammar.name
        return session.execute(f"SELECT {', '.join(map(name, SCHEMA.names))} FROM {name(ORDERS)}")

    database = Database(place)
    _demand_database(database, place)
    return read_orders(database.run(read))


def read_orders(rows: Iterable[Sequence[object]]) -> list[Order]:
    """Return orders from rows with the columns of `SCHEMA`, with the moment a later row withdrew them."""
    orders = [Order(*row) for row in rows]  # type: ignore[arg-type]
    orders.sort(key=lambda each: (each.ordered_at, each.order_id))
    withdrawn: dict[str, int] = {}
    read: list[Order] = []
    for each in reversed(orders):  # so each meets the first withdrawal after it
        if each.withdraws:
            withdrawn[each.subject] = each.ordered_at
        elif each.subject in withdrawn and each.until > withdrawn[each.subject]:
            each = replace(each, withdrawn_at=withdrawn[each.subject])
        read.append(each)
    return read[::-1]


def take_orders(orders: Iterable[Order], watermark_us: int) -> tuple[list[Order], list[Order]]:
    """Return the orders in force in a batch that begins at this watermark, and those that are new to it."""
    counting, taken = [], []
    for each in orders:
        if each.taken_at is None:
            each = replace(each, taken_at=max(each.ordered_at, watermark_us))
            taken.append(each)
        assert each.taken_at is not None
        until = each.until if each.withdrawn_at is None else each.withdrawn_at
        if until > watermark_us:  # never one that withdraws
            counting.append(replace(each, until=until))
    return counting, taken


def make_rows(orders: Sequence[Order]) -> pa.Table:
    """Return orders as rows for the sink."""
    columns = {name: [getattr(each, name) for each in orders] for name in SCHEMA.names}
    return pa.table(columns, schema=SCHEMA)


def _demand_database(database: Database, place: Place) -> None:
    """Raise an error if the file is missing: an order in an empty database would spare nobody."""
    try:
        database.run(_demand_table)
    except OffsetStoreError as error:
        if error.condition != "DATABASE_NOT_FOUND":
            raise
        raise OffsetStoreError(
            "DATABASE_NOT_FOUND",
            f"There is no database {place}.",
            hint="Check the path; `penstock accesslog run` makes it.",
            facts={"place": str(place)},
        ) from error


def _demand_table(session: Session) -> None:
    if not session.has_table(ORDERS):
        raise OffsetStoreError(
            "ORDERS_NOT_FOUND",
            f"There is no table {ORDERS} at {session.place}.",
            hint="Check the place: it must be the database that `penstock accesslog run` writes to.",
            facts={"place": str(session.place), "table": ORDERS},
        )
