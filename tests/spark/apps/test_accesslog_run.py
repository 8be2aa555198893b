"""`penstock accesslog run` as a user runs it: until nothing is left, and until it is asked to stop."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.apps.accesslog.blocking.decision_records import read_decisions
from penstock.apps.accesslog.first_look.line_samples import ENOUGH_LINES, SAMPLE_LINES, take_sample
from penstock.apps.accesslog.first_look.sample_checks import check_sample
from penstock.apps.accesslog.first_look.topic_samples import read_newest, read_oldest
from penstock.apps.accesslog.parsing.line_parser import make_parser
from penstock.apps.accesslog.stream.last_batch_time import read_last_batch
from penstock.cli import main
from penstock.core.options.storage_addresses import parse_place
from penstock.stores.sql.connections.sql_sessions import Database
from tests.support.accesslog.accesslog_traffic import (
    Request,
    make_traffic,
    send_traffic,
    write_line,
    write_rules,
)
from tests.support.kafka.client_settings import settings_of
from tests.support.kafka.topic_filling import read_back
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("accesslog_kernels")]

#: A run that is killed at the first call of one step of the decision sender.
DYING = """
import os, signal, sys
from penstock.apps.accesslog.blocking.decisions_topic import DecisionsTopic
from penstock.cli import main

setattr(DecisionsTopic, sys.argv[1], lambda *_: os.kill(os.getpid(), signal.SIGKILL))
main(sys.argv[2:])
"""


def list_arguments(bootstrap: str, topic: str, folder: Path, *more: str) -> list[str]:
    program = [sys.executable, "-m", "penstock.cli", "accesslog", "run", "--bootstrap-server", bootstrap]
    program += ["--topic", topic, "--database", str(folder / "results.db")]
    program += ["--rules", str(write_rules(folder)), "--interval", "100ms", "--idle-after", "500ms"]
    return [*program, *more]


def count_rows(database: Path, table: str) -> int:
    if not database.exists():
        return 0
    with closing(sqlite3.connect(database)) as connection:
        known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [table]).fetchall()
        return int(connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]) if known else 0


def await_decisions(database: Path, count: int) -> None:
    wait_until(lambda: count_rows(database, "accesslog_decisions") == count, f"{count} decisions", 200)


def test_a_run_tells_its_numbers_in_plain_lines_and_keeps_blocklists(
    kafka: Any, topic: Any, tmp_path: Path
) -> None:
    traffic = make_traffic(8, benign=300)
    lines = sum(map(len, traffic.values()))
    name = topic(len(traffic))
    send_traffic(kafka.bootstrap, name, traffic)
    lists = tmp_path / "lists"
    arguments = list_arguments(kafka.bootstrap, name, tmp_path, "--until-idle", "--blocklist-dir", str(lists))
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"Stopped (nothing is left): {lines} lines" in done.stdout
    assert "\x1b" not in done.stdout
    assert count_rows(tmp_path / "results.db", "accesslog_decisions") > 10
    assert (lists / "blocklist.txt").exists()


def test_decisions_are_in_their_topic_with_their_ids_whenever_a_run_was_killed(
    kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """Killed before they are sent, and after they were sent but before that is noted; then left to run."""
    traffic = make_traffic(8, benign=300)
    name, decisions, database = topic(len(traffic)), topic(1), tmp_path / "results.db"
    send_traffic(kafka.bootstrap, name, traffic)
    arguments = list_arguments(
        kafka.bootstrap, name, tmp_path, "--until-idle", "--decisions-topic", decisions
    )
    for step in ("_send", "_note"):
        dying = [sys.executable, "-c", DYING, step, *arguments[3:]]
        killed = subprocess.run(dying, capture_output=True, text=True, timeout=280, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    sent_twice = count_rows(database, "accesslog_decisions")
    assert sent_twice > 0
    assert count_rows(database, "accesslog_decisions_sent") == 0
    send_traffic(kafka.bootstrap, name, {0: [("web-1", write_line(Request(900, "192.0.2.200", "/.env")))]})
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    stored = Database(parse_place(str(database))).run(lambda session: read_decisions(session, limit=10_000))
    assert len(stored) > sent_twice
    sent = read_back(kafka.bootstrap, decisions, sent_twice + len(stored))
    found = {each.key().decode(): json.loads(each.value()) for each in sent}
    assert found == {each["decision_id"]: {"version": 1, **each} for each in stored}


def test_a_topic_for_decisions_that_is_not_there_is_told_before_anything_starts(
    kafka: Any, topic: Any, tmp_path: Path
) -> None:
    arguments = list_arguments(kafka.bootstrap, topic(1), tmp_path, "--decisions-topic", "no-such-topic")
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("[DECISIONS_TOPIC_MISSING] The topic no-such-topic for decisions does")


def test_a_topic_that_is_not_there_is_told_before_anything_is_made_or_started(
    kafka: Any, tmp_path: Path
) -> None:
    arguments = list_arguments(kafka.bootstrap, "no-such-topic", tmp_path)
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("[UNKNOWN_TOPIC] The brokers know no topic named no-such-topic.")
    assert "`penstock topics create no-such-topic`" in done.stderr
    assert "Spark" not in done.stdout
    assert not (tmp_path / "results.db").exists()


#: Enough visitors for the first look, so that decisions do not wait for more of them.
VISITS = [("web-1", write_line(Request(0, f"198.51.{n}.7"))) for n in range(ENOUGH_LINES)]


def test_a_signal_ends_a_run_after_its_batch_and_the_next_one_goes_on(
    kafka: Any, topic: Any, tmp_path: Path
) -> None:
    name, database = topic(1), tmp_path / "results.db"
    for attacker in range(2):
        line = write_line(Request(attacker, f"192.0.2.{attacker}", "/.env"))
        visits = [] if attacker else VISITS
        send_traffic(kafka.bootstrap, name, {0: [*visits, ("web-1", line)]})
        running = subprocess.Popen(
            list_arguments(kafka.bootstrap, name, tmp_path), stdout=subprocess.PIPE, text=True, env=os.environ
        )
        try:
            await_decisions(database, attacker + 1)
            running.send_signal(signal.SIGTERM)
            told, _ = running.communicate(timeout=60)
        finally:
            running.kill()
            running.wait()
        assert running.returncode == 0
        assert "Stopped (" in told
        assert ("): 1 line," if attacker else f"): {ENOUGH_LINES + 1} lines,") in told
        assert "Decisions wait" not in told
        went_on = "Going on after the batch of" in told
        assert went_on == bool(attacker), told


def test_a_signal_to_all_its_processes_is_the_commands_alone(kafka: Any, topic: Any, tmp_path: Path) -> None:
    """As `timeout` and most supervisors send it: Spark stays to finish the batch, and is gone at the end.

    A long batch is reported, and so is that a stop waits for it.
    """
    name = topic(1)
    line = write_line(Request(0, "192.0.2.1", "/.env"))
    send_traffic(kafka.bootstrap, name, {0: [*VISITS, ("web-1", line)]})
    database = Database(parse_place(str(tmp_path / "results.db")))
    running = subprocess.Popen(
        list_arguments(kafka.bootstrap, name, tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        await_decisions(tmp_path / "results.db", 1)
        batches = database.run(read_last_batch)[1]
        wait_until(lambda: database.run(read_last_batch)[1] > batches, "the batch with the lines is done")
        java = list_children(running.pid, "java")
        os.kill(java[0], signal.SIGSTOP)  # so that the next batch lasts until the process is resumed
        send_traffic(kafka.bootstrap, name, {0: [("web-1", write_line(Request(9, "192.0.2.2", "/")))]})
        assert running.stdout is not None
        # The batch that cannot end may be one without lines that had already begun.
        later = re.compile(r"a batch (of 1 offset )?has been running for 1\d s")
        is_told = any(later.match(line) for line in running.stdout)
        os.killpg(running.pid, signal.SIGTERM)
        waits = any(line == "Stopping: the running batch is finished first.\n" for line in running.stdout)
        os.kill(java[0], signal.SIGCONT)
        told, complained = running.communicate(timeout=60)
    finally:
        for each in list_children(running.pid, "java"):
            os.kill(each, signal.SIGCONT)
        running.kill()
        running.wait()
    assert running.returncode == 0, complained[-3000:]
    assert is_told
    assert waits
    assert "Stopped (SIGTERM)" in told
    assert "Traceback" not in told + complained
    assert "xception" not in told + complained
    assert len(java) == 1
    assert not Path(f"/proc/{java[0]}").exists()


def list_children(parent: int, program: str) -> list[int]:
    """Return the processes that this one has started with a program of this name."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
            if name == program and int(rest.split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


def test_a_place_that_can_hold_no_blocklist_is_told_before_anything_starts(
    kafka: Any, topic: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("mine")
    arguments = list_arguments(kafka.bootstrap, topic(1), tmp_path, "--blocklist-dir", str(tmp_path / "file"))
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("[BLOCKLIST_NOT_WRITTEN]")
    assert "its folder is a file" in done.stderr
    assert "Spark" not in done.stdout
    assert (tmp_path / "file").read_text() == "mine"


def test_a_wrong_option_is_one_sentence(tmp_path: Path) -> None:
    arguments = list_arguments("127.0.0.1:9", "log", tmp_path, "--lateness", "soon")
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("[OPTION_INVALID] Option `lateness` is 'soon'")
    assert "Traceback" not in done.stderr


def test_a_format_that_takes_hosts_for_clients_is_refused_before_anything_is_made_or_started(
    kafka: Any, topic: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic(2)
    lines = [b"shop.example " + write_line(Request(n, f"192.0.2.{n}", "/.env")) for n in range(30)]
    send_traffic(kafka.bootstrap, name, {n: [("web-1", line) for line in lines[n::2]] for n in range(2)})
    arguments = list_arguments(kafka.bootstrap, name, tmp_path, "--log-format", "combined")
    assert main(arguments[3:]) == 1
    told = capsys.readouterr()
    assert "[CLIENT_IS_NO_ADDRESS] 100% of the lines have a client that is not an address" in told.err
    assert "  client    shop.example\n" in told.out
    assert "Spark" not in told.out
    assert not (tmp_path / "results.db").exists()


def test_a_client_that_fills_one_partition_has_most_of_the_sample(kafka: Any, topic: Any) -> None:
    """The client is the key: a sample of equally many lines per partition would hide it among the others."""
    name = topic(4)
    proxied = write_line(Request(0, "10.0.0.5")) + b' "203.0.113.9"'
    traffic = {0: [("web-1", proxied)] * (SAMPLE_LINES + 1000)}
    traffic |= {n: [("web-1", write_line(Request(m, f"192.0.{n}.{m}"))) for m in range(100)] for n in (1, 2)}
    send_traffic(kafka.bootstrap, name, traffic)
    client = settings_of(kafka.bootstrap, isolation_level="read_committed")
    sample = take_sample(read_newest(client, name), make_parser())
    assert sample.top_client == "10.0.0.5"
    assert sample.clients > 100
    assert 0.95 < sample.top_lines / sample.parsed < 0.99
    conditions = [each.condition for each in check_sample(sample)]
    assert conditions == ["FORWARDED_FOR_UNUSED", "ONE_CLIENT_HAS_MOST_LINES"]


def test_the_oldest_lines_of_a_topic_are_looked_at_apart_from_the_newest(kafka: Any, topic: Any) -> None:
    name = topic(2)
    visitors = [("web-1", write_line(Request(n, f"192.0.2.{n % 99}"))) for n in range(SAMPLE_LINES)]
    flood = [("web-1", write_line(Request(n, "198.51.100.5"))) for n in range(SAMPLE_LINES)]
    send_traffic(kafka.bootstrap, name, {0: [*visitors, *flood], 1: visitors[:10]})
    client = settings_of(kafka.bootstrap, isolation_level="read_committed")
    newest, oldest = (take_sample(read(client, name), make_parser()) for read in (read_newest, read_oldest))
    assert newest.top_client == "198.51.100.5"
    assert oldest.clients == 99
    assert oldest.lines == newest.lines


def test_a_load_balancer_that_nobody_has_named_is_not_blocked_by_a_run(
    kafka: Any, topic: Any, tmp_path: Path
) -> None:
    name = topic(2)
    lines = [
        write_line(Request(n, "198.51.100.5", "/.env")) + f' "203.0.113.{n}"'.encode() for n in range(40)
    ]
    lines.append(write_line(Request(40, "203.0.113.200", "/.env")))
    send_traffic(kafka.bootstrap, name, {0: [("web-1", line) for line in lines]})
    arguments = list_arguments(kafka.bootstrap, name, tmp_path, "--until-idle")
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    place = parse_place(str(tmp_path / "results.db"))
    stored = Database(place).run(lambda session: read_decisions(session, limit=10_000))
    actions = {(each["client"], each["action"]) for each in stored}
    assert actions == {("198.51.100.5", "allowed"), ("203.0.113.200", "block")}
    assert "Z accesslog: WARNING [PROXY_NOT_NAMED] 198.51.100.5: " in done.stderr
    assert "1 client spared that a rule wanted blocked: 198.51.100.5 (looks like a proxy that" in done.stderr
