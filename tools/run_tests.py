"""Runs all tests but the proofs, in two sessions of pytest side by side, and adds up what they ran.

Rule: each folder of tests belongs to one session; one that belongs to none, or fewer tests than the committed
floor, fails the run, like any skip. Why two sessions: most tests wait for servers, not for a processor; the
tests with Spark alone and then all others took nearly twice as long on two cores. Why by folder and not test
by test: the servers that tests share are started once in a session.

The order within a session is shuffled, by a seed taken from the tests themselves: a run that failed here for
its order fails there too, and each change of a test tries another order.

    python tools/run_tests.py                  # what `make test` does
    python tools/run_tests.py -k ticks         # the same with pytest's own options; no floor then
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
FLOOR = TESTS / "planned-floor.txt"
SESSIONS = {
    "first": (
        "architecture",
        "broker",
        "cluster",
        "contract",
        "docs",
        "golden",
        "parity",
        "unit",
        "zookeeper",
    ),
    "second": ("crash", "spark", "sql"),
}
#: Campaigns, which `make proof` runs.
NOT_HERE = ("proof",)
SESSION_TIMEOUT_S = 5000
_COUNTS = re.compile(r"^planned (\d+), executed (\d+), skipped (\d+)", re.MULTILINE)
_STATUS_EVERY_S = 60.0


def list_unplaced() -> list[str]:
    """Folders with tests that no session has."""
    placed = {name for folders in SESSIONS.values() for name in folders} | set(NOT_HERE)
    return sorted({path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py")} - placed)


def draw_seed() -> int:
    """The same for the same tests, on any computer."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "tests").rglob("*.py")):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:4], "big")


def start(folders: tuple[str, ...], options: list[str], log: Path) -> subprocess.Popen[bytes]:
    places = [f"tests/{each}" for each in folders]
    command = [sys.executable, "-m", "pytest", "-m", "not proof", f"--session-timeout={SESSION_TIMEOUT_S}"]
    command.append(f"--randomly-seed={draw_seed()}")
    with log.open("wb") as output:
        return subprocess.Popen(
            [*command, "-p", "no:cacheprovider", *options, *places],
            cwd=ROOT,
            env={**os.environ, "CI": "true"},  # a skip is a failure, on any computer
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def wait(running: dict[str, subprocess.Popen[bytes]], logs: dict[str, Path]) -> None:
    """Until all are over; says now and then how far they are."""
    told = time.monotonic()
    while any(each.poll() is None for each in running.values()):
        time.sleep(1)
        if time.monotonic() - told >= _STATUS_EVERY_S:
            told = time.monotonic()
            lines = {
                name: log.read_text(errors="replace").rstrip().rpartition("\n")[2]
                for name, log in logs.items()
            }
            for name, line in lines.items():
                print(f"[{name}] {line[-100:]}", flush=True)


def main(options: list[str]) -> int:
    unplaced = list_unplaced()
    if unplaced:
        print(f"Tests in {', '.join(unplaced)} belong to no session; add them to {Path(__file__).name}.")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        logs = {name: Path(folder) / f"{name}.log" for name in SESSIONS}
        running = {name: start(folders, options, logs[name]) for name, folders in SESSIONS.items()}
        try:
            wait(running, logs)
        finally:
            for each in running.values():
                with contextlib.suppress(ProcessLookupError):
                    each.terminate()
                each.wait()
        return conclude({name: each.returncode for name, each in running.items()}, logs, options)


def conclude(codes: dict[str, int], logs: dict[str, Path], options: list[str]) -> int:
    """Print everything and judge it."""
    sums = [0, 0, 0]
    for name, log in logs.items():
        text = log.read_text(errors="replace")
        print(f"\n==== session {name}: {' '.join(SESSIONS[name])} ====\n{text}")
        counts = _COUNTS.findall(text)
        if not counts:
            print(f"ACCOUNT: session {name} told no counts")
            codes[name] = codes[name] or 1
            continue
        sums = [before + int(more) for before, more in zip(sums, counts[-1], strict=True)]
    print(f"planned {sums[0]}, executed {sums[1]}, skipped {sums[2]} in all")
    floor = int(FLOOR.read_text().split()[0])
    if not options and sums[0] < floor:
        print(f"ACCOUNT: {sums[0]} tests planned, the committed floor is {floor}")
        return 1
    nothing_chosen = 5 if options else 0  # pytest's code when a choice leaves a session without tests
    failed = [name for name, code in codes.items() if code not in (0, nothing_chosen)]
    print(f"FAILED: {', '.join(failed)}" if failed else "All passed.", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
