"""Judge single requests by their addresses: a CSV with a column `uri` in, verdicts out.

penstock accesslog classify requests.csv verdicts.csv
penstock accesslog classify requests.csv verdicts.csv --rules mine.yaml --points 10
(echo uri; cat addresses.txt) | penstock accesslog classify - -

It reads CSV whose first line names a column `uri`; for a log use `replay`. If that is the only column, each
line is one address, commas and all, unless it begins with a quote. The file `-` is standard input or output.
It writes `uri,verdict,class,score`: attack or clean, a class, and the sum of the points. The points of the
rules that hit are added in the order of the rules. The class is that of the rule with which the sum is enough
to block, or, if it never is, enough to call the request an attack (--points).
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import sys
from collections.abc import Iterable, Iterator
from typing import IO

from penstock.apps.accesslog.detection.rule_set import ATTACK_POINTS
from penstock.cli.accesslog.rule_choice import describe_rules, load_rules
from penstock.cli.shared.terminal import complain, count, escape, say
from penstock.core.errors import OptionError

_AT_ONCE = 20_000
#: In place of a file name.
_STANDARD = "-"
_LONGEST_SHOWN = 120
#: Input may begin with a UTF-8 byte order mark, as spreadsheets write it.
_ENCODINGS = {"r": "utf-8-sig", "w": "utf-8"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("given", metavar="IN.csv", help=f"has a column `uri`; {_STANDARD} is standard input")
    parser.add_argument(
        "written", metavar="OUT.csv", help=f"gets uri,verdict,class,score; {_STANDARD} is standard output"
    )
    parser.add_argument("--rules", metavar="FILE", nargs="+", help="rules to use in place of Penstock's own")
    parser.add_argument(
        "--points",
        type=int,
        default=ATTACK_POINTS,
        help=f"the fewest points that make an attack (default {ATTACK_POINTS})",
    )


def run(arguments: argparse.Namespace) -> int:
    from penstock.apps.accesslog.detection.request_classification import classify

    if arguments.points < 1:
        raise OptionError(
            "OPTION_INVALID",
            f"--points is {arguments.points}.",
            hint="Give a whole number, 1 or greater: with less, every request would be an attack.",
        )
    ruleset = load_rules(arguments.rules or ())
    if arguments.rules:
        complain(describe_rules(arguments.rules, ruleset))
    uris = _read(arguments.given)
    attacks = 0
    with _writing(arguments.written) as written:
        rows = csv.writer(written)
        rows.writerow(["uri", "verdict", "class", "score"])
        for begin in range(0, len(uris), _AT_ONCE):
            part = uris[begin : begin + _AT_ONCE]
            for uri, judged in zip(part, classify(part, ruleset, least=arguments.points), strict=True):
                rows.writerow([uri, judged.verdict, judged.attack_class, judged.score])
                attacks += judged.verdict == "attack"
    told = f"{count(len(uris), 'request')}, {count(attacks, 'attack')}"
    if arguments.written == _STANDARD:
        complain(told)  # apart from the verdicts
    else:
        say(f"{told}; written to {escape(arguments.written)}")
    return 0


def _read(path: str) -> list[str]:
    name = "Standard input" if path == _STANDARD else path
    try:
        with _open(path, "r") as given:
            return list(_take_uris(_Lines(given), name))
    except OSError as error:
        raise _unreadable(name, str(error)) from error


def _unreadable(name: str, why: str) -> OptionError:
    return OptionError(
        "FILE_UNREADABLE",
        f"{name} cannot be read: {why}.",
        hint="Name a readable CSV file, or - for standard input.",
    )


class _Lines:
    """Yields a file's lines and counts them. `began` is the current row's first line, 0 between rows."""

    def __init__(self, given: IO[str]) -> None:
        self._given = given
        self.number = self.began = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._given)
        self.number += 1
        if not self.began and line.strip("\r\n"):
            self.began = self.number
        return line


def _read_rows(rows: Iterator[list[str]], given: _Lines, name: str) -> Iterator[list[str]]:
    """Yield the rows that are not empty; for one that cannot be read, raise an error that names its line."""
    while True:
        given.began = 0
        try:
            row = next(rows, None)
        except csv.Error as error:
            if given.number == given.began and "end of data" not in str(error):
                raise _unreadable(name, f"line {given.began}: {error}") from error
            # An unclosed cell continues to the end of the file, or until it is too long for a cell.
            raise OptionError(
                "QUOTE_OPEN",
                f"In line {given.began} of {name} a quote opens, and nothing closes it.",
                hint="Close it; a quote inside a quoted cell is written twice.",
            ) from error
        if row is None:
            return
        if row:
            yield row


def _take_uris(given: _Lines, name: str) -> Iterator[str]:
    """Yield the cells of the column `uri`; if it is the only one, whole lines, unless they are quoted."""
    rows = _read_rows(csv.reader(given, strict=True), given, name)
    header = next(rows, [])
    if "uri" not in header:
        raise OptionError(
            "COLUMN_MISSING",
            f"{name} has no column `uri`.",
            hint="Give CSV whose first line names its columns, one of them `uri`. "
            "For a log, use `penstock accesslog replay`.",
        )
    if len(header) == 1:
        rows = _read_rows(csv.reader(_quote_lines(given), strict=True), given, name)
    for row in rows:
        if len(row) != len(header):
            raise OptionError(
                "ROW_INVALID",
                f"Line {given.began} of {name} has {count(len(row), 'cell')}, and its header has "
                f"{len(header)}: "
                f"`{escape(','.join(row)[:_LONGEST_SHOWN])}`.",
                hint="Quote cells that have a comma, or give a file with the column `uri` alone: its lines "
                "are taken whole.",
            )
        yield row[header.index("uri")]


def _quote_lines(given: Iterable[str]) -> Iterator[str]:
    """Yield each line as a row of one cell: an address may have commas, and quotes after its beginning."""
    is_open = False
    for line in given:
        text = line.rstrip("\r\n")
        if is_open or text.startswith('"'):
            is_open ^= text.count('"') % 2 == 1
            yield line
        elif text:
            yield '"' + text.replace('"', '""') + '"\n'


@contextlib.contextmanager
def _writing(path: str) -> Iterator[IO[str]]:
    """Yield the file to write to, or raise an error that says why it cannot be written."""
    try:
        with _open(path, "w") as written:
            yield written
    except OSError as error:
        if path == _STANDARD:  # its reader may leave early; `penstock.cli.main` handles that
            raise
        raise OptionError(
            "FILE_UNWRITABLE", f"{path} cannot be written: {error.strerror}.", hint="Name another file."
        ) from error


@contextlib.contextmanager
def _open(path: str, mode: str) -> Iterator[IO[str]]:
    """Yield the file; standard input or output stays open."""
    if path != _STANDARD:
        with open(path, mode, encoding=_ENCODINGS[mode], errors="surrogateescape", newline="") as file:
            yield file
        return
    standard = sys.stdin if mode == "r" else sys.stdout
    bytes_of = getattr(standard, "buffer", None)
    if bytes_of is None:
        yield standard
        return
    file = io.TextIOWrapper(bytes_of, encoding=_ENCODINGS[mode], errors="surrogateescape", newline="")
    try:
        yield file
    finally:
        file.detach()
