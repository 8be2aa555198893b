"""Runs all tests but the proofs, in sessions of pytest side by side, and adds up what they ran.

Rule: each folder of tests belongs to one session; one that has no measured seconds here, or fewer tests than
the committed floor, fails the run, like any skip. Why sessions: most tests wait for servers, not for a
processor, so three sessions on two cores take little more time each than one would alone. Why by folder and
not test by test: the servers that tests share are started once in a session. The measured seconds of the
folders decide which go together, so that all sessions end at about the same time.

The order within a session is shuffled, by a seed taken from the tests themselves: a run that failed here for
its order fails there too, and each change of a test tries another order.

A run ends with a table of where the time went; every single second is in `artifacts/test-durations-*.json`.

    python tools/run_tests.py                  # what `make test` does
    python tools/run_tests.py -k ticks         # the same with pytest's own options; no floor then
"""

from __future__ import annotations

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
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
FLOOR = TESTS / "planned-floor.txt"
ARTIFACTS = ROOT / "artifacts"
#: What each folder took in a whole run. Take them over from the end of a run when they are far off.
SECONDS = {
    "spark": 1050,
    "broker": 790,
    "crash": 745,
    "unit": 525,
    "sql": 440,
    "docs": 415,
    "parity": 310,
    "cluster": 280,
    "contract": 90,
    "architecture": 40,
    "zookeeper": 16,
}
SESSION_NAMES = ("first", "second", "third")
#: Campaigns, which `make proof` runs.
NOT_HERE = ("proof",)
SESSION_TIMEOUT_S = 5000
_COUNTS = re.compile(r"^planned (\d+), executed (\d+), skipped (\d+)", re.MULTILINE)
_STATUS_EVERY_S = 60.0


def share_out(seconds: Mapping[str, int], names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """The folders of each session: the longest first, each to the session that has least to do so far."""
    sessions: dict[str, list[str]] = {name: [] for name in names}
    for folder in sorted(seconds, key=lambda each: (-seconds[each], each)):
        least = min(names, key=lambda name: sum(seconds[each] for each in sessions[name]))
        sessions[least].append(folder)
    return {name: tuple(sorted(folders)) for name, folders in sessions.items()}


SESSIONS = share_out(SECONDS, SESSION_NAMES)


def list_unplaced() -> list[str]:
    """Folders with tests that no session has."""
    placed = {*SECONDS, *NOT_HERE}
    return sorted({path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py")} - placed)


def draw_seed() -> int:
    """The same for the same tests, on any computer."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "tests").rglob("*.py")):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:4], "big")


def start(folders: tuple[str, ...], options: list[str], log: Path, times: Path) -> subprocess.Popen[bytes]:
    places = [f"tests/{each}" for each in folders]
    command = [sys.executable, "-m", "pytest", "-m", "not proof", f"--session-timeout={SESSION_TIMEOUT_S}"]
    command += [f"--randomly-seed={draw_seed()}", f"--durations-to={times}"]
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
    subprocess.run([sys.executable, "-m", "tests.support.quick_jvm"], cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory() as folder:
        logs = {name: Path(folder) / f"{name}.log" for name in SESSIONS}
        times = {name: ARTIFACTS / f"test-durations-{name}.json" for name in SESSIONS}
        for each in times.values():
            each.unlink(missing_ok=True)
        running = {
            name: start(folders, options, logs[name], times[name]) for name, folders in SESSIONS.items()
        }
        try:
            wait(running, logs)
        finally:
            for each in running.values():
                with contextlib.suppress(ProcessLookupError):
                    each.terminate()
                each.wait()
        codes = {name: each.returncode for name, each in running.items()}
        return conclude(codes, logs, times, options)


def tell_times(files: Mapping[str, Path], most: int = 15) -> list[str]:
    """Where the time went: a line per session, for the slowest files, and for the slowest fixtures."""
    lines = []
    by_file: Counter[str] = Counter()
    by_fixture: Counter[str] = Counter()
    made: Counter[str] = Counter()
    for name, path in files.items():
        if not path.exists():  # the session came to no end
            continue
        found = json.loads(path.read_text())
        by_folder: Counter[str] = Counter()
        for test, seconds in found["tests"].items():
            by_folder[test.split("/")[1]] += seconds
            by_file[test.partition("::")[0]] += seconds
        for fixture, _, seconds in found["fixtures"]:
            by_fixture[fixture] += seconds
            made[fixture] += 1
        told = ", ".join(f"{folder} {seconds:.0f}" for folder, seconds in by_folder.most_common())
        lines.append(f"session {name}, {by_folder.total():.0f} seconds: {told}")
    told = ", ".join(f"{file} {seconds:.0f}" for file, seconds in by_file.most_common(most))
    lines.append(f"slowest files, seconds: {told}")
    told = ", ".join(f"{each} {seconds:.0f} ({made[each]})" for each, seconds in by_fixture.most_common(most))
    lines.append(f"slowest fixtures, seconds (made how often): {told}")
    return lines


def conclude(
    codes: dict[str, int], logs: dict[str, Path], times: Mapping[str, Path], options: list[str]
) -> int:
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
    print(*tell_times(times), sep="\n")
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
