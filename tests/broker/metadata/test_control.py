"""Where the view of a real log differs from the one in memory: settings, retries, stale brokers."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import BrokerError, OptionError
from penstock.core.model import TopicPartition
from penstock.kafka.metadata import topic_admin
from penstock.kafka.reading.kafka_log_view import KafkaLogView
from penstock.kafka.transport.connection import Connection, Deadline
from penstock.kafka.transport.protocol_messages import MetadataRequest
from tests.support.kafka.client_settings import settings_of


def test_an_unknown_isolation_level_is_refused_before_anything_is_asked() -> None:
    """B131: a misspelt level must not become the default one."""
    with pytest.raises(OptionError, match="'committed'"):
        KafkaLogView(ClientSettings((("127.0.0.1", 1),), isolation_level="committed"))


def test_topics_are_not_created_by_asking_for_them(kafka: Any, topic: Any) -> None:
    topic()
    settings = settings_of(kafka.bootstrap)
    assert KafkaLogView(settings).describe(["asked-for-only"]) == {}
    assert "asked-for-only" not in KafkaLogView(settings).topics()


def test_an_illegal_topic_name_is_an_error_that_names_it(kafka: Any) -> None:
    with pytest.raises(BrokerError) as caught:
        KafkaLogView(settings_of(kafka.bootstrap)).describe(["no good"])
    assert caught.value.condition == "INVALID_TOPIC_EXCEPTION"
    assert "no good" in str(caught.value)


def test_many_partitions_are_answered_together(kafka: Any, topic: Any) -> None:
    name: str = topic(50)
    partitions = [TopicPartition(name, index) for index in range(50)]
    view = KafkaLogView(settings_of(kafka.bootstrap))
    assert view.describe([name])[name].partitions == tuple(range(50))
    assert view.latest(partitions) == dict.fromkeys(partitions, 0)
    assert view.at_time(dict.fromkeys(partitions, 1)) == dict.fromkeys(partitions)


def test_administration_changes_what_it_says(kafka: Any) -> None:
    import secrets

    settings = settings_of(kafka.bootstrap)
    name = f"admin-{secrets.token_hex(4)}"
    topic_admin.create_topic(settings, name, partitions=2, configs={"retention.ms": "60000"})
    with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS"):
        topic_admin.create_topic(settings, name)
    assert topic_admin.describe_topic_configs(settings, name)["retention.ms"] == "60000"
    topic_admin.create_partitions(settings, name, 3)
    assert KafkaLogView(settings).describe([name])[name].partitions == (0, 1, 2)
    with pytest.raises(BrokerError, match="INVALID_PARTITIONS"):
        topic_admin.create_partitions(settings, name, 1)
    topic_admin.delete_topic(settings, name)
    assert not topic_admin.topic_exists(settings, name)
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        topic_admin.delete_topic(settings, name)


def test_a_request_can_be_held_to_an_older_version(kafka: Any) -> None:
    settings = settings_of(kafka.bootstrap)
    connection = Connection(settings, *settings.bootstrap_servers[0], Deadline.after_ms(10_000))
    try:
        old = connection.call(MetadataRequest(topics=[]), Deadline.after_ms(10_000), max_version=9)
        new = connection.call(MetadataRequest(topics=[]), Deadline.after_ms(10_000))
        assert old.version == 9
        assert new.version > 9
        assert [b.node_id for b in old.brokers] == [b.node_id for b in new.brokers]
        assert connection.in_flight == 0
    finally:
        connection.close()
