"""Members of a group that uses Kafka's newer protocol (KIP-848): one request, written and read by hand.

Rule: what is read is what an operator is shown: who the members are and what each holds now. Why by hand:
kafka-python 3.0 has no classes for this request, and its loader takes message definitions from its own
package only. `DescribeNewerGroup` has as much of the shape of its requests as `wire.Connection.call` uses.

    response, broker = routing.call_coordinator(group, lambda: DescribeNewerGroup(group), deadline, ...)
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from penstock.core.model import TopicPartition
from penstock.kafka.groups.record_fields import Fields


@dataclass(frozen=True, slots=True)
class Member:
    """One consumer of a group, and what it was given; None when that cannot be read."""

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
        """From a frame without its length; whatever does not fit is a `ValueError`."""
        fields = Fields(bytes(answer))
        if header:
            fields.integer(4)
            fields.skip_tags()
        fields.integer(4)  # throttled for so long
        if fields.compact_count() != 1:
            raise ValueError("one group was asked for")
        error_code = fields.integer(2)
        fields.compact_text()  # the reason
        fields.compact_text()  # the group
        state = fields.compact_text()
        fields.take(8)  # two epochs
        fields.compact_text()  # the assignor
        return cls(error_code, state, tuple(_read_member(fields) for _ in range(fields.compact_count())))


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


def _read_member(fields: Fields) -> Member:
    member_id = fields.compact_text()
    fields.compact_text()  # its fixed name
    fields.compact_text()  # its rack
    fields.integer(4)  # its epoch
    client_id, host = fields.compact_text(), fields.compact_text()
    for _ in range(fields.compact_count()):
        fields.compact_text()  # what it subscribes to
    fields.compact_text()  # or by which expression
    now = _read_assignment(fields)
    _read_assignment(fields)  # what it shall have when others have let go
    fields.skip_tags()
    return Member(member_id, host.removeprefix("/"), client_id, now)


def _read_assignment(fields: Fields) -> tuple[TopicPartition, ...]:
    found = []
    for _ in range(fields.compact_count()):
        fields.take(16)  # the topic's id
        topic = fields.compact_text()
        found += [TopicPartition(topic, fields.integer(4)) for _ in range(fields.compact_count())]
        fields.skip_tags()
    fields.skip_tags()
    return tuple(sorted(found))


def _write_varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])
