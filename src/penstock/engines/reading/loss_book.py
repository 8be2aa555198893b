"""Losses that a query steps over because `failOnDataLoss` is false: logged, counted, and kept in a ledger.

Rule: the ledger is written before the query goes on. If it cannot be written, the query fails, because users
who ask for a ledger want no loss to be forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from penstock.core.errors import DataLossError
from penstock.core.loggers import find_stream, get_logger
from penstock.core.losses.loss_ranges import Loss
from penstock.core.model import At, WorkOrder
from penstock.core.options.storage_addresses import Place

log = get_logger(__name__)

#: How many losses are remembered, so as not to be logged again: endless losses must not fill the memory.
_REMEMBERED = 10_000


class LossBook:
    """The losses seen by one query's driver. Each is logged once, no matter how often it is seen."""

    def __init__(self, ledger: Place | None) -> None:
        self._ranges = self._offsets = self._open_ends = 0
        self._ledger = ledger
        self._told: dict[tuple[object, ...], None] = {}

    def sum_up(self) -> dict[str, int]:
        """Return the counts for a report; ranges of unknown size are counted separately as `openEnds`."""
        return {"ranges": self._ranges, "offsets": self._offsets, "openEnds": self._open_ends}

    def is_known(self, loss: Loss) -> bool:
        return _key(loss) in self._told

    def keep(self, losses: Sequence[Loss]) -> None:
        new = [each for each in losses if not self.is_known(each)]
        if not new:
            return
        if self._ledger is not None:
            write_losses(self._ledger, new)
        for each in new:
            self._told[_key(each)] = None
            self._ranges += 1
            self._offsets += each.size
            self._open_ends += not each.has_known_end
            log.warning("[%s] %s %s (failOnDataLoss=false).", each.condition, each.detail, each.goes_on)
        while len(self._told) > _REMEMBERED:
            del self._told[next(iter(self._told))]


def keep_task_loss(ledger: Place, order: WorkOrder, loss: DataLossError) -> None:
    """Record a loss that a task met in a worker. The error's facts name the partition and the range."""
    topic, partition = str(loss.facts["topic"]), int(str(loss.facts["partition"]))
    pieces = [each for each in order.ranges if (each.topic, each.partition) == (topic, partition)]
    met = loss.facts.get("offset")
    # Of several pieces of one partition, take the one that holds the offset.
    wanted = next((each for each in pieces if met is None or each.holds(int(str(met)))), pieces[0])
    begin = wanted.start.offset if isinstance(wanted.start, At) else 0
    end = wanted.until.offset if isinstance(wanted.until, At) else begin
    start = int(str(loss.facts.get("offset", begin)))
    until = max(start, int(str(loss.facts.get("until", end))))
    # The driver made the ledger. If the file is missing here, it is on another host: do not make a new one.
    kept = Loss(loss.condition, topic, partition, start, until, wanted.topic_id, loss.what)
    write_losses(ledger, [kept], create=False)


def check_ledger(ledger: Place) -> None:
    """Open the ledger now: a wrong password or folder should end a query at its start, not at a loss."""
    from penstock.stores.loss_ledger import open_loss_ledger

    open_loss_ledger(ledger)


def write_losses(ledger: Place, losses: Sequence[Loss], *, create: bool = True) -> None:
    """Write to a ledger that `check_ledger` has opened; wait if its database is away."""
    from penstock.stores.loss_ledger import open_loss_ledger

    opened = open_loss_ledger(ledger, create=create, was_reached=True)
    opened.record(losses, seen_ms=time.time_ns() // 1_000_000, stream=find_stream())


def _key(loss: Loss) -> tuple[object, ...]:
    """Return what identifies a loss. An end that went back may advance, but never past what was lost."""
    moving = loss.condition == "PARTITION_OFFSET_CHANGED"
    start = None if moving else loss.start
    return loss.condition, loss.topic, loss.topic_id, loss.partition, start, loss.until
