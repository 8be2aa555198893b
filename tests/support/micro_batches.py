"""Spark's micro-batch engine in miniature: the same calls in the same order, a checkpoint, and kills.

It serves tests that need thousands of batches and restarts. It keeps what Spark keeps: the text of each
batch's end, written before the batch runs, and a mark when it has run. A query that is killed comes back with
a new reader and only these two logs. The sink replaces the rows of a batch that runs again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.core.errors import DataLossError
from penstock.core.model import Log, LogView, Reader
from penstock.core.offsets.stream_position import read_position
from penstock.core.options.stream_options import parse_stream_options
from penstock.engines.source.stream_reader import StreamReader
from penstock.testing.memory_log import MemoryLog


class KilledError(Exception):
    """The process was killed here."""


class MemorySource:
    """A log in memory as a source; it records the losses that its readers were told to step over."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.losses: list[DataLossError] = []

    def open_view(self) -> LogView:
        return self.log.view()

    def open_reader(self, *, repeated: bool, report: Callable[[DataLossError], None]) -> Reader:
        def keep(loss: DataLossError) -> None:
            self.losses.append(loss)
            report(loss)

        return self.log.reader(keep)


class MicroBatches:
    """One query: its checkpoint and its sink survive `kill`, its reader does not."""

    def __init__(self, source: Log, **options: str) -> None:
        self.source = source
        self.options = {
            "kafka.bootstrap.servers": "b:9092",
            "fetchOffset.retryIntervalMs": "0",
            **{key.replace("__", "."): text for key, text in options.items()},
        }
        self.ends: dict[int, str] = {}
        self.committed: set[int] = set()
        self.sink: dict[int, list[dict[str, Any]]] = {}
        self.reader: StreamReader | None = None
        self._start: str | None = None

    # --- life -------------------------------------------------------------------------------------------

    def start(self, *, available_now: bool = False) -> None:
        """Start a new process, with a new reader and what the checkpoint holds."""
        self.reader = StreamReader(parse_stream_options(self.options, unique="u"), self.source)
        if available_now:
            self.reader.prepareForTriggerAvailableNow()
        last = max(self.ends, default=-1)
        unfinished = last >= 0 and last not in self.committed
        if unfinished:
            before = self.ends.get(last - 1) or self._text(self.reader.initialOffset())
            self._run(last, before, self.ends[last])
        self._start = self.ends.get(last)

    def kill(self) -> None:
        self.reader = self._start = None

    @property
    def running(self) -> bool:
        return self.reader is not None

    # --- batches ----------------------------------------------------------------------------------------

    def trigger(self, *, take_all: bool = False, die_at: str | None = None) -> bool:
        """Run one trigger; return False when there was nothing to do.

        `die_at` names the step before which the process is killed.
        """
        assert self.reader is not None
        batch = max(self.ends, default=-1) + 1
        start = self._start if self._start is not None else self._text(self.reader.initialOffset())
        self._die(die_at, "latestOffset")
        limit = ReadAllAvailable() if take_all else self.reader.getDefaultReadLimit()
        end = self._text(self.reader.latestOffset(json.loads(start), limit))
        self.reader.reportLatestOffset()
        if end == start and batch > 0:
            return False
        self._die(die_at, "write the end")
        self.ends[batch] = end
        if batch > 0:
            self.reader.commit(json.loads(start))
        self._die(die_at, "run")
        self._run(batch, start, end, die_at)
        self._start = end
        return True

    def drain(self, limit: int = 1000) -> None:
        for _ in range(limit):
            if not self.trigger():
                return
        raise AssertionError("the stream never comes to rest")

    def _run(self, batch: int, start: str, end: str, die_at: str | None = None) -> None:
        assert self.reader is not None
        tasks = self.reader.partitions(json.loads(start), json.loads(end))
        rows: list[dict[str, Any]] = []
        for task in tasks:
            for arrow in self.reader.read(task):
                rows += pa.Table.from_batches([arrow]).to_pylist()
        self._die(die_at, "write rows")
        self.sink[batch] = rows
        self._die(die_at, "write the mark")
        self.committed.add(batch)

    def _die(self, die_at: str | None, step: str) -> None:
        if die_at == step:
            self.kill()
            raise KilledError(step)

    @staticmethod
    def _text(offset: dict[str, Any]) -> str:
        return json.dumps(offset)

    def first_starts(self) -> dict[tuple[bytes | None, int], int]:
        """Return where the stream began, by topic id and partition: nothing before that was promised."""
        if not self.ends:
            return {}
        first = read_position(json.loads(self.ends[0]))
        return {
            (first.topic_ids.get(each.topic), each.partition): offset for each, offset in first.starts.items()
        }

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in sorted(self.sink) for row in self.sink[batch]]

    @property
    def values(self) -> list[bytes]:
        return [row["value"] for row in self.rows]


#: Where a query can be killed, in the order of its steps.
STEPS = ("latestOffset", "write the end", "run", "write rows", "write the mark")
