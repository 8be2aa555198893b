"""Produce requests and answers as bytes.

Rule: record batches are sent as they were encoded; nothing decodes or rebuilds them. Why not
kafka-python's ProduceRequest: it copies every batch into its own encoder, twice.

A request holds at most one batch per partition, because brokers refuse more. Versions 7 and 8
differ only in what they answer, and every broker from 2.1 to 4.x speaks one of them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.kafka.transport.wire_cursor import WireCursor

API_KEY = 0
MIN_VERSION, MAX_VERSION = 7, 8
ACKS_ALL = -1
_FIXED = struct.Struct(">ihqqq")  # partition, error code, base offset, append time, log start


@dataclass(frozen=True, slots=True)
class ProduceAnswer:
    """A broker's answer for one partition's batch."""

    partition: int
    code: int
    base_offset: int
    message: str | None


def build_frame(
    version: int,
    correlation_id: int,
    client_id: str,
    topic: str,
    batches: Mapping[int, bytes | bytearray],
    *,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> bytes:
    """Return a whole request with its length in front: one batch for each partition of one topic."""
    body: list[bytes | bytearray] = [
        struct.pack(">hhi", API_KEY, version, correlation_id),
        _text(client_id),
        _text(transactional_id),
        struct.pack(">hii", ACKS_ALL, timeout_ms, 1),
        _text(topic),
        struct.pack(">i", len(batches)),
    ]
    for partition, data in batches.items():
        body += (struct.pack(">ii", partition, len(data)), data)
    size = sum(len(piece) for piece in body)
    return b"".join([struct.pack(">i", size), *body])


def read_answer(version: int, data: memoryview) -> tuple[int, list[ProduceAnswer]]:
    """Return a response's correlation id and its answers; raise `ValueError` if it is cut off."""
    cursor = WireCursor(data)
    correlation_id = cursor.integer(4)
    answers = []
    for _ in range(cursor.count()):
        cursor.nullable_text()  # the topic
        for _ in range(cursor.count()):
            partition, code, base_offset, _, _ = cursor.unpack(_FIXED)
            message: str | None = None
            if version >= 8:
                for _ in range(cursor.count()):
                    cursor.skip(4)  # the index of a record in the batch
                    message = cursor.nullable_text()
                whole = cursor.nullable_text()
                message = message or whole
            answers.append(ProduceAnswer(partition, code, base_offset, message))
    return correlation_id, answers


def _text(text: str | None) -> bytes:
    if text is None:
        return struct.pack(">h", -1)
    data = text.encode()
    return struct.pack(">h", len(data)) + data
