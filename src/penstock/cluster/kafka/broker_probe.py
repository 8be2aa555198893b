"""The two requests that a launcher sends to a broker: "who is in the cluster?" and "create this topic".

Rule: ready means that *every* broker answers a real request and names all the others and a controller. An
open port proves nothing, because a broker listens seconds before it has joined. These requests are written by
hand so that the launcher needs no client, and so that what it starts can be used to test clients.

    ask_cluster(9092).broker_ids == frozenset({1})
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from penstock.cluster.processes.free_ports import LOOPBACK
from penstock.core.errors import BrokerError
from penstock.kafka.transport.wire_cursor import WireCursor

_CREATE_TOPICS, _METADATA = 19, 3
_LARGEST_ANSWER_BYTES = 16 * 1024 * 1024
_TOPIC_ALREADY_EXISTS = 36
_CREATE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One broker's view: the brokers that may serve clients, and whether a controller is known."""

    broker_ids: frozenset[int]
    has_controller: bool


def ask_cluster(port: int, *, timeout_s: float = 5.0) -> ClusterView:
    """Send Metadata version 1 without topics and return the answer. Raise OSError while there is none, and
    ValueError if it is cut short."""
    answer = _ask(port, _METADATA, 1, struct.pack(">i", 0), timeout_s)
    ids = set()
    for _ in range(answer.count()):
        ids.add(answer.integer(4))
        answer.text()  # host
        answer.skip(4)  # port
        answer.nullable_text()  # rack
    return ClusterView(frozenset(ids), answer.integer(4) >= 0)


def is_broker_ready(port: int, ids: Collection[int]) -> bool:
    """Return whether the broker answers, knows a controller, and lists the brokers with these ids."""
    try:
        view = ask_cluster(port, timeout_s=2.0)
    except (OSError, ValueError):
        return False
    return view.has_controller and view.broker_ids.issuperset(ids)


def create_topic(port: int, name: str, partitions: int, factor: int, configs: Mapping[str, str]) -> None:
    """Create a topic (CreateTopics version 2). An existing one stays as it is."""
    body = struct.pack(">i", 1) + _text(name) + struct.pack(">ih", partitions, factor) + struct.pack(">i", 0)
    body += struct.pack(">i", len(configs)) + b"".join(_text(k) + _text(v) for k, v in configs.items())
    body += struct.pack(">i?", int(_CREATE_TIMEOUT_S * 1000), False)
    answer = _ask(port, _CREATE_TOPICS, 2, body, _CREATE_TIMEOUT_S)
    answer.skip(4)  # throttle time
    for _ in range(answer.count()):
        answer.text()
        code, message = answer.integer(2), answer.nullable_text()
        if code not in (0, _TOPIC_ALREADY_EXISTS):
            raise BrokerError("TOPIC_NOT_CREATED", f"Topic {name} was refused with code {code}: {message}.")


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack(">h", len(raw)) + raw


def _ask(port: int, api_key: int, version: int, body: bytes, timeout_s: float) -> WireCursor:
    request = struct.pack(">hhi", api_key, version, 1) + _text("penstock-cluster") + body
    with socket.create_connection((LOOPBACK, port), timeout=timeout_s) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", _receive(connection, 4))
        if not 4 <= size <= _LARGEST_ANSWER_BYTES:
            raise ConnectionError(f"the program on port {port} does not answer like a Kafka broker")
        answer = WireCursor(_receive(connection, size))
    answer.skip(4)  # the correlation id
    return answer


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            raise ConnectionError("the broker closed the connection in the middle of an answer")
        received += piece
    return bytes(received)
