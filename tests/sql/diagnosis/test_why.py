"""`penstock why` with a real broker and real databases: it names the cause that was created."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.cli import main
from penstock.cli.commands import why
from penstock.cluster.processes.free_ports import find_free_ports
from penstock.core.client.client_settings import ClientSettings
from penstock.core.client.java_settings import parse_client
from penstock.core.errors import PenstockError
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.options.storage_addresses import parse_place
from penstock.kafka.metadata.routing import routing_for
from penstock.kafka.transport.deadlines import Deadline
from penstock.stores.offsets.offset_store_addresses import open_offset_store
from penstock.stores.sql.ledger.blocking_sessions import find_blockers
from penstock.stores.sql.ledger.writer_rows import look_at_writer
from tests.sql.databases import OwnDatabase
from tests.sql.roles import make_role
from tests.sql.sinks import at, make_numbers, make_sink
from tests.support.console import ask_why
from tests.support.kafka.topic_filling import delete_before, open_transaction, produce, send
from tests.support.waiting import wait_until

EXIT_CODES = {"moving": 0, "idle": 0, "stuck": 1, "unreachable": 3, "unknown": 4}


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Run `penstock why`, check that its exit code fits the reported state, and return the report."""
    ended, told = ask_why(capsys, *arguments)
    assert ended == EXIT_CODES[told["state"]]
    return told


def test_the_log_explains_why_a_stream_stands(
    tmp_path: Path,
    kafka: Any,
    topic: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One topic goes through everything that can be seen from the brokers."""
    source = topic(1)
    store = open_offset_store(f"{tmp_path}/offsets")
    one = TopicPartition(source, 0)
    asked = ("s", "--offsets", f"{tmp_path}/offsets", "--bootstrap-server", kafka.bootstrap, "--watch", "0s")

    def explain(offset: int, *more: str, **known: Any) -> str:
        store.save("s", StreamPosition({one: offset}, **known), may_go_back=True)
        return str(ask(capsys, *asked, *more)["condition"])

    assert explain(0) == "NO_DATA"
    assert ask(capsys, *asked)["state"] == "idle"  # nothing waits, so nothing is wrong
    produce(kafka.bootstrap, source, ["a"] * 5)
    assert explain(5) == "NO_DATA"
    assert "s old" in ask(capsys, *asked)["what"]
    assert explain(3) == "DATA_WAITS"
    assert ask(capsys, *asked)["state"] == "unknown"
    assert explain(3, "--watch", "1s") == "STANDS_STILL"
    assert ask(capsys, *asked, "--watch", "1s")["state"] == "stuck"
    assert explain(9) == "POSITION_BEYOND_END"
    delete_before(kafka.bootstrap, source, 2)
    assert explain(1) == "POSITION_AGED_OUT"
    assert explain(5, topic_ids={source: b"\7" * 16}) == "TOPIC_RECREATED"
    store.save("s", StreamPosition({TopicPartition(f"{source}-x", 0): 1}), may_go_back=True)
    assert ask(capsys, *asked)["condition"] == "TOPIC_GONE"
    monkeypatch.setattr(why, "_LOOK_TIMEOUT_MS", 500)
    nobody = (*asked[1:4], f"127.0.0.1:{find_free_ports(1)[0]}")
    told = ask(capsys, "s", *nobody)
    assert (told["condition"], told["state"]) == ("BROKERS_UNREACHABLE", "unreachable")


def test_a_broker_that_is_silent_is_waited_for_as_long_as_the_settings_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The settings that the answer advises to raise can be raised."""
    open_offset_store(f"{tmp_path}/offsets").save("s", StreamPosition({TopicPartition("t", 0): 1}))
    with socket.create_server(("127.0.0.1", 0)) as frozen:  # accepts connections, but never answers
        address = f"127.0.0.1:{frozen.getsockname()[1]}"
        asked = ("s", "--offsets", f"{tmp_path}/offsets", "--bootstrap-server", address)
        told = ask(capsys, *asked, "--set", "default.api.timeout.ms=700")
    assert told["condition"] == "BROKERS_UNREACHABLE"
    assert "for 700 ms (default.api.timeout.ms)" in told["what"]
    assert "the time to look" not in told["what"]


def test_a_place_that_cannot_be_asked_and_a_stream_that_is_not_there_have_exit_codes_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No broker is asked, because the position comes first. A wrong question has exit code 2."""
    nobody = f"127.0.0.1:{find_free_ports(1)[0]}"
    (tmp_path / "damaged.db").write_text("no database " * 100)
    open_offset_store(f"{tmp_path}/offsets").save("s", StreamPosition({TopicPartition("t", 0): 1}))
    for code, condition, *arguments in (
        (3, "DATABASE_UNREACHABLE", "s", "--sink", f"postgresql://me:x@{nobody}/none"),
        (4, "STREAM_NOT_FOUND", "nobody", "--offsets", f"{tmp_path}/offsets"),
        (4, "DATABASE_DAMAGED", "s", "--sink", f"{tmp_path}/damaged.db"),
        (2, "OPTION_", "s", "--offsets", f"{tmp_path}/offsets", "--set", "isolation.level=all"),
    ):
        assert main(["why", *arguments, "--bootstrap-server", nobody]) == code  # type: ignore[list-item]
        assert f"[{condition}" in capsys.readouterr().err


def test_an_open_transaction_is_named_with_all_that_it_holds_whatever_the_stream_reads(
    tmp_path: Path, kafka: Any, topic: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """T03: nobody has to say how the stream reads.

    Two of three partitions are held back. The answer says for which readers this holds, and is withdrawn when
    the position moves.
    """
    source, name = topic(3), f"orders-{secrets.token_hex(4)}"
    parts = [TopicPartition(source, number) for number in range(3)]
    for each in parts:
        produce(kafka.bootstrap, source, ["a"] * 5, partition=each.partition)
    store = open_offset_store(f"{tmp_path}/offsets")
    store.save("s", StreamPosition(dict.fromkeys(parts, 5)))
    asked = ("s", "--offsets", f"{tmp_path}/offsets", "--bootstrap-server", kafka.bootstrap)
    hanging = open_transaction(kafka.bootstrap, name)
    try:
        for number, rows in ((0, 3), (2, 1)):
            send(hanging, source, ["b"] * rows, partition=number)
        assert hanging.flush(30) == 0
        unwatched = ask(capsys, *asked, "--watch", "0s")
        assert (unwatched["condition"], unwatched["state"]) == ("OPEN_TRANSACTION", "unknown")
        told = ask(capsys, *asked, "--watch", "1s")
        assert (told["condition"], told["state"]) == ("OPEN_TRANSACTION", "stuck")
        assert name in told["what"]
        assert f"3 offsets of {source}-0 from 5 on" in told["what"]
        assert f"1 offset of {source}-2 from 5 on" in told["what"]
        assert f"{source}-1" not in told["what"]
        assert "--isolation" in told["hint"]
        assert "transaction.timeout.ms" in told["hint"]
        holds = [each["hold"] for each in told["partitions"]]
        assert [each and each["transactional_id"] for each in holds] == [name, None, name]
        sure = ask(capsys, *asked, "--watch", "1s", "--isolation", "read_committed")
        assert (sure["condition"], sure["state"]) == ("OPEN_TRANSACTION", "stuck")
        assert "--isolation" not in sure["hint"]
        free = ask(capsys, *asked, "--watch", "1s", "--set", "isolation.level=read_uncommitted")
        assert (free["condition"], free["state"]) == ("STANDS_STILL", "stuck")  # it is not held back
        ended = threading.Event()

        def move() -> None:
            ended.wait(1)
            store.save("s", StreamPosition({**dict.fromkeys(parts, 5), parts[0]: 6}))

        mover = threading.Thread(target=move)
        mover.start()
        moves = ask(capsys, *asked, "--watch", "30s")
        mover.join()
        assert (moves["condition"], moves["state"]) == ("IT_MOVES", "moving")
    finally:
        hanging.abort_transaction(30)


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
    """Set a quota for all clients that read with this client id."""
    # Not imported at the top: it issues a warning if it is the first import of its package.
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
    """They do not answer a client that they throttle, but they are not mistaken for unreachable."""
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


def test_a_user_without_the_right_to_see_other_sessions_gets_an_answer_as_well(
    server_database: OwnDatabase,
) -> None:
    """PostgreSQL shows everyone which session it is, but not what it does; MariaDB shows nothing."""
    sink = make_sink(server_database.url)
    sink.open("s").close()
    with closing(server_database.connect()) as other, make_role(server_database) as role:
        role.grant_rows(numbers="append")
        holder = [other.info.backend_pid] if role.is_postgres else []
        cursor = other.cursor()
        cursor.execute("BEGIN")
        cursor.execute("UPDATE penstock_sink_writers SET owner = 'x' WHERE stream = 's'")
        found = find_blockers(parse_place(role.url), "s")
        cursor.execute("ROLLBACK")
    assert [each.session for each in found] == holder
    assert not any(each.statement or each.doing for each in found)


def is_postgres(database: OwnDatabase) -> bool:
    return database.url.startswith("postgresql")


def is_held(sink: Any, stream: str) -> bool:
    seen = look_at_writer(sink.place, stream)
    return seen is not None and seen.is_locked


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
    assert f"fuser -v {tmp_path}/own.db" in told["hint"]
    assert "user" not in told["what"]  # a file has no sessions, and hides none from anyone
    assert "pg_stat" not in told["hint"]
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
    assert main(["why", *asked]) == 1
    assert "3 offsets wait" in capsys.readouterr().out


def test_an_operators_rewind_under_an_idle_program_is_not_called_its_writer(
    own_database: OwnDatabase, kafka: Any, topic: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program notices it with its next batch.

    Until one is started nobody may publish. Then all is as before, whether the move was made before we looked
    or while we did.
    """
    source = topic(1)
    produce(kafka.bootstrap, source, ["a"] * 5)
    sink = make_sink(own_database.url)
    place = [StreamPosition({TopicPartition(source, 0): offset}) for offset in (0, 5, 6)]
    asked = ("s", "--sink", own_database.url, "--bootstrap-server", kafka.bootstrap, "--watch")
    change = ["offsets", "rewind", "--at", f"sink:{own_database.url}", "s", "--by", "2", "--yes"]
    change += ["--watch", "0s", "--bootstrap-server", kafka.bootstrap]
    with closing(sink.open("s", owner="program")) as idle:
        idle.write(make_numbers(at(0), at(5)), *place[:2])
        assert ask(capsys, *asked, "1s")["condition"] == "NO_DATA"
        assert main(change) == 0
        told = ask(capsys, *asked, "1s")
        assert (told["condition"], told["state"]) == ("MOVED_BY_HAND", "stuck")
        assert told["moved_by_hand"]["verb"] == "rewind"
        assert told["moved_by_hand"]["who"] == told["writer"]["owner"]
        unwatched = ask(capsys, *asked, "0s")
        assert (unwatched["condition"], unwatched["state"]) == ("DATA_WAITS", "unknown")
        assert "by hand" in unwatched["what"]
        with pytest.raises(PenstockError, match=r"WRITER_FENCED.*moved by hand"):
            idle.write(make_numbers(at(5), at(6)), *place[1:])
    sink.open("s", owner="program").close()
    told = ask(capsys, *asked, "1s")
    assert (told["condition"], told["moved_by_hand"]) == ("STANDS_STILL", None)
    assert "Its writer has been program for" in told["what"]


def test_a_rewind_while_we_look_is_no_progress_and_no_second_program(
    tmp_path: Path,
    kafka: Any,
    topic: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = topic(1)
    produce(kafka.bootstrap, source, ["a"] * 9)
    database = OwnDatabase(f"sqlite://{tmp_path}/own.db")
    sink = make_sink(database.url)
    place = [StreamPosition({TopicPartition(source, 0): offset}) for offset in (0, 5)]
    with closing(sink.open("s", owner="program")) as writer:
        writer.write(make_numbers(at(0), at(5)), *place)
    open_offset_store(f"{tmp_path}/offsets").save("s", place[1])
    brokers = ("--bootstrap-server", kafka.bootstrap)
    acts: list[Callable[[], object]] = []
    passed_s = [0.0]

    def sleep(seconds: float) -> None:
        """Let somebody act while we wait; no time passes except on this clock."""
        while acts:
            acts.pop(0)()
        passed_s[0] += seconds

    here = SimpleNamespace(sleep=sleep, monotonic=lambda: passed_s[0], time_ns=time.time_ns)
    monkeypatch.setattr(why, "time", here)

    def rewind(where: str) -> None:
        change = ["offsets", "rewind", "--at", where, "s", "--by", "1", "--yes", "--watch", "0s", *brokers]
        acts.append(lambda: (main(change), capsys.readouterr()))

    def look(*named: str) -> tuple[str, int, bool]:
        told = ask(capsys, "s", *named, *brokers, "--watch", "1s")
        assert not acts
        assert told["moved"] is False
        return told["condition"], told["lag"], told["moved_by_hand"] is not None

    rewind(f"{tmp_path}/offsets")
    assert look("--offsets", f"{tmp_path}/offsets") == ("STANDS_STILL", 5, True)
    rewind(f"sink:{database.url}")
    assert look("--sink", database.url) == ("MOVED_BY_HAND", 5, True)
    rewind(f"sink:{database.url}")
    acts.append(lambda: sink.open("s", owner="another").close())
    assert look("--sink", database.url) == ("STANDS_STILL", 6, False)


def test_the_session_that_blocks_is_named_and_not_the_streams_own_that_waits_for_it(
    server_database: OwnDatabase, kafka: Any, topic: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stream's own session holds its writer row and waits for another session's lock on its table."""
    source = topic(1)
    produce(kafka.bootstrap, source, ["a"] * 5)
    sink = make_sink(server_database.url, mode="upsert", key=("partition_id", "number"))
    place = [StreamPosition({TopicPartition(source, 0): offset}) for offset in (0, 2, 4)]
    failed: list[PenstockError] = []
    with closing(sink.open("s")) as writer, closing(server_database.connect()) as other:
        writer.write(make_numbers(at(0), at(2)), place[0], place[1])
        cursor = other.cursor()
        cursor.execute(f"SELECT {'pg_backend_pid' if is_postgres(server_database) else 'CONNECTION_ID'}()")
        ((blocker,),) = cursor.fetchall()
        cursor.execute("BEGIN")
        cursor.execute("DELETE FROM numbers")

        def publish() -> None:
            try:
                writer.write(make_numbers(at(0), at(4)), place[1], place[2])
            except PenstockError as error:
                failed.append(error)

        stream = threading.Thread(target=publish)
        stream.start()
        try:
            wait_until(lambda: is_held(sink, "s"), "the stream holds its row")
            asked = ("s", "--sink", server_database.url, "--bootstrap-server", kafka.bootstrap)
            told = ask(capsys, *asked, "--watch", "1s")
        finally:
            cursor.execute("ROLLBACK")
            stream.join()
    assert (told["condition"], told["state"]) == ("LOCK_WAIT", "stuck")
    assert f"session {blocker} " in told["what"]
    assert [each["session"] for each in told["writer"]["blockers"]] == [blocker]
    assert str(blocker) in told["hint"]
    assert not failed


@pytest.mark.parametrize("is_altered", [False, True], ids=["LOCK TABLES", "ALTER TABLE behind a reader"])
def test_a_metadata_lock_is_called_one_and_its_victim_is_not_named_as_the_cause(
    mariadb_database: OwnDatabase,
    kafka: Any,
    topic: Any,
    capsys: pytest.CaptureFixture[str],
    is_altered: bool,
) -> None:
    """MariaDB does not list such a lock; all that it shows is the stream's own session, which waits."""
    source = topic(1)
    produce(kafka.bootstrap, source, ["a"] * 5)
    sink = make_sink(mariadb_database.url)
    place = [StreamPosition({TopicPartition(source, 0): offset}) for offset in (0, 2, 4)]
    blocked: list[threading.Thread] = []

    def start(what: Callable[[], object]) -> None:
        blocked.append(threading.Thread(target=what))
        blocked[-1].start()

    waits = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND state LIKE '%{}%'"

    def wait_for(sessions: int) -> None:
        found = waits.format("metadata lock")
        wait_until(lambda: mariadb_database.run(found) == [(sessions,)], "they wait for the table")

    with (
        closing(sink.open("s")) as writer,
        closing(mariadb_database.connect()) as other,
        closing(mariadb_database.connect()) as altering,
    ):
        writer.write(make_numbers(at(0), at(2)), place[0], place[1])
        cursor = other.cursor()
        if is_altered:
            cursor.execute("BEGIN")
            cursor.execute("SELECT * FROM numbers")
            start(lambda: altering.cursor().execute("ALTER TABLE numbers COMMENT 'x'"))
            wait_for(1)
        else:
            cursor.execute("LOCK TABLES numbers WRITE")
        start(lambda: writer.write(make_numbers(at(2), at(4)), place[1], place[2]))
        try:
            wait_for(2 if is_altered else 1)
            asked = ("s", "--sink", mariadb_database.url, "--bootstrap-server", kafka.bootstrap)
            told = ask(capsys, *asked, "--watch", "1s")
        finally:
            cursor.execute("ROLLBACK" if is_altered else "UNLOCK TABLES")
            for each in blocked:
                each.join()
    assert (told["condition"], told["state"]) == ("LOCK_WAIT", "stuck")
    (victim,) = told["writer"]["blockers"]
    assert victim["is_waiting"]
    assert "which waits itself: for a metadata lock" in told["what"]
    assert victim["ending"] not in told["hint"]
    assert "metadata_lock_info" in told["hint"]
