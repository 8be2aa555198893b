"""A driver that was stopped, replaced, and comes back: two drivers on one checkpoint.

The guarantee itself is Spark's: the second driver to write a batch's entry into the checkpoint's logs is
refused, and its query ends. Our part is that both plan the same batch from the same entry, so whichever of
them wrote the rows, they are the same rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.crash.gates import Gate, arm, await_arrival, release
from tests.crash.streams.drills import PARTITIONS, drill
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SEED = 20261116


@pytest.mark.parametrize(
    ("step", "refusal"),
    [
        ("latestOffset", "CONCURRENT_STREAM_LOG_UPDATE"),  # by the log of positions
        ("partitions", "another writer already committed this batch"),  # by the sink
    ],
)
def test_a_driver_that_comes_back_after_it_was_replaced_adds_nothing_and_takes_nothing(
    kafka: Any, topic: Any, tmp_path: Path, step: str, refusal: str
) -> None:
    """Stopped with an end planned or a batch begun, it wakes up after the other driver has gone past it."""
    with drill(tmp_path / "drill", kafka.bootstrap, topic(PARTITIONS), SEED, restarts=False) as each:
        arm(each.gates, Gate("sleep", step, "after", call=2))
        each.start()
        await_arrival(each.gates, "sleep", timeout_s=150)
        zombie = each.freeze()
        release(each.gates, "sleep")  # it continues as soon as it wakes
        reached = each.newest("offsets")
        each.start()
        wait_until(lambda: each.newest("commits") > reached + 1, "the second driver goes past it", 150)
        zombie.resume()
        assert zombie.process.wait(120) == 0
        (failed,) = each.notes("failed")
        assert refusal in failed["error"]
        each.finish()
        each.check()
