"""Simulated traffic: the same for the same seed, as much as requested, and with correct labels."""

from __future__ import annotations

import csv
import ipaddress
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.apps.accesslog.simulation.attack_payloads import make_requests
from penstock.apps.accesslog.simulation.line_writing_kernel import (
    FIXED,
    FRAME_BYTES,
    HEX,
    KEY_BYTES,
    Addresses,
    LineColumns,
    write_lines,
)
from penstock.apps.accesslog.simulation.simulated_attackers import CLASSES
from penstock.apps.accesslog.simulation.simulated_requests import ClientTable, escape_as_apache
from penstock.apps.accesslog.simulation.traffic_simulation import (
    Simulation,
    SimulationSettings,
    make_times,
    write_truth,
)
from penstock.cli import main
from penstock.core.errors import OptionError

#: A slow parser of the format, in plain Python.
LINE = re.compile(
    rb"([0-9a-f.:]+) - - \[(\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d) \+0000\] "
    rb'"((?:[^"\\]|\\.)*)" (\d{3}) (\d+|-) "((?:[^"\\]|\\.)*)" "((?:[^"\\]|\\.)*)" (\d+)'
)


def simulate(**settings: Any) -> tuple[Simulation, dict[str, bytes]]:
    simulation = Simulation(SimulationSettings(**{"rate": 400, "seconds": 30, **settings}))
    texts: dict[str, bytes] = {}
    for step in simulation.steps(newlines=True):
        for server in step.servers:
            texts[server.server] = texts.get(server.server, b"") + server.text
    return simulation, texts


@pytest.fixture(scope="module")
def usual() -> tuple[Simulation, dict[str, bytes]]:
    return simulate()


def test_the_same_seed_gives_the_same_lines_and_another_one_others(
    usual: tuple[Simulation, dict[str, bytes]],
) -> None:
    again, texts = simulate()
    assert texts == usual[1]
    assert again.truth() == usual[0].truth()
    assert simulate(seed=8)[1] != texts


def test_in_slices_and_without_newlines_the_lines_are_the_same() -> None:
    _, whole = simulate(seconds=5)
    sliced = Simulation(SimulationSettings(rate=400, seconds=5))
    lines: dict[str, list[bytes]] = {}
    due = [-1.0]
    for step in sliced.steps(slices=4):
        assert step.due_s > due[-1]
        due.append(step.due_s)
        for server in step.servers:
            lines.setdefault(server.server, []).extend(server.lines.to_pylist())
    assert len(due) == 1 + 5 * 4
    # Which server answers and which line breaks is random per slice; the requests are the same.
    together = sorted(line for some in lines.values() for line in some)
    before = sorted(line for text in whole.values() for line in text.split(b"\n")[:-1])
    assert len(together) == len(before)
    assert sum((Counter(together) - Counter(before)).values()) < 10


@pytest.mark.parametrize(("rate", "seconds"), [(2_000, 20), (20_000, 4)])
def test_the_rate_is_what_was_asked_for_from_the_first_second_on(rate: int, seconds: int) -> None:
    simulation = Simulation(SimulationSettings(rate=rate, seconds=seconds))
    counts = [step.count for step in simulation.steps()]
    assert abs(sum(counts) / seconds / rate - 1) < 0.1
    assert all(abs(count / rate - 1) < 0.35 for count in counts)


def test_every_line_but_a_few_is_one_of_the_format(usual: tuple[Simulation, dict[str, bytes]]) -> None:
    simulation, texts = usual
    lines = [line for text in texts.values() for line in text.split(b"\n")[:-1]]
    odd = [line for line in lines if not LINE.fullmatch(line)]
    assert len(lines) == simulation.lines
    assert len(odd) <= simulation.broken_lines < 0.003 * len(lines)


def test_the_truth_counts_what_is_in_the_lines(usual: tuple[Simulation, dict[str, bytes]]) -> None:
    simulation, texts = usual
    found = Counter(
        match[1].decode()
        for text in texts.values()
        for line in text.split(b"\n")
        if (match := LINE.fullmatch(line))
    )
    truth = simulation.truth().to_pydict()
    assert dict(zip(truth["client"], truth["requests"], strict=True)) == dict(found)
    assert len(set(truth["client"])) == len(truth["client"])
    versions = Counter(ipaddress.ip_address(each).version for each in truth["client"])
    assert versions[4] > versions[6] > 0
    assert all(str(ipaddress.ip_address(each)) == each for each in truth["client"]), "as inet_ntop writes it"


def test_every_class_attacks_and_most_lines_are_honest() -> None:
    simulation, _ = simulate(rate=3_000, seconds=40)
    rows = simulation.truth().to_pylist()
    requests: Counter[str] = Counter()
    for row in rows:
        assert (row["label"] == "attack") == bool(row["class"])
        requests[row["class"]] += row["requests"]
    assert set(requests) - {""} == set(CLASSES)
    share = 1 - requests[""] / sum(requests.values())
    assert 0.02 < share < 0.2


def test_attacks_are_chosen_by_name() -> None:
    simulation, _ = simulate(attacks=("xss", "brute_force"))
    assert set(simulation.truth()["class"].to_pylist()) == {"", "xss", "brute_force"}
    simulation, _ = simulate(attacks=())
    assert set(simulation.truth()["label"].to_pylist()) == {"benign"}


@pytest.mark.parametrize(
    "wrong", [{"attacks": ("none-such",)}, {"rate": 0}, {"rate": 50_001}, {"seconds": 0}, {"servers": 0}]
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"^\[SIMULATION_INVALID\]"):
        SimulationSettings(**wrong)


def test_lines_of_a_server_are_in_the_order_of_their_ends(usual: tuple[Simulation, dict[str, bytes]]) -> None:
    """A line has the time when its request began, so a slow request is late by about as long as it took."""
    for text in usual[1].values():
        seen, late = b"", 0
        for line in text.split(b"\n"):
            match = LINE.fullmatch(line)
            if match and match[2] < seen:
                late += 1
                assert int(match[8]) > 1_000
            elif match:
                seen = match[2]
        assert 0 < late < text.count(b"\n") / 4


def test_the_load_goes_up_and_down_with_the_day() -> None:
    simulation = Simulation(SimulationSettings(rate=500, seconds=60, day_s=60, attacks=()))
    counts = [step.count for step in simulation.steps()]
    assert max(counts) > 2 * min(counts)
    assert abs(sum(counts) / 60 / 500 - 1) < 0.12


def test_addresses_are_given_out_once_and_nets_hold_together() -> None:
    dice, clients = np.random.default_rng(1), ClientTable()
    clients.add(200_000, dice)
    pairs = {*zip(clients.highs[:200_000].tolist(), clients.lows[:200_000].tolist(), strict=True)}
    assert len(pairs) == 200_000
    net = clients.add_net(40, dice, label=1, v6=False)
    assert len(set((clients.lows[net] >> np.uint64(8)).tolist())) == 1
    net = clients.add_net(40, dice, label=1, v6=True)
    assert len(set(clients.highs[net].tolist())) == 1
    assert len(set(clients.lows[net].tolist())) == 40


@pytest.mark.parametrize(
    "name", sorted(set(CLASSES) - {"agent_switching", "bad_agent", "distributed_scan", "scanner"})
)
def test_requests_of_attackers_stand_in_a_log_as_a_server_writes_them(name: str) -> None:
    made = make_requests(name, np.random.default_rng(3))
    assert len(made) >= 4
    assert len(set(made)) == len(made)
    assert all(0x20 <= byte < 0x7F for text in made for byte in text)
    assert not any(re.search(rb'(?<!\\)(?:\\\\)*"', text) for text in made)


def test_escapes_are_those_of_apache() -> None:
    assert escape_as_apache(b'a"b\\c\x16\n\xff') == b'a\\"b\\\\c\\x16\\n\\xff'


def test_the_command_writes_files_and_the_truth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--rate", "200", "--seconds", "5", "--fast", "--out", str(tmp_path / "{server}.log")]
    assert main(["accesslog", "simulate", *words, "--truth", str(tmp_path / "truth.csv")]) == 0
    written = sum((tmp_path / f"web{number}.log").read_bytes().count(b"\n") for number in (1, 2, 3))
    assert capsys.readouterr().out.startswith(f"{written} lines in ")
    with (tmp_path / "truth.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["client", "label", "class", "first_time", "requests"]
    assert {row["label"] for row in rows} == {"attack", "benign"}
    assert re.fullmatch(r"2026-02-02T02:4\d:\d\dZ", rows[0]["first_time"])


def test_files_and_servers_must_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--seconds", "1", "--fast", "--out", str(tmp_path / "a"), str(tmp_path / "b")]
    assert main(["accesslog", "simulate", *words]) == 1
    assert "[FILES_AND_SERVERS_DIFFER]" in capsys.readouterr().err


def test_the_truth_is_written_whole(tmp_path: Path, usual: tuple[Simulation, dict[str, bytes]]) -> None:
    write_truth(usual[0], tmp_path / "truth.csv")
    assert len((tmp_path / "truth.csv").read_text().splitlines()) == 1 + usual[0].truth().num_rows
    assert [path.name for path in tmp_path.iterdir()] == ["truth.csv"]


@pytest.mark.parametrize("wrong", ["client", "text", "time", "room", "key room", None])
def test_the_kernel_refuses_numbers_that_lead_nowhere(wrong: str | None) -> None:
    ids = np.array([1 if wrong == "client" else 0], np.int32)
    texts = np.array([7 if wrong == "text" else 0], np.int32)
    seconds = np.array([5 if wrong == "time" else 0], np.int64)
    nothing = np.zeros(1, np.int32)
    out = np.empty(FRAME_BYTES + (3 if wrong == "room" else 4), np.uint8)
    keys = np.empty(KEY_BYTES - 1 if wrong == "key room" else KEY_BYTES, np.uint8)
    starts = np.zeros(2, np.int64)
    lines = LineColumns(
        ids, seconds, texts, nothing.astype(np.int16), nothing, nothing, nothing, nothing,
        nothing.astype(np.int8), nothing.astype(np.int64),
    )  # fmt: skip
    addresses = Addresses(np.zeros(1, np.uint64), np.ones(1, np.uint64), np.zeros(1, np.bool_))
    written = write_lines(
        lines, addresses,
        make_times(0, 1), np.frombuffer(b"-", np.uint8), np.array([0, 1]), FIXED, HEX, True, True,
        out, starts, keys, starts.copy(),
    )  # fmt: skip
    assert written == (wrong is None)
    if wrong is None:
        expected = b'0.0.0.1 - - [01/Jan/1970:00:00:00 +0000] "-" 0 - "-" "-" 0\n'
        assert bytes(out[: starts[1]]) == expected
