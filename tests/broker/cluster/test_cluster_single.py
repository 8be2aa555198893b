"""A single local broker: ready when it says so, and gone when its owner is."""

from __future__ import annotations

import secrets
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition


def test_a_record_written_to_the_local_broker_can_be_read_back(kafka: Any, topic: Any) -> None:
    name = topic(2)
    payload = secrets.token_bytes(16)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(name, value=payload, partition=1)
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": name})
    try:
        consumer.assign([TopicPartition(name, 1, 0)])
        record = consumer.poll(30)
        assert record is not None
        assert record.value() == payload
    finally:
        consumer.close()
