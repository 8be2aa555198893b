"""What README says of direct streams and SQL sinks is what the recorded samples give."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
Samples = dict[str, list[float]]

#: A row of README: its words, where its samples are, our side, and the peers' in the order of the columns.
ROWS = [
    (
        "5 M records of 100 B through a direct stream, all columns",
        "direct",
        "bulk",
        "direct",
        ("default", "tuned"),
    ),
    (
        "5 M records of 100 B counted per key in a fused stage",
        "direct",
        "keys",
        "direct",
        ("default", "tuned"),
    ),
    (
        "A batch of a few records from 4 partitions, offsets in SQLite",
        "direct",
        "tiny",
        "direct",
        ("default", "no wait"),
    ),
    ("PostgreSQL, a batch of a running stream", "sql", "postgres", "penstock", ("jdbc", "jdbc rewriting")),
    ("PostgreSQL, a stream's first batch", "sql", "postgres", "first batch", ("jdbc", "jdbc rewriting")),
    ("MariaDB, a batch of a running stream", "sql", "mariadb", "penstock", ("jdbc", "jdbc rewriting")),
    ("MariaDB, a stream's first batch", "sql", "mariadb", "first batch", ("jdbc", "jdbc rewriting")),
    ("SQLite, a batch of a running stream", "sql", "sqlite", "penstock", ()),
]
STORES = {"file": "a file", "sqlite": "SQLite", "kafka": "a Kafka group", "checkpoint": "Spark's checkpoint"}


def load(name: str) -> dict[str, Samples]:
    recorded: dict[str, Any] = json.loads((ROOT / "docs" / "proof" / f"bench-{name}.json").read_text())
    return dict(recorded["results"])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_figure_is_the_median_of_its_samples(row: tuple[str, str, str, str, tuple[str, ...]]) -> None:
    words, name, case, ours, peers = row
    samples = load(name)[case]
    mine = median(samples[ours])
    ratios = [_show(median(samples[peer]) / mine) for peer in peers] or ["-", "-"]
    shown = f"{mine:.2f} s"
    assert f"| {words} | {' | '.join([*ratios, shown])} |" in (ROOT / "README.md").read_text()


def test_what_it_costs_to_keep_offsets_is_told_as_measured() -> None:
    """D40: a checkpoint beside each store: milliseconds of a tiny batch, and its share of it."""
    text, samples = (ROOT / "README.md").read_text(), load("direct")["stores"]
    for side, words in STORES.items():
        whole, storing = median(samples[side]), median(samples[f"{side}, storing"])
        assert f"| {words} | {1000 * storing:.0f} ms | {100 * storing / whole:.0f} % |" in text


def _show(ratio: float) -> str:
    """Where we lose is set off."""
    return f"{ratio:.1f}" if ratio >= 1 else f"**{ratio:.2f}**"
