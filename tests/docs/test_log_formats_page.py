"""The page on log formats shows what the commands print, and knows every directive that the parser knows."""

from __future__ import annotations

import fnmatch
import re
import shlex
from pathlib import Path

import pytest

from penstock.apps.accesslog.first_look import sample_checks
from penstock.apps.accesslog.first_look.first_lines import LONGEST_HOLD_S
from penstock.apps.accesslog.first_look.line_samples import ENOUGH_LINES, SAMPLE_LINES
from penstock.apps.accesslog.parsing import line_slots as slots
from penstock.apps.accesslog.parsing import log_format_items as items
from penstock.apps.accesslog.parsing.json_keys import list_keys, plain_name
from penstock.apps.accesslog.parsing.log_formats import NAMED
from penstock.cli import main
from tests.support.console import drop_compilation

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "log-formats.md").read_text()
SESSION = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)


def read_sessions(page: str) -> list[tuple[str, list[str]]]:
    """Return each command of the page and the lines below it."""
    found: list[tuple[str, list[str]]] = []
    for session in SESSION.finditer(page):
        for line in session[1].splitlines():
            if line.startswith("$ "):
                found.append((line.removeprefix("$ "), []))
            else:
                found[-1][1].append(line)
    return found


def read_table(title: str, column: int = 0) -> str:
    """Return the cells of one column of the table that follows this title."""
    rows = PAGE[PAGE.index(title) :].partition("\n|---")[2].partition("\n\n")[0].splitlines()[1:]
    return "\n".join(row.split("|")[column + 1] for row in rows)


def test_every_session_on_the_page_prints_what_it_says(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = 0
    for command, expected in read_sessions(PAGE):
        words = shlex.split(command)
        if words[0] == "cat":
            Path(words[1]).write_text("".join(f"{line}\n" for line in expected))
            continue
        main(words[1:])
        told = capsys.readouterr()
        printed = [*drop_compilation(told.err).splitlines(), *told.out.splitlines()]
        assert len(printed) == len(expected), (command, printed)
        patterns = [line.replace("[", "[[]").replace("...", "*") for line in expected]
        pairs = zip(printed, patterns, strict=True)
        assert [line for line, pattern in pairs if not fnmatch.fnmatchcase(line, pattern)] == [], command
        ran += 1
    assert ran == 7


def test_every_directive_that_is_known_is_on_the_page_and_none_is_unknown() -> None:
    apache, nginx = read_table("## Directives"), read_table("## Directives", 1)
    headers = {f"%{{{name}}}i" for name in items._HEADERS} | {"%t", "%{...}t"}
    known = {f"%{name}" for name in items._APACHE_FIELDS} | headers
    shown = set(re.findall(r"`(%[^`]+)`", apache))
    assert {name.lower() if name.endswith("i") else name for name in shown} == known
    variables = {f"$http_{name.replace('-', '_')}" for name in items._HEADERS}
    variables |= {f"${name}" for name in (*items._NGINX_FIELDS, *items._NGINX_TIMES)}
    assert set(re.findall(r"`(\$[^`]+)`", nginx)) == variables


def test_the_named_formats_are_those_of_the_program() -> None:
    rows = PAGE.partition("| name |")[2].partition("\n\n")[0]
    shown = dict(re.findall(r"^\| `(\w+)` \| `(.*)` \|$", rows, re.MULTILINE))
    assert shown == NAMED
    assert {"auto", "json"} <= set(re.findall(r"^\| `(\w+)`", rows, re.MULTILINE))


def test_the_json_names_on_the_page_are_found() -> None:
    wanted = {
        "client": {slots.PEER},
        "X-Forwarded-For": {slots.XFF},
        "request": {slots.REQUEST, slots.METHOD, slots.TARGET, slots.PROTOCOL},
        "referrer, agent, virtual host, user": {slots.REFERRER, slots.AGENT, slots.VHOST, slots.USER},
    }
    keys = list_keys()
    rows = PAGE[PAGE.index("| field | names") :].partition("\n\n")[0].splitlines()[2:]
    for row in rows:
        field, names = (cell.strip() for cell in row.strip("|").split("|"))
        for name in re.findall(r"`([^`]+)`", names):
            assert plain_name(name) in keys, name
            assert keys[plain_name(name)][1] in wanted.get(field, {keys[plain_name(name)][1]}), name


def test_the_table_of_findings_has_every_condition_and_its_numbers() -> None:
    source = Path(sample_checks.__file__).read_text()
    conditions = set(re.findall(r'"([A-Z]+(?:_[A-Z]+)+)"', source))
    assert len(conditions) == 10
    assert set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+)`", PAGE)) == conditions
    assert f"up to {SAMPLE_LINES:,} lines" in PAGE
    assert f"warning from {sample_checks._SHARE_TOLD:.0%} on" in PAGE
    assert f"at least {sample_checks.LEAST_LINES} lines" in PAGE
    assert f"until it has seen {ENOUGH_LINES} lines" in PAGE
    assert f"for up to {LONGEST_HOLD_S:.0f} seconds" in PAGE
