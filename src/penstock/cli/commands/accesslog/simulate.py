"""Simulate traffic of several web servers, with labelled attacks in it, into files or into a topic.

penstock accesslog simulate --rate 5000 --seconds 60 --out '{server}.log' --truth truth.csv --fast
penstock accesslog simulate --rate 2000 --seconds 600 --topic lines --truth truth.csv
penstock accesslog simulate --attacks sql_injection,flood --seconds 30 --out access.log --truth truth.csv

The same seed gives the same lines (with --fast, or with --start: live lines have the current time). Lines are
in Apache's combined format with the time each request took (%D) at the end. The truth names each client,
whether it attacks, the class, the time of its first request and the number of requests. Ctrl-C ends early;
the truth is still written.
"""

from __future__ import annotations

import argparse
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from penstock.cli.shared.kafka_arguments import add_connection_arguments, connect, demand_topic
from penstock.cli.shared.moments import parse_moment
from penstock.cli.shared.progress_bar import LiveLine
from penstock.cli.shared.stop_signals import hearing_signals
from penstock.cli.shared.terminal import count, say
from penstock.core.errors import OptionError

if TYPE_CHECKING:
    from penstock.apps.accesslog.simulation.traffic_simulation import SimulatedStep, SimulationSettings

_SLICES_PER_SECOND = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rate", type=float, default=5_000.0, help="lines per second, of all servers together"
    )
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=7, help="the same seed gives the same lines")
    parser.add_argument("--attacks", default="all", help="all, none, or classes separated by commas")
    parser.add_argument("--attack-share", type=float, default=0.08, help="approximate share of attack lines")
    parser.add_argument("--day", type=int, default=86_400, metavar="SECONDS", help="how long a day lasts")
    parser.add_argument(
        "--start",
        type=parse_moment,
        default=None,
        metavar="TIME",
        help="time of the first line: 2026-02-01T10:00:00Z",
    )
    parser.add_argument("--fast", action="store_true", help="write as fast as possible, not in real time")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--out",
        nargs="+",
        metavar="FILE",
        help="one for each server, one with {server} in it, or one for all",
    )
    where.add_argument("--topic", help="write to this topic instead, keyed by client")
    parser.add_argument("--truth", type=Path, default=None, metavar="FILE", help="who attacked, as CSV")
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    # Signals are handled from before the first import until the truth is written, so that a simulation that
    # is stopped still leaves its truth.
    with _ending_on_signals() as stopping:
        return _simulate(arguments, stopping)


def _simulate(arguments: argparse.Namespace, stopping: threading.Event) -> int:
    from penstock.apps.accesslog.simulation.traffic_simulation import Simulation, write_truth

    simulation = Simulation(_read_settings(arguments))
    names = [f"web{number + 1}" for number in range(arguments.servers)]
    began = time.monotonic()
    with ExitStack() as stack:
        write = _open_files(arguments.out, names, stack) if arguments.out else _open_topic(arguments)
        line = LiveLine(on_errors=True)
        slices = 1 if arguments.fast else _SLICES_PER_SECOND
        for step in simulation.steps(slices=slices, newlines=bool(arguments.out)):
            if not arguments.fast:
                stopping.wait(max(0.0, began + step.due_s - time.monotonic()))
            if stopping.is_set():
                break
            write(step)
            if line.is_due:
                took_s = time.monotonic() - began
                rate = f"{simulation.lines / took_s:,.0f} lines/s"
                line.draw(f"{simulation.lines:,} lines  {rate}  {took_s:.0f} of {arguments.seconds} s")
    line.end()
    if arguments.truth is not None:
        write_truth(simulation, arguments.truth)
    took_s = time.monotonic() - began
    broken = f"{simulation.broken_lines} of them broken on purpose (some can be parsed anyway)"
    say(f"{count(simulation.lines, 'line')} in {took_s:.1f} s, {broken}.")
    return 0


def _read_settings(arguments: argparse.Namespace) -> SimulationSettings:
    from penstock.apps.accesslog.simulation.simulated_attackers import CLASSES
    from penstock.apps.accesslog.simulation.traffic_simulation import DEFAULT_START_S, SimulationSettings

    named = {"all": tuple(CLASSES), "none": ()}
    attacks = named.get(arguments.attacks)
    if attacks is None:
        attacks = tuple(each.strip() for each in arguments.attacks.split(",") if each.strip())
    start_s = DEFAULT_START_S if arguments.fast else int(time.time())
    if arguments.start is not None:
        start_s = arguments.start // 1000
    return SimulationSettings(
        rate=arguments.rate,
        seconds=arguments.seconds,
        servers=arguments.servers,
        seed=arguments.seed,
        attacks=attacks,
        attack_share=arguments.attack_share,
        start_s=start_s,
        day_s=arguments.day,
    )


def _open_files(out: list[str], names: list[str], stack: ExitStack) -> Callable[[SimulatedStep], None]:
    if len(out) == 1:
        paths = [out[0].replace("{server}", name) for name in names]
    elif len(out) == len(names):
        paths = list(out)
    else:
        raise OptionError(
            "FILES_AND_SERVERS_DIFFER",
            f"--out names {len(out)} files for {len(names)} servers.",
            hint="Name one for each, one with {server} in it, or one for all.",
        )
    try:
        files: dict[str, BinaryIO] = {}
        for path in dict.fromkeys(paths):
            files[path] = stack.enter_context(Path(path).open("wb"))  # noqa: SIM115
    except OSError as error:
        raise OptionError(
            "FILE_UNWRITABLE", f"{error.filename} cannot be written: {error.strerror}.", hint="Check --out."
        ) from error

    def write(step: SimulatedStep) -> None:
        for path, server in zip(paths, step.servers, strict=True):
            files[path].write(server.text)
            files[path].flush()

    return write


def _open_topic(arguments: argparse.Namespace) -> Callable[[SimulatedStep], None]:
    client = connect(arguments)
    from penstock.apps.accesslog.simulation.simulated_records import make_records
    from penstock.kafka.records.codecs import LZ4
    from penstock.kafka.writing.plain_producer import Writer

    demand_topic(client, arguments.topic)
    writer = Writer(client, codec=LZ4)

    def write(step: SimulatedStep) -> None:
        if step.count:
            writer.write(arguments.topic, make_records(step))

    return write


@contextmanager
def _ending_on_signals() -> Iterator[threading.Event]:
    """Yield an event that a signal sets. Then Ctrl-C ends at once; SIGTERM does not: programs repeat it."""
    stopping = threading.Event()

    def ask(number: int) -> None:
        if stopping.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stopping.set()

    with hearing_signals(ask):
        yield stopping
