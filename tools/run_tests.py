"""Runs all tests but the proofs, in pieces of a few folders, some at a time, and adds up what they ran.

Rule: each file of tests belongs to one piece, and each piece is a session of pytest with its own servers. A
file without a piece, or fewer tests than the committed floor, fails the run, like any skip. Why several at a
time: most tests wait for servers, not for a processor. Why pieces and not a session for each processor: the
longest begin first and short ones fill the gaps, so all processors are busy to the end, however fast the
computer is. Why by folder and not test by test: the servers that tests share are started once in a session.

The order within a session is shuffled, by a seed taken from the tests themselves: a run that failed here
because of its order fails elsewhere, too, and each change of a test tries another order.

A run ends with a table of where the time went; the details are in `artifacts/test-durations-*.json`.

    python tools/run_tests.py                  # what `make test` does
    python tools/run_tests.py --no-servers     # what `make check` does: only tests that need none
    python tools/run_tests.py unit architecture --at-once 2     # these pieces; no floor then
    python tools/run_tests.py -- -k ticks      # the same with pytest's own options; no floor then
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
FLOOR = TESTS / "planned-floor.txt"
ARTIFACTS = ROOT / "artifacts"


@dataclass(frozen=True, slots=True)
class Piece:
    """Folders or files whose tests run in one session, and about how long: the longest begins first."""

    seconds: int
    folders: tuple[str, ...]


_UNIT_ROOMS = (
    "bench",
    "cli",
    "cluster",
    "core",
    "engines",
    "formats",
    "kafka",
    "kernels",
    "stores",
    "testing",
)
_OTHER_ACCESSLOG_ROOMS = (
    "blocking",
    "events",
    "monitoring",
    "parsing",
    "reporting",
    "shipping",
    "simulation",
    "stream",
    "texts",
    "test_command_warmup.py",
)
#: All folders with tests; copy the seconds from the end of a run when they are far off.
PIECES = {
    "parity": Piece(365, ("parity",)),
    "spark-streams": Piece(465, ("spark/streams",)),
    "spark-apps": Piece(365, ("spark/apps",)),
    "spark-batch": Piece(
        430, ("spark/batch", "spark/columns", "spark/direct", "spark/sinks", "spark/test_python_processes.py")
    ),
    "unit-defence": Piece(
        170,
        tuple(f"unit/apps/accesslog/{room}" for room in ("defence", "detection", "evaluation", "first_look")),
    ),
    "unit-accesslog": Piece(150, tuple(f"unit/apps/accesslog/{room}" for room in _OTHER_ACCESSLOG_ROOMS)),
    "unit": Piece(210, tuple(f"unit/{room}" for room in _UNIT_ROOMS)),
    "broker-clients": Piece(370, ("broker/metadata", "broker/reading", "broker/transport", "broker/writing")),
    "broker-cluster": Piece(320, ("broker/accesslog", "broker/cluster")),
    "broker-groups": Piece(190, ("broker/console", "broker/groups")),
    "crash-streams": Piece(350, ("crash/streams",)),
    "crash-apps": Piece(290, ("crash/accesslog", "crash/direct")),
    "crash-sql": Piece(160, ("crash/sql",)),
    "sql-sink": Piece(265, ("sql/moves", "sql/sink")),
    "sql-servers": Piece(240, ("sql/accesslog", "sql/diagnosis", "sql/servers")),
    "docs": Piece(225, ("docs",)),
    "cluster": Piece(110, ("cluster",)),
    "contract": Piece(110, ("contract", "zookeeper")),
    "architecture": Piece(45, ("architecture",)),
}
#: The campaigns, which `make proof` runs.
NOT_HERE = ("proof",)
#: Sessions that run at the same time: two for each of two processors, because tests wait for servers.
AT_ONCE = 4
#: Without servers, these pieces are sessions of their own, and all others are one session.
_ALONE_WITHOUT_SERVERS = ("unit-defence", "unit-accesslog", "unit")
NEEDS_NO_SERVER = "not kafka and not spark and not sql and not zookeeper and not slow and not proof"
SESSION_TIMEOUT_S = 5000
_COUNTS = re.compile(r"^planned (\d+), executed (\d+), skipped (\d+)", re.MULTILINE)
_STATUS_EVERY_S = 60.0
#: What pytest returns when a choice leaves a session without tests.
_NO_TESTS = 5


def list_unplaced() -> list[str]:
    """Return the files with tests that belong to no piece, or to more than one."""
    placed = [TESTS / folder for piece in PIECES.values() for folder in piece.folders]
    placed += [TESTS / folder for folder in NOT_HERE]
    files = TESTS.rglob("test_*.py")
    return sorted(
        str(each.relative_to(TESTS)) for each in files if sum(map(each.is_relative_to, placed)) != 1
    )


def join_pieces(pieces: Mapping[str, Piece]) -> dict[str, Piece]:
    """Return the pieces with most of them joined: without servers they are too short for a session."""
    alone = {name: piece for name, piece in pieces.items() if name in _ALONE_WITHOUT_SERVERS}
    others = [folder for name, piece in pieces.items() if name not in alone for folder in piece.folders]
    return {**alone, "others": Piece(0, tuple(others))} if others else alone


def draw_seed() -> int:
    """Return a seed that is the same for the same tests, on any computer."""
    digest = hashlib.sha256()
    for path in sorted(TESTS.rglob("*.py")):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:4], "big")


class Run:
    """The sessions of one run, in the order in which they begin."""

    def __init__(
        self, pieces: Mapping[str, Piece], options: list[str], folder: Path, lint: subprocess.Popen[bytes]
    ) -> None:
        self.pieces, self._lint = pieces, lint
        self._waiting = sorted(pieces, key=lambda name: -pieces[name].seconds)
        self.logs = {name: folder / f"{name}.log" for name in self._waiting}
        self.times = {name: ARTIFACTS / f"test-durations-{name}.json" for name in self._waiting}
        self.codes: dict[str, int] = {}
        self._options, self._seed = options, draw_seed()
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def finish(self, at_once: int) -> None:
        """Run all, `at_once` at a time, and print their progress now and then; end them if lint fails."""
        told = time.monotonic()
        try:
            while self._waiting or self._running or self._lint.poll() is None:
                if self._lint.poll():
                    return
                for name, process in list(self._running.items()):
                    if process.poll() is not None:
                        self.codes[name] = self._running.pop(name).returncode
                while self._waiting and len(self._running) < at_once:
                    name = self._waiting.pop(0)
                    self._running[name] = self._start(name)
                time.sleep(0.5)
                if time.monotonic() - told >= _STATUS_EVERY_S:
                    told = time.monotonic()
                    self._tell_state()
        finally:
            for each in (self._lint, *self._running.values()):
                with contextlib.suppress(ProcessLookupError):
                    each.terminate()
                each.wait()

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        self.times[name].unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-m",
            "not proof",
            f"--session-timeout={SESSION_TIMEOUT_S}",
        ]
        command += [f"--randomly-seed={self._seed}", f"--durations-to={self.times[name]}"]
        with self.logs[name].open("wb") as output:
            return subprocess.Popen(
                [
                    *command,
                    "-p",
                    "no:cacheprovider",
                    *self._options,
                    *(f"tests/{folder}" for folder in self.pieces[name].folders),
                ],
                cwd=ROOT,
                env={**os.environ, "CI": "true"},  # a skip is a failure, on any computer
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _tell_state(self) -> None:
        for name in self._running:
            line = self.logs[name].read_text(errors="replace").rstrip().rpartition("\n")[2]
            print(f"[{name}] {line[-100:]}", flush=True)
        print(f"{len(self.codes)} of {len(self.logs)} sessions are over.", flush=True)


def tell_times(files: Mapping[str, Path], most: int = 15) -> list[str]:
    """Return where the time went: a line per session, for the slowest files, and for the slowest fixtures."""
    lines = []
    by_file: Counter[str] = Counter()
    by_fixture: Counter[str] = Counter()
    made: Counter[str] = Counter()
    for name, path in files.items():
        if not path.exists():  # the session did not end
            continue
        found = json.loads(path.read_text())
        for test, seconds in found["tests"].items():
            by_file[test.partition("::")[0]] += seconds
        for fixture, _, seconds in found["fixtures"]:
            by_fixture[fixture] += seconds
            made[fixture] += 1
        took, busy = sum(found["tests"].values()), sum(found["processor"].values())
        lines.append(f"session {name}: {took:.0f} seconds, {busy:.0f} of a processor")
    told = ", ".join(f"{file} {seconds:.0f}" for file, seconds in by_file.most_common(most))
    lines.append(f"slowest files, seconds: {told}")
    told = ", ".join(f"{each} {seconds:.0f} ({made[each]})" for each, seconds in by_fixture.most_common(most))
    lines.append(f"slowest fixtures, seconds (made how often): {told}")
    return lines


def conclude(run: Run, *, is_whole: bool) -> int:
    """Print everything, judge it, and return the exit code."""
    sums = [0, 0, 0]
    codes = dict(run.codes)
    for name, log in run.logs.items():
        text = log.read_text(errors="replace")
        print(f"\n==== session {name}: {' '.join(run.pieces[name].folders)} ====\n{text}")
        counts = _COUNTS.findall(text)
        if not counts:
            print(f"ACCOUNT: session {name} reported no counts")
            codes[name] = codes[name] or 1
            continue
        sums = [before + int(more) for before, more in zip(sums, counts[-1], strict=True)]
    print(*tell_times(run.times), sep="\n")
    print(f"planned {sums[0]}, executed {sums[1]}, skipped {sums[2]} in all")
    floor = int(FLOOR.read_text().split()[0])
    if is_whole and sums[0] < floor:
        print(f"ACCOUNT: {sums[0]} tests planned, the committed floor is {floor}")
        return 1
    good = (0,) if is_whole else (0, _NO_TESTS)
    failed = [name for name, code in codes.items() if code not in good]
    print(f"FAILED: {', '.join(failed)}" if failed else "All passed.", flush=True)
    return 1 if failed else 0


def main(arguments: list[str]) -> int:
    own, options = arguments, list[str]()
    if "--" in arguments:
        cut = arguments.index("--")
        own, options = arguments[:cut], arguments[cut + 1 :]
    parser = argparse.ArgumentParser(description="Runs all tests but the proofs.")
    parser.add_argument("pieces", nargs="*", metavar="PIECE", help=f"of {', '.join(PIECES)}; default all")
    parser.add_argument("--no-servers", action="store_true", help="only tests that need no server")
    parser.add_argument("--at-once", type=int, help="how many sessions run at the same time")
    parser.add_argument("--lint", action="store_true", help="also `make lint`, beside the tests")
    chosen = parser.parse_args(own)
    unknown = sorted({*chosen.pieces} - {*PIECES})
    if unknown:
        parser.error(f"there is no piece {', '.join(unknown)}")
    unplaced = list_unplaced()
    if unplaced:
        print(f"Tests in {', '.join(unplaced)} belong to no piece, or to two; see {Path(__file__).name}.")
        return 1
    pieces = {name: PIECES[name] for name in chosen.pieces or PIECES}
    if chosen.no_servers:
        options = ["-m", NEEDS_NO_SERVER, *options]
        pieces = join_pieces(pieces)
    began = time.monotonic()
    if not chosen.no_servers:
        subprocess.run([sys.executable, "-m", "tests.support.quick_jvm"], cwd=ROOT, check=True)
    lint = subprocess.Popen(["make", "--no-print-directory", "lint"] if chosen.lint else ["true"], cwd=ROOT)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(pieces, options, Path(folder), lint)
        run.finish(chosen.at_once or AT_ONCE)
        if lint.returncode:
            print("FAILED: lint", flush=True)
            return 1
        code = conclude(run, is_whole=not chosen.pieces and not options)
    print(f"{(time.monotonic() - began) / 60:.1f} minutes in all.")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
