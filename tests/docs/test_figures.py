"""README and the page of figures agree with the recorded samples."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
Samples = dict[str, list[float]]

PAGE = (ROOT / "docs" / "figures.md").read_text()
README = (ROOT / "README.md").read_text()
READ = ("penstock", ("default", "tuned"))
TRICKLE = ("penstock", ("default", "no wait"))

#: A row of the page: its words, where its samples are, our side, and the peers' in the order of the columns.
ROWS = [
    ("5 M records of 100 B, all columns", "read", "all-100", *READ),
    ("5 M records of 100 B, value only (`columns`)", "read", "value-100", *READ),
    ("5 M records of 100 B, lz4", "read", "lz4-100", *READ),
    ("5 M records of 100 B, zstd", "read", "zstd-100", *READ),
    ("5 M records of 100 B, snappy", "read", "snappy-100", *READ),
    ("5 M records of 100 B, gzip", "read", "gzip-100", *READ),
    ("5 M records of 10 B", "read", "all-10", *READ),
    ("1 M records of 1 kB", "read", "all-1k", *READ),
    ("1,000 records of 1 MiB", "read", "all-1m", *READ),
    ("2 M records of 100 B with two headers each", "read", "headers-100", *READ),
    ("2 M records of 100 B over TLS", "read", "tls", *READ),
    ("2 M records of 100 B from three brokers", "read", "three-brokers", *READ),
    ("5 M records of 100 B, `groupBy` and count", "read", "group-by", *READ),
    ("5 M records of 100 B into Parquet", "read", "parquet", *READ),
    ("The same with 4 partitions", "stream", "trickle-4", *TRICKLE),
    (
        "5 M JSON documents to typed columns, grouped (`valueFormat` against `from_json`)",
        "stream",
        "json",
        *READ,
    ),
    (
        "`availableNow` over 5 M records of 100 B: from `start()` to the end",
        "stream",
        "available-now",
        *READ,
    ),
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


#: The summary in README: rows of the page, and the two that come from other samples.
SUMMARY = {
    "Read 5 M records of 100 B, all columns": ("read", "all-100", *READ),
    "5 M JSON documents to typed columns, grouped": ("stream", "json", *READ),
    "A micro-batch with a few records from 200 partitions": (
        "stream",
        "trickle-200",
        "penstock",
        ("cache 64", "256, no wait"),
    ),
    "`availableNow` over 5 M records, from `start()` to the end": ("stream", "available-now", *READ),
}


def show_row(words: str, name: str, case: str, ours: str, peers: tuple[str, ...]) -> str:
    samples = load(name)[case]
    mine = median(samples[ours])
    ratios = [_show(median(samples[peer]) / mine) for peer in peers] or ["-", "-"]
    return f"| {words} | {' | '.join([*ratios, f'{mine:.2f} s'])} |"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_figure_is_the_median_of_its_samples(row: tuple[str, str, str, str, tuple[str, ...]]) -> None:
    assert show_row(*row) in PAGE


@pytest.mark.parametrize("words", SUMMARY)
def test_the_summary_in_readme_is_the_median_of_its_samples(words: str) -> None:
    assert show_row(words, *SUMMARY[words]) in README


def test_the_first_query_of_a_process_takes_as_long_as_told() -> None:
    """We are slower there, and both pages say so."""
    taken = {side: median(seconds) for side, seconds in load("first-query").items()}
    lost = _show(taken["default"] / taken["warm"])
    assert f"| The first query of a process | {lost} | | {taken['warm']:.1f} s |" in README
    text = " ".join(PAGE.split())
    assert f"takes {taken['warm']:.1f} s with compiled kernels and {taken['cold']:.1f} s without" in text
    assert f"Spark's own connector takes {taken['default']:.1f} s" in text
    assert f"there can be takes {taken['python floor']:.1f} s" in text


def test_every_row_of_the_summary_is_held_against_samples() -> None:
    table = README.partition("| Spark's connector takes")[2].partition("\n\n")[0]
    rows = [line for line in table.splitlines()[2:] if line.startswith("|")]
    assert len(rows) == len(SUMMARY) + 1


def test_a_trickle_and_its_latency_are_told_as_measured() -> None:
    trickle, latency = load("stream")["trickle-200"], load("stream")["latency"]
    mine = median(trickle["penstock"])
    usual, pooled, tuned = (
        _show(median(trickle[each]) / mine) for each in ("cache 64", "cache 256", "256, no wait")
    )
    words = "A micro-batch, a record every 0.1 s into each of 200 partitions"
    assert f"| {words} | {usual} ({pooled} with a pool for all consumers) | {tuned} | {mine:.2f} s |" in PAGE
    sink = "From a record's time to a `foreachBatch` sink, 1,000 records/s: p50"
    for words, share in ((sink, "p50"), ("the same, p99", "p99")):
        mine = median(latency["penstock"][share])
        peers = [_show(median(latency[peer][share]) / mine) for peer in ("default", "no wait")]
        assert f"| {words} | {' | '.join(peers)} | {mine:.2f} s |" in PAGE


def test_what_it_costs_to_keep_offsets_is_told_as_measured() -> None:
    """D40: a checkpoint and each store: milliseconds of storing in a tiny batch, and its share."""
    samples = load("direct")["stores"]
    for side, words in STORES.items():
        whole, storing = median(samples[side]), median(samples[f"{side}, storing"])
        assert f"| {words} | {1000 * storing:.0f} ms | {100 * storing / whole:.0f} % |" in PAGE


def _show(ratio: float) -> str:
    """Return the ratio as text, in bold where we are slower."""
    return f"{ratio:.1f}" if ratio >= 1 else f"**{ratio:.2f}**"


#: A row about the application: the side, and its words.
LOG_ROWS = {
    "penstock": "Penstock: parsed, counted, judged, committed to SQLite",
    "tuned": "the counting alone, with Spark's own connector, tuned, and `regexp_extract`",
    "default": "the same with the connector's defaults",
    "goaccess": "GoAccess, one process, from a file",
}


def test_a_million_log_lines_take_as_long_as_told() -> None:
    samples = load("accesslog")["throughput"]
    mine = median(samples["penstock"])
    for side, words in LOG_ROWS.items():
        taken = samples[side]
        spread = f"{min(taken):.1f} to {max(taken):.1f}"
        assert f"| {words} | {median(taken) / mine:.1f} | {median(taken):.1f} s | {spread} |" in PAGE


def test_how_soon_it_blocks_is_told_as_measured() -> None:
    text, measured = " ".join(PAGE.split()), load("accesslog")["latency"]
    seconds = sorted(measured["seconds"])
    half, most = seconds[len(seconds) // 2], seconds[int(len(seconds) * 0.95)]
    told = f"{half:.1f} s in the middle, {most:.1f} s at the 95th percentile, {seconds[-1]:.1f} s at most"
    assert f"{told} ({len(seconds):,} bans)" in text


def test_what_a_flood_does_is_told_as_measured() -> None:
    text, moments = " ".join(PAGE.split()), load("accesslog")["flood"]["moments"]
    half = len(moments) // 2
    assert f"never behind by more than {max(each['lag'] for each in moments):,.0f} lines" in text
    assert moments[-1]["lag"] == 0
    for kind, words in (("python_mib", "Python's processes"), ("jvm_mib", "the JVM")):
        first, second = (max(each[kind] for each in part) for part in (moments[:half], moments[half:]))
        assert (
            f"{words} held at most {first:,.0f} MiB in the first half and {second:,.0f} in the second" in text
        )


def test_how_many_attackers_are_found_is_told_as_measured() -> None:
    text, goals = " ".join(PAGE.split()), load("accesslog")["goals"]
    told = (
        f"finds {100 * goals['recall']:.0f} % of the attackers, "
        f"is right about {100 * goals['precision']:.1f} % of those it blocks, "
        f"hits {goals['benign_hit']} of {goals['benign']:,} other clients, and "
        f"{100 * goals['blocked']:.0f} % of the attackers' requests come after their detection"
    )
    assert told in text
