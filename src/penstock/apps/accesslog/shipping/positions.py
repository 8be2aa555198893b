"""Where a shipper stands in its files, kept in Kafka with the lines themselves.

Rule: the position is a record of the same transaction as the lines before it. So there is no moment at which
lines are visible and the position is not, and a shipper that was killed anywhere goes on after the last line
that readers of committed records can see.

Why a compacted topic and not the offsets of a consumer group, which can be part of a transaction too: the
offsets of a group without members are deleted after a week (`offsets.retention.minutes`), so a server that
was off for a holiday would send all its files again; and their metadata holds 4 KiB, some thirty files. Why
not a file beside the logs: nothing makes a file and a Kafka transaction change together.

One record holds all files of one shipper, so the last one is enough to go on. Positions of several shippers
share a partition; an open transaction of another one may hide ours from committed readers for a moment, so
`load` waits until all that was written before it is settled.

    store = PositionTopic(settings, "penstock-ship-positions")
    store.prepare()
    writer.fence()                      # first: nothing of an earlier life can change any more
    state = store.load("web1:access")
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

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
_VERSION = 1
_PARTITIONS = 4
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


@dataclass(frozen=True, slots=True)
class ShipState:
    """What a shipper knows for good: its files, how many lines it has sent, and the life that wrote this."""

    files: tuple[FilePosition, ...] = ()
    lines: int = 0
    life: str = ""

    def encode(self) -> bytes:
        content = {
            "version": _VERSION,
            "life": self.life,
            "lines": self.lines,
            "files": [asdict(each) for each in self.files],
        }
        return json.dumps(content, separators=(",", ":")).encode("ascii")

    @classmethod
    def decode(cls, data: bytes, name: str) -> ShipState:
        try:
            content = json.loads(data)
            if content["version"] != _VERSION:
                raise _unreadable(name, f"version {content['version']} is not known here")
            files = tuple(FilePosition(**each) for each in content["files"])
            return cls(files, int(content["lines"]), str(content["life"]))
        except (ValueError, KeyError, TypeError) as error:
            raise _unreadable(name, "it is damaged") from error


class PositionTopic:
    """The compacted topic that positions are written to, by their shipper's transaction."""

    def __init__(self, settings: ClientSettings, topic: str = DEFAULT_TOPIC) -> None:
        self._settings = replace(settings, isolation_level="read_committed")
        self.topic = topic

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

    def record(self, name: str, state: ShipState) -> pa.RecordBatch:
        """The row that makes this the position of the shipper `name`."""
        return pa.record_batch({"key": [name.encode()], "value": [state.encode()]})

    def load(self, name: str) -> ShipState:
        """The last position of this shipper; an empty one where there is none. Fence before."""
        deadline = Deadline.after_ms(_SETTLING_TIMEOUT_MS, "the time for open transactions to end")
        view = routing_for(self._settings).describe(self.topic, deadline)
        if view is None:
            return ShipState()
        where = TopicPartition(self.topic, _partition_of(name, len(view.partitions)))
        settled = KafkaLogView(self._settings)
        written = KafkaLogView(replace(self._settings, isolation_level="read_uncommitted")).latest([where])
        while settled.latest([where])[where] < written[where]:
            deadline.wait_s(f"all transactions on {where} to end")
            deadline.pause(LEAST_PAUSE_MS)
        first, until = settled.earliest([where])[where], written[where]
        for found in self._read_backwards(where, view, first, until):
            named = found.filter(pc.equal(found.column("key"), pa.scalar(name.encode(), pa.binary())))
            if named.num_rows:
                value = named.column("value")[named.num_rows - 1].as_py()
                return ShipState() if value is None else ShipState.decode(value, name)
        return ShipState()

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
