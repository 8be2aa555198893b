"""Where a shipper stands in its files, kept in Kafka with the lines themselves.

Rule: the position is a record of the same transaction as the lines before it. So there is no moment at which
lines are visible and the position is not, and a shipper that was killed anywhere goes on after the last line
that readers of committed records can see.

Why a compacted topic and not the offsets of a consumer group, which can be part of a transaction too: the
offsets of a group without members are deleted after a week (`offsets.retention.minutes`), so a server that
was off for a holiday would send all its files again; and their metadata holds 4 KiB, some thirty files. Why
not a file beside the logs: nothing makes a file and a Kafka transaction change together.

A shipper has one record for itself and one for each of its files, all in one partition. A transaction writes
the first and those that have changed, so its size depends on what happened and not on how many files there
are; no record comes near the size that a broker refuses. The first one says how many there are, so a load
knows when it has them all. Positions of several shippers share a partition; an open transaction of another
one may hide ours from committed readers for a moment, so `load` waits until all that was written before it is
settled.

    store = PositionTopic(settings, "penstock-ship-positions")
    store.prepare()
    writer.fence()                      # first: nothing of an earlier life can change any more
    state = store.load("web1/lines")
    writer.write(store.topic, store.make_records("web1/lines", state, changed))
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.client import ClientSettings
from penstock.core.errors import BrokerError, OffsetStoreError
from penstock.core.model import At, RangeOrder, TopicPartition, TopicView, WorkOrder
from penstock.kafka.admin import create_topic, describe_topic_configs, topic_exists
from penstock.kafka.control import KafkaLogView
from penstock.kafka.deadline import LEAST_PAUSE_MS, Deadline
from penstock.kafka.reader import KafkaReader
from penstock.kafka.records.columns import byte_column
from penstock.kafka.records.murmur2 import partition_of_keys
from penstock.kafka.routing import routing_for

DEFAULT_TOPIC = "penstock-ship-positions"
_VERSION = 2
_PARTITIONS = 4
_SEPARATOR = b"\0"  # no name holds it: arguments of programs cannot
_CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
#: Offsets that are read from the end backwards before more are: most often the last record is the one.
_FIRST_LOOK = 2_000
#: How long another shipper's open transaction is waited for; its own limit is a minute.
_SETTLING_TIMEOUT_MS = 150_000


@dataclass(frozen=True, slots=True)
class FilePosition:
    """One file, what it is known by, and how many of its bytes are shipped.

    `head` and `tail` are digests: of its first `head_bytes`, and of the last bytes before `offset` (as many
    as `following_files.TAIL_BYTES`). `skipping`: the rest of the line at `offset` is too long and left out.
    `finished`: it was read to its end and no more is expected. `packed`: offsets count unpacked bytes.
    `written_ns`: when somebody last wrote to it, as far as was seen; younger files came after it. `number`
    tells a shipper's positions apart; files of one log are read in its order.
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
    """What a shipper knows for good: its files, how many lines it has sent, and the life that wrote this."""

    files: tuple[FilePosition, ...] = ()
    lines: int = 0
    life: str = ""


def _encode_head(state: ShipState) -> bytes:
    content = {"version": _VERSION, "life": state.life, "lines": state.lines, "files": len(state.files)}
    return _to_json(content)


def _encode_file(position: FilePosition) -> bytes:
    """What differs from a position that says nothing; its number is in the key."""
    content = {name: value for name, value in asdict(position).items() if value != _DEFAULTS.get(name)}
    content.pop("number", None)
    return _to_json(content)


def _to_json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode("ascii")


def _decode_head(name: str, data: bytes) -> tuple[ShipState, int]:
    """Without its files, and how many there are."""
    try:
        head = json.loads(data)
        if head["version"] != _VERSION:
            raise _unreadable(name, f"version {head['version']} is not known here")
        return ShipState(lines=int(head["lines"]), life=str(head["life"])), int(head["files"])
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(name, "it is damaged") from error


def _decode_file(name: str, key: bytes, data: bytes) -> FilePosition:
    try:
        return FilePosition(**json.loads(data), number=int(key.rpartition(_SEPARATOR)[2]))
    except (ValueError, TypeError) as error:
        raise _unreadable(name, "it is damaged") from error


class PositionTopic:
    """The compacted topic that positions are written to, by their shipper's transaction."""

    def __init__(self, settings: ClientSettings, topic: str = DEFAULT_TOPIC) -> None:
        self._settings = replace(settings, isolation_level="read_committed")
        self.topic = topic
        self._partitions: dict[str, int] = {}

    def prepare(self) -> None:
        """Make the topic where there is none; refuse one that forgets by age."""
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
        """The rows that turn the stored state `before` of the shipper `name` into this one. `load` first."""
        old = {each.number: each for each in before.files}
        rows: dict[bytes, bytes | None] = {name.encode(): _encode_head(state)}
        for each in state.files:
            if old.pop(each.number, None) != each:
                rows[_key_of(name, each.number)] = _encode_file(each)
        rows |= {_key_of(name, number): None for number in old}
        keys, values = pa.array(rows.keys(), pa.binary()), pa.array(rows.values(), pa.binary())
        where = pa.array([self._partitions[name]] * len(rows), pa.int32())
        return pa.record_batch({"key": keys, "value": values, "partition": where})

    def load(self, name: str) -> ShipState:
        """The last state of this shipper; an empty one where there is none. Fence before."""
        deadline = Deadline.after_ms(_SETTLING_TIMEOUT_MS, "the time for open transactions to end")
        routing = routing_for(self._settings)
        routing.leader(self.topic, 0, deadline)  # waits for a topic that was made a moment ago
        view = routing.describe(self.topic, deadline)
        while view is None:  # another broker answered, which has not heard of it yet
            deadline.wait_s(f"topic {self.topic} to be known")
            deadline.pause(LEAST_PAUSE_MS)
            view = routing.describe(self.topic, deadline)
        self._partitions[name] = _partition_of(name, len(view.partitions))
        where = TopicPartition(self.topic, self._partitions[name])
        settled = KafkaLogView(self._settings)
        written = KafkaLogView(replace(self._settings, isolation_level="read_uncommitted")).latest([where])
        while settled.latest([where])[where] < written[where]:
            deadline.wait_s(f"all transactions on {where} to end")
            deadline.pause(LEAST_PAUSE_MS)
        first, until = settled.earliest([where])[where], written[where]
        latest: dict[bytes, bytes | None] = {}
        state, files, wanted = ShipState(), dict[bytes, bytes](), None
        for found in self._read_backwards(where, view, first, until):
            for key, value in _rows_of(name, found):
                latest.setdefault(key, value)
            files = {key: value for key, value in latest.items() if value is not None}
            head = files.pop(name.encode(), None)
            if head is not None:
                state, wanted = _decode_head(name, head)
            if len(files) == wanted:
                break
        if wanted is None:
            return state
        if len(files) != wanted:
            raise _unreadable(name, f"{len(files)} of {wanted} files are there")
        positions = (_decode_file(name, key, value) for key, value in files.items())
        return replace(state, files=tuple(sorted(positions, key=lambda each: each.number)))

    def _read_backwards(
        self, where: TopicPartition, view: TopicView, first: int, until: int
    ) -> Iterator[pa.Table]:
        size = _FIRST_LOOK
        while until > first:
            start = max(first, until - size)
            order = RangeOrder(
                where.topic, where.partition, At(start), At(until), topic_id=view.topic_id, from_earliest=True
            )
            work = WorkOrder((order,), self._settings, ("key", "value"))
            batches = list(KafkaReader().read(work))
            if batches:
                yield pa.Table.from_batches(batches)
            until, size = start, size * 4


def _key_of(name: str, number: int) -> bytes:
    return name.encode() + _SEPARATOR + str(number).encode()


def _rows_of(name: str, found: pa.Table) -> Iterator[tuple[bytes, bytes | None]]:
    """Keys and values of this shipper, the last one first."""
    keys = found.column("key")
    mine = pc.or_(
        pc.equal(keys, pa.scalar(name.encode(), pa.binary())),
        pc.starts_with(keys, pattern=name.encode() + _SEPARATOR),
    )
    rows = found.filter(pc.fill_null(mine, False))
    return zip(rows.column("key").to_pylist()[::-1], rows.column("value").to_pylist()[::-1], strict=True)


def _partition_of(name: str, partitions: int) -> int:
    """Where the writer puts the key."""
    return int(partition_of_keys(byte_column(pa.array([name.encode()])), partitions)[0])


def _unreadable(name: str, why: str) -> OffsetStoreError:
    return OffsetStoreError(
        "POSITION_UNREADABLE",
        f"The stored position of shipper {name} cannot be used: {why}.",
        hint="Use the version of Penstock that wrote it, or another --name to begin anew.",
        facts={"name": name},
    )
