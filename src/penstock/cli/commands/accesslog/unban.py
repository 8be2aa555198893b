"""Let a client, or a network, go: now, and for a grace time in which nothing blocks it again.

penstock accesslog unban results.db 192.0.2.7 --grace 1h --reason "our own scanner"
penstock accesslog unban results.db 198.51.100.0/24
penstock accesslog unban results.db 198.51.100.0/24 --withdraw
penstock accesslog unban results.db --list

Lists leave it out at once; the running pipeline applies the order with its next batch. If a larger network is
blocked, only the part that you name is let go. --withdraw takes back the orders about a client or network:
bans that still run count again, and rules may block it from then on. A network wider than /16 (IPv6: /32)
needs --yes.
"""

from __future__ import annotations

import argparse
import json
import time

from penstock.apps.accesslog.blocking.blocklist_formats import show_time
from penstock.apps.accesslog.stream.operator_orders import Order, list_orders, place_order, withdraw_orders
from penstock.cli.accesslog.database_arguments import add_database_argument, find_database
from penstock.cli.shared.terminal import count, say
from penstock.cli.shared.text_tables import align
from penstock.core.errors import OptionError
from penstock.core.options.option_values import parse_duration_ms
from penstock.core.options.storage_addresses import Place

JSON_VERSION = 1
LONGEST_GRACE_MS = 10 * 366 * 86_400_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_database_argument(parser)
    parser.add_argument("client", metavar="CLIENT|CIDR", nargs="?", default=None, help="whom to unban")
    parser.add_argument(
        "--grace", metavar="TIME", type=_parse_grace, default=3_600_000, help="how long (default: 1h)"
    )
    parser.add_argument("--reason", default="", help="a note for readers of the list")
    parser.add_argument("--yes", action="store_true", help="also a network wider than /16 (IPv6: /32)")
    parser.add_argument("--withdraw", action="store_true", help="take back the orders about it instead")
    parser.add_argument("--list", action="store_true", help="show all orders instead")
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")


def run(arguments: argparse.Namespace) -> int:
    place = find_database(arguments)
    if arguments.list == (arguments.client is not None):
        raise OptionError(
            "OPTIONS_EXCLUDE" if arguments.list else "CLIENT_MISSING",
            "Either a client is let go, or the orders are listed.",
            hint="Name an address or a network, or say --list.",
        )
    now_us = time.time_ns() // 1000
    if arguments.list:
        orders = list_orders(place)
        if arguments.json:
            say(
                json.dumps(
                    {"version": JSON_VERSION, "orders": [_describe(each) for each in orders]}, indent=1
                )
            )
        elif not orders:
            say("No orders.")
        else:
            rows = [[*_describe(each).values()] for each in orders]
            for line in align(("subject", "ordered", "until", "taken", "reason", "id", "withdrawn"), rows):
                say(line)
        return 0
    if arguments.withdraw:
        return _withdraw(arguments, place, now_us)
    order = place_order(
        place,
        arguments.client,
        now_us=now_us,
        grace_us=arguments.grace * 1000,
        reason=arguments.reason,
        even_if_wide=arguments.yes,
    )
    if arguments.json:
        say(json.dumps({"version": JSON_VERSION, "order": _describe(order)}, indent=1))
    else:
        say(f"{order.subject} is let go until {show_time(order.until)}.")
    return 0


def _withdraw(arguments: argparse.Namespace, place: Place, now_us: int) -> int:
    orders = withdraw_orders(place, arguments.client, now_us=now_us, reason=arguments.reason)
    if arguments.json:
        say(
            json.dumps({"version": JSON_VERSION, "withdrawn": [_describe(each) for each in orders]}, indent=1)
        )
    else:
        say(f"{orders[0].subject}: {count(len(orders), 'order')} withdrawn. It may be blocked again.")
    return 0


def _describe(order: Order) -> dict[str, str]:
    return {
        "subject": order.subject,
        "ordered_at": show_time(order.ordered_at),
        "until": "withdraws" if order.withdraws else show_time(order.until),
        "taken_at": "" if order.taken_at is None else show_time(order.taken_at),
        "reason": order.reason,
        "order_id": order.order_id,
        "withdrawn_at": "" if order.withdrawn_at is None else show_time(order.withdrawn_at),
    }


def _parse_grace(text: str) -> int:
    try:
        grace_ms = parse_duration_ms(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not {error}") from None
    if grace_ms > LONGEST_GRACE_MS:
        raise argparse.ArgumentTypeError("a grace time is at most ten years")
    return grace_ms
