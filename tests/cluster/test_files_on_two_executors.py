"""File sinks on a real Spark cluster: executors that see another folder, tasks that fail or run twice."""

from __future__ import annotations

from tests.cluster.conftest import TwoWorkers

TASKS, ROWS = 4, 1000
PROGRAM = """
from penstock.core.errors import SinkError
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.engines.sinks import open_sink
from penstock.sinks import FileSink

(folder,) = sys.argv[2:]
builder = builder.config("spark.speculation", "true").config("spark.speculation.interval", "100ms")
builder = builder.config("spark.speculation.quantile", "0.5").config("spark.speculation.multiplier", "1")
builder = builder.config("spark.speculation.efficiency.enabled", "false")
# Only the task that lingers: a copy of another one would write where its first try was not meant to.
builder = builder.config("spark.speculation.minTaskRuntime", "10s")
spark = builder.getOrCreate()
at = lambda offset: StreamPosition({TopicPartition("t", 0): offset})
told = {}

# The same path is another folder for each process that uses it: driver and executors run in folders of their
# own. So each executor has a disk of its own until it gets a link to the driver's folder.
VIEW, SHARED = "/proc/self/cwd/view", folder + "/view"
sink = FileSink(VIEW)

def link(which):
    def work(_):
        place = Path(os.getcwd())
        if which in ("all", place.name) and not (place / "view").is_symlink():
            (place / "view").rename(place / "own") if (place / "view").exists() else None
            (place / "view").symlink_to(SHARED)
        yield place.name
    # Tasks of no length go round the executors.
    return sorted(set(spark.sparkContext.parallelize(range(8), 8).mapPartitions(work).collect()))

def note_place(batches):
    import pyarrow as pa
    for batch in batches:
        yield pa.record_batch({"id": batch["id"], "place": pa.array([os.getcwd()] * batch.num_rows)})

def fail_and_linger(batches):
    # Task 0 fails once, after its rows are written; the first try at task 1 is very slow to end.
    import time
    from pyspark import TaskContext
    yield from note_place(batches)
    context = TaskContext.get()
    number, attempt = context.partitionId(), context.attemptNumber()
    (Path(SHARED) / f"ran-{number}-{attempt}").touch()
    if (number, attempt) == (0, 0):
        raise ValueError("told to fail")
    deadline = time.monotonic() + 120
    while (number, attempt) == (1, 0) and time.monotonic() < deadline:
        time.sleep(0.05)

def make(work=note_place):
    return spark.range(0, ROWS, 1, TASKS).mapInArrow(work, "id bigint, place string")

def attempt(name, do):
    try:
        told[name] = do()
    except SinkError as error:
        told[name] = [error.condition, error.retriable]
    told[name + " published"] = len(list(Path(SHARED).glob("batch=*")))

def write(start, work=note_place):
    writer = sink.open("s")
    try:
        return writer.write(make(work), at(start), at(start + ROWS)).rows
    finally:
        told["position"] = writer.position and writer.position.offsets[TopicPartition("t", 0)]
        writer.close()

attempt("no executor sees it", lambda: write(0))
attempt("at the start", lambda: open_sink(sink, "s", spark).close())
told["executors"] = link("0")
attempt("one executor sees it", lambda: write(0))
attempt("at the start, one", lambda: open_sink(sink, "s", spark).close())
link("all")
attempt("at the start, all", lambda: open_sink(sink, "s", spark).close())
attempt("all see it", lambda: write(0))
attempt("failed and twice", lambda: write(ROWS, fail_and_linger))
told["ran"] = sorted(path.name for path in Path(SHARED).glob("ran-*"))
for path in Path(SHARED).glob("ran-*"):
    path.unlink()
rows = [row.asDict() for row in spark.read.parquet(SHARED).select("id", "place").collect()]
told["ids"] = sorted(row["id"] for row in rows) == sorted([*range(ROWS), *range(ROWS)])
told["places"] = len({row["place"] for row in rows})
told["left"] = sorted(path.name[:5] for path in (Path(SHARED) / "_penstock").iterdir())
print("TOLD", json.dumps(told))
spark.stop()
"""


def test_a_folder_that_executors_do_not_share_is_told_and_never_an_empty_batch(
    two_workers: TwoWorkers,
) -> None:
    """C12, G9: reported at the start, and by each batch; a task that failed or ran twice counts once."""
    (two_workers.folder / "view").mkdir()
    program = PROGRAM.replace("ROWS", str(ROWS)).replace("TASKS", str(TASKS))
    told = two_workers.run(program, str(two_workers.folder))
    missing, not_shared = ["FILES_INCOMPLETE", True], ["FOLDER_NOT_SHARED", False]
    assert told["executors"] == ["0", "1"]
    assert (told["no executor sees it"], told["no executor sees it published"]) == (missing, 0)
    assert (told["one executor sees it"], told["one executor sees it published"]) == (missing, 0)
    assert told["at the start"] == told["at the start, one"] == not_shared
    assert told["at the start, all"] is None
    assert (told["all see it"], told["all see it published"]) == (ROWS, 1)
    assert (told["failed and twice"], told["failed and twice published"]) == (ROWS, 2)
    # On a busy computer, other tasks may run twice too.
    assert {f"ran-{each}" for each in ("0-0", "0-1", "1-0", "1-1", "2-0", "3-0")} <= set(told["ran"])
    assert told["ids"]
    assert told["places"] == 2, "two executors did the work"
    assert told["position"] == 2 * ROWS
    assert not {"new-s", "token"} & set(told["left"])
