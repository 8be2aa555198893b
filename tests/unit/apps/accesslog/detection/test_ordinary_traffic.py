"""Ordinary traffic of common software: no rule mistakes it for an attack, and no session of it is blocked.

The requests are in `accesslog_ordinary_traffic.txt`; every changed rule is checked against all of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest

from penstock.apps.accesslog.defence.defence_settings import DefenceSettings
from penstock.apps.accesslog.detection.detector import make_detector
from penstock.apps.accesslog.detection.rule_examples import escape_like_apache, make_lines
from penstock.apps.accesslog.detection.rule_set import ATTACK_POINTS, Example, default_rules
from penstock.apps.accesslog.evaluation.log_replay import replay

CORPUS = Path(__file__).with_name("ordinary_traffic.txt")
BROWSER = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0 Safari/537.36"
SESSION_SECONDS, BEGINNING = 120, 1_700_000_000
#: These may get more than an attack's points, with the reason; none may get a block's points.
TOLERATED = {
    "GET /index.php/apps/text/session/create?fileId=9&filePath=%2F.env.example": (
        "a value that is the name of a file with secrets is worth points whoever edits such a file"
    ),
}


@dataclass(frozen=True)
class Session:
    name: str
    requests: tuple[Example, ...]


@cache
def read_sessions() -> tuple[Session, ...]:
    sessions: list[Session] = []
    for line in CORPUS.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            sessions.append(Session(line.strip("[]"), ()))
        elif line and not line.startswith("#"):
            spoken, *rest = line.split(" | ")
            status, request = spoken.split(" ", 1)
            told = dict(each.split("=", 1) for each in rest)
            one = Example(request, int(status), told.get("agent", BROWSER), told.get("referrer", ""))
            sessions[-1] = replace(sessions[-1], requests=(*sessions[-1].requests, one))
    return tuple(sessions)


def write_log(sessions: list[tuple[str, Session]]) -> str:
    """Return a log with each session under its own client, all at once, in the order of their times."""
    lines = []
    for client, session in sessions:
        for number, one in enumerate(session.requests):
            seconds = number * SESSION_SECONDS // len(session.requests)
            at = datetime.fromtimestamp(BEGINNING + seconds, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
            texts = (f"{one.request} HTTP/1.1", one.referrer, one.agent)
            request, referrer, agent = (escape_like_apache(each) or "-" for each in texts)
            lines.append(
                (seconds, f'{client} - - [{at}] "{request}" {one.status} 9 "{referrer}" "{agent}"\n')
            )
    return "".join(line for _, line in sorted(lines, key=lambda each: each[0]))


def find_decisions(log: Path, text: str) -> list[tuple[str, str]]:
    log.write_text(text)
    found = replay([log], DefenceSettings.default())
    assert found.counters["lines"] == text.count("\n")
    return [(row["client"], row["rule"]) for row in found.rows]


def test_there_is_enough_of_it() -> None:
    assert len(read_sessions()) >= 25
    assert sum(len(session.requests) for session in read_sessions()) >= 300


def test_no_ordinary_request_has_the_points_of_an_attack() -> None:
    ruleset = default_rules()
    requests = [one for session in read_sessions() for one in session.requests]
    found = make_detector(ruleset).detect(make_lines(requests))
    points: Counter[int] = Counter()
    rules: dict[int, list[str]] = {}
    for row, number in zip(found.hit_rows.tolist(), found.hit_rules.tolist(), strict=True):
        points[row] += ruleset.rules[number].points
        rules.setdefault(row, []).append(ruleset.rules[number].id)
    wrong = {requests[row].request: rules[row] for row in points if points[row] >= ATTACK_POINTS}
    assert {request: hit for request, hit in wrong.items() if request not in TOLERATED} == {}


@pytest.mark.parametrize("session", read_sessions(), ids=lambda session: session.name)
def test_an_ordinary_session_makes_no_decision(session: Session, tmp_path: Path) -> None:
    assert find_decisions(tmp_path / "access.log", write_log([("198.51.100.7", session)])) == []


def test_an_office_that_does_all_of_it_at_once_makes_no_decision(tmp_path: Path) -> None:
    """Rules about networks and about similar programs add up what several clients do."""
    office = [
        (f"198.51.{100 + number}.{10 + client}", session)
        for number, session in enumerate(read_sessions())
        for client in range(6)
    ]
    assert find_decisions(tmp_path / "access.log", write_log(office)) == []
