"""Fetch answers are read in place, in every version, and nothing that a hostile broker sends gets further."""

from __future__ import annotations

import random
import uuid

import pytest

from penstock.core.errors import CorruptBatchError
from penstock.kafka.reading.fetch_frames import (
    FetchAnswer,
    FetchQuestion,
    PartitionQuestion,
    encode_question,
    read_answer,
    read_answers,
)
from penstock.kafka.transport.protocol_messages import FetchRequest, FetchResponse

TOPIC_ID = uuid.UUID(int=7)
RECORDS = bytes(range(100))


def encode_answer(version: int, correlation_id: int = 5, *, diverging: bool = False) -> bytes:
    """Return an answer for one partition, encoded by another implementation of the protocol."""
    partition = FetchResponse.FetchableTopicResponse.PartitionData
    data = partition(
        partition_index=3,
        error_code=0,
        high_watermark=900,
        last_stable_offset=800,
        log_start_offset=10,
        aborted_transactions=[
            partition.AbortedTransaction(producer_id=1, first_offset=11),
            partition.AbortedTransaction(producer_id=2, first_offset=12),
        ],
        preferred_read_replica=-1,
        records=RECORDS,
    )
    if diverging:
        data.diverging_epoch = partition.EpochEndOffset(epoch=4, end_offset=77)
    response = FetchResponse(
        throttle_time_ms=0,
        error_code=0,
        session_id=0,
        responses=[FetchResponse.FetchableTopicResponse(topic="t", topic_id=TOPIC_ID, partitions=[data])],
        version=version,
    )
    response.with_header(correlation_id)
    return bytes(response.encode(header=True))


@pytest.mark.parametrize("version", range(4, 17))
def test_an_answer_of_every_version_is_read_where_it_lies(version: int) -> None:
    frame = encode_answer(version)
    answer = read_answer(memoryview(frame), version, 5)
    assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (0, 900, 800)
    assert answer.aborted == ((1, 11), (2, 12))
    assert frame[answer.begin : answer.end] == RECORDS
    assert answer.diverging_end is None


@pytest.mark.parametrize("version", range(12, 17))
def test_a_truncated_log_is_told_by_the_broker_itself(version: int) -> None:
    """From version 12 on the answer names the end of the epoch that we have read."""
    answer = read_answer(memoryview(encode_answer(version, diverging=True)), version, 5)
    assert answer.diverging_end == 77


def test_a_question_carries_topic_id_and_epochs_where_the_version_has_them() -> None:
    wanted = PartitionQuestion("t", 3, 42, TOPIC_ID.bytes, 9, 8, 1000)
    question = FetchQuestion((wanted,), 5000, 1, 500, True, "rack-1")
    frame = encode_question(question, 16, 77, "someone-executor")
    request = FetchRequest.decode(frame[4:], version=16, header=True)
    assert request.header.client_id == "someone-executor"
    (topic,) = request.topics
    (partition,) = topic.partitions
    assert (topic.topic_id, partition.fetch_offset, partition.current_leader_epoch) == (TOPIC_ID, 42, 9)
    assert (request.max_bytes, partition.partition_max_bytes) == (5000, 1000)
    assert (partition.last_fetched_epoch, request.isolation_level, request.rack_id) == (8, 1, "rack-1")


def test_a_question_names_each_topic_once_with_its_partitions() -> None:
    wanted = [PartitionQuestion(topic, n, 10 * n, None, 9, -1, 1000) for topic in "ab" for n in range(2)]
    frame = encode_question(FetchQuestion(tuple(wanted), 5000, 1, 0, False), 12, 77, "someone")
    request = FetchRequest.decode(frame[4:], version=12, header=True)
    assert [
        (topic.topic, [(each.partition, each.fetch_offset) for each in topic.partitions])
        for topic in request.topics
    ] == [("a", [(0, 0), (1, 10)]), ("b", [(0, 0), (1, 10)])]


@pytest.mark.parametrize("version", [4, 11, 12, 13, 16])
def test_every_partition_of_an_answer_is_found_by_its_topic(version: int) -> None:
    """Topics are named by their id from version 13 on, and by their name before."""
    ids = {"a": uuid.UUID(int=1), "b": uuid.UUID(int=2)}
    kind = FetchResponse.FetchableTopicResponse
    response = FetchResponse(
        throttle_time_ms=0,
        error_code=0,
        session_id=0,
        responses=[
            kind(
                topic=name,
                topic_id=number,
                partitions=[
                    kind.PartitionData(
                        partition_index=n,
                        error_code=n,
                        high_watermark=9,
                        last_stable_offset=9,
                        log_start_offset=0,
                        aborted_transactions=[],
                        preferred_read_replica=-1,
                        records=f"{name}{n}".encode(),
                    )
                    for n in range(3)
                ],
            )
            for name, number in ids.items()
        ],
        version=version,
    )
    response.with_header(5)
    frame = bytes(response.encode(header=True))
    code, answers = read_answers(memoryview(frame), version, 5)
    assert code == 0
    assert {
        place: (answer.error_code, frame[answer.begin : answer.end]) for place, answer in answers.items()
    } == {
        (ids[name].bytes if version >= 13 else name.encode(), n): (n, f"{name}{n}".encode())
        for name in ids
        for n in range(3)
    }


def test_an_answer_to_another_question_is_refused() -> None:
    """T19: a stale answer to an earlier request never becomes rows."""
    with pytest.raises(CorruptBatchError, match="MALFORMED_FETCH_ANSWER"):
        read_answer(memoryview(encode_answer(12, correlation_id=4)), 12, 5)


@pytest.mark.parametrize("version", [4, 11, 12, 16])
def test_a_damaged_answer_is_refused_or_points_inside_itself(version: int) -> None:
    """In every version, a length from the wire is compared with the frame before it is used."""
    good = encode_answer(version)
    rng = random.Random(version)
    refused = 0
    for _ in range(5_000):
        frame = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            frame[rng.randrange(4, len(frame) - len(RECORDS))] = rng.randrange(256)
        if rng.random() < 0.3:
            del frame[rng.randrange(len(frame)) :]
        try:
            answer = read_answer(memoryview(bytes(frame)), version, 5)
        except CorruptBatchError:
            refused += 1
        else:
            assert isinstance(answer, FetchAnswer)
            assert 0 <= answer.begin <= answer.end <= len(frame)
    assert refused > 500
