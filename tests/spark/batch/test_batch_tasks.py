"""How a batch read is cut into tasks, and what a task carries."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import uuid
from typing import Any

import pytest

from penstock.core.options.batch_options import parse_batch_options
from penstock.engines.reading.read_tasks import WorkPartition
from penstock.engines.source.batch_reader import BatchReader
from tests.spark.conftest import Load
from tests.spark.rows import offsets, span
from tests.support.kafka.topic_filling import commit_offsets, produce


def plan(kafka: Any, topic: str, **options: object) -> list[WorkPartition]:
    """Return the tasks as Spark would get them."""
    texts = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": topic}
    texts |= {key.replace("__", "."): str(text) for key, text in options.items()}
    found = BatchReader(parse_batch_options(texts, unique=uuid.uuid4().hex)).partitions()
    assert all(isinstance(each, WorkPartition) for each in found)
    return found  # type: ignore[return-value]


def per_partition(topic: str, *numbers: int) -> str:
    return json.dumps({topic: {str(index): number for index, number in enumerate(numbers)}})


def test_one_partition_is_one_task(load: Load, kafka: Any, topic: Any) -> None:
    """F30: one without an option; Kafka's word for the option is refused with a hint."""
    name = topic(3)
    produce(kafka.bootstrap, name, ["a", "b"], partition=1)
    assert load(name).rdd.getNumPartitions() == 3
    with pytest.raises(Exception, match=r"\[OPTION_REFUSED\].*minPartitions"):
        load(name, numPartitions=6)


def test_a_partition_without_anything_to_read_gets_no_task(load: Load, kafka: Any, topic: Any) -> None:
    """F31: only the busy partition becomes a task; with none busy the result is empty, not an error."""
    name = topic(3)
    produce(kafka.bootstrap, name, [str(n) for n in range(6)], partition=1)
    busy = load(
        name,
        startingOffsets=per_partition(name, 0, 2, 0),
        endingOffsets=per_partition(name, 0, 6, 0),
    )
    assert busy.rdd.getNumPartitions() == 1
    assert offsets(busy) == span(1, 2, 6)
    idle = load(
        name,
        startingOffsets=per_partition(name, 0, 2, 0),
        endingOffsets=per_partition(name, 0, 2, 0),
    )
    assert offsets(idle) == []


def test_small_ranges_share_a_task_when_asked(load: Load, kafka: Any, topic: Any) -> None:
    """Many small partitions make few tasks, and every row comes once, including rows that arrive later."""
    name = topic(7)
    for partition in range(6):
        produce(kafka.bootstrap, name, ["x"] * 10, partition=partition)
    frame = load(name, minRecordsPerTask=30)
    assert frame.rdd.getNumPartitions() == 2
    expected = [each for partition in range(6) for each in span(partition, 0, 10)]
    assert offsets(frame) == expected
    produce(kafka.bootstrap, name, ["late"], partition=6)
    assert offsets(frame) == [*expected, (6, 0)]


def test_a_task_holds_at_most_so_many_records(kafka: Any, topic: Any) -> None:
    """Big ranges are cut, small ones are left whole."""
    name = topic(2)
    produce(kafka.bootstrap, name, ["x"] * 100, partition=0)
    produce(kafka.bootstrap, name, ["x"] * 20, partition=1)
    pieces = [each.order.ranges[0] for each in plan(kafka, name, maxRecordsPerPartition=30)]
    assert [each.partition for each in pieces] == [0, 0, 0, 0, 1]


_READ_PICKLED = """
import pickle, sys
from penstock.kafka.reading.kafka_reader import KafkaReader
order = pickle.load(sys.stdin.buffer).order
print(sum(batch.num_rows for batch in KafkaReader().read(order)), order.columns, order.fail_on_data_loss)
"""


def test_a_task_carries_all_it_needs(kafka: Any, topic: Any) -> None:
    """F33, F21: range, client, wait, loss flag, columns; a process that has nothing else can read it."""
    name = topic()
    produce(kafka.bootstrap, name, ["x"] * 12)
    (task,) = plan(kafka, name, startingOffsets=per_partition(name, 2), includeHeaders="true")
    assert task.order.poll_timeout_ms == 120_000
    (task,) = plan(
        kafka,
        name,
        startingOffsets=per_partition(name, 2),
        includeHeaders="true",
        failOnDataLoss="false",
        kafkaConsumer__pollTimeoutMs=4321,
    )
    assert task.order.poll_timeout_ms == 4321
    assert task.order.ranges[0].topic_id is not None
    run = subprocess.run(
        [sys.executable, "-c", _READ_PICKLED], input=pickle.dumps(task), capture_output=True, timeout=120
    )
    assert run.returncode == 0, run.stderr.decode()
    assert run.stdout.decode().startswith("10 ('key', 'value', 'topic'")
    assert run.stdout.decode().strip().endswith("'headers') False")


def test_each_query_reads_everything_with_a_group_of_its_own(load: Load, kafka: Any, topic: Any) -> None:
    """F16: two queries on one topic both see all of it; their groups differ, a prefix shows in both."""
    name = topic()
    produce(kafka.bootstrap, name, ["a", "b", "c"])
    assert offsets(load(name)) == offsets(load(name)) == span(0, 0, 3)
    groups = {plan(kafka, name, groupIdPrefix="mine")[0].order.client.group_id for _ in range(2)}
    assert len(groups) == 2
    assert all(group is not None and group.startswith("mine-") for group in groups)


def test_a_read_can_start_where_a_group_stopped_or_near_the_end(load: Load, kafka: Any, topic: Any) -> None:
    """Our own options: committed, the last so many offsets, the last so many minutes."""
    name = topic(2)
    produce(kafka.bootstrap, name, ["old"] * 5, timestamp_ms=1_700_000_000_000)
    produce(kafka.bootstrap, name, ["new"] * 5)
    group = f"group-{uuid.uuid4().hex}"
    commit_offsets(kafka.bootstrap, group, name, 7, 0)
    committed = load(name, startingOffsets="committed", kafka__group__id=group)
    assert offsets(committed) == span(0, 7, 10)
    assert offsets(load(name, startingOffsets="-4")) == span(0, 6, 10)
    assert offsets(load(name, startingOffsets="-1000")) == span(0, 0, 10)
    assert offsets(load(name, startingOffsets="-10m")) == span(0, 5, 10)
    with pytest.raises(Exception, match=r"\[NO_COMMITTED_OFFSET\]"):
        load(name, startingOffsets="committed", kafka__group__id=f"{group}-other").collect()


def test_a_pattern_takes_whole_names_and_no_internal_topic(load: Load, kafka: Any, topic: Any) -> None:
    """B11, A17: `test` does not match `test2`, and `.*` does not match the brokers' own topics."""
    name = topic(name="pattern")
    longer = topic(name=name)
    for each in (name, longer):
        produce(kafka.bootstrap, each, ["x"])
    commit_offsets(kafka.bootstrap, f"group-{uuid.uuid4().hex}", name, 1)  # creates the internal topic
    assert {row.topic for row in load(None, subscribePattern=name).collect()} == {name}
    both = {row.topic for row in load(None, subscribePattern=f"{name}.*").collect()}
    assert both == {name, longer}
    texts = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribePattern": f"__.*|{name}"}
    tasks = BatchReader(parse_batch_options(texts, unique="u")).partitions()
    assert {each.order.ranges[0].topic for each in tasks} == {name}  # type: ignore[attr-defined]


def test_a_reader_loads_no_pandas_and_is_kept_out_of_its_workers_collections(kafka: Any, topic: Any) -> None:
    """PySpark collects garbage after every task, and a worker that has read must not walk numba each time.

    Pandas would take a second of every worker's start, and some calls of pyarrow load it unasked.
    """
    name = topic()
    produce(kafka.bootstrap, name, ["x"])
    program = (
        "import gc, sys; from penstock.core.options.batch_options import parse_batch_options;"
        "from penstock.engines.source.batch_reader import BatchReader;"
        "texts = {'kafka.bootstrap.servers': sys.argv[1], 'subscribe': sys.argv[2]};"
        "reader = BatchReader(parse_batch_options(texts, unique='u'));"
        "(task,) = reader.partitions();"
        "print(*(sum(each.num_rows for each in reader.read(task)) for _ in range(2)), gc.get_freeze_count());"
        "print('pandas' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, kafka.bootstrap, name], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    first, second, frozen, has_pandas = run.stdout.split()
    assert (first, second) == ("1", "1")
    assert int(frozen) > 50_000
    assert has_pandas == "False"
