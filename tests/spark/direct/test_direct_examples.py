"""The programs of `examples/` that run direct streams: what they print, on a real broker."""

from __future__ import annotations

import importlib.util
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock.core.client.client_settings import ClientSettings
from penstock.core.model import TopicPartition
from penstock.kafka.groups.group_overview import describe_group
from tests.support.kafka.topic_filling import produce

EXAMPLES = Path(__file__).parents[3] / "examples"
#: Where Kafka's default partitioner puts the items of three partitions.
PLACES = {"item1": 1, "item2": 0, "item3": 2}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def items(kafka: Any, topic: Any) -> str:
    """Return a topic with a greeting without a key in each partition, then three rounds for three items."""
    name: str = topic(3)
    for partition in range(3):
        produce(kafka.bootstrap, name, [f"hello{partition}"], partition=partition)
    for action in range(1, 4):
        for item, partition in PLACES.items():
            produce(kafka.bootstrap, name, [f"action{action}"], partition=partition, key=item.encode())
    return name


def split_batches(output: str) -> list[tuple[int, list[str]]]:
    """Return the time and the lines of each printed batch."""
    batches: list[tuple[int, list[str]]] = []
    for line in output.splitlines():
        if line.startswith("Time: "):
            batches.append((int(line.split()[1]), []))
        elif batches and line and not line.startswith(("---", "Stopped")):
            batches[-1][1].append(line)
    return batches


@pytest.mark.usefixtures("spark")
def test_the_cold_start_takes_everything_and_the_next_batch_is_empty(
    kafka: Any, items: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """D3, D23, D24, H8, I13, I14: ten rows and three dots; an interval later, a header without rows."""
    load("direct_stream").main(
        ["--bootstrap-server", kafka.bootstrap, "--topic", items, "--interval", "100ms", "--batches", "2"]
    )
    (first_time, first), (second_time, second) = split_batches(capsys.readouterr().out)
    assert len(first) == 11
    assert first[-1] == "..."
    assert second == []
    assert first_time % 100 == second_time % 100 == 0
    assert second_time > first_time
    mine = [line for line in first if line.startswith("(item2,")]
    assert mine == [f"(item2,(action{number},{items},0,{number}))" for number in (1, 2, 3)]
    assert f"(None,(hello0,{items},0,0))" in first


@pytest.mark.usefixtures("spark")
def test_one_record_of_each_partition_a_batch(
    kafka: Any, items: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """D28, D29, I4: greetings, then action1 of each item, then action2, at multiples of the interval."""
    load("direct_stream").main(
        ["--bootstrap-server", kafka.bootstrap, "--topic", items, "--rate", "1", "--batches", "3"]
    )
    batches = split_batches(capsys.readouterr().out)
    times = [time for time, _ in batches]
    # A batch that takes longer than its interval (the first one warms up) skips to the next whole one.
    assert all(later > earlier and (later - earlier) % 1000 == 0 for earlier, later in pairwise(times))
    expected = [{f"(None,(hello{number},{items},{number},0))" for number in range(3)}]
    for action in (1, 2):
        places = PLACES.items()
        expected.append({f"({item},(action{action},{items},{number},{action}))" for item, number in places})
    assert [set(rows) for _, rows in batches] == expected


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("variant", ["1", "2", "3"])
def test_what_each_way_to_commit_really_does(
    kafka: Any, items: str, capsys: pytest.CaptureFixture[str], variant: str
) -> None:
    """D33, D34, D35, D36, D37, B216, B229, C3, T32: 1 and 3 commit and flush at the stop; 2 raises."""
    group = f"t6-{items}"
    load("direct_commits").main(
        [variant, "--bootstrap-server", kafka.bootstrap, "--topic", items, "--group", group]
    )
    output = capsys.readouterr().out
    client = ClientSettings((("127.0.0.1", int(kafka.bootstrap.rpartition(":")[2])),))
    lags = {row.partition: row.lag for row in describe_group(client, group).rows}
    partitions = [TopicPartition(items, number) for number in range(3)]
    if variant == "2":
        assert "[COMMIT_OUTSIDE_BATCH]" in output
        assert lags == dict.fromkeys(partitions, 4)
        return
    assert "12 records" in output
    assert lags == dict.fromkeys(partitions, 0)
    if variant == "3":
        ranges = [f"{items} {number} 0 4" for number in range(3)]
        ends = [f"{items}-{number}...4" for number in range(3)]
        assert output.splitlines()[-7:] == [*ranges, "-" * 10, *ends]


@pytest.mark.usefixtures("spark")
def test_printing_comes_before_storing_and_wrong_arguments_print_the_usage(
    kafka: Any,
    topic: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """H5, H6, H7: usage on standard error, exit code 1; counts on request; a failing print stores nothing."""
    monkeypatch.chdir(tmp_path)
    example = load("direct_print")
    assert example.main(["only-brokers"]) == 1
    assert "Usage" in capsys.readouterr().err
    name = topic(1)
    produce(kafka.bootstrap, name, ["hello owen", "hello lemon"])

    def fail(_batch: Any) -> None:
        raise OSError("no terminal")

    printing = example.print_values
    monkeypatch.setattr(example, "print_values", fail)
    with pytest.raises(OSError, match="no terminal"):
        example.main([kafka.bootstrap, name], batches=1)
    monkeypatch.setattr(example, "print_values", printing)
    assert example.main([kafka.bootstrap, name, "--count"], batches=1) == 0
    assert capsys.readouterr().out.splitlines() == [
        "hello owen", "hello lemon", "hello: 2", "lemon: 1", "owen: 1"
    ]  # fmt: skip
