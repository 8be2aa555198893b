"""Kills at every step of a stream, at least three rounds for each, on real Spark and real Kafka.

python -m tests.proof.stream_kills --rounds 3 --seed 1 --write

Each victim has its own query, which lives through all its rounds: the planner's process and a task's process
under Spark's file sink, the driver under that sink and under one that is killed between the rows and Spark's
note of them. At the end every row that was written is there exactly once, compared whole.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from penstock.cluster import LocalKafka
from tests.conftest import IMPATIENT
from tests.crash.gates import MOMENTS, PLANNER_STEPS
from tests.crash.streams.drills import DRIVER, PARTITIONS, PLANNER, TASK, Drill, drill
from tests.proof.recording import record
from tests.spark.streaming import create_topic

#: Victim, the steps at which it is killed, and the sink.
CASES = {
    "planner": (PLANNER, PLANNER_STEPS, "files"),
    "task": (TASK, ("read",), "files"),
    "driver, Spark's file sink": (DRIVER, (*PLANNER_STEPS, "read"), "files"),
    "driver, rows then the note": (DRIVER, ("sink",), "batches"),
}


def run_case(each: Drill, victim: str, steps: tuple[str, ...], rounds: int, seed: int) -> None:
    dice = random.Random(seed)
    # A query asks for its first position until its first batch is stored, so these rounds come first.
    first = [step for step in steps if step == "initialOffset"] * rounds
    rest = [step for step in steps if step != "initialOffset"] * rounds
    dice.shuffle(rest)
    for step in (*first, *rest):
        call = dice.randint(1, 3) if step in ("latestOffset", "reportLatestOffset", "commit") else 1
        each.kill_at(victim, step, dice.choice(MOMENTS), call, goes_on=step != "initialOffset")
    each.finish(timeout_s=300)
    each.check()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="for each step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="to docs/proof/stream-kills.json")
    options = parser.parse_args()
    cases = []
    with LocalKafka(broker_settings=IMPATIENT) as kafka, tempfile.TemporaryDirectory() as folder:
        for number, (name, (victim, steps, sink)) in enumerate(CASES.items()):
            topic, seed = f"kills-{number}", options.seed + number
            create_topic(kafka.bootstrap, topic, PARTITIONS)
            with drill(Path(folder) / topic, kafka.bootstrap, topic, seed, sink=sink) as each:
                run_case(each, victim, steps, options.rounds, seed)
                cases.append(
                    {
                        "case": name,
                        "seed": seed,
                        "rows": len(each.trickle.written),
                        "lost": 0,
                        "twice": 0,
                        "rounds_by_step": dict(Counter(done.step for done in each.rounds)),
                        "rounds": [asdict(done) for done in each.rounds],
                    }
                )
    record(
        "stream-kills",
        "kills at every step of a stream: driver, planner, task; every row once afterwards",
        repeat=f"python -m tests.proof.stream_kills --rounds {options.rounds} --seed {options.seed} --write",
        facts={"seed": options.seed, "rounds_for_each_step": options.rounds, "cases": cases},
        write=options.write,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
