"""What a direct stream remembers of its batches: those that are done and, separately, failed attempts.

Rule: a sum over `completed` never counts a batch twice, no matter how often it was tried. Only the last
reports are kept, so that the memory of a stream that runs for months does not grow. A run's total is counted
separately. The counts are offsets. Only tasks could count the records among them, but their counts would not
add up to the batch's: Spark reruns tasks, and a frame that is used twice is read twice.

    stream.reports[-1].offsets, stream.failed_attempts, stream.run().offsets
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from penstock.engines.direct.direct_batch import BatchReport

Event = Literal["submitted", "started", "completed", "failed"]

_KEPT = 100


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Why a run ended, after how many batches, and how many offsets they had. A failed run raises instead."""

    reason: str
    batches: int
    offsets: int = 0


class RunReports:
    """The last reports of a run, and how many offsets all its batches had."""

    def __init__(self) -> None:
        self.completed: deque[BatchReport] = deque(maxlen=_KEPT)
        self.failed: deque[BatchReport] = deque(maxlen=_KEPT)
        self.offsets = 0

    def note(self, event: Event, report: BatchReport) -> None:
        """Remember a batch that is done or an attempt that failed; ignore other events."""
        if event == "completed":
            self.completed.append(report)
            self.offsets += report.offsets
        elif event == "failed":
            self.failed.append(report)
