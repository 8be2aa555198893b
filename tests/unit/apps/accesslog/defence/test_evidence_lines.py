"""The lines shown with a decision: requests for hits, agents for switches, and only so many of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.apps.accesslog.defence.defence_settings import DefenceSettings
from penstock.apps.accesslog.defence.evidence_lines import AGENTS_KEPT, MOST_EVIDENCE
from penstock.apps.accesslog.detection.detector import Detector
from penstock.apps.accesslog.detection.rule_set import default_rules
from penstock.apps.accesslog.events.line_events import LONGEST_AGENT, make_events, read_agents
from penstock.apps.accesslog.events.subjects import CLIENT
from penstock.apps.accesslog.parsing.line_parser import make_parser
from penstock.cli import main
from tests.reference.accesslog_fold import RULES, SECOND, START, Line, Runner, make_batch, make_history
from tests.support.accesslog.decisions_database import decide, make_database
from tests.support.accesslog.fed_engine import FedEngine

SETTINGS = DefenceSettings(RULES, lanes=1, trust_crawlers=False, subjects_per_lane=512, groups_per_lane=256)


def make_line(number: int, client: str, seconds: float, agent: int, *hits: str) -> Line:
    rules = tuple(RULES.find(each).number for each in hits)
    return Line(number, client, "web-1", START + round(seconds * SECOND), rules, 1, agent, 1)


def write_log(agents: list[bytes]) -> pa.Array:
    line = b'192.0.2.7 - - [10/Oct/2000:13:55:%02d +0000] "GET /page HTTP/1.1" 200 5 "-" "%s"'
    return pa.array([line % (n % 60, agent) for n, agent in enumerate(agents)], pa.binary())


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("packs", [False, True])
def test_who_switches_agents_is_told_with_the_agents(size: int, packs: bool) -> None:
    """In one batch, in batches of one line, and with the state serialized in between."""
    lines = [make_line(n, "192.0.2.1", n * 0.1, 10 + n) for n in range(9)]
    lines += [make_line(20 + n, "198.51.100.1", 2 + n * 0.1, 10 + n % 2, "signal.a") for n in range(2)]
    runner = Runner(SETTINGS, partitions=1, packs=packs)
    for at in range(0, len(lines), size):
        runner.feed([(0, lines[at : at + size])])
    runner.end()
    (row,) = [row for row in runner.rows if row["rule"] == "any.agents"]
    told = [(each["offset"], each["agent"], each["request"]) for each in json.loads(row["evidence"])]
    assert told == [(n, f"agent/{10 + n}", "") for n in range(1, row["offset"] + 1)][-MOST_EVIDENCE:]
    assert len(told) >= 4


def test_a_decision_of_a_count_tells_the_agent_of_the_line_that_decided() -> None:
    runner = Runner(SETTINGS, partitions=1)
    runner.feed([(0, [make_line(n, "192.0.2.1", n * 0.01, 3) for n in range(40)])])
    runner.end()
    flood = next(row for row in runner.rows if row["rule"] == "any.fast")
    assert [each["agent"] for each in json.loads(flood["evidence"])] == ["agent/3"]


def test_other_clients_agents_are_not_told_and_only_so_many_are_kept() -> None:
    crowd = [
        make_line(2 * n + turn, f"10.0.{n // 256}.{n % 256}", n * 0.01, 100 + turn)
        for n in range(AGENTS_KEPT + 50)
        for turn in range(2)
    ]
    last = crowd[-1].number
    mine = [make_line(last + 1 + n, "192.0.2.1", 4 + n * 0.1, 10 + n) for n in range(6)]
    runner = Runner(SETTINGS, partitions=1)
    runner.feed([(0, [*crowd, *mine])])
    runner.end()
    rows = [row for row in runner.rows if row["rule"] == "any.agents"]
    assert [row["client"] for row in rows] == ["192.0.2.1"]
    assert {each["agent"] for each in json.loads(rows[0]["evidence"])} <= {
        f"agent/{10 + n}" for n in range(6)
    }
    assert runner.states[0].agent_evidence.num_rows == AGENTS_KEPT


def test_a_lane_keeps_the_agents_of_lines_that_wait_and_no_others() -> None:
    runner = Runner(SETTINGS, partitions=1)
    runner.feed([(0, [make_line(0, "192.0.2.1", 0, 7), make_line(1, "192.0.2.1", 60, 8)])])
    (state,) = runner.states
    assert state.pending.column("agent").to_pylist() == [8]
    assert state.agents.to_pylist() == [{"agent": 8, "text": b"agent/8"}]
    runner.end()
    assert runner.states[0].agents.num_rows == 0


def test_each_agent_is_named_in_each_lane_and_not_with_every_line() -> None:
    history = [replace(line, agent=line.number % 40) for line in make_history(3, 2000)]
    made = make_events(*make_batch(history), RULES, partition=0, offsets=np.arange(2000), lanes=3)
    for events in made.values():
        names = read_agents(events.schema).to_pylist()
        assert {row["agent"] for row in names} == set(events.column("agent").to_pylist())
        assert all(row["text"] == b"agent/%d" % row["agent"] for row in names)
        assert len(names) <= 40 < events.num_rows


def test_agents_are_cut_and_a_log_without_them_names_none() -> None:
    ruleset = default_rules()
    plain = pa.array([b'192.0.2.1 - - [10/Oct/2000:13:55:36 +0000] "GET /a HTTP/1.1" 200 5'], pa.binary())
    for log, expected in ((write_log([b"x" * 999]), [b"x" * LONGEST_AGENT]), (plain, [])):
        lines = make_parser().parse(log)
        made = make_events(
            lines, Detector(ruleset).detect(lines), ruleset, partition=0, offsets=np.arange(1), lanes=1
        )
        assert read_agents(made[0].schema).column("text").to_pylist() == expected
        assert CLIENT in made[0].column("kind").to_pylist()


def test_the_shipped_rule_shows_what_a_stranger_called_himself() -> None:
    """What is not text is shown by its bytes, cut short; the display escapes the rest."""
    agents = [b"%d \xff\x1b[31m<b>%s" % (n, b"x" * 200) for n in range(20)]
    agents[5:15] = [b"-" if n == 12 else agents[n] for n in range(5, 15)]
    settings = DefenceSettings.default()
    engine = FedEngine(settings)
    made = [engine.feed({0: write_log(agents)}), engine.finish()]
    (row,) = [row for row in pa.concat_tables(made).to_pylist() if row["rule"] == "agent-switching.many"]
    expected = [
        agents[n][:LONGEST_AGENT] for n in range(row["offset"] - MOST_EVIDENCE + 1, row["offset"] + 1)
    ]
    told = [each["agent"] for each in json.loads(row["evidence"])]
    assert told == [each.decode("utf-8", "backslashreplace") for each in expected]
    assert "\\xff\x1b[31m<b>xxx" in told[0]


def test_agents_are_shown_and_obey_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = make_database(str(tmp_path / "results.db"))
    lines = [
        {"partition": 0, "offset": n, "time": 5, "request": request, "agent": agent}
        for n, (request, agent) in enumerate([("", "a\x1b[31m\r\nb\u202e"), ("GET /x", "curl/8"), ("", "")])
    ]
    chosen = decide(place, "192.0.2.1", evidence=json.dumps(lines))
    assert main(["accesslog", "decisions", str(tmp_path / "results.db"), "--explain", chosen]) == 0
    told = capsys.readouterr().out.rstrip("\n").split("\n")[-3:]
    assert not any(set("\x1b\r\u202e") & set(line) for line in told)
    assert [line.partition("Z  ")[2] for line in told[1:]] == [
        *("GET /x  agent: curl/8", "(only the place of this line is kept)")
    ]
    assert told[0].partition("Z  ")[2].startswith("agent: a")
