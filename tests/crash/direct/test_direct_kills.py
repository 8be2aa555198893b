"""A direct stream killed at each moment of a batch, in each mode: how often each record is there then."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.crash.direct.direct_program import DirectOrder
from tests.crash.gates import Gate, arm, await_arrival
from tests.crash.programs import start_program
from tests.support.kafka.topic_filling import produce

PROGRAM = "tests.crash.direct.direct_program"
RECORDS = 60  # three batches of twenty
#: The step at which the second batch is killed, and how often that batch's records are there afterwards.
AT_MOST = {"plan after": 1, "store before": 1, "store after": 0, "read before": 0, "output after": 1}
AT_LEAST = {"plan after": 1, "read before": 1, "output after": 2, "store before": 2, "store after": 1}
ROUNDS = [
    *(("at-most-once", step, times) for step, times in AT_MOST.items()),
    *(("at-least-once", step, times) for step, times in AT_LEAST.items()),
]


def read_rows(order: DirectOrder) -> Counter[tuple[int, int, str]]:
    lines = order.rows.read_text().splitlines() if order.rows.exists() else []
    found = (line.split(" ") for line in lines)
    return Counter((int(partition), int(offset), value) for partition, offset, value in found)


@pytest.mark.parametrize(("delivery", "step", "times"), ROUNDS)
def test_a_killed_batch_is_there_as_often_as_its_mode_says(
    kafka: Any, topic: Any, tmp_path: Path, delivery: Any, step: str, times: int
) -> None:
    """G16, G3, G4, G17, C1, C15, D30, T31: SIGKILL at each step, then a restart; other batches once."""
    name = topic(1)
    produce(kafka.bootstrap, name, [f"v{number}" for number in range(RECORDS)])
    (tmp_path / "gates").mkdir()
    order = DirectOrder(kafka.bootstrap, name, str(tmp_path), delivery)
    what, moment = step.split(" ")
    # The store is used one extra time at the very start, to register the stream.
    arm(tmp_path / "gates", Gate("kill", what, moment, call=3 if what == "store" else 2))
    program = start_program(PROGRAM, order, tmp_path)
    try:
        arrived = await_arrival(tmp_path / "gates", "kill")
        assert arrived["pid"] == program.pid
        before = read_rows(order)
        program.send_signal(signal.SIGKILL)
        assert program.wait(30) == -signal.SIGKILL
    finally:
        program.kill()
        program.wait()
    (tmp_path / "gates" / "armed.json").unlink()
    assert start_program(PROGRAM, order, tmp_path).wait(60) == 0
    after = read_rows(order)
    expected = {(0, offset, f"v{offset}"): times if 20 <= offset < 40 else 1 for offset in range(RECORDS)}
    assert after == Counter({row: count for row, count in expected.items() if count})
    assert sum(after.values()) > sum(before.values()), "nothing happened after the kill"
