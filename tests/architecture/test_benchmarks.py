"""`make bench` runs every benchmark that there is, and its list names no other."""

from __future__ import annotations

import ast
from pathlib import Path

from bench.__main__ import BENCHMARKS

ROOT = Path(__file__).parents[2]


def test_make_bench_runs_the_one_list() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\nbench:")[2].partition("\n\n")[0]
    commands = [line.strip() for line in recipe.splitlines()[1:]]
    assert commands == ["$(PY) -m bench </dev/null"]


def test_every_benchmark_is_on_the_list() -> None:
    """A benchmark has a function `main`; a module that only supports benchmarks has none."""
    found = []
    for path in sorted((ROOT / "bench").glob("*.py")):
        tree = ast.parse(path.read_text())
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        if "main" in names and not path.stem.startswith("__"):
            found.append(path.stem)
    assert sorted(BENCHMARKS) == found
