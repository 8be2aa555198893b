"""The first stage of a batch, in the worker that fetches: log lines in, a few parcels out.

Each task has the records of one Kafka partition, or of several, in order. They are parsed, checked against
the rules, turned into events sorted by lane, and counted for the monitoring. For every chunk of lines, one
parcel for each lane and one for the monitoring leave the worker, and at the end the dead letters and the
counts. Rule: lines = parsed + dead, whatever the lines are.

What a worker needs (parser, detector, rules) is built once in its life and found again by the digest of its
settings: a Python worker of Spark serves many tasks, and building the matching tables takes longer than a
small batch does. Why chunks: a fetched batch has some 25,000 lines, and each piece of work has a fixed cost.

    stream.arrow(LogStage(make_kit(...)), PARCELS_DDL)
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.apps.accesslog.defence.defence_settings import DefenceSettings
from penstock.apps.accesslog.detection.detector import Detector
from penstock.apps.accesslog.events.line_events import make_events
from penstock.apps.accesslog.events.log_clocks import NEVER
from penstock.apps.accesslog.monitoring.load_counting import MonitorSettings, count_load
from penstock.apps.accesslog.parsing.line_parser import BAD_REASONS, SERVER_HEADER, Lines, Parser
from penstock.apps.accesslog.stream.dead_letter_rows import TASK_BYTES, make_dead_letters
from penstock.apps.accesslog.stream.parcels import make_parcel, pack
from penstock.apps.accesslog.texts.text_grouping import group_lines
from penstock.kernels.worker_garbage_collection import spare_the_collector

#: Columns that the stage needs of each record.
COLUMNS = ("value", "partition", "offset", "headers")
#: One more, which may be missing: when the record was made. No line can be much later than its record.
RECORD_TIME = "timestampMs"
MOST_AHEAD_US = 60_000_000
_LAST_TIME_MS = (np.iinfo(np.int64).max - MOST_AHEAD_US) // 1000
#: Kinds of parcels that the stage makes.
EVENTS, PARTIAL, COUNTS, LETTERS = "events", "partial", "counts", "letters"
#: How many lines, and bytes, are processed at once. RE2 compiles each expression once for a chunk (25 ms for
#: all rules), which is 250 ns a line in chunks of 100,000 and 100 ns in these.
CHUNK_LINES, CHUNK_BYTES = 250_000, 64 << 20

#: What a task reports about a partition; `maximum` is NEVER where no line had a time.
COUNTS_SCHEMA = pa.schema(
    [("partition", pa.int32())]
    + [(name, pa.int64()) for name in ("lines", "parsed", "dead", "late", "maximum")]
)
_REASONS = pa.array(BAD_REASONS)


@dataclass(frozen=True, slots=True)
class Kit:
    """The tools of both stages, as bytes that are opened once in a worker's life."""

    digest: str
    content: bytes = field(repr=False)


@dataclass(frozen=True)
class Tools:
    """An opened kit: what both stages work with."""

    topic: str
    parser: Parser
    defence: DefenceSettings
    monitoring: MonitorSettings

    @property
    def monitor_lane(self) -> int:
        """Return the lane of the monitoring, which concerns all clients: it comes after their lanes."""
        return self.defence.lanes

    @cached_property
    def detector(self) -> Detector:
        """Return the detector, built where it is used: its tables are a hundred times as big as the rules."""
        return Detector(self.defence.ruleset)


def make_kit(tools: Tools) -> Kit:
    content = pickle.dumps(tools)
    return Kit(hashlib.sha256(content).hexdigest(), content)


_opened: dict[str, Tools] = {}


def open_kit(kit: Kit) -> Tools:
    """Return the tools in a kit; a worker that has opened it before has them ready."""
    if kit.digest not in _opened:
        _opened.clear()  # a worker serves one pipeline at a time
        _opened[kit.digest] = pickle.loads(kit.content)
    return _opened[kit.digest]


class LogStage:
    """The fused stage of one batch. `maxima` says how far each partition's clock had come before it."""

    def __init__(self, kit: Kit, maxima: Mapping[int, int]) -> None:
        self.kit = kit
        self.maxima = dict(maxima)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        work = StageWork(open_kit(self.kit), self.maxima)
        for chunk in gather_chunks(batches):
            yield from work.take(chunk)
        yield from work.finish()
        spare_the_collector("log", collects=True)


@dataclass
class PartitionCount:
    """What a task has seen of one partition."""

    maximum: int
    lines: int = 0
    parsed: int = 0
    dead: int = 0
    late: int = 0


class StageWork:
    """One task's lines, chunk by chunk."""

    def __init__(self, tools: Tools, maxima: Mapping[int, int]) -> None:
        self._tools, self._maxima = tools, maxima
        self._letters: list[pa.RecordBatch] = []
        self._room = TASK_BYTES
        self._counts: dict[int, PartitionCount] = {}

    def take(self, chunk: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the parcels of one chunk; its records are of one partition and in order."""
        tools = self._tools
        values, partition = chunk.column("value"), chunk.column("partition")[0].as_py()
        offsets = chunk.column("offset").to_numpy()
        servers = find_header(chunk.column("headers"), SERVER_HEADER)
        lines = tools.parser.parse(values)
        if RECORD_TIME in chunk.schema.names:
            lines = cap_times(lines, chunk.column(RECORD_TIME))
        self._count(partition, lines, len(values))
        if lines.bad_rows.size:
            reasons = _REASONS.take(pa.array(lines.bad_reasons))
            letters = make_dead_letters(
                values,
                lines.bad_rows,
                reasons,
                topic=tools.topic,
                partition=partition,
                offsets=offsets,
                room=self._room,
            )
            self._letters.append(letters)
            self._room -= letters.column("line").nbytes
        if not len(lines):
            return
        grouped = group_lines(lines)
        events = make_events(
            lines,
            tools.detector.detect(lines, grouped),
            tools.defence.ruleset,
            partition=partition,
            offsets=offsets,
            servers=servers,
            lanes=tools.defence.lanes,
            lateness_us=tools.defence.lateness_us,
            grouped=grouped,
        )
        for lane, some in events.items():
            yield make_parcel(EVENTS, lane, pack(some))
        partial = count_load(
            lines,
            servers=servers,
            partition=partition,
            first_offset=int(offsets[0]),
            settings=tools.monitoring,
            grouped=grouped,
        )
        yield make_parcel(PARTIAL, tools.monitor_lane, partial)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield what each task reports once: counts of lines, and the lines that could not be parsed."""
        lane = self._tools.monitor_lane
        if self._counts:
            rows = [{"partition": partition, **vars(each)} for partition, each in self._counts.items()]
            yield make_parcel(COUNTS, lane, pack(pa.Table.from_pylist(rows, schema=COUNTS_SCHEMA)))
        if self._letters:
            yield make_parcel(LETTERS, lane, pack(pa.Table.from_batches(self._letters)))

    def _count(self, partition: int, lines: Lines, rows: int) -> None:
        before = self._maxima.get(partition, NEVER)
        counted = self._counts.setdefault(partition, PartitionCount(before))
        counted.lines += rows
        counted.parsed += len(lines)
        counted.dead += lines.bad_rows.size
        if len(lines):
            late, counted.maximum = count_late(
                lines.time_us, counted.maximum, self._tools.defence.lateness_us
            )
            counted.late += late


def cap_times(lines: Lines, made_at_ms: pa.Int64Array) -> Lines:
    """Return the lines with each time at most `MOST_AHEAD_US` ahead of its record's.

    The monitoring must tolerate the minute that is left from a single line (`load_counting` says why).
    A record without a time (null, or -1 as Kafka has it) sets no bound, and neither does one with a number
    that is not a valid time: a producer may write any number. That is why it is read in Kafka's own
    milliseconds: Spark cannot represent some of them, and the batch of such a record would fail forever.
    """
    times = made_at_ms.fill_null(-1).to_numpy()[lines.rows]
    is_time = (times >= 0) & (times <= _LAST_TIME_MS)
    most = np.where(is_time, np.where(is_time, times, 0) * 1000 + MOST_AHEAD_US, np.iinfo(np.int64).max)
    return replace(lines, time_us=np.minimum(lines.time_us, most))


def count_late(times: NDArray[np.int64], maximum: int, lateness_us: int) -> tuple[int, int]:
    """Return how many lines are before the running maximum less the lateness, and the new maximum."""
    reached = np.maximum.accumulate(np.concatenate([np.array([maximum]), times]))
    late = np.count_nonzero(times < reached[:-1] - lateness_us)
    return int(late), int(reached[-1])


def gather_chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches joined into chunks of about this size, each of one partition; their order stays."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    current = None
    for batch in _split_by_partition(batches):
        partition = batch.column("partition")[0].as_py()
        if waiting and (partition != current or rows >= CHUNK_LINES or size >= CHUNK_BYTES):
            yield _join(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows, size, current = rows + batch.num_rows, size + batch.nbytes, partition
    if waiting:
        yield _join(waiting)


def _split_by_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield parts of one partition each: a task reads one range after another."""
    for batch in batches:
        if not batch.num_rows:
            continue
        partitions = batch.column("partition").to_numpy()
        cuts = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), batch.num_rows]
        for start, end in pairwise(cuts):
            yield batch.slice(start, end - start)


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def find_header(headers: pa.ListArray, name: str) -> pa.Array | None:
    """Return the first header of this name per row, null for a row without; None if no row has one."""
    inner = headers.flatten()
    if not len(inner):
        return None
    is_it = pc.equal(inner.field("key"), name)
    has_one_each = len(inner) == len(headers) and (np.diff(headers.offsets.to_numpy()) == 1).all()
    if has_one_each and pc.all(is_it).as_py():
        return inner.field("value")  # as our own shipper writes them
    where = np.flatnonzero(is_it.to_numpy(zero_copy_only=False))
    if not where.size:
        return None
    rows, firsts = np.unique(pc.list_parent_indices(headers).to_numpy()[where], return_index=True)
    places = np.full(len(headers), -1, np.int64)
    places[rows] = where[firsts]
    return inner.field("value").take(pa.array(places, mask=places < 0))
