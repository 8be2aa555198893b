"""Takes samples for figures: sides take turns, the median of several runs counts, every sample is printed.

Rule: a figure is a ratio to the peer in one run on one machine. Absolute seconds depend on the machine and on
what else it does, while taking turns exposes both sides to the same disturbances.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True)
class Samples:
    """The seconds that one side took, in the order of its runs."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def __str__(self) -> str:
        raw = " ".join(f"{each:.2f}" for each in self.seconds)
        return f"{self.median:6.2f} s  [{min(self.seconds):.2f}..{max(self.seconds):.2f}]  ({raw})"


def take_turns(
    sides: Mapping[str, Callable[[], object]], *, runs: int, warmups: int = 1
) -> dict[str, Samples]:
    """Run every side in turns, as often as asked, and return the samples; warm-up rounds are not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(warmups + runs):
        for name, run in sides.items():
            began = time.perf_counter()
            run()
            if turn >= warmups:
                seconds[name].append(time.perf_counter() - began)
    return {name: Samples(tuple(values)) for name, values in seconds.items()}


def describe_machine(packages: Sequence[str]) -> dict[str, str]:
    """Return what the figures were taken on, without names or paths of the machine."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    return {
        "processor": model,
        "cores": str(os.cpu_count()),
        "memory": f"{memory_kb / 1048576:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "java": java.splitlines()[0].replace('"', "") if java else "none",
        "commit": _commit(),
        **{name: metadata.version(name) for name in packages},
    }


def _commit() -> str:
    answer = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return answer.stdout.strip() or "unknown"


def print_ratios(case: str, samples: Mapping[str, Samples], ours: str, goals: Mapping[str, float]) -> None:
    """Print one case: every side's samples, then how many times as long each peer takes, against its goal."""
    print(f"\n== {case}")
    for name, each in samples.items():
        print(f"  {name:<18} {each}")
    for name, each in samples.items():
        if name == ours:
            continue
        ratio = each.median / samples[ours].median
        goal = goals.get(name)
        verdict = "" if goal is None else f"  goal {goal:g}: {'met' if ratio >= goal else 'MISSED'}"
        print(f"  {name} / {ours} = {ratio:.2f}{verdict}")
    sys.stdout.flush()


def save(path: Path, machine: Mapping[str, str], results: Mapping[str, object]) -> None:
    """Save a run as data."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")
