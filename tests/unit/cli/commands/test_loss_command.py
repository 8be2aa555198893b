"""`penstock loss`: what it prints, for people and for programs, and that it never creates anything."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.core.losses.loss_ranges import Loss
from penstock.stores.loss_ledger import open_loss_ledger

AGED = Loss("START_OFFSET_RESET", "visits", 0, 5, 800, b"\x01" * 16, "Retention removed them.")
GONE = Loss("PARTITIONS_DELETED", "visits", 1, 7, 7)
OTHER = Loss("LOG_TRUNCATED", "orders", 0, 10, 12)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "losses.db"
    kept = open_loss_ledger(path)
    kept.record([AGED, OTHER], seen_ms=1_700_000_000_000, stream="counting")
    kept.record([GONE], seen_ms=time.time_ns() // 1_000_000)
    kept.record([AGED], seen_ms=1_700_000_060_000, stream="counting")
    return path


def test_the_tables_tell_sums_then_each_range_with_its_reason(
    ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["loss", "--at", str(ledger)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["topic", "offsets", "lost", "ranges", "without", "end"],
        ["orders", "2", "1", "0"],
        ["visits", "795", "2", "1"],
    ]
    aged = next(line for line in lines if line.startswith("visits-0")).split()
    assert aged[:4] == ["visits-0", "5", "800", "795"]
    assert " ".join(aged[4:8]) == "2023-11-14 22:13:20Z 2023-11-14 22:14:20Z"
    assert aged[8:] == ["2", "counting", "START_OFFSET_RESET"]
    assert lines[lines.index(next(x for x in lines if x.startswith("visits-0"))) + 1].strip() == AGED.detail
    gone = next(line for line in lines if line.startswith("visits-1")).split()
    assert gone[1:4] == ["7", "?", "?"]


def test_the_json_form_holds_every_field(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["loss", "--at", str(ledger), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["version"] == 1
    assert told["topics"][1] == {"topic": "visits", "offsets": 795, "ranges": 2, "open_ends": 1}
    assert [(each["topic"], each["start"], each["until"]) for each in told["losses"]] == [
        ("orders", 10, 12),
        ("visits", 5, 800),
        ("visits", 7, None),
    ]
    assert told["losses"][1] == {
        "topic": "visits",
        "partition": 0,
        "start": 5,
        "until": 800,
        "condition": "START_OFFSET_RESET",
        "detail": "Retention removed them.",
        "topic_id": "01" * 16,
        "stream": "counting",
        "first_seen_ms": 1_700_000_000_000,
        "last_seen_ms": 1_700_000_060_000,
        "times": 2,
    }


@pytest.mark.parametrize(
    ("arguments", "topics"),
    [
        (["--topic", "orders"], ["orders"]),
        (["--since", "1h"], ["visits"]),
        (["--since", "2023-11-14T22:14:20Z"], ["visits", "visits"]),
        (["--since", "1700000060000", "--topic", "orders"], []),
    ],
)
def test_topic_and_time_choose(
    ledger: Path, arguments: list[str], topics: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["loss", "--at", str(ledger), "--json", *arguments]) == 0
    assert [each["topic"] for each in json.loads(capsys.readouterr().out)["losses"]] == topics


def test_nothing_lost_is_said_and_ends_with_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_loss_ledger(tmp_path / "empty.db")
    assert main(["loss", "--at", str(tmp_path / "empty.db")]) == 0
    assert capsys.readouterr().out == f"No losses recorded at {tmp_path}/empty.db.\n"


def test_a_ledger_that_is_not_there_is_an_error_and_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["loss", "--at", str(tmp_path / "none.db")]) == 1
    assert capsys.readouterr().err.startswith("[DATABASE_NOT_FOUND] ")
    assert list(tmp_path.iterdir()) == []


def test_the_place_may_be_named_by_a_variable(
    ledger: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOSS_LEDGER", str(ledger))
    assert main(["loss", "--at", "${env:LOSS_LEDGER}", "--topic", "orders"]) == 0
    assert "LOG_TRUNCATED" in capsys.readouterr().out


def test_a_password_in_the_place_is_never_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """S12: not even when the address leads nowhere."""
    assert main(["loss", "--at", "mysql://me:hunter2@127.0.0.1:1/stats"]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("[DATABASE_UNREACHABLE] mysql://me@127.0.0.1:1/stats ")
    assert "hunter2" not in printed.err + printed.out


@pytest.mark.parametrize("since", ["yesterday", "2026-01-31T12:00:00", "+1h", ""])
def test_a_time_that_is_none_is_wrong_usage(
    ledger: Path, since: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["loss", "--at", str(ledger), f"--since={since}"]) == 2
    assert "is not a length of time ago" in capsys.readouterr().err


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_no_text_from_the_ledger_can_move_the_cursor_or_forge_a_line(
    form: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S33: topic, reason, detail and stream come from outside."""
    hostile = "x\x1b[31m\r\x07\u202e\u2028forged"
    ledger = open_loss_ledger(tmp_path / "losses.db")
    ledger.record([Loss(hostile, hostile, 0, 1, 2, None, hostile)], seen_ms=1, stream=hostile)
    assert main(["loss", "--at", str(tmp_path / "losses.db"), *form]) == 0
    assert not {"\x1b", "\r", "\x07", "\u202e", "\u2028"} & set(capsys.readouterr().out)
