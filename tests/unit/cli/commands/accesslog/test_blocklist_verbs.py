"""`penstock accesslog blocklist`, `decisions`, `unban`, `serve`: for people, programs, hostile texts."""

from __future__ import annotations

import http.client
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main
from penstock.core.options.storage_addresses import Place
from tests.support.accesslog.decisions_database import (
    SECOND_US,
    add_decisions,
    decide,
    make_database,
    make_decision,
)
from tests.support.hostile_texts import HOSTILE

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2028\u2029\u2066-\u2069]")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(tmp_path)
    return make_database("results.db")


class Console:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.complaints = ""

    def __call__(self, verb: str, *arguments: str, code: int = 0) -> str:
        self._capsys.readouterr()
        ended = main(["accesslog", verb, "results.db", *arguments])
        printed = self._capsys.readouterr()
        self.complaints = printed.err
        assert ended == code, printed.out + printed.err
        return printed.err if code else printed.out

    def json(self, verb: str, *arguments: str) -> Any:
        return json.loads(self(verb, *arguments, "--json"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Console:
    return Console(capsys)


def now_us() -> int:
    return time.time_ns() // 1000


def ban(place: Place, subject: str, **words: Any) -> str:
    """Add a decision made just now; the ban lasts an hour."""
    moment = now_us()
    return decide(place, subject, decided_at=moment - 1, expires_at=moment + 3600 * SECOND_US, **words)


# --- blocklist --------------------------------------------------------------------------------------------


def test_a_list_is_printed_in_any_format(place: Place, run: Console) -> None:
    ban(place, "192.0.2.1")
    ban(place, "198.51.100.0/24")
    assert run("blocklist") == "192.0.2.1\n198.51.100.0/24\n"
    assert "192.0.2.1 timeout 3600s" in run("blocklist", "--format", "nftables")
    assert "deny 198.51.100.0/24;" in run("blocklist", "--format", "nginx")
    assert run("blocklist", "--allow", "192.0.2.0/24") == "198.51.100.0/24\n"
    Path("allowed").write_text("# ours\n198.51.100.0/24  # office\n\n192.0.2.1\n")
    assert run("blocklist", "--allow-file", "allowed") == ""
    assert "198.51.100.0/25" in run("blocklist", "--trusted-proxy", "198.51.100.255")


def test_changes_since_a_cursor_are_json(place: Place, run: Console) -> None:
    ban(place, "192.0.2.1")
    first = run.json("blocklist")
    ban(place, "192.0.2.2")
    later = run.json("blocklist", "--since", str(first["cursor"]))
    assert [each["network"] for each in later["added"]] == ["192.0.2.2"]
    assert later["complete"] is False


def test_a_file_is_written_when_the_list_is_new(place: Place, run: Console) -> None:
    ban(place, "192.0.2.1")
    arguments = ("--format", "apache-map", "--out", "lists/blocked.txt")
    assert run("blocklist", *arguments) == "lists/blocked.txt is written: 1 network.\n"
    assert run("blocklist", *arguments) == "lists/blocked.txt is unchanged: 1 network.\n"
    told = run.json("blocklist", *arguments)
    assert (told["written"], told["entries"], told["left_out"]) == (False, 1, 0)
    ban(place, "2001:db8::/64")
    assert run.json("blocklist", *arguments)["left_out"] == 1
    assert run.complaints.startswith("1 network left out")


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("arguments", "condition"),
    [
        (["--since", "1"], "OPTIONS_EXCLUDE"),
        (["--json", "--format", "nginx"], "OPTIONS_EXCLUDE"),
        (["--json", "--since", "x"], "CURSOR_INVALID"),
        (["--allow", "example.com"], "NETWORK_INVALID"),
        (["--allow-file", "none"], "FILE_UNREADABLE"),
    ],
)
def test_what_cannot_be_is_refused(run: Console, arguments: list[str], condition: str) -> None:
    assert run("blocklist", *arguments, code=1).startswith(f"[{condition}] ")


@pytest.mark.usefixtures("place")
def test_a_wrong_entry_of_an_allow_file_is_told_with_its_line(run: Console) -> None:
    Path("allow.txt").write_text("10.0.0.0/8  # the office\n\nnonsense\n")
    told = run("blocklist", "--allow-file", "allow.txt", code=1)
    assert told.startswith("[NETWORK_INVALID] --allow-file allow.txt, line 3, is given 'nonsense'")


def test_a_database_that_is_not_there_is_an_error_and_is_not_made(
    run: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for verb in ("blocklist", "decisions", "serve"):
        assert run(verb, code=1).startswith("[DATABASE_NOT_FOUND] ")
    assert list(tmp_path.iterdir()) == []


# --- decisions --------------------------------------------------------------------------------------------


def test_decisions_are_listed_the_last_first(place: Place, run: Console) -> None:
    moment = now_us()
    first = ban(place, "192.0.2.1")
    last = decide(place, "192.0.2.2", decided_at=moment + SECOND_US, action="simulate")
    lines = run("decisions").splitlines()
    assert lines[0].split() == ["decided", "action", "class", "rule", "who", "until", "request", "id"]
    assert [line.split()[-1] for line in lines[1:]] == [last, first]
    assert lines[1].split()[1:5] == ["simulate", "sql_injection", "sqli.union-select", "192.0.2.2"]
    decide(place, "print:14ab8f", decided_at=5, kind="print", client="192.0.2.9")
    assert run("decisions").splitlines()[3].split()[4] == "192.0.2.9"
    assert [each["decision_id"] for each in run.json("decisions", "--limit", "1")["decisions"]] == [last]
    assert run.json("decisions", "--since", "2999-01-01T00:00:00Z")["decisions"] == []
    assert run("decisions", "--client", "203.0.113.1") == "No decisions.\n"


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        ("192.0.2.1", {"192.0.2.1", "192.0.2.0/24"}),
        ("::ffff:192.0.2.1", {"192.0.2.1", "192.0.2.0/24"}),
        ("192.0.2.0/25", {"192.0.2.1", "192.0.2.0/24"}),
        ("bad.example", {"bad.example"}),
        ("' OR 1=1 --", set()),
    ],
)
def test_a_client_is_found_by_address_network_and_name(
    place: Place, run: Console, client: str, expected: set[str]
) -> None:
    for subject in ("192.0.2.1", "192.0.2.0/24", "192.0.3.1", "bad.example"):
        ban(place, subject)
    found = run.json("decisions", f"--client={client}")["decisions"]
    assert {each["subject"] for each in found} == expected


def test_a_row_about_the_network_of_a_client_is_not_taken_for_one_about_it(
    place: Place, run: Console
) -> None:
    """If the clients of a network were counted together, only those that took part are blocked."""
    ban(place, "192.0.2.0/24", client="192.0.2.9")
    about = {each["about"] for each in run.json("decisions", "--client", "192.0.2.1")["decisions"]}
    assert about == {"a neighbour"}
    head, row = run("decisions", "--client", "192.0.2.1").splitlines()
    assert head.split()[4:7] == ["who", "about", "until"]
    assert " 192.0.2.0/24  a neighbour  " in row
    assert "1 row is about other clients that were counted together with 192.0.2.1" in run.complaints
    assert "No decision is about 192.0.2.1 itself." in run.complaints
    ban(place, "192.0.2.1")
    ban(place, "192.0.2.0/28", client="192.0.2.0/28")
    ban(place, "2001:db8:1:2::/64", kind="client")
    for asked, expected in {
        "192.0.2.1": ["a neighbour", "its network", "itself"],
        "192.0.2.9": ["its network", "itself"],
        "192.0.2.0/24": ["inside it", "inside it", "inside it"],
        "2001:db8:1:2::7": ["itself"],
    }.items():
        found = run.json("decisions", "--client", asked)["decisions"]
        assert sorted(each["about"] for each in found) == expected
    assert "about" not in run.json("decisions")["decisions"][0]
    run("decisions", "--client", "2001:db8:1:2::7")
    assert run.complaints == ""


def test_a_name_that_a_rule_wanted_blocked_is_said_to_be_in_no_list(place: Place, run: Console) -> None:
    ban(place, "bad.example")
    run("decisions")
    assert run.complaints.startswith("1 client named by a rule and not in any list: bad.example.")


def test_a_decision_is_explained_by_its_lines(place: Place, run: Console) -> None:
    chosen = ban(place, "192.0.2.1")
    told = run("decisions", "--explain", chosen)
    assert re.search(r"^rule +sqli.union-select$", told, re.MULTILINE)
    assert re.search(r"^  0@17  2030-03-17T17:46:39Z  GET /\?id=1$", told, re.MULTILINE)
    assert run.json("decisions", "--explain", chosen)["decision"]["offset"] == 17
    assert run("decisions", "--explain", "none", code=1).startswith("[DECISION_NOT_FOUND] ")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_no_text_of_a_stranger_moves_the_cursor_or_forges_a_line(
    place: Place, run: Console, form: list[str]
) -> None:
    """S33: colours, titles, clipboard, links, cursor moves, line ends and bidi marks, in every column."""
    texts = [text for text in HOSTILE if "\x00" not in text]
    rows = []
    for number, text in enumerate(texts):
        evidence = json.dumps([{"partition": text, "offset": text, "time": 5, "request": text}, text, [text]])
        words = dict.fromkeys(("client", "rule", "class", "action", "server"), text)
        rows.append(make_decision(text, decision_id=f"d{number}", evidence=evidence, **words))
    add_decisions(place, rows)
    told = run("decisions", "--limit", "1000", *form)
    assert not CONTROLS.search(told)
    if not form:
        assert len(told.splitlines()) == len(texts) + 1
    for number in range(0, len(texts), 9):
        told = run("decisions", "--explain", f"d{number}", *form)
        assert not CONTROLS.search(told)
        if not form:
            assert len(told.splitlines()) == 16 + 2 + 3


@pytest.mark.parametrize("evidence", ["", None, "{", "7", '"text"', "[" * 100_000, "null"])
def test_evidence_that_cannot_be_read_is_shown_as_it_is(
    place: Place, run: Console, evidence: str | None
) -> None:
    chosen = ban(place, "192.0.2.1", evidence=evidence)
    run("decisions", "--explain", chosen)
    assert isinstance(run.json("decisions", "--explain", chosen)["decision"]["evidence"], list)


# --- unban ------------------------------------------------------------------------------------------------


def test_a_client_that_is_let_go_leaves_the_list_at_once(place: Place, run: Console) -> None:
    ban(place, "192.0.2.1")
    ban(place, "198.51.100.0/24")
    assert re.match(r"192.0.2.1 is let go until \S+Z\.\n", run("unban", "192.0.2.1", "--grace", "1h"))
    assert run("blocklist") == "198.51.100.0/24\n"
    order = run.json("unban", "198.51.0.0/16", "--grace", "2d", "--reason", "a mistake")["order"]
    assert (order["subject"], order["reason"]) == ("198.51.0.0/16", "a mistake")
    assert run("blocklist") == ""
    assert [each["subject"] for each in run.json("unban", "--list")["orders"]] == [
        "192.0.2.1",
        "198.51.0.0/16",
    ]
    assert "a mistake" in run("unban", "--list")


@pytest.mark.usefixtures("place")
def test_no_orders_are_said_as_such(run: Console) -> None:
    assert run("unban", "--list") == "No orders.\n"


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("arguments", "condition", "code"),
    [
        ([], "CLIENT_MISSING", 1),
        (["192.0.2.1", "--list"], "OPTIONS_EXCLUDE", 1),
        (["bad.example"], "NETWORK_INVALID", 1),
        (["192.0.2.1", "--grace", "soon"], "length of time", 2),
        (["192.0.2.1", "--grace", "99999d"], "ten years", 2),
    ],
)
def test_an_order_that_is_none_is_refused(
    run: Console, arguments: list[str], condition: str, code: int
) -> None:
    assert condition in run("unban", *arguments, code=code)
    assert run.json("unban", "--list")["orders"] == []


# --- serve ------------------------------------------------------------------------------------------------


def test_serve_answers_until_it_is_told_to_end(place: Place, tmp_path: Path) -> None:
    ban(place, "192.0.2.1")
    token = secrets.token_hex(16)
    (tmp_path / "token").write_text(token + "\n")
    (tmp_path / "token").chmod(0o600)
    command = [sys.executable, "-m", "penstock.cli", "accesslog", "serve", "results.db"]
    command += ["--listen", "127.0.0.1:0", "--token-file", "token", "--host", "block.example", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
            headers = {"Host": "block.example", "Authorization": f"Bearer {token}"}
            connection.request("GET", "/v1/blocklist.txt", headers=headers)
            assert connection.getresponse().read() == b"192.0.2.1\n"
            connection.close()
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("mode", "content", "condition"),
    [(0o644, secrets.token_hex(16), "TOKEN_FILE_OPEN"), (0o600, "short", "TOKEN_WEAK")],
)
def test_a_token_that_others_know_or_guess_is_refused(
    run: Console, mode: int, content: str, condition: str
) -> None:
    Path("token").write_text(content)
    os.chmod("token", mode)
    told = run("serve", "--token-file", "token", code=1)
    assert told.startswith(f"[{condition}] ")
    assert content not in told


@pytest.mark.usefixtures("place")
def test_an_empty_token_is_told_as_what_it_is(run: Console) -> None:
    Path("token").write_text("\n")
    os.chmod("token", 0o600)
    told = run("serve", "--token-file", "token", code=1)
    assert told.startswith("[TOKEN_WEAK] The token is empty.")


@pytest.mark.usefixtures("place")
def test_serve_on_an_address_of_others_needs_a_token(run: Console) -> None:
    """Only the loopback address needs none."""
    assert run("serve", "--listen", "0.0.0.0:0", code=1).startswith("[TOKEN_NEEDED] ")
    assert run("serve", "--rate", "0", code=1).startswith("[RATE_INVALID] ")
