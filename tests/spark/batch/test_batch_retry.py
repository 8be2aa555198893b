"""A task that fails and is retried by Spark, which a session with one attempt per task cannot show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from penstock.testing.proxy import FaultProxy
from tests.support.kafka.topic_filling import produce
from tests.support.waiting import wait_until

FETCH = 1

_APPLICATION = """
import sys
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
frame = (spark.read.format("penstock").option("kafka.bootstrap.servers", sys.argv[1])
    .option("subscribe", sys.argv[2]).option("kafkaConsumer.pollTimeoutMs", "4000").load())
print("OFFSETS", sorted(row.offset for row in frame.select("offset").collect()))
spark.stop()
"""


def test_a_task_that_is_tried_again_gives_every_row_once(
    proxied_kafka: tuple[Any, FaultProxy], topic: Any, tmp_path: Path
) -> None:
    """B158: the first attempt times out on an answer that is held back; the second one reads everything."""
    cluster, proxy = proxied_kafka
    name = topic(on=cluster)
    produce(proxy.bootstrap, name, [str(n) for n in range(200)])
    before = proxy.counts.requests[FETCH]
    proxy.hold_answers(api_keys={FETCH})
    said = tmp_path / "said"

    def asks_again() -> bool:
        assert application.poll() is None, said.read_text()
        return proxy.counts.requests[FETCH] >= before + 2

    with said.open("w") as output:
        application = subprocess.Popen(
            [sys.executable, "-c", _APPLICATION, proxy.bootstrap, name], stdout=output, stderr=output
        )
    try:
        wait_until(asks_again, "a second attempt asks")
        proxy.pass_on()
        code = application.wait(120)
    finally:
        proxy.pass_on()
        application.kill()
        application.wait()
    assert code == 0, said.read_text()
    assert f"OFFSETS {list(range(200))}" in said.read_text()
    assert "[FETCH_TIMEOUT]" in said.read_text()
