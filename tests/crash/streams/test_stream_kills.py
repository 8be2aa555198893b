"""Kills at every step of a stream on real Spark and real Kafka; afterwards each row is there exactly once.

Three victims: the driver with its JVM, the planner's Python process alone, a task's Python process alone. One
round for each step here; `tests/proof/stream_kills.py` runs many.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.crash.gates import MOMENTS, PLANNER_STEPS
from tests.crash.streams.drills import DRIVER, PARTITIONS, PLANNER, TASK, drill

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SEED = 20261116


def test_a_planner_killed_at_any_step_is_replaced_and_every_row_is_read_once(
    kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """T51, F48: the query fails, is started again with its checkpoint, and continues where it was."""
    dice = random.Random(SEED)
    with drill(tmp_path / "drill", kafka.bootstrap, topic(PARTITIONS), SEED) as each:
        for step in PLANNER_STEPS:
            call = 1 if step == "initialOffset" else dice.randint(1, 3)
            done = each.kill_at(PLANNER, step, dice.choice(MOMENTS), call)
            if step == "partitions":
                assert done.newest_offset_log == done.newest_commit_log + 1
        assert len(each.notes("failed")) == len(each.rounds)
        each.finish()
        each.check()


def test_a_task_killed_while_it_reads_is_run_again_and_every_row_is_read_once(
    kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """T51: Spark runs the task again in another process; the query does not even fail."""
    with drill(tmp_path / "drill", kafka.bootstrap, topic(PARTITIONS), SEED) as each:
        for moment in MOMENTS:
            done = each.kill_at(TASK, "read", moment, call=1)
            assert done.newest_offset_log == done.newest_commit_log + 1
        assert each.notes("failed") == []
        each.finish()
        each.check()


def test_a_driver_killed_at_any_step_goes_on_with_its_checkpoint_and_every_row_is_read_once(
    kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """F48, G16: also between the two logs, and when rows are written but the batch is not noted as done."""
    dice = random.Random(SEED)
    with drill(tmp_path / "drill", kafka.bootstrap, topic(PARTITIONS), SEED, sink="batches") as each:
        for step in (*PLANNER_STEPS, "read", "sink"):
            call = dice.randint(1, 2) if step in ("latestOffset", "reportLatestOffset", "commit") else 1
            moment = "after" if step == "sink" else dice.choice(MOMENTS)
            # The start of the next round doubles as this round's restart, because a start takes seconds.
            done = each.kill_at(DRIVER, step, moment, call, goes_on=False)
            if step in ("partitions", "read", "sink"):
                assert done.newest_offset_log == done.newest_commit_log + 1
        each.finish()
        each.check()
