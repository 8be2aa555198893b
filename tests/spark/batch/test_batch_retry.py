"""A task that fails and is retried by Spark, which a session with one attempt per task cannot show."""

from __future__ import annotations

import subprocess
import sys
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
    proxied_kafka: tuple[Any, FaultProxy], topic: Any
) -> None:
    """B158: the first attempt times out on an answer that is held back; the second one reads everything."""
    cluster, proxy = proxied_kafka
    name = topic(on=cluster)
    produce(proxy.bootstrap, name, [str(n) for n in range(200)])
    before = proxy.counts.requests[FETCH]
    proxy.hold_answers(api_keys={FETCH})
    application = subprocess.Popen(
        [sys.executable, "-c", _APPLICATION, proxy.bootstrap, name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: proxy.counts.requests[FETCH] >= before + 2, "a second attempt asks", 200)
        proxy.pass_on()
        output, errors = application.communicate(timeout=80)
    finally:
        proxy.pass_on()
        application.kill()
        application.wait()
    assert application.returncode == 0, errors
    assert f"OFFSETS {list(range(200))}" in output
    assert "[FETCH_TIMEOUT]" in errors
