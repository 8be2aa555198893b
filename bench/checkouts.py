"""Compares two checkouts side by side, to show whether a change has cost speed.

    git worktree add ../before some-commit && make -C ../before setup
    python -m bench.checkouts ../before                            # the cases below
    python -m bench.checkouts ../before read all-100 --rounds 5    # one benchmark, some of its cases
    python -m bench.checkouts ../before --save docs/proof/bench-checkouts.json

Each round runs a benchmark in one checkout and then in the other, each with its own `.venv`, so both meet the
same disturbances. Sides that are not ours run, too: they are the same program in both checkouts, so the
difference of their ratio from 1 is the noise.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from bench.sampling import Samples, describe_machine, save
from penstock.cli.shared.progress_bar import COMPLETE, ProgressBar

HERE = Path(__file__).parents[1]
CASES = {
    "read": ["all-100", "value-100"],
    "stream": ["available-now", "trickle-4"],
    "direct": ["bulk", "keys"],
    "accesslog": ["throughput"],
}
Key = tuple[str, str, str]


def run(checkout: Path, name: str, cases: list[str], runs: int) -> Iterator[tuple[Key, list[float]]]:
    """Run one benchmark in a checkout and yield the samples of each side of each case."""
    with tempfile.TemporaryDirectory() as folder:
        saved, log = Path(folder) / "results.json", Path(folder) / "log"
        with log.open("wb") as output:
            done = subprocess.run(
                [
                    ".venv/bin/python",
                    "-m",
                    f"bench.{name}",
                    *cases,
                    "--runs",
                    str(runs),
                    "--save",
                    str(saved),
                ],
                cwd=checkout,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if done.returncode != 0:
            raise SystemExit(f"bench.{name} failed in {checkout}:\n{log.read_text()[-3000:]}")
        for case, sides in json.loads(saved.read_text())["results"].items():
            for side, samples in sides.items():
                if isinstance(samples, list) and all(isinstance(each, float) for each in samples):
                    yield (name, case, side), samples


def compare() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("name", nargs="?", choices=CASES, help="one benchmark; default all of these")
    parser.add_argument("cases", nargs="*", help="some of its cases")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=3, help="of each side in a round")
    parser.add_argument("--save", type=Path)
    given = parser.parse_args()
    wanted = {given.name: given.cases or CASES[given.name]} if given.name else CASES
    machine = describe_machine(())
    found: dict[str, dict[Key, list[float]]] = {"before": defaultdict(list), "after": defaultdict(list)}
    checkouts = {"before": given.before.resolve(), "after": HERE}
    progress, turns = ProgressBar("Benchmarks"), 2 * given.rounds * len(wanted)
    for turn in range(turns):
        name = list(wanted)[turn // (2 * given.rounds)]
        which = ("before", "after")[turn % 2]
        progress(turn, turns, f"{name} {which}")
        for key, samples in run(checkouts[which], name, wanted[name], given.runs):
            found[which][key] += samples
    progress(turns, turns, COMPLETE)
    results: dict[str, dict[str, list[float]]] = {}
    for key in found["before"].keys() & found["after"].keys():
        results[" ".join(key)] = {which: found[which][key] for which in checkouts}
    for title, sides in sorted(results.items()):
        before, after = (Samples(tuple(sides[which])) for which in checkouts)
        print(f"\n== {title}\n  before {before}\n  after  {after}")
        print(f"  after / before = {after.median / before.median:.2f}")
    if given.save:
        save(given.save, machine, results)


if __name__ == "__main__":
    compare()
