"""Prints the records of the topics that a pattern matches, as a member of a group that keeps its own offsets.

    python item_consumer.py --bootstrap-server localhost:9092 --group t2 --pattern test --offsets ./offsets

Start it once, twice or four times: the members share the partitions, each partition has one member, and of
four members on three partitions one waits.

Where a partition goes on is kept in a folder, one entry for each partition, so that members never overwrite
each other's. The entry is read only when a partition is assigned to this member. Then it wins over what the
group has committed and over the reset rule, because a seek is the strongest instruction there is. After that
the position lives in the consumer's memory; a stored offset that is deleted now is missed at the next start.

This program avoids three easy mistakes:
- To seek a partition by a number in the program. Another member may have it, and every rebalance would
  repeat it.
- To sleep in a rebalance callback. It runs on the thread that keeps this member alive in its group.
- To poll with a timeout of 0 in an endless loop. That keeps a processor busy with nothing.

The position is stored every few seconds, after the records were printed, and always before a partition is
given away, so a successor repeats nothing. After a kill -9, the successor repeats what was printed and not
yet stored: at least once, never less. It begins when the dead member's session timeout has passed.
"""

from __future__ import annotations

import argparse
import signal
import threading
import time
from collections.abc import Collection
from pathlib import Path

from kafka import ConsumerRebalanceListener, KafkaConsumer
from kafka import TopicPartition as KafkaPartition
from kafka.serializer import DefaultSerializer

from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.stores.offsets.file_store import FileOffsetStore

POLL_TIMEOUT_MS = 500


class KeptOffsets:
    """The next offset of each partition, for one group, in a folder."""

    def __init__(self, folder: Path, group: str) -> None:
        self._store = FileOffsetStore(folder)
        self._group = group

    def load(self, partition: KafkaPartition) -> int | None:
        stored = self._store.load(self._name(partition))
        return None if stored is None else stored.offsets[TopicPartition(*partition)]

    def save(self, partition: KafkaPartition, offset: int) -> None:
        self._store.save(self._name(partition), StreamPosition({TopicPartition(*partition): offset}))

    def _name(self, partition: KafkaPartition) -> str:
        return f"{self._group}/{partition.topic}-{partition.partition}"


class SeekingListener(ConsumerRebalanceListener):
    """A listener that stores positions when partitions go, and seeks to stored ones when they come."""

    def __init__(self, consumer: KafkaConsumer, kept: KeptOffsets, store_every_s: float) -> None:
        self._consumer, self._kept, self._store_every_s = consumer, kept, store_every_s
        self._stored_at = time.monotonic()
        # What we were given and not yet asked to give back. The consumer's own `assignment()` will not do: a
        # poll may return in the middle of a rebalance, when it still has what is another's a moment later.
        self._owned: set[KafkaPartition] = set()
        self.handled: dict[KafkaPartition, int] = {}  # the next offset to print, of each partition we have

    def on_partitions_revoked(self, revoked: Collection[KafkaPartition]) -> None:
        print("on_partitions_revoked", flush=True)
        for partition in sorted(revoked):
            print(f"  {partition.topic}-{partition.partition}", flush=True)
        self.store()
        self._give_up()

    def on_partitions_assigned(self, assigned: Collection[KafkaPartition]) -> None:
        print("on_partitions_assigned", flush=True)
        self._owned = set(assigned)
        for partition in sorted(assigned):
            print(f"  {partition.topic}-{partition.partition}", flush=True)
        for partition in sorted(assigned):
            offset = self._kept.load(partition)
            if offset is not None:
                self._consumer.seek(partition, offset)
                print(f"  {partition.topic}-{partition.partition} goes on at {offset}", flush=True)

    def on_partitions_lost(self, lost: Collection[KafkaPartition]) -> None:
        """Give up without storing: it is too late, because others have them already and may be further."""
        print("on_partitions_lost", flush=True)
        self._give_up()

    def _give_up(self) -> None:
        self._owned.clear()
        self.handled.clear()

    def note_starts(self) -> None:
        """Store the position of new partitions, even of those without records yet.

        Without it, a successor would begin at the end that it finds, and records before that would be lost.
        """
        new = sorted(self._owned - self.handled.keys())
        if new:
            self.handled.update((partition, self._consumer.position(partition)) for partition in new)
            self.store()

    def store_if_due(self) -> None:
        if time.monotonic() - self._stored_at >= self._store_every_s:
            self.store()

    def store(self) -> None:
        for partition, offset in sorted(self.handled.items()):
            self._kept.save(partition, offset)
        self._stored_at = time.monotonic()


def print_records(consumer: KafkaConsumer, listener: SeekingListener, stopped: threading.Event) -> None:
    while not stopped.is_set():
        batch = consumer.poll(timeout_ms=POLL_TIMEOUT_MS)
        if batch:
            print(f"{'-' * 10}{sum(map(len, batch.values()))}{'-' * 10}", flush=True)
            for partition, records in batch.items():
                for record in records:
                    print(record.key, record.value, record.partition, record.offset, flush=True)
                listener.handled[partition] = records[-1].offset + 1
            listener.store_if_due()
        listener.note_starts()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bootstrap-server", default="localhost:9092", help="one broker is enough")
    parser.add_argument("--group", default="t2")
    parser.add_argument("--pattern", default="test", help="must match a topic's whole name")
    parser.add_argument("--offsets", type=Path, required=True, help="the folder that keeps offsets")
    parser.add_argument("--store-every", type=float, default=5.0, metavar="SECONDS", help="default 5")
    parser.add_argument("--session-timeout", type=float, default=45.0, metavar="SECONDS", help="default 45")
    parser.add_argument("--reset", choices=("earliest", "latest"), default="latest")
    arguments = parser.parse_args()

    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    consumer = KafkaConsumer(
        bootstrap_servers=arguments.bootstrap_server,
        group_id=arguments.group,
        key_deserializer=DefaultSerializer(),  # text
        value_deserializer=DefaultSerializer(),
        session_timeout_ms=int(arguments.session_timeout * 1000),
        heartbeat_interval_ms=int(arguments.session_timeout * 1000 / 6),
        auto_offset_reset=arguments.reset,
        enable_auto_commit=True,  # for those who watch the group's lag; the folder says where to go on
    )
    try:
        listener = SeekingListener(
            consumer, KeptOffsets(arguments.offsets, arguments.group), arguments.store_every
        )
        # The client accepts a topic whose name only begins like the pattern, so the end must be given.
        consumer.subscribe(pattern=rf"(?:{arguments.pattern})\Z", listener=listener)
        print_records(consumer, listener, stopped)
    finally:
        consumer.close()
    print("closed", flush=True)


if __name__ == "__main__":
    main()
