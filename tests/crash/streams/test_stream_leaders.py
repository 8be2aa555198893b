"""A stream on three brokers whose leaders move, one killed; longer in tests/proof/stream_leaders.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.crash.leaders import Disturbance, disturb
from tests.crash.streams.drills import PARTITIONS, drill
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SEED = 20261116


def test_a_stream_reads_on_while_leaders_move_and_a_broker_is_killed(
    kafka3: Any, topic: Any, tmp_path: Path
) -> None:
    """Clean elections truncate nothing; the query does not fail, and every row is read once."""
    name = topic(PARTITIONS, on=kafka3, factor=3)
    options = {"maxOffsetsPerTrigger": "2000"}
    with drill(
        tmp_path / "drill", kafka3.bootstrap, name, SEED, rows=100, options=options, restarts=False
    ) as each:
        each.start()
        wait_until(lambda: each.newest("commits") >= 0, "the stream runs", 120)
        first = each.newest("commits")
        what = Disturbance(kafka3, name, SEED)
        disturb(what, lambda: what.moves >= 3 and what.kills >= 1, pause_s=1.0, kill_every=3)
        assert each.newest("commits") > first + 2, "the stream read nothing meanwhile"
        each.finish()
        assert each.notes("failed") == []
        assert len({tuple(leaders) for leaders in what.leaders_seen}) > 1
        each.check()
