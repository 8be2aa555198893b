"""A query whose checkpoint was moved by hand continues exactly where it was put."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.cli import main
from tests.spark.streaming import Flow, expect
from tests.support.kafka.topic_filling import produce


def move(flow: Flow, verb: str, *how: str) -> None:
    at = ["--at", f"checkpoint:{flow.checkpoint}", "0", "--yes", "--watch", "0s"]
    assert main(["offsets", verb, *at, *how]) == 0


def test_a_query_reads_again_or_passes_over_what_its_checkpoint_was_moved_by(
    flow: Flow, kafka: Any, topic: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """By batch, by number, and after a batch that was planned and failed: exactly the requested rows come."""
    name = topic()
    for value in "abc":
        produce(kafka.bootstrap, name, [value])
        assert flow.run(name, startingOffsets="earliest")[-1][3] == value
    move(flow, "rewind", "--to-batch", "0")
    assert flow.run(name) == expect(name, 0, ["b", "c"], start=1)
    produce(kafka.bootstrap, name, ["d", "e", "f"])

    def fail(_number: int) -> None:
        raise RuntimeError("the batch is planned and not done")

    flow.start(name, during=fail)
    assert "planned and not done" in flow.failure()
    flow.take()
    move(flow, "skip", "--by", "2", "--bootstrap-server", kafka.bootstrap)
    assert flow.run(name) == expect(name, 0, ["f"], start=5)
    move(flow, "rewind", "--to-start", "--bootstrap-server", kafka.bootstrap)
    assert flow.run(name) == expect(name, 0, list("abcdef"))
    capsys.readouterr()
    assert main(["offsets", "show", "--at", f"checkpoint:{flow.checkpoint}", "0", "--changes"]) == 0
    assert capsys.readouterr().out.count(f"{name}-0: ") == 3
