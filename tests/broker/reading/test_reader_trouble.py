"""What a reader does about problems in a broker's answer: it continues where it may, and stops where it must.

The answers come from a real broker. One field of one answer is changed on its way, because a broker that
really truncates its log or forgets a segment cannot be had on demand.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from penstock.core.errors import BrokerError, CorruptBatchError, DataLossError
from penstock.core.model import At, RangeOrder, WorkOrder
from penstock.kafka.metadata import topic_admin
from penstock.kafka.reading import partition_fetcher
from penstock.kafka.reading.fetch_frames import FetchAnswer, FetchQuestion
from penstock.kafka.reading.kafka_reader import KafkaReader
from penstock.kafka.transport.connection_pool import POOL
from tests.broker.reading.work_orders import offsets_of
from tests.support.kafka.client_settings import settings_of
from tests.support.kafka.topic_filling import produce

Change = Callable[[int, FetchAnswer], FetchAnswer]


@pytest.fixture
def change_answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[Change], list[int]]:
    """Return a function that passes every fetch answer through a function of (number from 0, answer)."""

    def install(change: Change) -> list[int]:
        real, numbers = partition_fetcher.read_answer, []

        def read(frame: memoryview, version: int, correlation_id: int) -> FetchAnswer:
            numbers.append(len(numbers))
            return change(numbers[-1], real(frame, version, correlation_id))

        monkeypatch.setattr(partition_fetcher, "read_answer", read)
        return numbers

    return install


@pytest.fixture
def racks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the rack that each fetch request named, in order."""
    told: list[str] = []
    real = partition_fetcher.encode_question

    def note_rack(question: FetchQuestion, *rest: Any) -> bytes:
        told.append(question.rack)
        return real(question, *rest)

    monkeypatch.setattr(partition_fetcher, "encode_question", note_rack)
    return told


@pytest.fixture
def six(kafka: Any, topic: Any) -> WorkOrder:
    """Return a work order for six records in six batches, fetched one batch at a time."""
    name = topic(1)
    for number in range(6):
        produce(kafka.bootstrap, name, [str(number)])
    client = settings_of(kafka.bootstrap, max_partition_fetch_bytes=1, fetch_max_bytes=1)
    return WorkOrder((RangeOrder(name, 0, At(0), At(6)),), client, ("offset",), poll_timeout_ms=5_000)


def test_small_limits_fetch_one_batch_at_a_time(six: WorkOrder) -> None:
    reader = KafkaReader()
    assert sum(batch.num_rows for batch in reader.read(six)) == 6
    assert reader.fetches == 6


def test_a_truncated_log_is_an_error_and_without_loss_checking_the_rest_is_read(
    six: WorkOrder, change_answers: Callable[[Change], list[int]]
) -> None:
    """The broker reports that the log was truncated; what it still holds is read once."""
    change_answers(lambda number, answer: replace(answer, diverging_end=1) if number == 2 else answer)
    with pytest.raises(DataLossError, match="LOG_TRUNCATED"):
        offsets_of(six)


def test_after_a_truncation_reading_goes_on_at_its_place(
    six: WorkOrder, change_answers: Callable[[Change], list[int]]
) -> None:
    change_answers(lambda number, answer: replace(answer, diverging_end=1) if number == 2 else answer)
    assert offsets_of(replace(six, fail_on_data_loss=False)) == [0, 1, 2, 3, 4, 5]


def test_a_broker_that_refuses_what_the_log_holds_is_not_asked_for_ever(
    six: WorkOrder, change_answers: Callable[[Change], list[int]]
) -> None:
    """Out of range in one answer, in range in another: the reader waits up to the limit, then fails."""
    numbers = change_answers(lambda number, answer: replace(answer, error_code=1, begin=0, end=0))
    began = time.monotonic()
    with pytest.raises(BrokerError, match="FETCH_TIMEOUT"):
        offsets_of(replace(six, poll_timeout_ms=500))
    assert time.monotonic() - began < 5
    assert len(numbers) < 20


def test_an_answer_to_another_question_closes_its_connection(
    six: WorkOrder, change_answers: Callable[[Change], list[int]]
) -> None:
    """Its next bytes belong to an unknown request, so it does not go back to the pool."""

    def refuse(_number: int, _answer: FetchAnswer) -> FetchAnswer:
        raise CorruptBatchError("MALFORMED_FETCH_ANSWER", "it answers another request")

    POOL.close()
    change_answers(refuse)
    client = replace(six.client, client_id="only-this-test")
    with pytest.raises(CorruptBatchError):
        offsets_of(replace(six, client=client))
    # Metadata was requested on the same connection, so no other one may remain.
    assert [connection for _, connection in POOL._idle if connection.client_id == "only-this-test"] == []
    assert len(POOL._lent) == 0


def test_a_follower_that_nobody_knows_is_not_waited_for(
    six: WorkOrder, change_answers: Callable[[Change], list[int]], racks: list[str]
) -> None:
    """T16: whenever a rack is given, the leader names a stopped follower; it has the rows itself."""

    def point_away(number: int, answer: FetchAnswer) -> FetchAnswer:
        return replace(answer, preferred_replica=999, begin=0, end=0) if racks[number] else answer

    change_answers(point_away)
    near = replace(six, client=replace(six.client, client_rack="near"))
    assert offsets_of(near) == [0, 1, 2, 3, 4, 5]
    assert racks == ["near", *[""] * 6]


def test_a_follower_that_stays_behind_is_left_for_the_leader(
    six: WorkOrder, change_answers: Callable[[Change], list[int]], racks: list[str]
) -> None:
    """T16: the follower answers that there is nothing, and never catches up; the leader has the rows."""

    def lag(number: int, answer: FetchAnswer) -> FetchAnswer:
        if not racks[number]:
            return answer
        preferred = 0 if number == 0 else -1  # the one broker plays both parts
        return replace(answer, preferred_replica=preferred, begin=0, end=0, high_watermark=0)

    change_answers(lag)
    near = replace(six, client=replace(six.client, client_rack="near"), poll_timeout_ms=700)
    assert offsets_of(near) == [0, 1, 2, 3, 4, 5]
    assert racks[0] == "near"
    assert racks[-1] == ""


@pytest.mark.parametrize("settings", [{"fetch_min_bytes": 0}, {"fetch_max_wait_ms": 0}], ids=str)
def test_waiting_for_rows_keeps_neither_side_busy(six: WorkOrder, settings: dict[str, int]) -> None:
    """Settings that mean "answer at once" do not turn waiting into a storm of requests."""
    client = replace(six.client, **settings)  # type: ignore[arg-type]
    wanted = replace(six.ranges[0], start=At(6), until=At(7))
    reader = KafkaReader()
    order = replace(six, ranges=(wanted,), client=client, poll_timeout_ms=1_000, fail_on_data_loss=False)
    assert list(reader.read(order)) == []
    assert reader.fetches < 40


def test_a_loss_keeps_what_the_broker_said_as_its_cause(six: WorkOrder) -> None:
    """B060: the refusal is kept as the cause of the loss, for whoever investigates it."""
    topic_admin.delete_topic(six.client, six.ranges[0].topic)
    with pytest.raises(DataLossError) as caught:
        list(KafkaReader().read(replace(six, poll_timeout_ms=20_000)))
    assert caught.value.condition == "PARTITION_GONE"
    assert isinstance(caught.value.__cause__, BrokerError)
    assert caught.value.__cause__.condition == "UNKNOWN_TOPIC_OR_PARTITION"
