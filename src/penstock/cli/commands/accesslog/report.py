"""Write what a pipeline has seen and done as one HTML file: load, alerts, attackers, top lists, audit.

penstock accesslog report results.db --out report.html
penstock accesslog report '${env:RESULTS}' --out /var/www/report.html --title "Shop, all servers"

The file needs nothing else: no network, no script. It is written beside its final place and moved there when
it is complete. Everything in it that came from a log is a stranger's text and is shown, not obeyed.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from penstock.apps.accesslog.reporting.html_report import write_report
from penstock.apps.accesslog.reporting.report_data import read_report
from penstock.cli.accesslog.database_arguments import add_database_argument, find_database
from penstock.cli.shared.terminal import escape, say
from penstock.core.errors import OptionError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_database_argument(parser)
    parser.add_argument("--out", metavar="FILE", required=True, type=Path, help="the HTML file to write")
    parser.add_argument("--title", metavar="TEXT", default="Access logs", help="(default: Access logs)")


def run(arguments: argparse.Namespace) -> int:
    data = read_report(find_database(arguments), made_at=datetime.now(UTC), title=arguments.title)
    save_page(arguments.out, write_report(data))
    say(f"Report: {escape(str(arguments.out))}")
    return 0


def save_page(path: Path, page: str) -> None:
    """Write a page to its place in one step: a reader sees the old page or the new one, never a part."""
    try:
        file, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".new")
        try:
            with os.fdopen(file, "w", encoding="utf-8", errors="backslashreplace") as target:
                target.write(page)
                # The page must be readable for a web server that runs as another user, too.
                os.fchmod(target.fileno(), 0o644)
            Path(beside).replace(path)
        except BaseException:
            Path(beside).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OptionError(
            "REPORT_NOT_WRITTEN",
            f"The report could not be written to {path}: {error.strerror}.",
            hint="Name a file in a folder that exists and is writable.",
        ) from error
