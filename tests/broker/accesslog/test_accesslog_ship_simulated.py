"""Simulated servers on a real broker: writing directly into a topic, or through files and shippers."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main
from tests.conftest import MakeTopic
from tests.support.kafka.librdkafka import read_partition


def test_a_simulation_writes_to_a_topic_as_it_happens(
    kafka: Any, topic: MakeTopic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic(2)
    words = ["--rate", "300", "--seconds", "3", "--topic", name, "--bootstrap-server", kafka.bootstrap]
    assert main(["accesslog", "simulate", *words, "--truth", str(tmp_path / "truth.csv")]) == 0
    rows = [row for part in range(2) for row in read_partition(kafka.bootstrap, name, part)]
    assert capsys.readouterr().out.startswith(f"{len(rows)} lines in ")
    assert {row.headers for row in rows} == {(("server", f"web{n}".encode()),) for n in (1, 2, 3)}
    with (tmp_path / "truth.csv").open() as file:
        truth = {row["client"]: int(row["requests"]) for row in csv.DictReader(file)}
    keys = Counter((row.key or b"").decode() for row in rows)
    assert sum((keys - Counter(truth)).values()) <= 0.02 * len(rows), "but for broken lines"
    assert sum((Counter(truth) - keys).values()) == 0


def test_files_of_simulated_servers_arrive_whole_through_their_shippers(
    kafka: Any, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(2)
    out = str(tmp_path / "{server}.log")
    assert main(["accesslog", "simulate", "--rate", "2000", "--seconds", "5", "--fast", "--out", out]) == 0
    for number in (1, 2, 3):
        words = [str(tmp_path / f"web{number}.log"), "--once", "--server", f"web{number}"]
        words += ["--topic", name, "--bootstrap-server", kafka.bootstrap]
        assert main(["accesslog", "ship", *words]) == 0
    rows = [row for part in range(2) for row in read_partition(kafka.bootstrap, name, part, committed=True)]
    for number in (1, 2, 3):
        header = (("server", f"web{number}".encode()),)
        shipped = Counter(row.value for row in rows if row.headers == header)
        assert shipped == Counter((tmp_path / f"web{number}.log").read_bytes().split(b"\n")[:-1])


def test_a_topic_that_is_not_there_is_told(kafka: Any, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--topic", "there-is-none", "--bootstrap-server", kafka.bootstrap]
    assert main(["accesslog", "simulate", *words]) == 1
    assert "[UNKNOWN_TOPIC]" in capsys.readouterr().err
