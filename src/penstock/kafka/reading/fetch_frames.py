"""Encodes a Fetch request as a frame, and reads its answer in place.

Rule: the records of an answer are never copied on the way; the answer says where they lie in the
receive buffer. kafka-python's decoder would make `bytes` of them, another pass over every byte.
The broker checks for us where it can: from version 13 on the request carries the topic's id, from 12 on
the epoch of the last record read, so the broker itself refuses a recreated or truncated log.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from penstock.core.errors import CorruptBatchError
from penstock.kafka.transport.protocol_messages import FetchRequest
from penstock.kafka.transport.wire_cursor import WireCursor

API_KEY = 1
MAX_VERSION, MAX_VERSION_WITHOUT_TOPIC_ID, MIN_VERSION = 16, 12, 4

_FIXED = struct.Struct(">ihqq")  # partition, error code, high watermark, last stable offset
_ABORTED = struct.Struct(">qq")  # producer id, first offset
_DIVERGING_EPOCH = 0  # a tag: the epoch (4 bytes) and its end (8 bytes)


@dataclass(frozen=True, slots=True)
class PartitionQuestion:
    """One partition's part of a request: `offset` is the next one wanted."""

    topic: str
    partition: int
    offset: int
    topic_id: bytes | None
    leader_epoch: int
    last_epoch: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class FetchQuestion:
    """A request to one broker. `max_bytes` limits the whole answer."""

    partitions: tuple[PartitionQuestion, ...]
    max_bytes: int
    min_bytes: int
    max_wait_ms: int
    committed_only: bool
    rack: str = ""


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """One partition's answer. `begin` and `end` are where its records lie in the buffer."""

    error_code: int
    high_watermark: int
    last_stable_offset: int
    aborted: tuple[tuple[int, int], ...]
    preferred_replica: int
    diverging_end: int | None
    begin: int
    end: int


def encode_question(question: FetchQuestion, version: int, correlation_id: int, client_id: str) -> bytes:
    """Return the whole frame, including its length in front."""
    request = build_request(question)
    request.API_VERSION = version
    request.with_header(correlation_id, client_id)
    return bytes(request.encode(header=True, framed=True))


def build_request(question: FetchQuestion) -> Any:
    """Return the question as a request object, partitions of one topic next to each other."""
    topic = FetchRequest.FetchTopic
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=question.max_wait_ms,
        min_bytes=question.min_bytes,
        max_bytes=question.max_bytes,
        isolation_level=1 if question.committed_only else 0,
        session_id=0,
        session_epoch=-1,
        topics=[
            topic(
                topic=name,
                topic_id=uuid.UUID(bytes=topic_id) if topic_id else uuid.UUID(int=0),
                partitions=[
                    topic.FetchPartition(
                        partition=each.partition,
                        current_leader_epoch=each.leader_epoch,
                        fetch_offset=each.offset,
                        last_fetched_epoch=each.last_epoch,
                        log_start_offset=-1,
                        partition_max_bytes=each.max_bytes,
                    )
                    for each in partitions
                ],
            )
            for (name, topic_id), partitions in groupby(
                question.partitions, key=lambda each: (each.topic, each.topic_id)
            )
        ],
        forgotten_topics_data=[],
        rack_id=question.rack,
    )


def read_answer(frame: memoryview, version: int, correlation_id: int) -> FetchAnswer:
    """Return the answer to a request for exactly one partition."""
    error_code, answers = read_answers(frame, version, correlation_id)
    if error_code:
        return FetchAnswer(error_code, -1, -1, (), -1, None, 0, 0)
    if len(answers) != 1:
        raise _malformed("it does not hold exactly one partition")
    return next(iter(answers.values()))


def read_answers(
    frame: memoryview, version: int, correlation_id: int
) -> tuple[int, dict[tuple[bytes, int], FetchAnswer]]:
    """Return the overall error code and each partition's answer, checking every length before use.

    Partitions are keyed by the topic's id from version 13 on, by the bytes of its name before.
    """
    cursor = WireCursor(frame, flexible=version >= 12)
    try:
        return _read_whole(cursor, version, correlation_id)
    except ValueError as error:
        raise _malformed(str(error)) from error


def _read_whole(
    cursor: WireCursor, version: int, correlation_id: int
) -> tuple[int, dict[tuple[bytes, int], FetchAnswer]]:
    if cursor.integer(4) != correlation_id:
        raise _malformed("it answers another request")
    cursor.tags()
    cursor.skip(4)  # throttle time: the broker itself stops reading from us for this long
    if version >= 7:
        error_code = cursor.integer(2)
        cursor.skip(4)  # session id
        if error_code:
            return error_code, {}
    answers = {}
    for _ in range(cursor.count()):
        topic = cursor.take(16 if version >= 13 else cursor.length(2))
        for _ in range(cursor.count()):
            partition, answer = _read_partition(cursor, version)
            answers[topic, partition] = answer
        cursor.tags()
    return 0, answers


def _read_partition(cursor: WireCursor, version: int) -> tuple[int, FetchAnswer]:
    partition, error_code, high, stable = cursor.unpack(_FIXED)
    if version >= 5:
        cursor.skip(8)  # log start
    aborted = []
    for _ in range(cursor.length(4)):
        producer_id, first_offset = cursor.unpack(_ABORTED)
        cursor.tags()
        aborted.append((producer_id, first_offset))
    preferred = cursor.integer(4) if version >= 11 else -1
    size = max(0, cursor.length(4))
    begin = cursor.skip(size)
    diverging = cursor.tags().get(_DIVERGING_EPOCH, b"")
    diverging_end = int.from_bytes(diverging[4:12], "big", signed=True) if len(diverging) >= 12 else None
    answer = FetchAnswer(
        error_code, high, stable, tuple(aborted), preferred, diverging_end, begin, begin + size
    )
    return partition, answer


def _malformed(why: str) -> CorruptBatchError:
    return CorruptBatchError(
        "MALFORMED_FETCH_ANSWER",
        f"The broker's answer to a fetch makes no sense: {why}.",
        hint="Check that the address is a Kafka broker and that nothing between rewrites its traffic.",
    )
