"""Reads random option sets with Spark's JVM connector and with ours, and reports every difference.

Each set comes from (seed, number), so a finding can be repeated alone with `--only`. A campaign continues
until it has run the requested number of sets and has used every option often enough. It starts real servers
unless `--bootstrap` names a broker. A difference that no table explains is a finding; with one or more, the
exit code is 1.

    python -m tests.proof.parity_campaign --seed 7 --sets 200
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from penstock.cluster import LocalKafka
from penstock.cluster.downloads.jvm_connector import CONNECTOR, fetch_connector
from penstock.cluster.processes.python_launcher import make_launcher
from tests.parity.option_sets import KEYS, make_option_set
from tests.parity.reading import read_both
from tests.parity.topics import SHAPES, TopicWriter
from tests.parity.verdicts import judge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A campaign continues until it has met each option this often, however rare the option is in random sets.
TIMES_EACH = 20
MOST_SETS = 5_000


@contextlib.contextmanager
def start_spark() -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"], os.environ["PYSPARK_DRIVER_PYTHON"] = make_launcher(), sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        SparkSession.builder.master("local[2]")
        .appName("penstock-parity")
        .config("spark.jars", ",".join(map(str, fetch_connector())))
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()


@contextlib.contextmanager
def start_world(bootstrap: str | None) -> Iterator[tuple[str, str]]:
    """Yield the broker's address and the prefix of the topics on it."""
    with contextlib.ExitStack() as stack:
        if bootstrap is None:
            settings = {"log.cleaner.backoff.ms": 500}
            bootstrap = stack.enter_context(LocalKafka(broker_settings=settings)).bootstrap
        writer = TopicWriter(bootstrap, f"parity{secrets.token_hex(3)}-")
        stack.callback(writer.close)
        writer.write_all()
        yield bootstrap, writer.prefix


def run_campaign(seed: int, sets: int, only: int | None, bootstrap: str | None) -> dict[str, Any]:
    began = time.monotonic()
    used: Counter[str] = Counter()
    verdicts: Counter[str] = Counter()
    findings: list[dict[str, object]] = []
    number, done = (only or 0), 0
    with start_world(bootstrap) as (address, prefix), start_spark() as spark:
        while True:
            option_set = make_option_set(seed=seed, number=number)
            verdict = judge(*read_both(spark, option_set.resolve(prefix, address)), option_set)
            used.update(option_set.keys())
            verdicts[verdict.partition(": ")[0] if verdict.startswith("FINDING") else verdict] += 1
            if verdict.startswith("FINDING"):
                findings.append({"number": number, "options": dict(option_set.options), "verdict": verdict})
            number, done = number + 1, done + 1
            enough = done >= sets and all(used[key] >= TIMES_EACH for key in KEYS)
            if only is not None or enough or done >= MOST_SETS:
                break
    return {
        "campaign": "parity with Spark's JVM connector, batch reads",
        "seed": seed,
        "option_sets": done,
        "seconds": round(time.monotonic() - began),
        "verdicts": dict(sorted(verdicts.items())),
        "times_each_option_was_used": {key: used[key] for key in KEYS},
        "topics": {shape.name: list(shape.ends) for shape in SHAPES},
        "official": list(CONNECTOR),
        "versions": {name: version(name) for name in ("pyspark", "penstock", "pyarrow", "kafka-python")},
        "findings": findings,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--only", type=int, help="this number alone")
    parser.add_argument("--bootstrap", help="use this broker instead of starting one")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    arguments = parser.parse_args()
    report = run_campaign(arguments.seed, arguments.sets, arguments.only, arguments.bootstrap)
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if arguments.json else tell(report))
    return 1 if report["findings"] else 0


def tell(report: dict[str, Any]) -> str:
    """Return the report as lines of text."""
    lines = [f"seed {report['seed']}, {report['option_sets']} option sets in {report['seconds']} s"]
    lines += [f"{count:6} {verdict}" for verdict, count in report["verdicts"].items()]
    lines += [f"{count:6} x {key}" for key, count in report["times_each_option_was_used"].items()]
    lines += [f"{each['number']}: {each['options']}\n       {each['verdict']}" for each in report["findings"]]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
