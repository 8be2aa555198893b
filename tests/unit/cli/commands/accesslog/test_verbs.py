"""What the verbs say when their input holds nothing: no line, no rule, no such class or id."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.apps.accesslog.detection.rule_set import default_rules
from penstock.apps.accesslog.parsing.log_formats import NAMED
from penstock.apps.accesslog.stream.dead_letter_rows import SCHEMA
from penstock.apps.accesslog.stream.pipeline_tables import create_tables
from penstock.apps.accesslog.stream.table_names import DEAD_LETTERS
from penstock.cli import main
from penstock.cli.accesslog.database_arguments import add_gate_arguments
from penstock.cli.commands import accesslog
from penstock.core.options.storage_addresses import Place, parse_place
from penstock.stores.sql.connections.sql_sessions import Database, Session
from tests.support.accesslog.decisions_database import add_decisions, make_database, make_decision
from tests.support.console import drop_compilation

LINE = '{} - - [10/Oct/2000:13:55:{:02d} +0000] "GET {} HTTP/1.1" 404 23 "-" "curl/8.0"\n'
RULE = """
- id: shop.old-admin
  class: probing
  what: Someone asks for the administration page that we removed years ago.
  look: [path]
  begins: [/shop/admin-old]
  points: 10
  hits: [GET /shop/admin-old/login]
  misses: [GET /shop/administrators]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("access.log").write_text("".join(LINE.format("192.0.2.1", n, "/.env") for n in range(3)))
    return tmp_path


def read_complaints(capsys: pytest.CaptureFixture[str]) -> str:
    return drop_compilation(capsys.readouterr().err)


@pytest.mark.usefixtures("here")
def test_a_log_without_a_line_that_can_be_parsed_is_told_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("junk.log").write_text("hello\nworld\n")
    assert main(["accesslog", "replay", "junk.log", "--decisions", "found.csv"]) == 1
    told = read_complaints(capsys)
    assert told.startswith("[NOTHING_PARSED] 0 of 2 lines could be parsed")
    assert "(--log-format auto)" in told
    assert "Name the format with --log-format: common" in told
    assert not Path("found.csv").exists()


def list_options(*verb: str) -> dict[str, argparse.Action]:
    parser = argparse.ArgumentParser()
    accesslog.add_arguments(parser)
    for name in verb:
        (verbs,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
        parser = verbs.choices[name]
    return {name: action for action in parser._actions for name in action.option_strings}


def test_the_format_of_a_log_has_one_name_in_every_verb() -> None:
    taking = [verb for verb in accesslog.VERBS if "--log-format" in list_options(verb)]
    assert taking == ["replay", "run", "score", "ship"]
    (told,) = {list_options(verb)["--log-format"].help for verb in taking}
    assert [each for each in ("auto", "json", *NAMED) if each not in re.findall(r"\w+", told or "")] == []
    shown = {
        verb
        for verb in accesslog.VERBS
        if (option := list_options(verb).get("--format")) and option.help != argparse.SUPPRESS
    }
    assert shown == {"blocklist"}  # the latter is about lists


@pytest.mark.usefixtures("here")
def test_the_old_name_of_the_format_works_and_names_the_new_one(capsys: pytest.CaptureFixture[str]) -> None:
    Path("labels.csv").write_text("client,label,class\n192.0.2.1,attack,secret_file\n")
    verbs = (
        ["replay", "access.log", "--decisions", "found.csv"],
        ["score", "found.csv", "labels.csv", "access.log"],
    )
    for verb in verbs:
        assert main(["accesslog", *verb, "--log-format", "combined"]) == 0
        new = read_complaints(capsys)
        assert "is now called" not in new
        assert main(["accesslog", *verb, "--format", "combined"]) == 0
        old = read_complaints(capsys)
        assert old == "--format is now called --log-format; the old name still works.\n" + new
        assert main(["accesslog", *verb, "--format", "%h without a time"]) == 1
        assert "[LOG_FORMAT_INVALID]" in capsys.readouterr().err


@pytest.mark.usefixtures("here")
def test_a_replay_spares_whom_a_file_allows(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["accesslog", "replay", "access.log", "--decisions", "found.csv"]
    assert main(arguments) == 0
    assert "192.0.2.1" in Path("found.csv").read_text()
    Path("allowed").write_text("# the office\n192.0.2.0/30\n")
    assert main([*arguments, "--allow-file", "allowed"]) == 0
    assert Path("found.csv").read_text().count("\n") == 1
    assert main([*arguments, "--allow-file", "allowed", "--all-actions"]) == 0
    assert ",allowed\n" in Path("found.csv").read_text()
    capsys.readouterr()
    Path("allowed").write_text("192.0.2.0/30\nnonsense\n")
    assert main([*arguments, "--allow-file", "allowed"]) == 1
    assert read_complaints(capsys).startswith("[NETWORK_INVALID] --allow-file allowed, line 2, is given")


def test_a_replay_takes_the_same_options_about_who_is_spared_as_a_run() -> None:
    gate = argparse.ArgumentParser()
    add_gate_arguments(gate)
    wanted = {name for action in gate._actions for name in action.option_strings}
    assert wanted <= list_options("replay").keys() & list_options("run").keys()


@pytest.mark.usefixtures("here")
def test_an_empty_log_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.log").touch()
    assert main(["accesslog", "replay", "empty.log", "--decisions", "found.csv"]) == 0
    assert "0 lines, 0 of them not parsed" in capsys.readouterr().err
    assert Path("found.csv").read_text().count("\n") == 1


@pytest.mark.usefixtures("here")
def test_a_score_is_refused_for_logs_of_others_and_leaves_out_who_is_in_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["accesslog", "replay", "access.log", "--decisions", "found.csv"]) == 0
    Path("labels.csv").write_text("client,label,class\n192.0.2.1,attack,secret_file\n")
    Path("other.log").write_text(LINE.format("198.51.100.1", 1, "/"))
    capsys.readouterr()
    assert main(["accesslog", "score", "found.csv", "labels.csv", "other.log"]) == 1
    assert read_complaints(capsys).startswith("[LOGS_OF_OTHERS] None of the 1 labelled client")
    with Path("labels.csv").open("a") as labels:
        labels.write("192.0.2.99,attack,scanner\n")
    assert main(["accesslog", "score", "found.csv", "labels.csv", "access.log"]) == 0
    told = capsys.readouterr()
    assert "1 client left out" in told.err
    assert "scanner" not in told.out


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("content", ["", "# only a comment\n", "[]\n"])
@pytest.mark.parametrize(
    "verb",
    [
        ["rules", "check", "mine.yaml"],
        ["rules", "list", "--rules", "mine.yaml"],
        ["replay", "access.log", "--decisions", "found.csv", "--rules", "mine.yaml"],
        [
            "run",
            "--topic",
            "t",
            "--database",
            "r.db",
            "--bootstrap-server",
            "127.0.0.1:9",
            "--rules",
            "mine.yaml",
        ],
    ],
    ids=["check", "list", "replay", "run"],
)
def test_rules_without_a_rule_are_refused_wherever_they_are_named(
    verb: list[str], content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A truncated file must not end the defence."""
    Path("mine.yaml").write_text(content)
    assert main(["accesslog", *verb]) == 1
    assert "[RULES_EMPTY]" in capsys.readouterr().err
    assert not Path("found.csv").exists()
    assert not Path("r.db").exists()


@pytest.mark.usefixtures("here")
def test_who_uses_rules_of_his_own_is_told_what_is_not_used(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_text(RULE)
    shipped = len(default_rules().rules)
    arguments = ["accesslog", "replay", "access.log", "--decisions", "found.csv", "--rules", "mine.yaml"]
    assert main(arguments) == 0
    assert f"1 rule from mine.yaml; the {shipped} shipped ones are not used" in capsys.readouterr().err
    assert Path("found.csv").read_text().count("\n") == 1
    assert main([*arguments, "--rules", "default"]) == 0
    assert f"{shipped + 1} rules from mine.yaml, default." in capsys.readouterr().err
    assert "192.0.2.1" in Path("found.csv").read_text()


def test_a_class_that_no_rule_has_is_told_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accesslog", "rules", "list", "--class", "nope"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("[CLASS_UNKNOWN]")
    assert "sql_injection" in told


@pytest.mark.usefixtures("here")
def test_a_decision_is_found_by_the_beginning_of_its_id(capsys: pytest.CaptureFixture[str]) -> None:
    place = make_database("results.db")
    ids = ["c43724f7aa", "c43799", "5f_c9a1e"]
    add_decisions(place, [make_decision("192.0.2.1", decision_id=each) for each in ids])
    arguments = ["accesslog", "decisions", "results.db", "--explain"]
    assert main([*arguments, "c43724f7"]) == 0
    assert capsys.readouterr().out.startswith("decision       c43724f7aa\n")
    for wrong, condition in (
        ("c437", "AMBIGUOUS"),
        ("ffff", "NOT_FOUND"),
        ("%%%%", "NOT_FOUND"),
        ("c4", "NOT"),
    ):
        assert main([*arguments, wrong]) == 1
        assert f"[DECISION_{condition}" in capsys.readouterr().err


@pytest.mark.usefixtures("here")
def test_decisions_that_are_not_shown_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    place = make_database("results.db")
    add_decisions(place, [make_decision(f"192.0.2.{n}") for n in range(3)])
    arguments = ["accesslog", "decisions", "results.db", "--limit"]
    assert main([*arguments, "2"]) == 0
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 3
    assert "The latest 2 are shown and there are more" in told.err
    assert main([*arguments, "3"]) == 0
    assert capsys.readouterr().err == ""
    assert main([*arguments, "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["has_more"] is True


def add_letters(place: Place, letters: pa.Table) -> None:
    def insert(session: Session) -> None:
        session.execute_many(
            f"INSERT INTO {DEAD_LETTERS} ({', '.join(SCHEMA.names)}) "
            f"VALUES ({session.grammar.marks(len(SCHEMA))})",
            [[*row.values()] for row in letters.to_pylist()],
        )

    Database(place).run(insert, writes=True)


@pytest.mark.usefixtures("here")
def test_dead_letters_are_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    place = parse_place("results.db")
    assert main(["accesslog", "deadletters", "results.db"]) == 1
    assert "[DATABASE_NOT_FOUND]" in capsys.readouterr().err
    create_tables(place)
    assert main(["accesslog", "deadletters", "results.db"]) == 0
    assert capsys.readouterr().out == "No dead letters: every line was parsed.\n"
    rows = [("time", 9, b"red \x1b[31m\xff", "log", 1, 7 + n) for n in range(3)]
    columns = dict(zip(SCHEMA.names, map(list, zip(*rows, strict=True)), strict=True))
    add_letters(place, pa.table(columns, schema=SCHEMA))
    assert main(["accesslog", "deadletters", "results.db", "--limit", "2"]) == 0
    told = capsys.readouterr()
    assert [line.split()[0] for line in told.out.splitlines()] == ["record", "1@9", "1@8"]
    assert "\x1b" not in told.out
    assert "The last 2 of 3 dead letters" in told.err
