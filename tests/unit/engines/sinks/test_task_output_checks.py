"""What a file sink does if Spark does not report how many rows its tasks wrote."""

from __future__ import annotations

import pytest

from penstock.core.errors import SinkError
from penstock.engines.sinks.task_output_checks import wait_for_counts


def test_a_write_whose_counts_never_come_is_given_up_at_its_deadline() -> None:
    with pytest.raises(SinkError, match=r"FILES_UNCONFIRMED.* within 0 s") as caught:
        wait_for_counts(lambda: False, timeout_s=0.0)
    assert caught.value.retriable


def test_counts_that_come_late_are_waited_for() -> None:
    answers = iter([False, False, True])
    wait_for_counts(lambda: next(answers))
    assert list(answers) == []


def test_counts_that_are_there_when_the_time_is_over_are_taken() -> None:
    wait_for_counts(lambda: True, timeout_s=0.0)
