"""Leaders that move, and a broker that is killed, while a stream reads and a producer writes.

`move` gives each partition another preferred leader and elects it. Nothing is copied, since all brokers hold
all partitions. A move that changes nothing fails.
"""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka.admin import AdminClient

from tests.support.waiting import wait_until

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # raised while this library is imported
    from kafka import KafkaAdminClient, TopicPartition


@dataclass
class Disturbance:
    """The disturbances for the leaders of one topic on three brokers."""

    cluster: Any
    topic: str
    seed: int
    moves: int = 0
    kills: int = 0
    leaders_seen: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._watcher = AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})

    def leaders(self) -> list[int]:
        found = self._watcher.list_topics(self.topic, timeout=30).topics[self.topic].partitions
        return [found[each].leader for each in sorted(found)]

    def move(self) -> None:
        """Give every partition another leader."""
        before = self.leaders()
        nodes = [broker.node_id for broker in self.cluster.brokers]
        wanted = {}
        for partition, leader in enumerate(before):
            others = [node for node in nodes if node != leader]
            self._random.shuffle(others)
            wanted[TopicPartition(self.topic, partition)] = [*others, leader]
        admin = KafkaAdminClient(bootstrap_servers=self.cluster.bootstrap.split(","))
        try:
            refused = admin.alter_partition_reassignments(wanted)
            assert not any(refused.values()), refused
            admin.elect_leaders(0, {self.topic: list(range(len(before)))}, raise_errors=False)
        finally:
            admin.close()
        expected = [replicas[0] for replicas in wanted.values()]
        wait_until(lambda: self.leaders() == expected, f"the leaders move from {before} to {expected}", 60)
        self.leaders_seen.append(expected)
        self.moves += 1

    def kill_a_leader(self) -> Any:
        """Send SIGKILL to the leader of the first partition, wait for other leaders, and return it."""
        leader = self.leaders()[0]
        broker = next(each for each in self.cluster.brokers if each.node_id == leader)
        assert broker.is_alive
        broker.kill()
        assert not broker.is_alive
        self.kills += 1
        wait_until(lambda: leader not in self.leaders() and -1 not in self.leaders(), "others lead", 60)
        return broker

    def bring_back(self, broker: Any) -> None:
        broker.start()
        self.cluster.wait_until_ready()
        wait_until(self._all_in_sync, "all copies are in sync again", 120)

    def _all_in_sync(self) -> bool:
        found = self._watcher.list_topics(self.topic, timeout=30).topics[self.topic].partitions
        return all(len(each.isrs) == len(each.replicas) for each in found.values())


def disturb(
    what: Disturbance, is_over: Callable[[], bool], *, pause_s: float = 5.0, kill_every: int = 4
) -> None:
    """Move the leaders again and again, `pause_s` apart; kill a broker now and then."""
    turn = 0
    while not is_over():
        turn += 1
        if turn % kill_every == 0:
            dead = what.kill_a_leader()
            what.bring_back(dead)
        else:
            what.move()
        due = time.monotonic() + pause_s
        while time.monotonic() < due and not is_over():
            time.sleep(0.1)
