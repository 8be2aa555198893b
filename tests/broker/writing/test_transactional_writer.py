"""Transactions on a real broker: all rows of a transaction or none, and a way out of every doubt."""

from __future__ import annotations

import secrets
import threading
from typing import Any

import pyarrow as pa
import pytest

from penstock.cluster import LocalKafka
from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import BrokerError, PenstockError, SinkError
from penstock.kafka.records.codecs import LZ4
from penstock.kafka.writing.transactional_producer import FENCED, OUTCOME_UNKNOWN, TransactionalWriter
from penstock.testing.proxy import FaultProxy
from tests.conftest import MakeTopic
from tests.support.kafka.client_settings import settings_of
from tests.support.kafka.librdkafka import read_partition
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka  # also for the tests that start a cluster of their own

PRODUCE, INIT_PRODUCER_ID, ADD_PARTITIONS, END_TXN, DESCRIBE_CONFIGS = 0, 22, 24, 26, 32


def new_id() -> str:
    return f"writer-{secrets.token_hex(4)}"


def rows(*values: str) -> pa.RecordBatch:
    return pa.record_batch({"value": [each.encode() for each in values]})


def begun(settings: ClientSettings, **how: Any) -> TransactionalWriter:
    writer = TransactionalWriter(settings, new_id(), **how)
    writer.fence()
    return writer


def values_of(bootstrap: str, topic: str, *, committed: bool = True) -> list[str]:
    found = read_partition(bootstrap, topic, committed=committed)
    return [(row.value or b"").decode() for row in found]


def test_committed_rows_of_two_topics_are_seen_once(
    kafka: Any, topic: MakeTopic, settings: ClientSettings
) -> None:
    lines, positions = topic(1), topic(1)
    writer = begun(settings, codec=LZ4)
    for number in range(3):
        with writer.transaction():
            writer.write(lines, rows(f"a{number}", f"b{number}"))
            writer.write(positions, rows(f"p{number}"))
    wait_until(lambda: len(values_of(kafka.bootstrap, positions)) == 3, "all markers are written")
    assert values_of(kafka.bootstrap, lines) == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert values_of(kafka.bootstrap, positions) == ["p0", "p1", "p2"]


def test_rows_before_the_commit_and_aborted_rows_are_not_seen(
    kafka: Any, topic: MakeTopic, settings: ClientSettings
) -> None:
    name = topic(1)
    writer = begun(settings)
    writer.begin()
    writer.write(name, rows("taken back"))
    assert values_of(kafka.bootstrap, name) == []
    writer.abort()

    def fail() -> None:
        with writer.transaction():
            writer.write(name, rows("taken back too"))
            raise ValueError("the caller's own")

    with pytest.raises(ValueError, match="own"):
        fail()
    with writer.transaction():
        writer.write(name, rows("kept"))
    wait_until(lambda: values_of(kafka.bootstrap, name) == ["kept"], "only the committed row is seen")
    assert values_of(kafka.bootstrap, name, committed=False) == ["taken back", "taken back too", "kept"]


def test_a_transaction_without_rows_needs_no_broker(settings: ClientSettings) -> None:
    writer = begun(settings)
    with writer.transaction():
        pass
    with writer.transaction():
        writer.write("not-asked-for", rows())


def test_a_second_writer_with_the_same_id_fences_the_first(
    kafka: Any, topic: MakeTopic, settings: ClientSettings
) -> None:
    name = topic(1)
    first = begun(settings)
    first.begin()
    first.write(name, rows("of the first"))
    second = TransactionalWriter(settings, first.transactional_id)
    second.fence()
    with pytest.raises(BrokerError, match=rf"^\[{FENCED}\]"):
        first.write(name, rows("too late"))
    with pytest.raises(BrokerError, match=rf"^\[{FENCED}\]"):
        first.abort()
    with second.transaction():
        second.write(name, rows("of the second"))
    wait_until(lambda: values_of(kafka.bootstrap, name) == ["of the second"], "the second's row alone")


@pytest.mark.parametrize("step", ["begin", "commit"])
def test_a_fenced_writer_is_refused_at_its_next_step(
    topic: MakeTopic, settings: ClientSettings, step: str
) -> None:
    name = topic(1)
    first = begun(settings)
    if step == "commit":
        first.begin()
        first.write(name, rows("of the first"))
    TransactionalWriter(settings, first.transactional_id).fence()

    def go_on() -> None:
        if step == "begin":
            first.begin()
            first.write(name, rows("too late"))
        first.commit()

    with pytest.raises(BrokerError, match=rf"^\[{FENCED}\]"):
        go_on()


@pytest.mark.parametrize("call", ["begin", "write", "commit", "abort"])
def test_calls_out_of_order_are_refused(settings: ClientSettings, call: str) -> None:
    writer = TransactionalWriter(settings, new_id())
    with pytest.raises(SinkError, match=r"^\[TRANSACTION_MISUSED\]"):
        getattr(writer, call)(*(["t", rows("r")] if call == "write" else []))


def test_a_row_that_is_refused_takes_back_its_transaction_and_the_writer_goes_on(
    kafka: Any, topic: MakeTopic, settings: ClientSettings
) -> None:
    name = topic(1, max_message_bytes=10_000)
    writer = begun(settings)
    writer.begin()
    writer.write(name, rows("small"))
    with pytest.raises(PenstockError, match=r"^\[MESSAGE_TOO_LARGE\]"):
        writer.write(name, rows("large" * 10_000))
    writer.abort()
    writer.fence()
    with writer.transaction():
        writer.write(name, rows("kept"))
    wait_until(lambda: values_of(kafka.bootstrap, name) == ["kept"], "only the committed row is seen")


def test_batches_of_a_transaction_are_as_small_as_their_topic_wants_them(
    kafka: Any, topic: MakeTopic, settings: ClientSettings
) -> None:
    """Otherwise rows that fit individually would abort their transaction."""
    name = topic(1, max_message_bytes=10_000)
    writer = begun(settings)
    expected = [str(number) * 3_000 for number in range(9)]
    with writer.transaction():
        writer.write(name, rows(*expected))
    wait_until(lambda: values_of(kafka.bootstrap, name) == expected, "all rows, in order")


@pytest.mark.parametrize("lost", [INIT_PRODUCER_ID, ADD_PARTITIONS, PRODUCE, END_TXN])
def test_a_lost_answer_to_any_request_makes_neither_loss_nor_duplicate(
    proxied_kafka: tuple[LocalKafka, FaultProxy], topic: MakeTopic, lost: int
) -> None:
    """The broker has handled the request, its answer never arrives, and the writer asks again."""
    cluster, proxy = proxied_kafka
    name = topic(on=cluster)
    writer = begun(settings_of(proxy.bootstrap))
    with writer.transaction():
        writer.write(name, rows("before"))
    cuts = proxy.counts.cuts
    proxy.cut_before_answer(api_keys=[lost])
    if lost == INIT_PRODUCER_ID:
        writer.fence()
    with writer.transaction():
        writer.write(name, rows("meanwhile"))
    assert proxy.counts.cuts == cuts + 1
    with writer.transaction():
        writer.write(name, rows("after"))
    expected = ["before", "meanwhile", "after"]
    wait_until(lambda: values_of(cluster.bootstrap, name) == expected, "each row once, in order")


def test_a_commit_whose_request_never_arrives_is_unknown_and_fencing_takes_it_back(
    proxied_kafka: tuple[LocalKafka, FaultProxy],
    topic: MakeTopic,
) -> None:
    cluster, proxy = proxied_kafka
    name = topic(on=cluster)
    writer = begun(settings_of(proxy.bootstrap, request_timeout_ms=1_000))
    writer.begin()
    writer.write(name, rows("in doubt"))
    proxy.cut()
    proxy.refuse()
    try:
        with pytest.raises(BrokerError, match=rf"^\[{OUTCOME_UNKNOWN}\]"):
            writer.commit(timeout_ms=1_500)
    finally:
        proxy.accept()
    writer.fence()
    with writer.transaction():
        writer.write(name, rows("after"))
    wait_until(lambda: values_of(cluster.bootstrap, name) == ["after"], "what was in doubt is taken back")


def test_a_commit_whose_answer_never_comes_is_unknown_and_fencing_shows_it_done(
    proxied_kafka: tuple[LocalKafka, FaultProxy],
    topic: MakeTopic,
) -> None:
    cluster, proxy = proxied_kafka
    name = topic(on=cluster)
    writer = begun(settings_of(proxy.bootstrap, request_timeout_ms=1_000))
    writer.begin()
    writer.write(name, rows("in doubt"))
    proxy.hold_answers(api_keys=[END_TXN])
    try:
        with pytest.raises(BrokerError, match=rf"^\[{OUTCOME_UNKNOWN}\]"):
            writer.commit(timeout_ms=1_500)
    finally:
        proxy.pass_on()
    with pytest.raises(SinkError, match=r"^\[TRANSACTION_MISUSED\]"):
        writer.begin()
    writer.fence()
    assert values_of(cluster.bootstrap, name) == ["in doubt"], "after fencing the outcome is there to read"
    with writer.transaction():
        writer.write(name, rows("after"))
    wait_until(lambda: values_of(cluster.bootstrap, name) == ["in doubt", "after"], "each row once")


def test_a_transaction_outlives_a_broker_that_is_killed_in_its_middle(kafka3: Any, topic: MakeTopic) -> None:
    """Leader or coordinator: the rows before and after the kill are one transaction."""
    name = topic(3, on=kafka3, factor=3, min_insync_replicas=2)
    settings = settings_of(kafka3.bootstrap.split(",")[0], socket_connection_setup_timeout_ms=2_000)
    writer = begun(settings)
    with writer.transaction():
        writer.write(name, rows("first"))
    for number, broker in enumerate(list(kafka3.brokers)):
        writer.begin()
        writer.write(name, keyed(f"{number}-before"))
        broker.kill()
        try:
            writer.write(name, keyed(f"{number}-after"))
            writer.commit()
        finally:
            broker.start()
            kafka3.wait_until_ready()
    expected = sorted(
        ["first", *(f"{n}-{when}-{k}" for n in range(3) for when in ("before", "after") for k in range(30))]
    )

    def read_all() -> list[str]:
        found = [
            (row.value or b"").decode()
            for partition in range(3)
            for row in read_partition(kafka3.bootstrap, name, partition, committed=True)
        ]
        return sorted(found)

    wait_until(lambda: read_all() == expected, "each row once", 60)


def keyed(what: str) -> pa.RecordBatch:
    numbers = range(30)
    return pa.record_batch(
        {"key": [b"%d" % each for each in numbers], "value": [f"{what}-{each}".encode() for each in numbers]}
    )


def test_two_writers_of_one_id_at_once_leave_only_whole_transactions(
    kafka: Any, topic: MakeTopic, settings: ClientSettings
) -> None:
    """They fence each other repeatedly; each transaction reported as committed is there once."""
    name, shared = topic(1), new_id()
    done: list[str] = []
    failures: list[BrokerError] = []

    def write_some(who: str) -> None:
        writer = TransactionalWriter(settings, shared)
        for number in range(8):
            try:
                writer.fence()
                with writer.transaction():
                    writer.write(name, rows(f"{who}{number}-1"))
                    writer.write(name, rows(f"{who}{number}-2"))
                done.append(f"{who}{number}")
            except BrokerError as error:
                if error.condition != FENCED:
                    failures.append(error)

    both = [threading.Thread(target=write_some, args=(who,)) for who in "ab"]
    for each in both:
        each.start()
    for each in both:
        each.join(120)
    assert failures == []
    TransactionalWriter(settings, shared).fence()
    found = values_of(kafka.bootstrap, name)
    assert sorted(found) == sorted(f"{each}-{part}" for each in done for part in "12")
    assert [each[:-2] for each in found[::2]] == [each[:-2] for each in found[1::2]], "none is torn"


def test_a_limit_that_was_asked_before_takes_no_time_of_a_transaction(
    proxied_kafka: tuple[LocalKafka, FaultProxy],
    topic: MakeTopic,
) -> None:
    cluster, proxy = proxied_kafka
    name = topic(on=cluster)
    writer = begun(settings_of(proxy.bootstrap))
    assert writer.learn_limit(name)
    asked = proxy.counts.requests[DESCRIBE_CONFIGS]
    with writer.transaction():
        writer.write(name, rows("a" * 3_000, "b" * 3_000))
    assert proxy.counts.requests[DESCRIBE_CONFIGS] == asked
