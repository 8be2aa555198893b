"""Serve the blocklist to enforcers on other servers, over HTTP, read only.

penstock accesslog serve results.db
penstock accesslog serve results.db --listen 192.0.2.1:8477 --token-file /etc/penstock/token

GET /v1/blocklist, /v1/blocklist?since=CURSOR, /v1/blocklist.txt, /v1/decisions/ID and /v1/health, which says
`stale` with status 503 when the pipeline has published nothing for some minutes (--stale-after). Without a
token only this computer is served. A token (`openssl rand -hex 32`) is sent as `Authorization: Bearer TOKEN`;
across networks put a server with TLS in front, and name it with --host.
"""

from __future__ import annotations

import argparse
import json
import os
import stat
import threading

from penstock.apps.accesslog.blocking.blocklists import Gate
from penstock.apps.accesslog.blocking.enforcement_api import DEFAULT_LISTEN, REQUESTS_PER_S, EnforcementApi
from penstock.cli.accesslog.database_arguments import (
    add_database_argument,
    add_gate_arguments,
    find_database,
    gather_allowed,
)
from penstock.cli.shared.option_texts import read_file
from penstock.cli.shared.stop_signals import hearing_signals
from penstock.cli.shared.terminal import say
from penstock.core.errors import OptionError
from penstock.core.options.option_values import parse_duration_ms, parse_rate_above_zero
from penstock.core.options.secret_references import read_option_file
from penstock.stores.sql.connections.sql_sessions import Database


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_database_argument(parser)
    parser.add_argument(
        "--listen", metavar="HOST:PORT", default=DEFAULT_LISTEN, help="where to listen (default: %(default)s)"
    )
    parser.add_argument("--token-file", metavar="F", default=None, help="file with the token")
    parser.add_argument(
        "--host", metavar="NAME", action="append", default=[], help="a host name that requests may use"
    )
    parser.add_argument(
        "--rate", metavar="N", default=f"{REQUESTS_PER_S:.0f}", help="requests per second and client"
    )
    parser.add_argument(
        "--stale-after", metavar="TIME", default="3m", help="unhealthy after this time without a batch (3m)"
    )
    parser.add_argument("--json", action="store_true", help="for programs: say where it listens in JSON")
    add_gate_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    place = find_database(arguments)
    try:
        rate = parse_rate_above_zero(arguments.rate)
    except ValueError as error:
        raise OptionError("RATE_INVALID", f"--rate must be {error}.", hint="Give such a number.") from None
    try:
        stale_after_ms = parse_duration_ms(arguments.stale_after)
    except ValueError as error:
        raise OptionError("OPTION_INVALID", f"--stale-after is {error}.", hint="Say 3m, or 1h.") from None
    Database(place).run(lambda _session: None)  # reports a wrong place now, not to the first enforcer
    api = EnforcementApi(
        place,
        Gate.of(
            allow=gather_allowed(arguments),
            trusted_proxies=arguments.trusted_proxy,
            trust_crawlers=not arguments.distrust_crawlers,
            block_private=arguments.block_private,
        ),
        listen=arguments.listen,
        token=_read_token(arguments.token_file),
        hosts=arguments.host,
        requests_per_s=rate,
        stale_after_s=stale_after_ms / 1000,
    )
    told = threading.Event()
    with hearing_signals(lambda _: told.set()), api:
        api.start()
        say(json.dumps({"version": 1, "url": api.url}) if arguments.json else f"Serving at {api.url}")
        told.wait()
    return 0


def _read_token(path: str | None) -> str | None:
    if path is None:
        return None
    text = read_option_file("--token-file", path, read_file)
    if stat.S_IMODE(os.stat(path).st_mode) & 0o077:
        raise OptionError(
            "TOKEN_FILE_OPEN",
            f"The token in {path} can be read by users other than its owner.",
            hint=f"Make a new token, and run: chmod 600 {path}",
            facts={"path": path},
        )
    return text
