"""A COMMIT that the database refuses each time is reported, not retried forever."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.errors import OffsetStoreError, SinkError
from penstock.core.model import TopicPartition
from penstock.core.sinks.ledger_rules import LedgerBatch, LedgerEntry, LedgerMove
from penstock.core.sinks.sql_commit_protocol import (
    COMMIT_ATTEMPTS,
    Commit,
    LockWriter,
    ReadLedger,
    Step,
    StepFailedError,
    drive,
    publish,
)

T0 = TopicPartition("t", 0)


@pytest.mark.parametrize("retriable", [False, True])
def test_a_commit_that_is_refused_each_time_ends_with_its_cause(retriable: bool) -> None:
    """T38: the database is asked each time; a constraint checked at COMMIT refuses it forever."""
    steps: list[Step] = []

    def perform(step: Step) -> Any:
        steps.append(step)
        assert len(steps) < 1000
        if isinstance(step, Commit):
            raise StepFailedError("refused") from OffsetStoreError(
                "DATABASE_FAILED", "A constraint is violated.", retriable=retriable
            )
        if isinstance(step, LockWriter):
            return 1
        return {T0: LedgerEntry(5)} if isinstance(step, ReadLedger) else None

    batch = LedgerBatch("s", (LedgerMove(T0, 5, 9),), (), token="a")
    with pytest.raises(SinkError, match="A constraint is violated") as raised:
        drive(publish(batch, epoch=1), perform)
    assert raised.value.condition == "PUBLISH_FAILED"
    assert raised.value.retriable is retriable
    assert sum(isinstance(step, Commit) for step in steps) == COMMIT_ATTEMPTS
    assert isinstance(steps[-2], ReadLedger)  # whether the last one was committed after all
