"""Random histories on real Spark and real Kafka: two here, and fifty in tests/proof/stream_histories.py."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.crash.streams.histories import History, Turmoil

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("seed", "lossy"), [(1, False), (2, True)], ids=["without loss", "with loss"])
def test_a_random_history_is_read_exactly(
    spark: SparkSession, kafka: Any, tmp_path: Path, seed: int, lossy: bool
) -> None:
    """B059, B055: data, partitions and topics come, the query stops and starts; with loss, topics go too."""
    prefix = f"history{secrets.token_hex(3)}"
    history = History(spark, kafka.bootstrap, tmp_path / "checkpoint", prefix, seed, lossy)
    history.run(30)
    history.check()
    # How much is written depends on when topics vanish, so it varies a little.
    assert len(history.written) > 50, "hardly anything happened"


def test_twenty_seconds_of_turmoil_never_fail_a_query_that_may_lose(
    spark: SparkSession, kafka: Any, tmp_path: Path
) -> None:
    """B058: topics are created, deleted and recreated, records deleted, batches slow; no loss checking."""
    prefix = f"turmoil{secrets.token_hex(3)}"
    turmoil = Turmoil(spark, kafka.bootstrap, tmp_path / "checkpoint", prefix, 3, lossy=True, slowness=0.8)
    changes = turmoil.run_for(20)
    turmoil.check()
    assert changes >= 5, "hardly anything happened"
    assert sum(map(len, turmoil.batches.values())) > 0
