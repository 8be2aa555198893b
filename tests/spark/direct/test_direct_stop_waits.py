"""What a direct stream still waits for after it was asked to stop, and what it gives up.

The log is in memory, and no frame is read: Spark only lends its settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.core.errors import BrokerError
from penstock.core.model import At, LogView, TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.sinks.sink_contract import BatchOutcome, Sink, SinkWriter
from penstock.direct import Batch, DirectStream, MemoryOffsetStore, RunOutcome, Subscribe
from penstock.kafka.transport import deadlines
from penstock.kafka.transport.deadlines import Deadline
from penstock.kafka.transport.retries import Attempts
from penstock.testing.memory_log import MemoryLog
from tests.unit.engines.direct.test_batch_loop import Source

T0 = TopicPartition("t", 0)


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the grace period: whatever hears a stop gives up at once, however fast an answer comes."""
    monkeypatch.setattr(deadlines, "STOP_PATIENCE_S", 0.0)


def ask(failures: int = 0) -> None:
    """Call as a Kafka client would that may wait a minute and gets an answer after a few failures."""
    attempts = Attempts(Deadline.after_ms(60_000), "the coordinator", 1)
    for number in attempts:
        with attempts.forgiving():
            if number < failures:
                raise BrokerError("COORDINATOR_LOAD_IN_PROGRESS", "It loads.", hint="Wait.", retriable=True)
            return
    raise attempts.given_up()


@dataclass(frozen=True)
class AskedSource(Source):
    """A log whose brokers are asked in the same way as real ones."""

    def open_view(self) -> LogView:
        ask()
        return super().open_view()


class BusyStore(MemoryOffsetStore):
    """A store whose coordinator has just moved, so that it answers on the third attempt."""

    def save(self, stream: str, position: StreamPosition, *, may_go_back: bool = False) -> None:
        ask(failures=2)
        super().save(stream, position, may_go_back=may_go_back)


@dataclass
class NotingSink(Sink, SinkWriter):
    """A sink that records that it fenced, and lets the test act at that moment."""

    then: Callable[[], None]
    position: StreamPosition | None = None
    is_open: bool = False

    def open(self, stream: str) -> NotingSink:
        self.is_open = True
        self.then()
        return self

    def write(self, results: Any, before: StreamPosition, end: StreamPosition) -> BatchOutcome:
        ask()
        self.position = end
        return BatchOutcome(0)

    def close(self) -> None:
        self.is_open = False


@pytest.fixture
def make_stream(spark: SparkSession) -> Callable[..., DirectStream]:
    log = MemoryLog()
    log.create_topic("t")
    for _ in range(5):
        log.append("t", 0, value=b"v", timestamp_ms=1000)

    def make(**more: Any) -> DirectStream:
        return DirectStream(
            spark,
            Subscribe("t"),
            {"auto.offset.reset": "earliest"},
            interval=0,
            name="s",
            options={"fetchOffset.retryIntervalMs": 0, "maxOffsetsPerTrigger": 2},
            source=AskedSource(log),
            **more,
        )

    return make


@pytest.mark.parametrize("choice", [{"delivery": "at-least-once"}, {"commit": "manual"}])
def test_the_offsets_of_a_done_batch_are_stored_however_busy_the_store_is_after_a_stop(
    make_stream: Callable[..., DirectStream], choice: dict[str, Any]
) -> None:
    """SIGTERM during a rolling restart of the brokers: without the offsets, the rows would come again."""
    store = BusyStore()
    stream = make_stream(offsets=store, **choice)

    def work(batch: Batch) -> None:
        stream.stop()
        if choice.get("commit") == "manual":
            batch.commit()

    assert stream.for_each_batch(work).run() == RunOutcome("stop()", 1, 2)
    stored = store.load("s")
    assert stored is not None
    assert dict(stored.offsets) == {T0: 2}


def test_questions_of_the_users_own_are_not_cut_short_by_a_stop(
    make_stream: Callable[..., DirectStream],
) -> None:
    stream = make_stream()

    def work(_batch: Batch) -> None:
        stream.stop()
        ask()

    assert stream.for_each_batch(work).run() == RunOutcome("stop()", 1, 2)


def test_a_stop_before_anything_was_changed_is_no_failure(make_stream: Callable[..., DirectStream]) -> None:
    store = BusyStore()
    stream = make_stream(offsets=store).for_each_batch(lambda batch: None)
    stream.stop()
    assert stream.run() == RunOutcome("stop()", 0)
    assert store.load("s") is None


def test_a_stop_that_comes_when_the_sink_is_fenced_is_told(make_stream: Callable[..., DirectStream]) -> None:
    """Zero batches without an error would suggest that nothing has happened to the other writer."""
    stream = make_stream()
    sink = NotingSink(stream.stop)
    with pytest.raises(BrokerError, match=r"Gave up waiting for the coordinator: .* asked to stop") as told:
        stream.write(sink).run()
    assert told.value.condition == "STOPPED_WAITING"
    assert sink.position is None
    assert not sink.is_open


def test_a_stop_before_a_seek_is_carried_out_is_told(make_stream: Callable[..., DirectStream]) -> None:
    """A user who reads that all went well removes the `seek` from the program."""
    store = MemoryOffsetStore()
    make_stream(offsets=store).for_each_batch(lambda batch: None).run(batches=1)
    stream = make_stream(offsets=store, seek={T0: At(0)}).for_each_batch(lambda batch: None)
    stream.stop()
    with pytest.raises(BrokerError, match=r"`seek` was not carried out.* with the same `seek`") as told:
        stream.run()
    assert told.value.condition == "STOPPED_WAITING"
    stored = store.load("s")
    assert stored is not None
    assert dict(stored.offsets) == {T0: 2}


def test_where_a_stream_begins_is_stored_though_it_was_asked_to_stop(
    make_stream: Callable[..., DirectStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sink already has the start position; without the store's half the next start would fail."""
    store = BusyStore()
    stream = make_stream(offsets=store)
    sink = NotingSink(lambda: None)
    write = sink.write

    def write_and_stop(*args: Any) -> BatchOutcome:
        stream.stop()
        return write(*args)

    monkeypatch.setattr(sink, "write", write_and_stop)
    assert stream.write(sink).run() == RunOutcome("stop()", 0)
    stored = store.load("s")
    assert sink.position is not None
    assert stored is not None
    assert dict(stored.offsets) == dict(sink.position.offsets) == {T0: 0}
