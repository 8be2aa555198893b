"""Runs a broker with a topic, records, a group and a transaction, so that the JVM archives its classes."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cluster import LocalKafka

with LocalKafka() as kafka:
    address = {"bootstrap.servers": kafka.bootstrap}
    admin = AdminClient(address)
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(60)
    producer = Producer({**address, "transactional.id": "t", "compression.type": "lz4"})
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(100):
        producer.produce("t", b"%d" % number)
    producer.commit_transaction(60)
    consumer = Consumer({**address, "group.id": "t", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    consumer.consume(100, 60)
    consumer.commit(asynchronous=False)
    consumer.close()
    kafka.brokers[0].stop(120)
