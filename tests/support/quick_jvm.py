"""Makes Spark and Kafka start sooner in tests: simple compiler, class archives, and a preloading daemon.

Rule: nothing here changes what is tested, and without archives everything runs as before. The tests start
about 90 JVMs for Spark and 200 for Kafka, and most live for seconds. A Spark driver takes 12.5 seconds of
processor time until it has run a query, 7 without the optimising compiler, and 4 with an archive too. A
broker takes 1.1 instead of 1.85 until it is ready. A JVM ignores an archive made by another Java or from
other jars.

    python -m tests.support.quick_jvm     # makes the archives; tools/run_tests.py does so first
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
ARCHIVES = ROOT / "artifacts" / "class-archives"
WORKER_START = Path(__file__).parent / "worker_start"
SIMPLE_COMPILER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
MAKING_TIMEOUT_S = 300


def use_quick_jvms() -> None:
    """Set the variables that JVMs and Spark's Python daemons read, for all processes started from here."""
    spark, kafka = (_use(name) for name in ("spark", "kafka"))
    spark = f"{SIMPLE_COMPILER} {spark}".strip()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(WORKER_START), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    settings = {
        "spark.executor.extraJavaOptions": spark,
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.python.daemon.module": "preloading_daemon",
    }
    told = " ".join(f'"-D{key}={value}"' for key, value in settings.items())
    os.environ["SPARK_SUBMIT_OPTS"] = f"{spark} {told}"
    os.environ["SPARK_DAEMON_JAVA_OPTS"] = spark
    os.environ["KAFKA_OPTS"] = kafka


def make_archives() -> None:
    """Make the missing archives, with programs that load what the tests load."""
    ARCHIVES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ARCHIVES) as folder:
        running = {}
        for name, variable in (("spark", "SPARK_SUBMIT_OPTS"), ("kafka", "KAFKA_OPTS")):
            if not (ARCHIVES / f"{name}.jsa").exists():
                options = f"{SIMPLE_COMPILER} -XX:ArchiveClassesAtExit={folder}/{name}.jsa"
                running[name] = subprocess.Popen(
                    [sys.executable, "-m", f"tests.support.{name}_classes"],
                    cwd=ROOT,
                    env={**os.environ, variable: options},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
        for name, process in running.items():
            if process.wait(MAKING_TIMEOUT_S) != 0:
                raise RuntimeError(f"tests.support.{name}_classes failed; run it alone to see why")
            (Path(folder) / f"{name}.jsa").rename(ARCHIVES / f"{name}.jsa")


def _use(name: str) -> str:
    archive = ARCHIVES / f"{name}.jsa"
    return f"-XX:SharedArchiveFile={archive}" if archive.exists() else ""


if __name__ == "__main__":
    make_archives()
