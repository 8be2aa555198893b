"""Results as files: one folder per batch, complete or absent."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.cli import main
from penstock.core.errors import OptionError, SinkError
from penstock.core.model import OffsetRange, TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.sinks.file_batches import name_folder
from penstock.direct import At, DirectStream, Subscribe
from penstock.engines.sinks import file_sink as files
from penstock.engines.sinks.file_sink import FORMATS
from penstock.engines.sinks.task_output_checks import TaskCounts
from penstock.sinks import FileSink
from tests.support.kafka.topic_filling import produce

T0 = TopicPartition("t", 0)


def at(offset: int) -> StreamPosition:
    return StreamPosition({T0: offset})


def make(spark: SparkSession, start: int, until: int) -> DataFrame:
    return spark.range(start, until).withColumnRenamed("id", "offset")


def read(spark: SparkSession, folder: Path, kind: str = "parquet") -> Counter[int]:
    if not any(folder.glob("batch=*")):
        return Counter()
    rows = spark.read.format(kind).schema("offset bigint").load(str(folder)).collect()
    return Counter(row.offset for row in rows)


@pytest.mark.parametrize("kind", ["parquet", "orc", "json", "csv"])
def test_a_batch_is_a_folder_named_by_its_offsets(spark: SparkSession, tmp_path: Path, kind: Any) -> None:
    """C12, G6: the folder is written under another name, then renamed."""
    writer = FileSink(tmp_path / "out", kind).open("s")
    writer.write({}, StreamPosition({}), at(0))
    written = writer.write(make(spark, 0, 5), at(0), at(5))
    assert written.rows == 5
    assert [each.name for each in (tmp_path / "out").glob("batch=*")] == ["batch=s.t-0.0-5"]
    assert read(spark, tmp_path / "out", kind) == Counter(range(5))
    assert writer.write(make(spark, 0, 5), at(0), at(5)).was_repeated
    writer.close()
    again = FileSink(tmp_path / "out", kind).open("s")
    assert again.position == at(5)
    again.close()


@pytest.mark.usefixtures("spark")
def test_one_writer_at_a_time(tmp_path: Path) -> None:
    """T39: the second writer is refused while the first lives."""
    first = FileSink(tmp_path).open("s")
    with pytest.raises(SinkError) as raised:
        FileSink(tmp_path).open("s")
    assert raised.value.condition == "SINK_IN_USE"
    FileSink(tmp_path).open("other").close()
    first.close()
    FileSink(tmp_path).open("s").close()


def test_a_seek_back_takes_the_batches_away_that_come_again(spark: SparkSession, tmp_path: Path) -> None:
    """G6: no row is there twice; a position inside a batch is refused."""
    writer = FileSink(tmp_path).open("s")
    for start in (0, 5, 10):
        writer.write(make(spark, start, start + 5), at(start), at(start + 5))
    with pytest.raises(OptionError) as raised:
        writer.write({}, at(15), at(7))
    assert raised.value.condition == "SEEK_INSIDE_BATCH"
    assert read(spark, tmp_path) == Counter(range(15))
    writer.write({}, at(15), at(5))
    assert read(spark, tmp_path) == Counter(range(5))
    writer.write(make(spark, 5, 12), at(5), at(12))
    assert read(spark, tmp_path) == Counter(range(12))
    writer.close()


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("parquet", "vanished"),
        ("parquet", "cut off"),
        ("parquet", "shorter"),
        ("orc", "cut off"),
        ("json", "shorter"),
        ("csv", "vanished"),
    ],
)
def test_files_that_are_not_what_the_tasks_wrote_are_not_published(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, fault: str
) -> None:
    """C12: the offsets stay; the batch is repeated, and is complete."""
    save = files.save_frame

    def spoil(frame: DataFrame, kind: str, place: Path) -> TaskCounts:
        told = save(frame, kind, place)
        victim = sorted(place.glob("part-*"))[-1]
        if fault == "vanished":
            victim.unlink()
        elif fault == "shorter":  # and valid, as far as one can tell: it only has too few rows
            victim.with_name(f".{victim.name}.crc").unlink()
            if kind == "parquet":
                pq.write_table(pq.read_table(victim).slice(1), victim)
            else:
                victim.write_text(victim.read_text().partition("\n")[2])
        else:
            os.truncate(victim, victim.stat().st_size // 2)
        return told

    with closing(FileSink(tmp_path / "out", kind).open("s")) as writer:
        writer.write({}, StreamPosition({}), at(0))
        with monkeypatch.context() as patch:
            patch.setattr(files, "save_frame", spoil)
            with pytest.raises(SinkError) as raised:
                writer.write(make(spark, 0, 50).repartition(2), at(0), at(50))
        assert (raised.value.condition, raised.value.retriable) == ("FILES_INCOMPLETE", True)
        assert not list((tmp_path / "out").glob("batch=*"))
        assert writer.position == at(0)
        assert writer.write(make(spark, 0, 50).repartition(2), at(0), at(50)).rows == 50
    assert read(spark, tmp_path / "out", kind) == Counter(range(50))


def test_odd_rows_are_counted_as_their_tasks_count_them(spark: SparkSession, tmp_path: Path) -> None:
    """An empty frame, rows without a value and rows of several lines are published like any other."""
    rows = spark.createDataFrame([(None,), ("a\nb",), ("",)], "text string")
    for kind in FORMATS:
        with closing(FileSink(tmp_path / kind, kind).open("s")) as writer:
            assert writer.write(rows, at(0), at(3)).rows == 3
            assert writer.write(rows.where("false"), at(3), at(9)).rows == 0
            assert writer.position == at(9)


def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError) as raised:
        FileSink(tmp_path / "file" / "x").open("s")
    assert raised.value.condition == "FILES_UNUSABLE"
    with pytest.raises(OptionError):
        FileSink(tmp_path, "xml")  # type: ignore[arg-type]


def test_a_long_name_is_told_by_a_digest() -> None:
    ranges = [OffsetRange(f"topic-{number}", 0, 0, number + 1) for number in range(100)]
    name = name_folder("s", ranges)
    assert len(name) <= 180
    assert name != name_folder("s", [*ranges[:-1], OffsetRange("topic-99", 0, 0, 5)])


PROGRAM = """
import sys
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.engines.sinks import file_sink as files
from penstock.engines.sinks.task_output_checks import TaskCounts
from tests.crash.gates import pass_gate

def save(rows, kind, place):
    # Writing without Spark: the steps that matter are the sink's own.
    place.mkdir()
    pq.write_table(pa.table({"offset": rows}), place / "part-00000-c.parquet")
    return TaskCounts(len(rows), frozenset({0}))

def gated(name, function):
    def call(*given, **named):
        pass_gate(name, "before")
        found = function(*given, **named)
        pass_gate(name, "after")
        return found
    return call

files.save_frame = gated("save", save)
files.write_to_disk = gated("note", files.write_to_disk)
files._make_visible = gated("rename", files._make_visible)
files.FileOffsetStore.save = gated("store", files.FileOffsetStore.save)
at = lambda offset: StreamPosition({TopicPartition("t", 0): offset})
writer = files.FileSink(sys.argv[1]).open("s")
step = int(sys.argv[2])
start = 0 if writer.position is None else writer.position.offsets[TopicPartition("t", 0)]
while start < 30:
    until = min(30, start + step)
    writer.write(list(range(start, until)), at(start), at(until))
    start = until
"""
STEPS = [(step, moment) for step in ("save", "note", "rename", "store") for moment in ("before", "after")]


@pytest.mark.slow
def test_killed_at_every_step_and_started_again_every_row_is_there_once(tmp_path: Path) -> None:
    """C12, C15, G6, G16: SIGKILL before and after each step; the next run even uses other batch sizes."""
    from tests.crash.gates import FOLDER_VARIABLE, Gate, arm, await_arrival

    for number, (step, moment) in enumerate(STEPS):
        folder, gates = tmp_path / str(number), tmp_path / f"gates-{number}"
        gates.mkdir()
        environment = {**os.environ, FOLDER_VARIABLE: str(gates)}
        command = [sys.executable, "-c", PROGRAM, str(folder)]
        arm(gates, Gate("kill", step, moment, call=4 if step == "note" else 2))  # in the second batch
        program = subprocess.Popen([*command, "10"], env=environment)
        try:
            assert await_arrival(gates, "kill")["pid"] == program.pid
            program.send_signal(signal.SIGKILL)
            assert program.wait(30) == -signal.SIGKILL
        finally:
            program.kill()
            program.wait()
        (gates / "armed.json").unlink()
        before = list(folder.glob("batch=*"))
        assert subprocess.run([*command, "7"], env=environment, timeout=60).returncode == 0
        found: Counter[int] = Counter()
        for path in folder.glob("batch=*/*.parquet"):
            found.update(pq.read_table(path)["offset"].to_pylist())
        assert found == Counter(range(30)), (step, moment)
        assert len(list(folder.glob("batch=*"))) > len(before)
        assert not list((folder / "_penstock").glob("new-*"))


RETRIED = (
    PROGRAM.split("writer = files")[0]
    + """
import shutil
remove, save = shutil.rmtree, files.FileOffsetStore.save

def remove_half(path):
    for file in list(Path(path).glob("*.parquet"))[:1]:
        file.unlink()
    pass_gate("remove", "after")
    remove(path)

def fail_once(*given, **named):
    files.FileOffsetStore.save = save
    raise OSError("no space left")

files.shutil.rmtree = remove_half
writer = files.FileSink(sys.argv[1]).open("s")
if writer.position is None:
    files.FileOffsetStore.save = fail_once
    try:
        writer.write(list(range(10)), at(0), at(10))
    except Exception as error:
        print(error, flush=True)  # a stream does the batch again, with the same offsets
    writer.write(list(range(10)), at(0), at(10))
"""
)


def test_a_batch_that_is_replaced_is_never_half_there(tmp_path: Path) -> None:
    """G6, G16: it is killed while the folder of a batch's first attempt is being removed."""
    from tests.crash.gates import FOLDER_VARIABLE, Gate, arm, await_arrival

    folder, gates = tmp_path / "out", tmp_path / "gates"
    gates.mkdir()
    environment = {**os.environ, FOLDER_VARIABLE: str(gates)}
    arm(gates, Gate("kill", "remove", "after", call=1))
    command = [sys.executable, "-c", RETRIED, str(folder)]
    program = subprocess.Popen(command, env=environment)
    try:
        await_arrival(gates, "kill")
        program.send_signal(signal.SIGKILL)
        assert program.wait(30) == -signal.SIGKILL
    finally:
        program.kill()
        program.wait()
    (gates / "armed.json").unlink()
    assert subprocess.run(command, env=environment, timeout=60).returncode == 0
    rows = [pq.read_table(path)["offset"].to_pylist() for path in folder.glob("batch=*/*.parquet")]
    assert rows == [list(range(10))]


def test_an_audit_finds_what_happened_to_a_file_sink(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It checks ranges, counts in the files and provenance; each planted fault is found by its own check."""
    origin = ("'t' AS penstock_topic", "0 AS penstock_partition", "id AS penstock_offset")
    folder = tmp_path / "out"

    def audit(*more: str) -> tuple[set[str], dict[str, Any]]:
        capsys.readouterr()
        ended = main(["audit", str(folder), *more, "--json"])
        printed = capsys.readouterr()
        assert ended < 2, printed.err
        told: dict[str, Any] = json.loads(printed.out)
        assert ended == (1 if told["findings"] else 0)
        return {each["condition"] for each in told["findings"]}, told

    writer = FileSink(folder).open("s")
    for start, until in ((0, 40), (40, 60), (60, 90)):
        frame = spark.range(start, until, numPartitions=2).selectExpr("id", *origin)
        writer.write(frame, at(start), at(until))
    others = FileSink(folder, "json").open("texts")
    others.write(make(spark, 0, 5), at(0), at(5))
    found, told = audit()
    assert found == set()
    assert sum("as written (evidence: row counts in the files)" in each for each in told["checked"]) == 3
    assert any("only Parquet files say" in each for each in told["unchecked"])
    others.close()

    (first, second, third) = (folder / f"batch=s.t-0.{name}" for name in ("0-40", "40-60", "60-90"))
    files = sorted(third.glob("*.parquet"))
    kept = files[0].read_bytes()
    files[0].unlink()
    assert audit("s")[0] == {"ROWS_MISSING"}
    files[0].write_bytes(kept)
    stray = spark.range(500, 515).selectExpr("id", *origin).toArrow()
    pq.write_table(stray, files[0])
    assert audit("s")[0] == {"OFFSETS_OUTSIDE"}
    files[0].write_bytes(kept)
    second.rename(tmp_path / "away")
    assert audit("s")[0] == {"RANGE_MISSING"}
    (tmp_path / "away").rename(second)
    shutil.copytree(first, folder / "batch=copy")
    assert audit("s")[0] == {"RANGES_OVERLAP"}
    shutil.rmtree(folder / "batch=copy")
    shutil.rmtree(third)
    assert audit("s")[0] == {"POSITION_ELSEWHERE"}
    writer.close()
    for more, condition in ((["nobody"], "STREAM_NOT_FOUND"), (["--re-read"], "OPTION_NOT_FOR_FILES")):
        assert main(["audit", str(folder), *more]) == 2
        assert condition in capsys.readouterr().err


def test_a_direct_stream_writes_files_exactly_once(
    spark: SparkSession, kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """C12, G6: offsets and rows are in the same folder; a seek to a batch's start repeats that batch."""
    name = topic(2)
    for partition in (0, 1):
        produce(kafka.bootstrap, name, [f"{partition}-{index}" for index in range(10)], partition=partition)

    def run(**how: Any) -> None:
        stream = DirectStream(
            spark,
            Subscribe(name),
            {"bootstrap.servers": kafka.bootstrap, "auto.offset.reset": "earliest"},
            interval=0,
            name="visits",
            options={"maxOffsetsPerTrigger": 8},
            **how,
        )
        stream.write(FileSink(tmp_path / "out")).run(until_idle=True)

    def values() -> list[str]:
        rows = spark.read.parquet(str(tmp_path / "out")).selectExpr("cast(value as string) v").collect()
        return sorted(row.v for row in rows)

    expected = sorted(f"{partition}-{index}" for partition in (0, 1) for index in range(10))
    run()
    assert values() == expected
    run()
    assert values() == expected
    run(seek={(name, 0): At(0), (name, 1): At(0)})
    assert values() == expected
