"""A stream on three brokers for minutes, while leaders move every five seconds and brokers are killed.

python -m tests.proof.stream_leaders --minutes 3 --rows 1000000 --seed 1 --write

It runs until both the time is over and the rows are written. The query must not fail once, and every row
that a producer with `acks=all` was told is written must be read exactly once, compared whole.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cluster import LocalKafka
from tests.conftest import IMPATIENT
from tests.crash.leaders import Disturbance, disturb
from tests.crash.streams.drills import PARTITIONS, drill
from tests.proof.recording import record
from tests.support.waiting import wait_until

TOPIC = "leaders"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="to docs/proof/stream-leaders.json")
    options = parser.parse_args()
    with LocalKafka(3, broker_settings=IMPATIENT) as kafka, tempfile.TemporaryDirectory() as folder:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(timeout=60)
        with drill(
            Path(folder) / "drill",
            kafka.bootstrap,
            TOPIC,
            options.seed,
            rows=2000,
            options={"maxOffsetsPerTrigger": "50000"},
            restarts=False,
        ) as each:
            each.start()
            wait_until(lambda: each.newest("commits") >= 0, "the stream runs", 300)
            first, began = each.newest("commits"), time.monotonic()
            what = Disturbance(kafka, TOPIC, options.seed)

            def is_over() -> bool:
                late = time.monotonic() - began >= options.minutes * 60
                return late and len(each.trickle.written) >= options.rows and what.kills > 0

            def has_failed() -> bool:
                return bool(each.notes("failed"))

            disturb(what, lambda: is_over() or has_failed())
            seconds, last = time.monotonic() - began, each.newest("commits")
            each.finish(timeout_s=600)
            failures = each.notes("failed")
            assert failures == [], failures
            each.check()
            facts: dict[str, object] = {
                "seed": options.seed,
                "seconds": round(seconds),
                "rows": len(each.trickle.written),
                "lost": 0,
                "twice": 0,
                "failed_queries": len(failures),
                "leader_moves": what.moves,
                "brokers_killed": what.kills,
                "batches_meanwhile": last - first,
            }
    record(
        "stream-leaders",
        "a stream on three brokers while leaders move every five seconds and brokers are killed",
        repeat=f"python -m tests.proof.stream_leaders --minutes {options.minutes} --rows {options.rows} "
        f"--seed {options.seed} --write",
        facts=facts,
        write=options.write,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
