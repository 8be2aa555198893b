"""A shipper's position in its files, kept in Kafka with the lines themselves.

Rule: the position is a record of the same transaction as the lines before it, so there is no moment at which
lines are visible and the position is not. Why not a group's offsets: they are deleted after a week without
members, and their metadata holds some thirty files. Why not a file: no transaction covers it and the lines.

A shipper has one record for itself, which says how many files there are, and one for each file; a transaction
writes those that have changed. All are in the partition that its name hashed to when it was first seen.
Partitions may be added later, so if a load does not find records there that were written while the topic had
as many partitions as now, it searches all partitions and takes the newest (by `step`, or by time if a record
has none).

    writer.fence()                      # first: nothing of an earlier life can change any more
    state = store.load("web1/lines")    # waits until what was written before is settled
    writer.write(store.topic, store.make_records("web1/lines", state, changed))
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import BrokerError, OffsetStoreError
from penstock.core.model import At, RangeOrder, TopicPartition, TopicView, WorkOrder
from penstock.kafka.metadata.routing import routing_for
from penstock.kafka.metadata.topic_admin import create_topic, describe_topic_configs, topic_exists
from penstock.kafka.reading.kafka_log_view import KafkaLogView
from penstock.kafka.reading.kafka_reader import KafkaReader
from penstock.kafka.records.murmur2_kernel import partition_of_keys
from penstock.kafka.transport.deadlines import Deadline
from penstock.kafka.transport.retries import LEAST_PAUSE_MS, Attempts
from penstock.kernels.byte_columns import byte_column

DEFAULT_TOPIC = "penstock-ship-positions"
_VERSION = 2
_PARTITIONS = 4
_SEPARATOR = b"\0"  # no name contains it: arguments of programs cannot
_CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
#: How many offsets are read first, backwards from the end: the last record is usually the right one.
_FIRST_LOOK = 2_000
_MOST_PATTERN_BYTES = 2_000
#: How long another shipper's open transaction is waited for; its own limit is a minute.
_SETTLING_TIMEOUT_MS = 150_000


@dataclass(frozen=True, slots=True)
class FilePosition:
    """One file: how it is identified, and how many of its bytes are shipped.

    `head` and `tail` are digests: of its first `head_bytes`, and of the last bytes before `offset` (as many
    as `followed_files.TAIL_BYTES`). `skipping` says that the line at `offset` is too long and its rest is
    left out, `finished` that the file was read to its end and no more is expected, `packed` that offsets
    count unpacked bytes. `written_ns` is the time of the last write that was seen; younger files came after
    it. `number` identifies one of a shipper's positions; files of one log are read in its order.
    """

    path: str
    device: int
    inode: int
    offset: int = 0
    head: str = ""
    head_bytes: int = 0
    tail: str = ""
    skipping: bool = False
    finished: bool = False
    packed: bool = False
    written_ns: int = 0
    number: int = 0

    @property
    def identity(self) -> tuple[int, int]:
        return self.device, self.inode


_DEFAULTS = {each.name: each.default for each in fields(FilePosition)}


@dataclass(frozen=True, slots=True)
class ShipState:
    """The durable state of a shipper: its files, how many lines it has sent, and the life that wrote this.

    `step` rises with each state that is stored. `patterns` says which files that life follows, as far as
    there is room for them, and `is_over` that it has ended on its own. `written_ms` is when this was stored;
    it is set by loading.
    """

    files: tuple[FilePosition, ...] = ()
    lines: int = 0
    life: str = ""
    step: int = 0
    patterns: tuple[str, ...] = ()
    is_over: bool = False
    written_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a shipper's records are, and how many partitions the topic has."""

    partition: int
    partitions: int


@dataclass(frozen=True, slots=True)
class Stored:
    """What one partition holds about a shipper: its own record, with its time, and those of its files."""

    partition: int
    state: ShipState
    time_ms: int
    wanted: int
    partitions: int
    files: dict[bytes, bytes]


def find_newest(found: Sequence[Stored]) -> Stored | None:
    """Return the one that was written last, with the highest step of all, so that the next one is higher.

    Records of releases without steps have the step 0. Such a release may have run after one with steps, so
    between the two kinds the time decides.
    """
    with_step = max(
        (each for each in found if each.state.step), key=lambda each: each.state.step, default=None
    )
    others = [each for each in found if not each.state.step]
    newest = max([*others, *([with_step] if with_step else [])], key=lambda each: each.time_ms, default=None)
    if newest is None or with_step is None:
        return newest
    return replace(newest, state=replace(newest.state, step=with_step.state.step))


def _encode_head(state: ShipState, partitions: int) -> bytes:
    content = {"version": _VERSION, "life": state.life, "lines": state.lines, "files": len(state.files)}
    content |= {"step": state.step, "partitions": partitions, "patterns": _keep_some(state.patterns)}
    return _to_json({**content, "over": True} if state.is_over else content)


def _keep_some(patterns: Sequence[str]) -> list[str]:
    """Return the first patterns, as many as have room in a record that each transaction writes."""
    sizes = accumulate(len(json.dumps(each)) for each in patterns)
    return [each for each, size in zip(patterns, sizes, strict=True) if size <= _MOST_PATTERN_BYTES]


def _encode_file(position: FilePosition) -> bytes:
    """Return what differs from an empty position; the file's number is in the key."""
    content = {name: value for name, value in asdict(position).items() if value != _DEFAULTS.get(name)}
    content.pop("number", None)
    return _to_json(content)


def _to_json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode("ascii")


def _decode_head(name: str, data: bytes) -> tuple[ShipState, int, int]:
    """Return the state without its files, how many there are, and how many partitions the topic had then.

    Older releases wrote neither a step nor partitions: both are 0 then, and there are no patterns.
    """
    try:
        head = json.loads(data)
        if head["version"] != _VERSION:
            raise _unreadable(name, f"version {head['version']} is not known here")
        state = ShipState(
            lines=int(head["lines"]),
            life=str(head["life"]),
            step=int(head.get("step", 0)),
            patterns=tuple(str(each) for each in head.get("patterns", ())),
            is_over=bool(head.get("over", False)),
        )
        return state, int(head["files"]), int(head.get("partitions", 0))
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(name, "it is damaged") from error


def _decode_file(name: str, key: bytes, data: bytes) -> FilePosition:
    try:
        return FilePosition(**json.loads(data), number=int(key.rpartition(_SEPARATOR)[2]))
    except (ValueError, TypeError) as error:
        raise _unreadable(name, "it is damaged") from error


def _trying(deadline: Deadline, waiting_for: str) -> Attempts:
    return Attempts(deadline, waiting_for, LEAST_PAUSE_MS, longest_pause_ms=LEAST_PAUSE_MS)


class PositionTopic:
    """The compacted topic that positions are written to, by their shipper's transaction."""

    def __init__(self, settings: ClientSettings, topic: str = DEFAULT_TOPIC) -> None:
        self._settings = replace(settings, isolation_level="read_committed")
        self.topic = topic
        self._places: dict[str, _Place] = {}

    def prepare(self) -> None:
        """Create the topic if it is missing; refuse one that deletes records by age."""
        if not topic_exists(self._settings, self.topic):
            try:
                create_topic(
                    self._settings,
                    self.topic,
                    partitions=_PARTITIONS,
                    replication_factor=None,
                    configs=_CONFIGS,
                )
            except BrokerError as error:
                if error.condition != "TOPIC_ALREADY_EXISTS":  # another shipper was faster
                    raise
        policy = describe_topic_configs(self._settings, self.topic).get("cleanup.policy")
        if policy != "compact":
            raise OffsetStoreError(
                "POSITIONS_TOPIC_NOT_COMPACTED",
                f"The topic {self.topic} has cleanup.policy={policy}: it would forget positions.",
                hint="Set cleanup.policy=compact for it, or name another topic.",
                facts={"topic": self.topic, "policy": policy},
            )

    def make_records(self, name: str, before: ShipState, state: ShipState) -> pa.RecordBatch:
        """Return rows that turn the state `before` of the shipper `name` into `state`. Call `load` first."""
        old = {each.number: each for each in before.files}
        place = self._places[name]
        rows: dict[bytes, bytes | None] = {name.encode(): _encode_head(state, place.partitions)}
        for each in state.files:
            if old.pop(each.number, None) != each:
                rows[_key_of(name, each.number)] = _encode_file(each)
        rows |= {_key_of(name, number): None for number in old}
        keys, values = pa.array(rows.keys(), pa.binary()), pa.array(rows.values(), pa.binary())
        where = pa.array([place.partition] * len(rows), pa.int32())
        return pa.record_batch({"key": keys, "value": values, "partition": where})

    def load(self, name: str) -> ShipState:
        """Return the last state of this shipper; an empty one if there is none. Fence the writer first."""
        deadline = Deadline.after_ms(_SETTLING_TIMEOUT_MS, "the time for open transactions to end")
        routing = routing_for(self._settings)
        routing.leader(self.topic, 0, deadline)  # waits for a topic that was made a moment ago
        # Another broker may answer now that does not know the topic yet.
        attempts = _trying(deadline, f"topic {self.topic} to be known")
        view = next(filter(None, (routing.describe(self.topic, deadline) for _ in attempts)), None)
        if view is None:
            raise attempts.given_up()
        count = len(view.partitions)
        home = _partition_of(name, count)
        found = self._search(name, [home], view, deadline)
        if not found or found[0].partitions != count:
            found += self._search(name, [each for each in range(count) if each != home], view, deadline)
        newest = find_newest(found)
        self._places[name] = _Place(home if newest is None else newest.partition, count)
        if newest is None:
            return ShipState()
        if len(newest.files) != newest.wanted:
            raise _unreadable(name, f"{len(newest.files)} of {newest.wanted} files are there")
        positions = (_decode_file(name, key, value) for key, value in newest.files.items())
        files = tuple(sorted(positions, key=lambda each: each.number))
        return replace(newest.state, files=files, written_ms=newest.time_ms)

    def _search(
        self, name: str, partitions: Sequence[int], view: TopicView, deadline: Deadline
    ) -> list[Stored]:
        """Return what these partitions hold about the shipper, once all written before is settled."""
        places = [TopicPartition(self.topic, each) for each in partitions]
        settled = KafkaLogView(self._settings)
        written = KafkaLogView(replace(self._settings, isolation_level="read_uncommitted")).latest(places)
        for where in places:
            attempts = _trying(deadline, f"all transactions on {where} to end")
            if not any(settled.latest([where])[where] >= written[where] for _ in attempts):
                raise attempts.given_up()
        first = settled.earliest(places)
        found = (self._search_one(name, each, view, first[each], written[each]) for each in places)
        return [each for each in found if each is not None]

    def _search_one(
        self, name: str, where: TopicPartition, view: TopicView, first: int, until: int
    ) -> Stored | None:
        latest: dict[bytes, bytes | None] = {}
        stored: Stored | None = None
        for found in self._read_backwards(where, view, first, until):
            for key, value, time_us in _rows_of(name, found):
                latest.setdefault(key, value)
                if key == name.encode() and value is not None and stored is None:
                    state, wanted, partitions = _decode_head(name, value)
                    stored = Stored(where.partition, state, time_us // 1000, wanted, partitions, {})
            files = {
                key: value for key, value in latest.items() if value is not None and key != name.encode()
            }
            if stored is not None:
                stored = replace(stored, files=files)
                if len(files) == stored.wanted:
                    break
        return stored

    def _read_backwards(
        self, where: TopicPartition, view: TopicView, first: int, until: int
    ) -> Iterator[pa.Table]:
        size = _FIRST_LOOK
        while until > first:
            start = max(first, until - size)
            order = RangeOrder(
                where.topic, where.partition, At(start), At(until), topic_id=view.topic_id, from_earliest=True
            )
            work = WorkOrder((order,), self._settings, ("key", "value", "timestamp"))
            batches = list(KafkaReader().read(work))
            if batches:
                yield pa.Table.from_batches(batches)
            until, size = start, size * 4


def _key_of(name: str, number: int) -> bytes:
    return name.encode() + _SEPARATOR + str(number).encode()


def _rows_of(name: str, found: pa.Table) -> Iterator[tuple[bytes, bytes | None, int]]:
    """Return keys, values and times (in microseconds) of this shipper's records, last one first."""
    keys = found.column("key")
    mine = pc.or_(
        pc.equal(keys, pa.scalar(name.encode(), pa.binary())),
        pc.starts_with(keys, pattern=name.encode() + _SEPARATOR),
    )
    rows = found.filter(pc.fill_null(mine, False))
    times = rows.column("timestamp").cast("int64")
    return zip(
        *(column.to_pylist()[::-1] for column in (rows.column("key"), rows.column("value"), times)),
        strict=True,
    )


def _partition_of(name: str, partitions: int) -> int:
    """Return the partition where the writer puts the key."""
    return int(partition_of_keys(byte_column(pa.array([name.encode()])), partitions)[0])


def _unreadable(name: str, why: str) -> OffsetStoreError:
    return OffsetStoreError(
        "POSITION_UNREADABLE",
        f"The stored position of shipper {name} cannot be used: {why}.",
        hint="Use the version of Penstock that wrote it, or another --name to start over.",
        facts={"name": name},
    )
