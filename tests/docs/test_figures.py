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


def load(name: str) -> dict[str, Any]:
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


#: A row of README about the application: the side, its words.
LOG_ROWS = {
    "penstock": "Penstock: parsed, counted, judged, committed to SQLite",
    "tuned": "the counting alone, with Spark's own connector, tuned, and `regexp_extract`",
    "default": "the same with the connector's defaults",
    "goaccess": "GoAccess, one process, from a file",
}


def test_a_million_log_lines_take_as_long_as_told() -> None:
    text, samples = (ROOT / "README.md").read_text(), load("accesslog")["throughput"]
    mine = median(samples["penstock"])
    for side, words in LOG_ROWS.items():
        taken = samples[side]
        spread = f"{min(taken):.1f} to {max(taken):.1f}"
        assert f"| {words} | {median(taken) / mine:.1f} | {median(taken):.1f} s | {spread} |" in text


def test_how_soon_it_blocks_is_told_as_measured() -> None:
    text, measured = _read_unwrapped(), load("accesslog")["latency"]
    seconds = sorted(measured["seconds"])
    half, most = seconds[len(seconds) // 2], seconds[int(len(seconds) * 0.95)]
    told = f"{half:.1f} s in the middle, {most:.1f} s at the 95th percentile, {seconds[-1]:.1f} s at most"
    assert f"{told} ({len(seconds):,} bans)" in text


def test_what_a_flood_does_is_told_as_measured() -> None:
    text, moments = _read_unwrapped(), load("accesslog")["flood"]["moments"]
    half = len(moments) // 2
    assert f"never behind by more than {max(each['lag'] for each in moments):,.0f} lines" in text
    assert moments[-1]["lag"] == 0
    for kind, words in (("python_mib", "Python's processes"), ("jvm_mib", "the JVM")):
        first, second = (max(each[kind] for each in part) for part in (moments[:half], moments[half:]))
        assert (
            f"{words} held at most {first:,.0f} MiB in the first half and {second:,.0f} in the second" in text
        )


def test_how_many_attackers_are_found_is_told_as_measured() -> None:
    text, goals = _read_unwrapped(), load("accesslog")["goals"]
    told = (
        f"finds {100 * goals['recall']:.0f} % of the attackers, "
        f"is right about {100 * goals['precision']:.1f} % of those it blocks, "
        f"hits {goals['benign_hit']} of {goals['benign']:,} other clients, and "
        f"{100 * goals['blocked']:.0f} % of the attackers' requests come after their detection"
    )
    assert told in text


def _read_unwrapped() -> str:
    return " ".join((ROOT / "README.md").read_text().split())
