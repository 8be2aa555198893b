"""What a direct stream remembers of its batches: those that are done and, separately, failed attempts.

Rule: a sum over `completed` never counts a batch twice, however often it was tried. Only the last ones are
kept, so that a stream which runs for months does not grow; a run's total is counted separately. The counts
are offsets. Only tasks could count the records among them, and not for free: Spark runs tasks
again, and a frame that is used twice is read twice, so their counts do not add up to the batch's.

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
    """Why a run ended, after how many batches, and how many offsets they had. A run that failed raises."""

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
