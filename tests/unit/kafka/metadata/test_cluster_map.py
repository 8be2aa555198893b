"""The map of a cluster: which new information it believes."""

from __future__ import annotations

from types import SimpleNamespace as Answer
from uuid import UUID

import pytest

from penstock.core.model import TopicPartition
from penstock.kafka.metadata.cluster_map import ClusterMap

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


@pytest.mark.parametrize(("before", "then"), [(7, 0), (0, 7)])
def test_an_older_epoch_beside_a_missing_topic_id_is_not_believed(before: int, then: int) -> None:
    """While brokers are upgraded to 2.8, some answers have an id and some have none."""
    cluster = ClusterMap()
    cluster.learn(metadata(leader=2, epoch=5, topic_id=before))
    cluster.learn(metadata(leader=1, epoch=4, topic_id=then))
    leader = cluster.leader(ORDERS, DAY_MS)
    assert leader is not None
    assert (leader.node_id, leader.leader_epoch) == (2, 5)


@pytest.mark.parametrize("topic_id", [0, 7])
def test_a_lower_epoch_that_all_answers_tell_for_a_while_is_believed(topic_id: int) -> None:
    """This is a topic recreated on brokers without topic ids, or metadata restored from a backup."""
    now = [100.0]
    cluster = ClusterMap(lambda: now[0])

    def tell(epoch: int, after_s: float) -> int:
        now[0] += after_s
        cluster.learn(metadata(leader=1 if epoch == 0 else 2, epoch=epoch, topic_id=topic_id))
        leader = cluster.leader(ORDERS, DAY_MS)
        assert leader is not None
        return leader.leader_epoch

    assert tell(5, 0) == 5
    assert [tell(0, 1), tell(0, 1), tell(0, 1)] == [5, 5, 5]
    assert tell(5, 1) == 5  # an up-to-date broker: the count starts again
    assert [tell(0, 1), tell(0, 1), tell(0, 1)] == [5, 5, 5]
    assert tell(0, 3) == 0
    assert tell(1, 1) == 1


def test_a_lower_epoch_told_rarely_is_not_believed_after_one_or_two_answers() -> None:
    """An idle stream asks only now and then, so elapsed time alone proves nothing."""
    now = [100.0]
    cluster = ClusterMap(lambda: now[0])
    cluster.learn(metadata(leader=2, epoch=5))
    for _ in range(2):
        now[0] += 3600
        cluster.learn(metadata(leader=1, epoch=4))
        leader = cluster.leader(ORDERS, DAY_MS)
        assert leader is not None
        assert leader.leader_epoch == 5


def test_what_was_forgotten_is_asked_again_but_its_epoch_still_counts() -> None:
    cluster = ClusterMap()
    cluster.learn(metadata(leader=2, epoch=5))
    cluster.forget(["orders", "unknown"])
    assert cluster.leader(ORDERS, DAY_MS) is None
    cluster.learn(metadata(leader=1, epoch=4))
    leader = cluster.leader(ORDERS, DAY_MS)
    assert leader is not None
    assert leader.node_id == 2
    cluster.forget({"orders"})
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


def test_topics_are_recalled_until_they_are_too_old_or_forgotten() -> None:
    """B137: it uses the given clock, and an unknown topic makes the caller ask the brokers."""
    now = [100.0]
    cluster = ClusterMap(lambda: now[0])
    cluster.learn(metadata(leader=2, epoch=5))
    assert list(cluster.recall(["orders"], 1000) or ()) == ["orders"]
    assert cluster.recall(["orders", "other"], 1000) is None
    now[0] += 1.0
    assert cluster.recall(["orders"], 1000) is None
    cluster.learn(metadata(leader=2, epoch=5))
    assert cluster.recall(["orders"], 1000) is not None
    cluster.forget(["orders"])
    assert cluster.recall(["orders"], 1000) is None


def test_all_topics_are_recalled_only_if_all_were_listed_within_the_time() -> None:
    """A topic learned by its name says nothing about others that may have been added."""
    now = [100.0]
    cluster = ClusterMap(lambda: now[0])
    cluster.learn(metadata(leader=2, epoch=5))
    assert cluster.recall(None, 1000) is None
    cluster.learn(metadata(leader=2, epoch=5), complete=True)
    assert list(cluster.recall(None, 1000) or ()) == ["orders"]
    now[0] += 1.0
    cluster.learn(metadata(leader=2, epoch=5))
    assert cluster.recall(None, 1000) is None
    cluster.learn(metadata(leader=2, epoch=5, error=3), complete=True)
    assert cluster.recall(None, 1000) == {}
