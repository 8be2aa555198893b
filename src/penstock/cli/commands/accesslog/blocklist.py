"""Write who is blocked now, for a firewall, a web server or a program.

penstock accesslog blocklist results.db --format nftables | nft -f -
penstock accesslog blocklist results.db --format apache-map --out /etc/apache2/blocked.txt
penstock accesslog blocklist results.db --json --since 1789000000000

A file is replaced in one step, and only when the list has changed. No list holds simulated decisions, host
names, bans that an order undid, allowed addresses or trusted proxies.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from penstock.apps.accesslog.blocking.blocklist_changes import advance
from penstock.apps.accesslog.blocking.blocklist_files import write_whole
from penstock.apps.accesslog.blocking.blocklist_formats import (
    FORMATS,
    Rendered,
    find_format,
    render,
    write_json,
)
from penstock.apps.accesslog.blocking.blocklists import Gate
from penstock.cli.accesslog.database_arguments import (
    add_database_argument,
    add_gate_arguments,
    find_database,
    gather_allowed,
)
from penstock.cli.shared.terminal import complain, count, escape, say
from penstock.core.errors import OptionError
from penstock.core.options.option_values import INT64_MAX, parse_integer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_database_argument(parser)
    parser.add_argument("--format", choices=list(FORMATS), default=None, help="the format (default: text)")
    parser.add_argument("--out", metavar="FILE", type=Path, default=None, help="write this file, in one step")
    parser.add_argument(
        "--since", metavar="CURSOR", default=None, help="only what has changed since then; with --json"
    )
    parser.add_argument("--json", action="store_true", help="for programs: the list, or what --out did")
    add_gate_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    name = arguments.format or ("json" if arguments.json else "text")
    since = _parse_cursor(arguments.since)
    if since is not None and name != "json":
        raise OptionError(
            "OPTIONS_EXCLUDE",
            f"--since has no meaning for {name}: a list of that kind replaces the one before it.",
            hint="Say --json, or leave --since out.",
        )
    if arguments.json and arguments.out is None and name != "json":
        raise OptionError(
            "OPTIONS_EXCLUDE",
            f"The list cannot be both JSON and {name} on one output.",
            hint="Leave out --json, or write the list into a file with --out.",
        )
    now_us = time.time_ns() // 1000
    gate = Gate.of(
        allow=gather_allowed(arguments),
        trusted_proxies=arguments.trusted_proxy,
        trust_crawlers=not arguments.distrust_crawlers,
        block_private=arguments.block_private,
    )
    listed = advance(find_database(arguments), now_us=now_us)
    bans = gate.apply(listed.bans)
    rendered = (
        Rendered(write_json(listed.since(since, gate)))
        if since is not None
        else render(name, bans, cursor=listed.cursor, now_us=now_us)
    )
    if rendered.left_out:
        complain(
            f"{count(rendered.left_out, 'network')} left out: {name} cannot express networks of this size."
        )
    if arguments.out is None:
        sys.stdout.write(rendered.content.decode("ascii" if name != "csv" else "utf-8"))
        sys.stdout.flush()
        return 0
    changed = write_whole(arguments.out, rendered.content, even_if_equal=find_format(name).has_timeouts)
    if arguments.json:
        told = {
            "version": 1,
            "path": str(arguments.out),
            "format": name,
            "cursor": listed.cursor,
            "entries": len(bans),
            "left_out": rendered.left_out,
            "written": changed,
        }
        say(json.dumps(told, indent=1))
    else:
        what = "is written" if changed else "is unchanged"
        say(f"{escape(str(arguments.out))} {what}: {count(len(bans), 'network')}.")
    return 0


def _parse_cursor(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_integer(text, least=0, most=INT64_MAX)
    except ValueError as error:
        raise OptionError(
            "CURSOR_INVALID",
            f"--since is given {text[:40]!r}; a cursor is {error}.",
            hint="Take the `cursor` of an earlier JSON answer, or 0.",
        ) from None
