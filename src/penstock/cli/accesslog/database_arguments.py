"""Arguments that several verbs share: which database a verb reads, and which addresses no list may hold."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from penstock.apps.accesslog.events.networks import demand_network
from penstock.cli.shared.option_texts import read_file, resolve
from penstock.cli.shared.terminal import count
from penstock.core.options.secret_references import read_option_file
from penstock.core.options.storage_addresses import Place, parse_place

_MOST_SHOWN = 3


def add_database_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "database",
        metavar="DATABASE",
        help="the path or address that `penstock accesslog run` writes to; ${env:NAME} and ${file:/path} "
        "keep a password off this line",
    )


def find_database(arguments: argparse.Namespace) -> Place:
    return parse_place(resolve("DATABASE", arguments.database))


def add_gate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow",
        metavar="CIDR",
        action="append",
        default=[],
        help="never block it; may be given several times",
    )
    parser.add_argument(
        "--allow-file",
        metavar="FILE",
        action="append",
        default=[],
        help="the same from a file: one address or network per line, # begins a comment",
    )
    add_proxy_argument(parser)
    parser.add_argument(
        "--distrust-crawlers",
        action="store_true",
        help="do not spare the networks that search engines publish as theirs",
    )
    parser.add_argument(
        "--block-private",
        action="store_true",
        help="also block private, loopback and link-local addresses, which are spared otherwise",
    )


def add_unnamed_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--block-unnamed-proxy",
        action="store_true",
        help="also block an address that looks like an unnamed proxy: it sends nearly all lines, with "
        "X-Forwarded-For of many clients; it is spared otherwise",
    )


def add_limit_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=_parse_limit, default=50, metavar="N", help="at most this many (50)")


def _parse_limit(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError("a whole number from 1 to 100000")
    return int(text)


def add_proxy_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trusted-proxy",
        metavar="CIDR",
        action="append",
        default=[],
        help="a proxy in front of the web servers: it is never blocked, and is trusted to name the client",
    )


def describe_unlisted(clients: Sequence[str]) -> str:
    """Return a sentence about clients that rules want blocked and that no list can hold, with a few names."""
    shown = ", ".join(clients[:_MOST_SHOWN])
    more = ", ..." if len(clients) > _MOST_SHOWN else ""
    return (
        f"{count(len(clients), 'client')} named by a rule and not in any list: {shown}{more}. Lists hold "
        "addresses, and never loopback. If these are host names, log addresses: `HostnameLookups Off`, "
        "or %a in place of %h."
    )


def gather_allowed(arguments: argparse.Namespace) -> list[str]:
    """Return everything that `--allow` and `--allow-file` name, as text."""
    texts = list(arguments.allow)
    for path in arguments.allow_file:
        lines = read_option_file("--allow-file", path, read_file).splitlines()
        for number, line in enumerate(lines, 1):
            text = line.partition("#")[0].strip()
            if text:
                demand_network(f"--allow-file {path}, line {number},", text)
                texts.append(text)
    return texts
