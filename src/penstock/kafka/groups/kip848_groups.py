"""Members of a group that uses Kafka's newer protocol (KIP-848): one request, encoded and decoded by hand.

Rule: only what an operator is shown is read: who the members are and what each holds now. Why by hand:
kafka-python 3.0 has no classes for this request, and its loader takes message definitions only from its own
package. `DescribeNewerGroup` has just those parts of a request class that `Connection.call` uses.

    response, broker = routing.call_coordinator(group, lambda: DescribeNewerGroup(group), deadline, ...)
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from penstock.core.model import TopicPartition
from penstock.kafka.transport.wire_cursor import WireCursor


@dataclass(frozen=True, slots=True)
class Member:
    """One consumer of a group and its assignment; None when that cannot be read."""

    consumer_id: str
    host: str
    client_id: str
    partitions: tuple[TopicPartition, ...] | None


@dataclass(frozen=True, slots=True)
class NewerGroup:
    """The answer for one group."""

    error_code: int
    state: str
    members: tuple[Member, ...]

    @classmethod
    def decode(cls, answer: bytes | bytearray, *, header: bool) -> NewerGroup:
        """Return the answer in a frame (without its length); raise `ValueError` if anything does not fit."""
        cursor = WireCursor(answer, flexible=True)
        if header:
            cursor.skip(4)  # the correlation id
            cursor.tags()
        cursor.skip(4)  # throttle time
        if cursor.count() != 1:
            raise ValueError("one group was asked for")
        error_code = cursor.integer(2)
        cursor.nullable_text()  # the reason
        cursor.text()  # the group
        state = cursor.text()
        cursor.skip(8)  # two epochs
        cursor.text()  # the assignor
        return cls(error_code, state, tuple(_read_member(cursor) for _ in range(cursor.count())))


class DescribeNewerGroup:
    """The request for one group, version 0."""

    API_KEY = 69
    API_VERSION = max_version = 0
    name = "ConsumerGroupDescribeRequest"

    def __init__(self, group: str) -> None:
        self._group = group.encode()
        self._head = b""

    def with_header(self, correlation_id: int, client_id: str) -> None:
        name = client_id.encode()
        self._head = struct.pack(">hhih", self.API_KEY, self.API_VERSION, correlation_id, len(name)) + name

    def encode(self, *, header: bool, framed: bool) -> bytes:
        assert header
        assert framed
        groups = b"\x02" + _write_varint(len(self._group) + 1) + self._group  # an array of one
        frame = self._head + b"\x00" + groups + b"\x00" + b"\x00"  # no tags, no rights asked for, no tags
        return struct.pack(">i", len(frame)) + frame

    @property
    def header(self) -> DescribeNewerGroup:
        return self

    def get_response_class(self) -> type[NewerGroup]:
        return NewerGroup


def _read_member(cursor: WireCursor) -> Member:
    member_id = cursor.text()
    cursor.nullable_text()  # its fixed name
    cursor.nullable_text()  # its rack
    cursor.skip(4)  # its epoch
    client_id, host = cursor.text(), cursor.text()
    for _ in range(cursor.count()):
        cursor.text()  # a subscribed topic
    cursor.nullable_text()  # or its subscription expression
    now = _read_partitions(cursor)
    _read_partitions(cursor)  # what it gets once other members have released it
    cursor.tags()
    return Member(member_id, host.removeprefix("/"), client_id, now)


def _read_partitions(cursor: WireCursor) -> tuple[TopicPartition, ...]:
    found = []
    for _ in range(cursor.count()):
        cursor.skip(16)  # the topic's id
        topic = cursor.text()
        found += [TopicPartition(topic, cursor.integer(4)) for _ in range(cursor.count(4))]
        cursor.tags()
    cursor.tags()
    return tuple(sorted(found))


def _write_varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])
