"""`penstock why` beside a real broker and real databases: the cause that was made is the one it names."""

from __future__ import annotations

import json
import secrets
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main, why
from penstock.cluster.ports import find_free_ports
from penstock.core.client import ClientSettings
from penstock.core.client_java import parse_client
from penstock.core.model import TopicPartition
from penstock.core.stream_offsets import StreamPosition
from penstock.kafka.deadline import Deadline
from penstock.kafka.routing import routing_for
from penstock.stores.offsets.addresses import open_offset_store
from penstock.stores.sql.writers import look_at_writer
from tests.filling import delete_before, open_transaction, produce, send, wait_until
from tests.sql.databases import OwnDatabase
from tests.sql.sinks import at, make_numbers, make_sink


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    ended = main(["why", *arguments, "--json"])
    printed = capsys.readouterr()
    assert ended == 0, printed.err
    told: dict[str, Any] = json.loads(printed.out)
    return told


def test_the_log_explains_why_a_stream_stands(
    tmp_path: Path,
    kafka: Any,
    topic: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One topic goes through all that can be seen from the brokers."""
    source = topic(1)
    store = open_offset_store(f"{tmp_path}/offsets")
    one = TopicPartition(source, 0)
    asked = ("s", "--offsets", f"{tmp_path}/offsets", "--bootstrap-server", kafka.bootstrap, "--watch", "0s")

    def explain(offset: int, *more: str, **known: Any) -> str:
        store.save("s", StreamPosition({one: offset}, **known), may_go_back=True)
        return str(ask(capsys, *asked, *more)["condition"])

    assert explain(0) == "NO_DATA"
    produce(kafka.bootstrap, source, ["a"] * 5)
    assert explain(5) == "NO_DATA"
    assert "s old" in ask(capsys, *asked)["what"]
    assert explain(3) == "DATA_WAITS"
    assert explain(3, "--watch", "1s") == "STANDS_STILL"
    assert explain(9) == "POSITION_BEYOND_END"
    delete_before(kafka.bootstrap, source, 2)
    assert explain(1) == "POSITION_AGED_OUT"
    assert explain(5, topic_ids={source: b"\7" * 16}) == "TOPIC_RECREATED"
    with_transaction = open_transaction(kafka.bootstrap)
    send(with_transaction, source, ["b"] * 3)
    with_transaction.flush(30)
    assert explain(5, "--isolation", "read_committed") == "OPEN_TRANSACTION"
    told = ask(capsys, *asked, "--isolation", "read_committed")
    assert "hides 3 offsets from 5 on" in told["what"]
    assert told["partitions"][0]["hold"]["producer_id"] >= 0
    assert explain(5) == "DATA_WAITS"  # a stream that reads uncommitted rows is not held
    with_transaction.abort_transaction(30)
    store.save("s", StreamPosition({TopicPartition(f"{source}-x", 0): 1}), may_go_back=True)
    assert ask(capsys, *asked)["condition"] == "TOPIC_GONE"
    monkeypatch.setattr(why, "_LOOK_TIMEOUT_MS", 500)
    nobody = (*asked[1:4], f"127.0.0.1:{find_free_ports(1)[0]}")
    assert ask(capsys, "s", *nobody)["condition"] == "BROKERS_UNREACHABLE"
    assert main(["why", "nobody", *nobody]) == 1
    assert "[STREAM_NOT_FOUND]" in capsys.readouterr().err


def test_a_stream_that_moves_while_it_is_watched_is_said_to_move(
    tmp_path: Path, kafka: Any, topic: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    source = topic(1)
    produce(kafka.bootstrap, source, ["a"] * 200)
    store = open_offset_store(f"{tmp_path}/offsets")
    store.save("s", StreamPosition({TopicPartition(source, 0): 0}))
    ended = threading.Event()

    def move() -> None:
        offset = 0
        while not ended.wait(0.1):
            offset += 1
            store.save("s", StreamPosition({TopicPartition(source, 0): offset}))

    mover = threading.Thread(target=move)
    mover.start()
    try:
        asked = ("s", "--offsets", f"{tmp_path}/offsets", "--bootstrap-server", kafka.bootstrap)
        assert ask(capsys, *asked, "--watch", "30s")["condition"] == "IT_MOVES"
    finally:
        ended.set()
        mover.join()


def limit_reading(settings: ClientSettings, client_id: str, bytes_per_s: float) -> None:
    """A quota for all who read with this client id."""
    # Not above: it warns where it is the first of its package.
    from kafka.protocol.admin import AlterClientQuotasRequest, DescribeClientQuotasRequest

    entry = AlterClientQuotasRequest.EntryData
    whom = entry.EntityData(entity_type="client-id", entity_name=client_id)
    how = entry.OpData(key="consumer_byte_rate", value=bytes_per_s, remove=False)
    request = AlterClientQuotasRequest(entries=[entry(entity=[whom], ops=[how])], validate_only=False)
    deadline = Deadline.after_ms(30_000, "the time to set a quota")
    answer, _ = routing_for(settings).call_any(lambda: request, deadline)
    assert answer.entries[0].error_code == 0, answer
    asked = DescribeClientQuotasRequest.ComponentData(entity_type="client-id", match_type=0, match=client_id)
    look = DescribeClientQuotasRequest(components=[asked], strict=True)
    wait_until(lambda: routing_for(settings).call_any(lambda: look, deadline)[0].entries, "it is in force")


def test_a_quota_of_the_brokers_is_named(
    tmp_path: Path, kafka: Any, topic: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though they are silent to a client that they hold back, they are not taken for unreachable."""
    source, client_id = topic(1), f"slow-{secrets.token_hex(4)}"
    produce(kafka.bootstrap, source, [b"x" * 1000] * 10)
    store = open_offset_store(f"{tmp_path}/offsets")
    store.save("s", StreamPosition({TopicPartition(source, 0): 3}))
    asked = ["s", "--offsets", f"{tmp_path}/offsets", "--bootstrap-server", kafka.bootstrap]
    asked += ["--watch", "1s", "--set", f"client.id={client_id}"]
    assert ask(capsys, *asked)["condition"] == "STANDS_STILL"  # and 20 KB were read with this client id
    settings = parse_client({"bootstrap.servers": kafka.bootstrap}, read_file=str).settings
    limit_reading(settings, client_id, 1000.0)
    told = ask(capsys, *asked)
    assert told["condition"] == "QUOTA", told
    assert told["throttle_ms"] > 0


def test_a_row_that_another_session_holds_is_seen_without_waiting_for_it(own_database: OwnDatabase) -> None:
    sink = make_sink(own_database.url)
    with closing(sink.open("s", owner="ann")) as writer:
        writer.write(make_numbers(at(0), at(2)), at(0), at(2))
    seen = look_at_writer(sink.place, "s")
    assert seen is not None
    assert (seen.epoch, seen.owner, seen.is_locked) == (1, "ann", False)
    assert look_at_writer(sink.place, "nobody") is None
    with closing(own_database.connect()) as other:
        cursor = other.cursor()
        cursor.execute("BEGIN IMMEDIATE" if "sqlite" in own_database.url else "BEGIN")
        cursor.execute("UPDATE penstock_sink_writers SET owner = 'x' WHERE stream = 's'")
        held = look_at_writer(sink.place, "s")
        assert held is not None
        assert (held.owner, held.is_locked) == ("ann", True)
        cursor.execute("ROLLBACK")
    assert look_at_writer(sink.place, "s") == seen


def test_a_lock_that_was_left_open_and_a_second_program_are_named(
    tmp_path: Path, kafka: Any, topic: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    source = topic(1)
    produce(kafka.bootstrap, source, ["a"] * 5)
    database = OwnDatabase(f"sqlite://{tmp_path}/own.db")
    sink = make_sink(database.url)
    place = [StreamPosition({TopicPartition(source, 0): offset}) for offset in (0, 2)]
    with closing(sink.open("s")) as writer:
        writer.write(make_numbers(at(0), at(2)), *place)
    asked = ("s", "--sink", database.url, "--bootstrap-server", kafka.bootstrap, "--watch", "1s")
    assert ask(capsys, *asked)["condition"] == "STANDS_STILL"
    with closing(database.connect()) as other:
        other.execute("BEGIN IMMEDIATE")
        told = ask(capsys, *asked)
        other.execute("ROLLBACK")
    assert told["condition"] == "LOCK_WAIT"
    ended = threading.Event()

    def fight() -> None:
        while not ended.wait(0.2):
            sink.open("s", owner="another program").close()

    other_program = threading.Thread(target=fight)
    other_program.start()
    try:
        told = ask(capsys, *asked[:-1], "3s")
    finally:
        ended.set()
        other_program.join()
    assert told["condition"] == "WRITER_FENCED"
    assert told["writer"]["owner"] == "another program"
    assert main(["why", *asked]) == 0
    assert "3 offsets wait" in capsys.readouterr().out
