"""A shipper killed at each step: every line of its files is seen once by committed readers, in order."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.crash.gates import FOLDER_VARIABLE, MOMENTS, Gate, arm, await_arrival
from tests.crash.ship_program import STEPS, Order
from tests.filling import await_markers
from tests.librdkafka import read_partition

LINES, PARTITIONS, CLIENTS = 200, 2, 9
#: Kills in a row, each at another step, with something done to the file in between.
SEEDS, KILLS = (1, 2), 5


def line_of(number: int) -> str:
    return f"10.0.0.{number * 7 % CLIENTS} - - [01/Feb/2026:10:00:00 +0000] line {number}"


def append(log: Path, begin: int, count: int) -> int:
    with log.open("a") as file:
        file.writelines(line_of(number) + "\n" for number in range(begin, begin + count))
    return begin + count


def start(order: Order, folder: Path) -> subprocess.Popen[bytes]:
    path = folder / "order.json"
    path.write_text(json.dumps(asdict(order)))
    return subprocess.Popen(
        [sys.executable, "-m", "tests.crash.ship_program", str(path)],
        env={**os.environ, FOLDER_VARIABLE: str(folder / "gates")},
    )


def kill_at(order: Order, folder: Path, gate: Gate) -> None:
    """Run it until it stands at the gate, and kill it there."""
    arm(folder / "gates", gate)
    program = start(order, folder)
    try:
        assert await_arrival(folder / "gates", gate.name)["pid"] == program.pid
        program.send_signal(signal.SIGKILL)
        assert program.wait(30) == -signal.SIGKILL
    finally:
        program.kill()
        program.wait()
    (folder / "gates" / "armed.json").unlink()


def check_rows(bootstrap: str, topic: str, lines: int) -> None:
    found: dict[bytes | None, list[int]] = {}
    for partition in range(PARTITIONS):
        await_markers(bootstrap, topic, partition)
        for row in read_partition(bootstrap, topic, partition, committed=True):
            assert row.value is not None
            assert row.value.split(b" ")[0] == row.key
            assert row.headers == (("server", b"web1"),)
            number = int(row.value.split(b" ")[-1])
            assert row.value.decode() == line_of(number)
            found.setdefault(row.key, []).append(number)
    assert sorted(number for some in found.values() for number in some) == list(range(lines))
    assert all(numbers == sorted(numbers) for numbers in found.values())


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("step", STEPS)
def test_after_a_kill_at_any_step_each_line_is_there_once(
    kafka: Any, topic: Any, tmp_path: Path, step: str, moment: str
) -> None:
    """H14: the position travels with the lines, in one transaction."""
    name, log = topic(PARTITIONS), tmp_path / "access.log"
    append(log, 0, LINES)
    (tmp_path / "gates").mkdir()
    order = Order(kafka.bootstrap, name, str(log))
    # In the second transaction with lines; the mark of the life has a position too.
    call = {"take over": 1, "position": 3}.get(step, 2)
    kill_at(order, tmp_path, Gate("kill", step, moment, call))
    assert start(order, tmp_path).wait(60) == 0
    check_rows(kafka.bootstrap, name, LINES)


@pytest.mark.parametrize("seed", SEEDS)
def test_many_kills_and_rotations_leave_each_line_once(
    kafka: Any, topic: Any, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    name, log = topic(PARTITIONS), tmp_path / "access.log"
    (tmp_path / "gates").mkdir()
    order = Order(kafka.bootstrap, name, str(log))
    written = append(log, 0, LINES)
    for number in range(KILLS):
        step, moment = chance.choice(STEPS), chance.choice(MOMENTS)
        call = 1 if step == "take over" else chance.randint(2, 3)
        kill_at(order, tmp_path, Gate(f"kill-{number}", step, moment, call))
        happens = chance.choice(["append", "rotate", "copytruncate"])
        written = append(log, written, chance.randint(0, 60))
        if happens == "rotate":
            log.rename(tmp_path / f"access.log.{KILLS - number}")
        elif happens == "copytruncate":
            shutil.copy2(log, tmp_path / f"access.log.{KILLS - number}")
            os.truncate(log, 0)
        written = append(log, written, 150)
    assert start(order, tmp_path).wait(120) == 0
    check_rows(kafka.bootstrap, name, written)
