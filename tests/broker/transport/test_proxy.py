"""The fault proxy in front of a real broker."""

from __future__ import annotations

import socket
import struct
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.cluster.kafka.broker_probe import ask_cluster
from penstock.testing.proxy import FaultProxy
from tests.support.kafka.client_settings import settings_of
from tests.support.python_workers import waiting_ports
from tests.support.waiting import is_silent

PRODUCE, METADATA = 0, 3


def test_requests_to_a_broker_are_counted_by_their_kind(kafka: Any) -> None:
    with FaultProxy(settings_of(kafka.bootstrap).bootstrap_servers[0], kafka=True) as proxy:
        ask_cluster(proxy.port)
        assert proxy.counts.requests == {METADATA: 1}


def test_only_the_chosen_kind_of_request_is_left_without_an_answer(kafka: Any) -> None:
    api_versions = 18
    body = struct.pack(">hhih", api_versions, 0, 7, -1)
    with FaultProxy(settings_of(kafka.bootstrap).bootstrap_servers[0], kafka=True) as proxy:
        proxy.hold_answers(api_keys={api_versions})
        ask_cluster(proxy.port)  # metadata requests are answered
        with socket.create_connection(proxy.address, timeout=10) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            assert is_silent(connection)
            assert waiting_ports(proxy, api_versions) == [connection.getsockname()[1]]
            proxy.pass_on()
            assert struct.unpack(">ii", connection.recv(8))[1] == 7
            assert waiting_ports(proxy, api_versions) == []


def test_a_write_whose_answer_is_cut_off_is_in_the_log_all_the_same(proxied_kafka: Any, topic: Any) -> None:
    """The answer to Produce is lost, but not the record; idempotence keeps the retry from duplicating it."""
    kafka, proxy = proxied_kafka
    name = topic(on=kafka)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "retries": 5})
    proxy.cut_before_answer(api_keys={PRODUCE})
    producer.produce(name, b"once")
    assert producer.flush(60) == 0
    assert proxy.counts.cuts == 1
    assert proxy.counts.requests[PRODUCE] == 2
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": name})
    try:
        assert consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=30) == (0, 1)
    finally:
        consumer.close()
