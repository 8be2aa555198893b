"""The console page shows what the commands print: every session on it is run against a real broker."""

from __future__ import annotations

import fnmatch
import re
import secrets
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.support.console import make_console

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "console.md").read_text()
SESSION = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
FILES = {
    "greetings.txt": "hello\nhallo\nsalut\n",
    "actions.txt": "item1:action1\nitem2:action1\nitem3:action1\n",
    "messages.jsonl": '{"key": "item1", "value": "action2"}\n',
}


def read_commands(page: str) -> list[tuple[list[str], list[str]]]:
    """Return each command on the page with the lines it is said to print."""
    found: list[tuple[list[str], list[str]]] = []
    for session in SESSION.finditer(page):
        for line in session[1].splitlines():
            if line.startswith("$ penstock "):
                found.append((shlex.split(line.removeprefix("$ penstock ")), []))
            else:
                found[-1][1].append(line)
    return found


def test_every_session_on_the_page_prints_what_it_says(
    kafka: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A20: create and describe a topic, produce, consume, describe a group and move it, in one tool."""
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        Path(name).write_text(content)
    ours = secrets.token_hex(4)
    page = re.sub(r"\b(orders|reports)\b", rf"\1-{ours}", PAGE).replace("localhost:9092", kafka.bootstrap)
    run = make_console(capsys, kafka.bootstrap)
    commands = read_commands(page)
    assert {command[0] for command, _ in commands} == {"topics", "produce", "consume", "groups", "offsets"}
    for command, expected in commands:
        printed = [" ".join(line.split()) for line in run(*command).splitlines()]
        patterns = [" ".join(line.split()).replace("...", "*") for line in expected]
        assert len(printed) == len(patterns), (command, printed)
        assert [
            p for p, line in zip(patterns, printed, strict=True) if not fnmatch.fnmatchcase(line, p)
        ] == []


def test_the_page_keeps_the_picture_of_three_brokers() -> None:
    """A13: each broker leads one partition of `test`, as its description says; ZooKeeper is never asked."""
    picture = dict(re.findall(r"^ (broker \d) +(test-\d)", PAGE, re.MULTILINE))
    assert picture == {"broker 1": "test-2", "broker 2": "test-0", "broker 3": "test-1"}
    assert "nobody asks ZooKeeper" in " ".join(PAGE.split())
