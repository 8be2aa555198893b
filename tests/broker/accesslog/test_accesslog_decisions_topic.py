"""Decisions sent to a topic: each arrives at least once under its own id, even if the sender is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.apps.accesslog.blocking import decisions_topic
from penstock.apps.accesslog.blocking.decisions_topic import DecisionsTopic
from penstock.cli import main
from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import PenstockError
from penstock.core.options.storage_addresses import Place
from tests.conftest import MakeTopic
from tests.support.accesslog.decisions_database import NOW_US, decide, make_database
from tests.support.kafka.topic_filling import read_back

#: Sends what is new, and is killed after the brokers have it but before that is noted.
KILLED_BEFORE_NOTING = """
import os, signal, sys
from penstock.apps.accesslog.blocking.decisions_topic import DecisionsTopic
from penstock.cli import main
from penstock.core.client.client_settings import ClientSettings

class Dying(DecisionsTopic):
    def _note(self, ids, session):
        os.kill(os.getpid(), signal.SIGKILL)

host, port = sys.argv[2].split(":")
Dying(sys.argv[1], ClientSettings(((host, int(port)),)), sys.argv[3]).send()
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return make_database(tmp_path / "results.db")


def read_decisions(kafka: Any, name: str, count: int) -> list[tuple[str, dict[str, Any]]]:
    records = read_back(kafka.bootstrap, name, count)
    return [(each.key().decode(), json.loads(each.value())) for each in records]


def test_each_decision_is_sent_once_with_its_id_as_key(
    kafka: Any, topic: MakeTopic, settings: ClientSettings, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions_topic, "AT_ONCE", 3)
    name = topic(1)
    sender = DecisionsTopic(place, settings, name)
    assert sender.send() == 0
    ids = [decide(place, f"192.0.2.{number}", decided_at=NOW_US + number) for number in range(8)]
    assert sender.send() == 8
    assert sender.send() == 0
    # Committed late: its time is earlier than everything that was sent.
    ids.append(decide(place, "évil\n", decided_at=5, action="simulate"))
    assert DecisionsTopic(place, settings, name).send() == 1
    found = read_decisions(kafka, name, 9)
    assert [key for key, _ in found] == ids
    assert all(value["decision_id"] == key and value["version"] == 1 for key, value in found)
    assert (found[-1][1]["subject"], found[-1][1]["action"]) == ("évil\n", "simulate")
    assert found[0][1]["evidence"][0]["offset"] == 17


def test_topics_are_noted_apart(topic: MakeTopic, settings: ClientSettings, place: Place) -> None:
    decide(place, "192.0.2.1")
    for name in (topic(1), topic(1)):
        assert DecisionsTopic(place, settings, name).send() == 1


def test_whoever_is_killed_before_it_noted_sends_again_under_the_same_ids(
    kafka: Any, topic: MakeTopic, settings: ClientSettings, place: Place
) -> None:
    name = topic(1)
    ids = [decide(place, f"192.0.2.{number}", decided_at=NOW_US + number) for number in range(3)]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_BEFORE_NOTING, str(place), kafka.bootstrap, name],
        capture_output=True,
        timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert DecisionsTopic(place, settings, name).send() == 3
    found = read_decisions(kafka, name, 6)
    assert [key for key, _ in found] == [*ids, *ids]
    assert found[:3] == found[3:], "a reader that keeps the last of each key has each once"


def test_the_verb_sends_what_is_new_once_or_until_it_is_told_to_end(
    kafka: Any, topic: MakeTopic, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic(1)
    command = [
        "accesslog",
        "decisions",
        str(place),
        "--to-topic",
        name,
        "--bootstrap-server",
        kafka.bootstrap,
    ]
    ids = [decide(place, "192.0.2.1")]
    for sent in (1, 0):
        assert main([*command, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"version": 2, "topic": name, "sent": sent}
    program = [sys.executable, "-m", "penstock.cli", *command, "--follow"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as following:
        try:
            for number in (2, 3):
                ids.append(decide(place, f"192.0.2.{number}"))
                assert [key for key, _ in read_decisions(kafka, name, number)] == ids
            following.send_signal(signal.SIGTERM)
            assert following.communicate(timeout=30)[0] == f"2 decisions sent to {name}.\n"
        finally:
            following.kill()
    assert main(["accesslog", "decisions", str(place), "--follow"]) == 1
    assert capsys.readouterr().err.startswith("[TOPIC_MISSING] ")


def test_what_was_not_acknowledged_is_not_noted(settings: ClientSettings, place: Place) -> None:
    decide(place, "192.0.2.1")
    sender = DecisionsTopic(place, settings, "no-such-topic")
    for _ in range(2):
        with pytest.raises(PenstockError, match="UNKNOWN_TOPIC"):
            sender.send()
