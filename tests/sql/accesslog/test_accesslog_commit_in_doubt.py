"""Decisions are sent on only when they are in the database, even when a COMMIT is in doubt for a while."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.apps.accesslog.blocking.decision_records import read_decisions
from penstock.core.options.storage_addresses import parse_place
from penstock.stores.sql.connections.sql_sessions import Database
from tests.sql.databases import OwnDatabase
from tests.support.accesslog.accesslog_traffic import (
    Request,
    decide_in_memory,
    make_traffic,
    send_traffic,
    write_line,
    write_rules,
)
from tests.support.kafka.topic_filling import read_back

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("accesslog_kernels")]

#: A run whose database receives a COMMIT with decisions, does not answer and is away until the writer gives
#: up. It is back when the stream waits for it (the default), or for the next attempt (where the stream may
#: not wait for servers). That happens twice. Arguments: the database's host and port, its address without
#: them, and those of the run.
LOSING_AN_ANSWER = """
import sys
from penstock.cli import main
from penstock.core.sinks.sql_commit_protocol import Begin, Commit, InsertStages
from penstock.engines.direct import batch_loop as loop
from penstock.stores.sql.connections import database_outages as waiting
from penstock.stores.sql.sink import protocol_performer as performer
from penstock.testing.proxy import FaultProxy

host, port, address = sys.argv[1], int(sys.argv[2]), sys.argv[3]
perform, choose_pause_s = performer.Performer.__call__, loop._choose_pause_s
await_sink, may_sit_out = loop.BatchLoop._await_sink, loop.BatchLoop._may_sit_out
waiting.RECONNECT_TIMEOUT_S = waiting.TOLD_AFTER_S = 0.5
seen = []

def lose_answer(self, step):
    if isinstance(step, InsertStages) and step.table == "accesslog_decisions":
        seen.append(step)
        is_the_one.append(len(seen) <= 2)
    if isinstance(step, Begin):
        is_the_one.clear()
    if isinstance(step, Commit) and any(is_the_one):
        proxy.refuse()
        proxy.cut_before_answer()
    return perform(self, step)

def come_back(error, attempt):
    assert "COMMIT_IN_DOUBT" in str(error), error
    print("in doubt, tried again")
    proxy.accept()
    return choose_pause_s(error, attempt)

def note_doubt(self, error, *about):
    may_wait = may_sit_out(self, error, *about)
    if may_wait:
        assert "COMMIT_IN_DOUBT" in str(error), error
        print("in doubt, waited for")
    return may_wait

def come_back_while_waiting(self):
    proxy.accept()
    return await_sink(self)

is_the_one = []
performer.Performer.__call__ = lose_answer
loop._choose_pause_s = come_back
loop.BatchLoop._may_sit_out, loop.BatchLoop._await_sink = note_doubt, come_back_while_waiting
with FaultProxy((host, port)) as proxy:
    code = main([*sys.argv[4:], "--database", address.replace("PROXY", proxy.bootstrap)])
sys.exit(code)
"""


def count_records(bootstrap: str, topic: str) -> int:
    """Return how many records the topic's only partition has."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "count-records"})
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1]
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("patience", "course"),
    [
        ((), "waited for"),  # the default: the stream waits for its database, and tries again
        (("--outage-timeout", "0s"), "tried again"),
    ],
)
def test_the_topic_has_the_decisions_of_the_table_after_a_commit_in_doubt(
    kafka: Any,
    topic: Any,
    postgres_database: OwnDatabase,
    tmp_path: Path,
    patience: tuple[str, ...],
    course: str,
) -> None:
    """The first decisions come with lines, the last ones when nothing is waited for any more."""
    last = ("web-1", write_line(Request(900, "192.0.2.200", "/.env")))
    traffic = {**(most := make_traffic(8, benign=300)), 0: [*most[0], last]}
    name, decisions = topic(len(traffic)), topic(1)
    send_traffic(kafka.bootstrap, name, traffic)
    place = parse_place(postgres_database.url)
    [(host, port)] = place.hosts
    lists = tmp_path / "lists"
    arguments = [*("accesslog", "run", "--bootstrap-server", kafka.bootstrap, "--topic", name)]
    arguments += ["--create-tables", "--rules", str(write_rules(tmp_path)), "--decisions-topic", decisions]
    arguments += [
        "--interval",
        "100ms",
        "--idle-after",
        "500ms",
        "--until-idle",
        *patience,
        "--blocklist-dir",
        str(lists),
    ]
    address = postgres_database.url.replace(f"{host}:{port}", "PROXY")
    program = [sys.executable, "-c", LOSING_AN_ANSWER, host, str(port), address]
    done = subprocess.run([*program, *arguments], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count(f"in doubt, {course}\n") == done.stdout.count("in doubt") == 2
    stored = Database(place).run(lambda session: read_decisions(session, limit=10_000))
    assert {each["decision_id"] for each in stored} == {
        each["decision_id"] for each in decide_in_memory(traffic, lanes=16)
    }
    assert len(stored) == len({each["decision_id"] for each in stored})
    sent = read_back(kafka.bootstrap, decisions, count_records(kafka.bootstrap, decisions))
    found = {each.key().decode(): json.loads(each.value()) for each in sent}
    assert found == {each["decision_id"]: {"version": 1, **each} for each in stored}
    blocks = sum(each["action"] == "block" for each in stored)
    assert f"by {blocks} decisions" in done.stdout, "what is shown is what was committed, too"
