"""The map of a cluster: which news it believes."""

from __future__ import annotations

from types import SimpleNamespace as Answer
from uuid import UUID

from penstock.core.model import TopicPartition
from penstock.kafka.cluster_map import ClusterMap

ORDERS = TopicPartition("orders", 0)
DAY_MS = 86_400_000


def metadata(leader: int, epoch: int, topic_id: int = 7, *, error: int = 0, brokers: int = 3) -> Answer:
    part = Answer(partition_index=0, leader_id=leader, leader_epoch=epoch, replica_nodes=[1, 2])
    topic = Answer(
        name="orders",
        error_code=error,
        topic_id=UUID(int=topic_id),
        is_internal=False,
        partitions=[] if error else [part],
    )
    known = [Answer(node_id=number, host=f"b{number}", port=9092) for number in range(1, brokers + 1)]
    return Answer(brokers=known, controller_id=1, topics=[topic])


def test_news_with_an_older_leader_epoch_is_ignored() -> None:
    cluster = ClusterMap()
    cluster.learn(metadata(leader=2, epoch=5))
    cluster.learn(metadata(leader=1, epoch=4))
    leader = cluster.leader(ORDERS, DAY_MS)
    assert leader is not None
    assert (leader.node_id, leader.leader_epoch) == (2, 5)


def test_an_older_epoch_of_another_topic_with_the_same_name_is_news() -> None:
    cluster = ClusterMap()
    cluster.learn(metadata(leader=2, epoch=5, topic_id=7))
    cluster.learn(metadata(leader=1, epoch=0, topic_id=8))
    leader = cluster.leader(ORDERS, DAY_MS)
    assert leader is not None
    assert (leader.node_id, leader.leader_epoch, leader.topic_id) == (1, 0, UUID(int=8).bytes)


def test_what_was_forgotten_is_asked_again_but_its_epoch_still_counts() -> None:
    cluster = ClusterMap()
    cluster.learn(metadata(leader=2, epoch=5))
    cluster.forget(["orders", "unknown"])
    assert cluster.leader(ORDERS, DAY_MS) is None
    cluster.learn(metadata(leader=1, epoch=4))
    leader = cluster.leader(ORDERS, DAY_MS)
    assert leader is not None
    assert leader.node_id == 2
    cluster.forget()
    assert cluster.leader(ORDERS, DAY_MS) is None


def test_what_is_older_than_the_limit_is_asked_again() -> None:
    cluster = ClusterMap()
    cluster.learn(metadata(leader=2, epoch=5))
    assert cluster.leader(ORDERS, -1) is None
    assert cluster.leader(ORDERS, DAY_MS) is not None


def test_a_leader_that_nobody_lists_or_nobody_elected_is_none() -> None:
    cluster = ClusterMap()
    cluster.learn(metadata(leader=3, epoch=1, brokers=2))
    assert cluster.leader(ORDERS, DAY_MS) is None
    cluster.learn(metadata(leader=-1, epoch=2))
    assert cluster.leader(ORDERS, DAY_MS) is None


def test_a_deleted_topic_is_dropped_with_its_epochs() -> None:
    cluster = ClusterMap()
    cluster.learn(metadata(leader=2, epoch=5))
    assert cluster.learn(metadata(leader=2, epoch=5, error=3)) == {}
    assert cluster.leader(ORDERS, DAY_MS) is None


def test_a_broker_without_topic_ids_gives_none() -> None:
    cluster = ClusterMap()
    assert cluster.learn(metadata(leader=1, epoch=0, topic_id=0))["orders"].topic_id is None
