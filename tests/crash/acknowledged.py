"""A topic and its producer's own ledger: every acknowledged send, and where it was stored.

Rule: what a sink holds is compared with this and with nothing that was read back, so that a reader who skips
or doubles something cannot be the witness for itself. Payloads are unique: a record in another one's place is
seen, too.

    sent = fill_topic(bootstrap, "t", (800, 600))
    sent.below({0: 100, 1: 50})   # the rows that belong to a position
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Producer

#: A record: its partition, offset and payload.
SentRow = tuple[int, int, str]


@dataclass(frozen=True)
class Sent:
    """Acknowledged sends in order of partition and offset."""

    topic: str
    rows: tuple[SentRow, ...]

    @property
    def ends(self) -> tuple[int, ...]:
        """Return the offset after the last acknowledged one for each partition."""
        partitions = sorted({partition for partition, _, _ in self.rows})
        return tuple(1 + max(offset for each, offset, _ in self.rows if each == p) for p in partitions)

    def below(self, stored: Mapping[int, int]) -> list[SentRow]:
        return [row for row in self.rows if row[1] < stored.get(row[0], 0)]


def fill_topic(bootstrap: str, topic: str, counts: tuple[int, ...], seed: int = 1) -> Sent:
    """Send so many records to each partition of an existing topic, interleaved, in batches of all sizes."""
    dice = random.Random(seed)
    rows: list[SentRow] = []
    failures: list[str] = []

    def note(error: object, message: Any) -> None:
        if error is None:
            rows.append((message.partition(), message.offset(), message.value().decode()))
        else:
            failures.append(str(error))

    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 5}
    )
    turns = [partition for partition, count in enumerate(counts) for _ in range(count)]
    dice.shuffle(turns)
    for number, partition in enumerate(turns):
        value = f"{topic}/{partition}/{number}/{dice.getrandbits(64):016x}" + "." * dice.randrange(80)
        producer.produce(topic, value=value.encode(), partition=partition, on_delivery=note)
        if dice.random() < 0.02:
            producer.poll(0.01)
    assert producer.flush(60) == 0
    assert failures == []
    sent = Sent(topic, tuple(sorted(rows)))
    assert sent.ends == counts, f"{sent.ends}: a record was sent twice, or somebody else writes this topic"
    return sent
