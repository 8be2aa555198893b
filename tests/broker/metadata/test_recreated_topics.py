"""A topic deleted and recreated between two looks, with topic ids and as older brokers describe it."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator
from typing import Any

import pytest

from penstock.cluster import LocalKafka
from penstock.core.model import TopicPartition
from penstock.kafka.metadata.routing import Routing
from penstock.kafka.reading.kafka_log_view import KafkaLogView
from penstock.kafka.transport.deadlines import Deadline
from penstock.kafka.transport.protocol_messages import MetadataRequest
from tests.spark.streaming import create_topic, delete_topic
from tests.support.kafka.client_settings import settings_of
from tests.support.kafka.topic_filling import produce
from tests.support.waiting import wait_until

_LAST_WITHOUT_IDS = 9  # of the Metadata request


class OlderRouting(Routing):
    """Asks for metadata in the version of brokers before 2.8, which has no topic ids."""

    def _ask_metadata(self, topics: Collection[str] | None, deadline: Deadline) -> tuple[Any, str]:
        entries = topics and [MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(topics)]
        request = MetadataRequest(
            topics=None if topics is None else entries or [], allow_auto_topic_creation=False
        )
        host, port = self.settings.bootstrap_servers[0]
        return self.call(request, host, port, deadline, _LAST_WITHOUT_IDS), f"{host}:{port}"


@pytest.fixture(scope="module")
def own_kafka() -> Iterator[LocalKafka]:
    """Start a broker that a test may restart: each start is another leader epoch."""
    with LocalKafka() as cluster:
        yield cluster


@pytest.mark.kafka
@pytest.mark.parametrize("kind", [OlderRouting, Routing])
def test_a_recreated_topic_is_not_taken_for_old_news_until_the_timeout(
    own_kafka: LocalKafka, kind: type[Routing]
) -> None:
    """Its leader epochs begin again, below those that are known."""
    name = f"anew-{secrets.token_hex(4)}"
    each = TopicPartition(name, 0)
    settings = settings_of(own_kafka.bootstrap, default_api_timeout_ms=60_000)
    view = KafkaLogView(settings, routing=kind(settings))
    create_topic(own_kafka.bootstrap, name)
    own_kafka.brokers[0].stop()
    own_kafka.brokers[0].start()
    own_kafka.wait_until_ready()
    produce(own_kafka.bootstrap, name, [b"x"] * 5)

    def knows_an_epoch() -> bool:
        (epoch,) = view.describe([name])[name].leader_epochs
        return epoch > 0

    wait_until(knows_an_epoch, "another leader epoch")
    assert view.latest([each]) == {each: 5}
    assert (view.describe([name])[name].topic_id is None) == (kind is OlderRouting)
    delete_topic(own_kafka.bootstrap, name)
    create_topic(own_kafka.bootstrap, name)
    produce(own_kafka.bootstrap, name, [b"y"] * 2)
    assert view.latest([each]) == {each: 2}
    assert view.describe([name])[name].leader_epochs == (0,)
