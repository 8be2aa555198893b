"""A shipper killed at each step: every line of its files is seen once by committed readers, in order."""

from __future__ import annotations

import gzip
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.crash.accesslog.ship_program import STEPS, ShipOrder
from tests.crash.gates import MOMENTS, Gate, arm, await_arrival, release
from tests.crash.programs import start_program
from tests.support.kafka.librdkafka import read_partition
from tests.support.kafka.topic_filling import await_markers

PROGRAM = "tests.crash.accesslog.ship_program"
LINES, PARTITIONS, CLIENTS = 200, 2, 9
#: Consecutive rounds: two of three end with a kill, each at another step, and all do something to the file.
SEEDS, ROUNDS = (1, 2, 3), 6


def line_of(number: int) -> str:
    return f"10.0.0.{number * 7 % CLIENTS} - - [01/Feb/2026:10:00:00 +0000] line {number}"


def append(log: Path, begin: int, count: int) -> int:
    with log.open("a") as file:
        file.writelines(line_of(number) + "\n" for number in range(begin, begin + count))
    return begin + count


def kill_at(
    order: ShipOrder, folder: Path, gate: Gate, meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Run a shipper until it stops at the gate, call `meanwhile`, and kill it there."""
    with standing_at(order, folder, gate) as program:
        meanwhile()
        program.send_signal(signal.SIGKILL)
        assert program.wait(30) == -signal.SIGKILL


@contextmanager
def standing_at(order: ShipOrder, folder: Path, gate: Gate) -> Iterator[subprocess.Popen[bytes]]:
    arm(folder / "gates", gate)
    program = start_program(PROGRAM, order, folder)
    try:
        assert await_arrival(folder / "gates", gate.name)["pid"] == program.pid
        yield program
    finally:
        program.kill()
        program.wait()
    (folder / "gates" / "armed.json").unlink()


def check_lines(bootstrap: str, topic: str, lines: int) -> None:
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
    order = ShipOrder(kafka.bootstrap, name, str(log))
    # In the second transaction with lines; the mark at the start of a life has a position too.
    call = {"take over": 1, "position": 3}.get(step, 2)
    kill_at(order, tmp_path, Gate("kill", step, moment, call))
    assert start_program(PROGRAM, order, tmp_path).wait(60) == 0
    check_lines(kafka.bootstrap, name, LINES)


class Rotation:
    """What happens to a log while no shipper is running, or while one is."""

    def __init__(self, log: Path, chance: random.Random) -> None:
        self.log, self.chance = log, chance
        self.written = 0
        self.left = 100
        self.unpacked: tuple[Path, bytes] | None = None

    def append(self, count: int) -> None:
        self.written = append(self.log, self.written, count)

    def happen(self) -> None:
        self.end_packing()
        what = self.chance.choice(["append", "rotate", "copytruncate", "pack"])
        self.append(self.chance.randint(1, 60))
        self.left -= 1
        away = self.log.with_name(f"{self.log.name}.{self.left}")
        if what in ("rotate", "pack"):
            self.log.rename(away)
        elif what == "copytruncate":
            shutil.copy2(self.log, away)
            os.truncate(self.log, 0)
        if what == "pack":
            self.begin_packing(away)
        self.append(150)

    def begin_packing(self, path: Path) -> None:
        """Write the first bytes of the packed file, while the plain one is still beside it."""
        packed = gzip.compress(path.read_bytes())
        path.with_name(path.name + ".gz").write_bytes(packed[: self.chance.choice([0, 12, len(packed) // 2])])
        self.unpacked = path, packed

    def end_packing(self) -> None:
        if self.unpacked is not None:
            path, packed = self.unpacked
            self.unpacked, found = None, path.stat()
            target = path.with_name(path.name + ".gz")
            target.write_bytes(packed)
            os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
            path.unlink()


@pytest.mark.parametrize("seed", SEEDS)
def test_many_kills_and_rotations_leave_each_line_once(
    kafka: Any, topic: Any, tmp_path: Path, seed: int
) -> None:
    """Files are rotated and packed after the shipper was killed, before it is killed, and while it runs."""
    chance = random.Random(seed)
    name = topic(PARTITIONS)
    (tmp_path / "gates").mkdir()
    (tmp_path / "logs").mkdir()
    rotation = Rotation(tmp_path / "logs" / "access.log", chance)
    order = ShipOrder(kafka.bootstrap, name, str(rotation.log))
    rotation.append(LINES)
    for number in range(ROUNDS):
        step, moment = chance.choice(STEPS), chance.choice(MOMENTS)
        call = 1 if step == "take over" else chance.randint(2, 3)
        gate = Gate(f"stop-{number}", step, moment, call)
        if number % 3 == 0:
            kill_at(order, tmp_path, gate)
            rotation.happen()
        elif number % 3 == 1:
            kill_at(order, tmp_path, gate, rotation.happen)
        else:
            with standing_at(order, tmp_path, gate) as program:
                rotation.happen()
                release(tmp_path / "gates", gate.name)
                assert program.wait(60) == 0
            rotation.append(LINES)  # so that the next shipper has several transactions to do
    rotation.end_packing()
    assert start_program(PROGRAM, order, tmp_path).wait(120) == 0
    check_lines(kafka.bootstrap, name, rotation.written)
