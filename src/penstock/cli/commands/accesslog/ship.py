"""Follow log files into a topic: each line once for readers of committed records.

penstock accesslog ship /var/log/apache2/access.log --topic lines
penstock accesslog ship '/var/log/apache2/*access.log' --topic lines --server web1
penstock accesslog ship access.log --topic lines --once --history    all there is, packed files too, then end

Files may be rotated, emptied, copied away or appear later; patterns are matched again and again. The
positions are kept in Kafka, in the same transactions as the lines: after a crash it continues after the last
line that readers with isolation.level=read_committed can see. Name all files of a server in one command: a
second command for other files needs its own --name, and is refused without one. The key of a record is the
client, so a client's lines keep their order: give --log-format and --trusted-proxy as you give them to `run`,
so that both find the same client. The name of the server is in the header `server`. A last line without its
newline is left for the next time. SIGTERM and Ctrl-C end the transaction under way. Messages on stderr begin
with the time and the topic.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from penstock.cli.accesslog.database_arguments import add_proxy_argument
from penstock.cli.accesslog.first_look_messages import FirstLook
from penstock.cli.accesslog.log_format_argument import add_log_format_argument
from penstock.cli.shared.kafka_arguments import (
    add_connection_arguments,
    add_json_argument,
    connect,
    demand_topic,
)
from penstock.cli.shared.progress_bar import LiveLine
from penstock.cli.shared.stop_signals import hearing_signals
from penstock.cli.shared.terminal import complain_dated, count, escape, say
from penstock.core.errors import OptionError
from penstock.core.loggers import in_stream

if TYPE_CHECKING:
    from penstock.apps.accesslog.first_look.sample_checks import FormatFinding
    from penstock.apps.accesslog.parsing.line_parser import Parser
    from penstock.apps.accesslog.shipping.shipper import Shipped

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
JSON_VERSION = 1
#: How many files are looked at before they are shipped, and how many bytes of each.
_LOOKED_AT, _LOOKED_AT_BYTES = 8, 1 << 20
#: The condition of a format that fits no line.
_NO_FIT = "NOTHING_PARSED"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="log files, or patterns in quotes")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--server", default=None, help="name of the web server (default: this computer's)")
    parser.add_argument(
        "--key",
        choices=("client", "server", "none"),
        default="client",
        help="lines with one key stay in order",
    )
    add_log_format_argument(parser)
    add_proxy_argument(parser)
    parser.add_argument("--once", action="store_true", help="end when everything there is has been shipped")
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument(
        "--from-beginning", action="store_true", help="at the first start, everything there is (default)"
    )
    begin.add_argument(
        "--from-end", action="store_true", help="at the first start, only what comes from now on"
    )
    parser.add_argument("--history", action="store_true", help="also rotated files, even packed ones (.gz)")
    parser.add_argument(
        "--name",
        default="",
        help="the name of this shipper (default: SERVER/TOPIC); two at a time need two names",
    )
    parser.add_argument("--positions-topic", default=None, metavar="TOPIC", help="topic with the positions")
    parser.add_argument("--compression", choices=CODECS, default="lz4")
    parser.add_argument("--max-line-bytes", type=int, default=1_000_000, help="longer lines are cut")
    parser.add_argument("--poll-ms", type=int, default=200, help="how often an idle file is looked at")
    add_json_argument(parser, "a JSON object at the end")
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    for option, least in (("max_line_bytes", 1), ("poll_ms", 1)):
        if getattr(arguments, option) < least:
            raise OptionError(
                "OPTION_INVALID",
                f"--{option.replace('_', '-')} is {getattr(arguments, option)}.",
                hint=f"Give a whole number, {least} or greater.",
            )
    with in_stream(arguments.topic):
        return _ship(arguments)


def _ship(arguments: argparse.Namespace) -> int:
    from penstock.apps.accesslog.parsing.line_parser import make_parser

    absent = list_absent(arguments.files)
    parser = make_parser(arguments.log_format, arguments.trusted_proxy)
    if arguments.key == "client":
        check_files(arguments.files, parser, is_whole=arguments.once)
    client = connect(arguments)
    from penstock.apps.accesslog.shipping.shipped_positions import DEFAULT_TOPIC
    from penstock.apps.accesslog.shipping.shipper import Shipper, ShipSettings

    demand_topic(client, arguments.topic)
    settings = ShipSettings(
        files=tuple(arguments.files),
        topic=arguments.topic,
        server=arguments.server or socket.gethostname(),
        key=arguments.key,
        parser=parser,
        name=arguments.name,
        positions_topic=arguments.positions_topic or DEFAULT_TOPIC,
        once=arguments.once,
        from_end=arguments.from_end,
        history=arguments.history,
        codec=CODECS.index(arguments.compression),
        longest_line=arguments.max_line_bytes,
        poll_ms=arguments.poll_ms,
    )
    if not arguments.once:
        complain_dated(f"Shipping to {settings.topic} as {escape(settings.server)}.")
        for each in absent:
            complain_dated(f"{escape(each)} is not there yet; waiting for it.")
    show = _Progress()
    with _ending_on_signals() as stopping:
        try:
            shipped = Shipper(client, settings, show).run(stopping)
        finally:
            show.end()
    _sum_up(shipped, settings.topic, time.monotonic() - show.began, as_json=arguments.json)
    return 0


def list_absent(files: Sequence[str]) -> list[str]:
    """Return files and patterns that name nothing yet: a log that is to come, or a typing error."""
    absent = []
    for each in files:
        if not glob.has_magic(each) and os.path.isdir(each):
            raise OptionError(
                "FILE_IS_FOLDER",
                f"{each} is a folder.",
                hint=f"Name log files in it, or a pattern in quotes: '{os.path.join(each, '*access.log')}'.",
            )
        if not (glob.glob(each, recursive=True) if glob.has_magic(each) else os.path.exists(each)):
            absent.append(each)
    return absent


class _KeyLook(FirstLook):
    """A look that also explains the effect on keys, once: the keys of lines in a topic cannot be changed."""

    _has_told = False

    def _judge(self, findings: Sequence[FormatFinding]) -> None:
        super()._judge(findings)
        if not self._has_told and any(each.is_fatal or each.condition == _NO_FIT for each in findings):
            self._has_told = True
            complain_dated(
                "The lines are shipped all the same. Where no client is found, the first word of a line is "
                "its key: lines of many clients may share one key and one partition, and a client's lines "
                "may lose their order. Lines keep the keys that they are shipped with; to give them others, "
                "stop this, name the format with --log-format, and ship into a new topic."
            )


def check_files(patterns: Sequence[str], parser: Parser, *, is_whole: bool = False) -> None:
    """Warn if the clients in these files are doubtful; refuse a format that was named and cannot be right.

    With `auto` nothing is refused: every line is shipped, and one that fits nothing has a key anyway.
    `is_whole` says that no more lines will come, so a named format that fits none of a few is refused, too.
    """
    from penstock.apps.accesslog.first_look.log_blocks import look_first, open_log, read_blocks

    names = [name for each in patterns for name in sorted(glob.glob(each, recursive=True))]
    look = _KeyLook(
        parser,
        tell=None,
        is_known=parser.log_format == "auto",
        is_whole=is_whole,
        warn=complain_dated,
    )
    with ExitStack() as stack:
        files = {}
        for number, name in enumerate(names[:_LOOKED_AT]):
            with suppress(OptionError):  # the shipper reports a file that cannot be read
                files[number] = read_blocks(stack.enter_context(open_log(name)), _LOOKED_AT_BYTES)
        look_first(files, look)


class _Progress(LiveLine):
    """One line that changes, on a terminal; nothing elsewhere."""

    def __init__(self) -> None:
        super().__init__(on_errors=True)
        self.began = self._shown_at = time.monotonic()
        self._lines_then = 0

    def __call__(self, shipped: Shipped) -> None:
        if not self.is_due:
            return
        now = time.monotonic()
        rate = (shipped.lines - self._lines_then) / (now - self._shown_at)
        self._shown_at, self._lines_then = now, shipped.lines
        text = f"{shipped.lines:,} lines  {shipped.size / 1e6:,.1f} MB  {rate:,.0f} lines/s"
        self.draw(f"{text}  {escape(shipped.path):.40}")


def _sum_up(shipped: Shipped, topic: str, took_s: float, *, as_json: bool) -> None:
    if as_json:
        content = {
            "version": JSON_VERSION,
            "lines": shipped.lines,
            "bytes": shipped.size,
            "cut_lines": shipped.cut_lines,
            "lost_files": shipped.lost_files,
            "recoveries": shipped.recoveries,
            "seconds": round(took_s, 3),
        }
        say(json.dumps(content))
        return
    notes = [f"{count(shipped.cut_lines, 'line')} too long and cut"] if shipped.cut_lines else []
    notes += [f"{count(shipped.lost_files, 'file')} gone before the end"] if shipped.lost_files else []
    more = f" ({', '.join(notes)})" if notes else ""
    say(f"{count(shipped.lines, 'line')} shipped to {topic} in {took_s:.1f} s{more}.")


@contextmanager
def _ending_on_signals() -> Iterator[threading.Event]:
    """Yield an event that the first signal sets; a second signal ends the command at once."""
    stopping = threading.Event()

    def ask(_: int) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()
        if sys.stderr.isatty():
            complain_dated("Ending the transaction under way ...")

    with hearing_signals(ask):
        yield stopping
