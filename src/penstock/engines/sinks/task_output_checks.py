"""Checks a file sink's tasks: how many rows they have written, and whether they see its folder.

Rule: what the driver finds in the folder is compared with what the tasks say they wrote. Executors on other
hosts may write to their own disks. Spark's committer then finds nothing and calls that a success, and an
empty batch would be published with its offsets. The folder alone cannot show this: it never had the rows.

The counts are Spark's observed metrics. They are gathered in the stage that writes, where Spark counts the
result of each task once and drops those of a failed task or a slower duplicate.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.core.errors import SinkError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Spark delivers the metrics after the job, through a separate queue. This takes milliseconds.
METRICS_TIMEOUT_S = 60.0
_POLL_S = 0.01
_TASK = "penstock_task_number"
_FILE = re.compile(r"part-(\d+)-")


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """What the tasks of a write report: how many rows, and the numbers of the tasks that had any."""

    rows: int
    tasks: frozenset[int]


def save_frame(frame: DataFrame, kind: str, place: Path) -> TaskCounts:
    """Write the frame's rows into a new folder; return what its tasks say they wrote."""
    from pyspark.sql import Observation
    from pyspark.sql.functions import collect_set, count, lit, spark_partition_id

    seen = Observation()
    metrics = count(lit(1)).alias("rows"), collect_set(_TASK).alias("tasks")
    numbered = frame.withColumn(_TASK, spark_partition_id())  # a metric cannot ask for the number itself
    numbered.observe(seen, *metrics).drop(_TASK).write.format(kind).save(str(place))
    wait_for_counts(lambda: bool(seen._jo.future().isCompleted()))  # type: ignore[union-attr]
    found = seen.get
    return TaskCounts(int(found["rows"]), frozenset(found["tasks"]))


def wait_for_counts(are_there: Callable[[], bool], timeout_s: float = METRICS_TIMEOUT_S) -> None:
    """Wait until Spark has reported what its tasks wrote; raise an error if that takes too long."""
    deadline = time.monotonic() + timeout_s
    while not are_there():
        if time.monotonic() >= deadline:
            raise SinkError(
                "FILES_UNCONFIRMED",
                f"Spark has not reported within {timeout_s:.0f} s how many rows its tasks wrote.",
                hint="The driver is overloaded; its log reports dropped events. Nothing was published.",
                retriable=True,
            )
        time.sleep(_POLL_S)


def check_files(frame: DataFrame, folder: Path, kind: str, told: TaskCounts) -> None:
    """Raise an error if the folder does not hold what the tasks wrote."""
    files = sorted(folder.glob("part-*"))
    numbers = {int(match[1]) for path in files if (match := _FILE.match(path.name))}
    missing = sorted(told.tasks - numbers)
    if missing:
        raise _incomplete(folder, told, f"the files of {len(missing)} tasks are not there", task=missing[0])
    if kind == "csv":
        return  # a row may take two lines of it, or be an empty line, which readers do not count
    rows = _count_rows(frame, files, folder, kind, told)
    if rows != told.rows:
        raise _incomplete(folder, told, f"{rows} rows are in its files", found=rows)


def _count_rows(frame: DataFrame, files: Iterable[Path], folder: Path, kind: str, told: TaskCounts) -> int:
    """Return how many rows the files really hold. Parquet's footers say so; other files are read again."""
    if kind != "parquet":
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            return frame.sparkSession.read.format(kind).schema(frame.schema).load(str(folder)).count()
        except (Py4JJavaError, PySparkException) as error:
            raise _incomplete(folder, told, "its files cannot be read back") from error
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 0
    for path in files:
        try:
            rows += pq.read_metadata(path).num_rows
        except pa.ArrowInvalid as error:
            raise _incomplete(folder, told, f"{path.name} is cut off or damaged", file=path.name) from error
    return rows


def check_shared(spark: SparkSession, folder: Path) -> None:
    """Raise an error if an executor sees another folder under this path than the driver.

    Only the executors that exist now are asked, but what later ones write is compared as well. A local
    session has no other disk and is not asked.
    """
    if re.fullmatch(r"local(\[.*\])?", spark.sparkContext.master or ""):
        return
    secret = secrets.token_hex(16)
    token = folder.absolute() / f"token-{secret[:8]}"
    token.write_text(secret, encoding="utf-8")
    try:
        tasks = 2 * max(spark.sparkContext.defaultParallelism, 1)
        looks = spark.sparkContext.parallelize(range(tasks), tasks).mapPartitions(_Look(str(token), secret))
        blind = sorted(set(looks.collect()))
    finally:
        token.unlink(missing_ok=True)
    if blind:
        raise SinkError(
            "FOLDER_NOT_SHARED",
            f"The folder {folder} is not the same for the driver and for executors on {', '.join(blind)}.",
            hint="A file sink needs a disk that the driver and all executors see under the same path; use "
            "one, or a SqlSink.",
            facts={"folder": str(folder), "hosts": blind},
        )


@dataclass(frozen=True, slots=True)
class _Look:
    """A task that looks for the token and yields its host's name if the token is not there."""

    token: str
    secret: str

    def __call__(self, _: Iterable[Any]) -> Iterator[str]:
        import socket

        try:
            is_seen = Path(self.token).read_text(encoding="utf-8") == self.secret
        except OSError:
            is_seen = False
        if not is_seen:
            yield socket.gethostname()


def _incomplete(folder: Path, told: TaskCounts, what: str, **facts: object) -> SinkError:
    return SinkError(
        "FILES_INCOMPLETE",
        f"The tasks of a batch wrote {told.rows} rows to {folder}, but {what}. Nothing was published.",
        hint="The folder must be on a disk that the driver and all executors see. If it is, look for a full "
        "disk, or for another program that deletes files.",
        facts={"folder": str(folder), "told": told.rows, **facts},
        retriable=True,
    )
