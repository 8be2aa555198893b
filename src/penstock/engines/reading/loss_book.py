"""Losses that a query steps over because `failOnDataLoss` is false: logged, counted, and kept in a ledger.

Rule: the ledger is written before the query goes on. A ledger that cannot be written fails the query: who
asked for one wants no loss to be forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from penstock.core.errors import DataLossError
from penstock.core.log_lines import get_logger
from penstock.core.losses.loss_ranges import Loss
from penstock.core.model import At, RangeOrder, WorkOrder
from penstock.core.options.storage_addresses import Place

log = get_logger(__name__)

#: Losses that are not told again; a stream that always loses must not fill its memory with them.
_REMEMBERED = 10_000


class LossBook:
    """The losses of one query's driver. Each is told once, however often it is seen."""

    def __init__(self, ledger: Place | None) -> None:
        self._ranges = self._offsets = self._open_ends = 0
        self._ledger = ledger
        self._told: dict[tuple[object, ...], None] = {}

    def sum_up(self) -> dict[str, int]:
        """Return the counts for a report: of how many ranges nobody knows the size stands beside the sum."""
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
    """Write down what a task in a worker met. Its facts name the partition and the range."""
    topic, partition = str(loss.facts["topic"]), int(str(loss.facts["partition"]))
    pieces = [each for each in order.ranges if (each.topic, each.partition) == (topic, partition)]
    met = loss.facts.get("offset")
    # Of several pieces of one partition, the one that holds what was met.
    wanted = next((each for each in pieces if met is None or _holds(each, int(str(met)))), pieces[0])
    begin = wanted.start.offset if isinstance(wanted.start, At) else 0
    end = wanted.until.offset if isinstance(wanted.until, At) else begin
    start = int(str(loss.facts.get("offset", begin)))
    until = max(start, int(str(loss.facts.get("until", end))))
    # The driver made the ledger. A file that is not here is on another host, and a new one nobody would read.
    kept = Loss(loss.condition, topic, partition, start, until, wanted.topic_id, loss.what)
    write_losses(ledger, [kept], create=False)


def _holds(wanted: RangeOrder, offset: int) -> bool:
    numbers = range(
        wanted.start.offset if isinstance(wanted.start, At) else 0,
        wanted.until.offset if isinstance(wanted.until, At) else offset + 1,
    )
    return offset in numbers


def check_ledger(ledger: Place) -> None:
    """Open it now: a wrong password or folder should end a query when it starts, not at the first loss."""
    from penstock.stores.loss_ledger import open_loss_ledger

    open_loss_ledger(ledger)


def write_losses(ledger: Place, losses: Sequence[Loss], *, create: bool = True) -> None:
    """Write to a ledger that `check_ledger` has opened; wait for it if its database is away."""
    from penstock.stores.loss_ledger import open_loss_ledger

    opened = open_loss_ledger(ledger, create=create, was_reached=True)
    opened.record(losses, seen_ms=time.time_ns() // 1_000_000)


def _key(loss: Loss) -> tuple[object, ...]:
    """What makes it the same loss. An end that went back may move on, but never reaches what is lost."""
    moving = loss.condition == "PARTITION_OFFSET_CHANGED"
    start = None if moving else loss.start
    return loss.condition, loss.topic, loss.topic_id, loss.partition, start, loss.until
