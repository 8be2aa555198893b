"""What all console commands share: choice of the Kafka cluster, settings, and help."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.cli.commands.consume import _select, take_records
from penstock.cli.shared.kafka_arguments import add_connection_arguments, gather_settings
from penstock.cluster.processes.free_ports import find_free_ports
from penstock.core.errors import OptionError
from penstock.core.planning.partition_selection import SelectPattern
from penstock.kafka.console.topic_tailing import ConsumedRecord

CONSOLE = {
    "topics": [
        "list",
        "create",
        "describe",
        "widen",
        "delete",
        "--partitions",
        "--replication-factor",
        "--config",
    ],
    "produce": [
        *("--file", "--key-separator", "--header", "--headers", "--timestamp", "--partition"),
        *("--compression", "--acks", "--print", "--json-report"),
    ],
    "consume": [
        *("--pattern", "--group", "--from-beginning", "--partition", "--offset", "--last", "--from-time"),
        *("--max-messages", "--timeout-ms", "--print", "--separator", "--raw"),
    ],
    "groups": ["list", "describe", "offsets", "--group", "--all"],
}


def gather(*arguments: str) -> dict[str, str]:
    parser = argparse.ArgumentParser()
    add_connection_arguments(parser)
    return gather_settings(parser.parse_args(arguments))


@pytest.mark.parametrize("command", CONSOLE)
def test_a_command_without_arguments_prints_all_its_options(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A10: every verb and every option, including those of the verbs; `--help` is not an error."""
    shared = ["--bootstrap-server", "--command-config", "--set", "--json"]
    assert main([command]) == 2
    complained = capsys.readouterr()
    assert main([command, "--help"]) == 0
    asked = capsys.readouterr()
    for printed in (complained.err, asked.out):
        assert [each for each in (*CONSOLE[command], *shared) if each not in printed] == []
    assert complained.out == asked.err == ""


def test_what_is_said_last_wins(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=file:1\nclient.id=file\nclient.rack=file\n")
    named = ["--command-config", str(file), "--set", "client.id=set", "--set", "kafka.group.id=g=h"]
    assert gather(*named) == {
        "bootstrap.servers": "file:1",
        "client.id": "set",
        "client.rack": "file",
        "group.id": "g=h",
    }
    named += ["--set", "bootstrap.servers=set:1"]
    assert gather(*named)["bootstrap.servers"] == "set:1"
    assert gather(*named, "--bootstrap-server", "line:1")["bootstrap.servers"] == "line:1"


@pytest.mark.usefixtures("tmp_path")
def test_a_secret_may_stand_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_SECRET", "hunter2")
    at = ["--bootstrap-server", "b:1"]
    assert (
        gather(*at, "--set", "ssl.key.password=${env:PENSTOCK_TEST_SECRET}")["ssl.key.password"] == "hunter2"
    )


@pytest.mark.parametrize(
    ("arguments", "condition"),
    [
        (["--set", "client.id"], "PAIR_EXPECTED"),
        (["--set", "=x"], "PAIR_EXPECTED"),
        (["--set", "auto.offset.reset=latest"], "SETTING_HAS_OWN_OPTION"),
        (["--set", "enable.auto.commit=true"], "SETTING_HAS_OWN_OPTION"),
        (["--command-config", "/no/such/file"], "FILE_UNREADABLE"),
        ([], "NO_BOOTSTRAP_SERVER"),
    ],
)
def test_wrong_settings_are_refused_with_advice(
    arguments: list[str], condition: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path))
    with pytest.raises(OptionError) as refused:
        gather(*arguments)
    assert refused.value.condition == condition
    assert refused.value.hint


def test_a_misspelt_setting_is_an_error_and_an_idle_one_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """I30: `max.poll.records` is Java's; it changes nothing here, and the command says so."""
    at = ["topics", "list", "--bootstrap-server", "127.0.0.1:1", "--set", "default.api.timeout.ms=1"]
    assert main([*at, "--set", "client.idd=x"]) == 1
    assert "Did you mean `kafka.client.id`?" in capsys.readouterr().err
    assert main([*at, "--set", "max.poll.records=500"]) == 1
    assert "Warning: Without effect in Penstock: kafka.max.poll.records." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "condition"),
    [
        (["t", "--pattern", "t.*"], "OPTIONS_DISAGREE"),
        (["--from-beginning"], "OPTIONS_DISAGREE"),
        (["t", "--group", "g", "--offset", "1"], "OPTIONS_DISAGREE"),
        (["t", "u", "--partition", "1"], "OPTIONS_DISAGREE"),
        (["t", "--from-beginning", "--offset", "1"], "OPTIONS_DISAGREE"),
        (["t", "--raw", "--json"], "OPTIONS_DISAGREE"),
        (["t", "--max-messages", "0"], "OPTIONS_DISAGREE"),
        (["t", "--group", ""], "OPTIONS_DISAGREE"),
        (["t", "--offset", "soon"], "START_INVALID"),
        (["t", "--offset", "-1"], "START_INVALID"),
        (["t", "--last", "0"], "START_INVALID"),
        (["t", "--last", "5", "--group", "g"], "OPTIONS_DISAGREE"),
        (["t", "--offset", "99999999999999999999"], "START_INVALID"),
        (["t", "--from-time", "yesterday"], "START_INVALID"),
        (["t", "--from-time", "2026-01-31T12:00:00"], "START_INVALID"),
        (["t", "--print", "key,colour"], "COLUMN_UNKNOWN"),
        (["t", "--separator", r"\q"], "ESCAPE_UNKNOWN"),
        (["t", "--separator", r"\xff"], "SEPARATOR_INVALID"),
        (["--pattern", "(unclosed"], "PATTERN_REFUSED"),
    ],
)
def test_a_consumer_that_is_asked_for_two_things_says_so(
    arguments: list[str], condition: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["consume", *arguments, "--bootstrap-server", "127.0.0.1:1"]) == 1
    assert f"[{condition}]" in capsys.readouterr().err


def test_a_refused_pattern_is_named_as_it_was_given(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the command line it is `--pattern`, and nobody has written `subscribePattern`."""
    monkeypatch.setattr("penstock.core.planning.topic_pattern.MOST_MOVES", 100)
    assert main(["consume", "--pattern", "(unclosed", "--bootstrap-server", "127.0.0.1:1"]) == 1
    assert "[PATTERN_REFUSED] Option `--pattern` is '(unclosed': " in capsys.readouterr().err
    costly = _select(argparse.Namespace(pattern="(a|b)*c"))
    assert isinstance(costly, SelectPattern)
    with pytest.raises(OptionError, match=r"\[PATTERN_TOO_COSTLY\] Option `--pattern` is"):
        costly.pattern.matches("ab" * 100)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0", "too small to be meant"),
        ("10", "too small to be meant"),
        ("1700000000", "too small to be meant (as seconds, it is 1700000000000 ms)"),
        ("1700000000000000", "too large to be meant (as microseconds, it is 1700000000000 ms)"),
    ],
)
@pytest.mark.parametrize("command", [["consume", "t", "--from-time"], ["produce", "t", "--timestamp"]])
def test_a_time_in_another_unit_is_refused_wherever_a_time_is_said(
    capsys: pytest.CaptureFixture[str], command: list[str], text: str, words: str
) -> None:
    ended = main([*command, text, "--bootstrap-server", "127.0.0.1:1", "--set", "default.api.timeout.ms=1"])
    assert ended != 0
    assert words in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("given", "shown"),
    [(["--headers", "=x"], "`=x`"), (["--header", "h"], "`h`"), (["--set", "=secret"], "`=...`")],
)
def test_what_is_no_pair_is_shown_as_it_was_given(
    capsys: pytest.CaptureFixture[str], given: list[str], shown: str
) -> None:
    """A setting may be a secret, so its value is not shown."""
    assert main(["produce", "t", *given, "--bootstrap-server", "127.0.0.1:1"]) == 1
    assert f"is given {shown}, which is not NAME=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lag", "`penstock groups describe` shows a group's lag, `penstock offsets show` where"),
        ("prodcue", "Did you mean `penstock produce`?"),
        ("xyz", "There is no command 'xyz'. Run `penstock`"),
    ],
)
def test_an_unknown_command_is_answered_with_the_one_that_was_meant(
    capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    assert main([name]) == 2
    assert words in capsys.readouterr().err


def test_a_broker_that_is_not_there_is_told_soon_and_in_the_words_of_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.commands.produce.LOOK_TIMEOUT_MS", 300)  # Kafka's own limit is a minute
    nobody = f"127.0.0.1:{find_free_ports(1)[0]}"
    begun = time.monotonic()
    assert main(["produce", "t", "--bootstrap-server", nobody]) == 1
    assert time.monotonic() - begun < 30
    assert "--bootstrap-server" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["consume", "t", "--from-time"],
        ["produce", "t", "--timestamp"],
        ["offsets", "rewind", "--at", "none.db", "s", "--to-time"],
        ["loss", "--at", "none.db", "--since"],
        ["accesslog", "decisions", "none.db", "--since"],
    ],
    ids=lambda each: each[0],
)
def test_a_time_ahead_gets_the_advice_and_a_time_ago_may_have_its_sign(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`-10m` is the form of stream options; argparse would mistake it for an option."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path))
    assert main([*arguments, "+10m"]) in (1, 2)
    assert "write `-10m`" in capsys.readouterr().err
    assert main([*arguments, "-10m"]) == 1
    assert re.search(r"\[(NO_BOOTSTRAP_SERVER|FILE_|LEDGER|DATABASE|NO_|PLACE)", capsys.readouterr().err)


class SlowFeed:
    """A feed that gets its partitions at the third look; each look takes longer than the test's limit."""

    def __init__(self) -> None:
        self.looks = self.settled = 0

    @property
    def is_joining(self) -> bool:
        return self.looks < 3

    def look(self, most: int | None) -> list[ConsumedRecord]:
        self.looks += 1
        until = time.monotonic() + 0.005
        while time.monotonic() < until:
            pass
        return [ConsumedRecord("t", 0, 7, 0, None, b"x")] if self.looks == 3 else []

    def acknowledge(self) -> None:
        self.settled += 1


def test_the_time_until_a_group_has_formed_is_no_silence() -> None:
    feed = SlowFeed()
    found = list(take_records(feed, argparse.Namespace(max_messages=None, timeout_ms=1)))
    assert [each.offset for each in found] == [7]
    assert (feed.looks, feed.settled) == (4, 4)  # a look that found nothing counts as settled too


@pytest.mark.parametrize("command", ["topics", "groups", "offsets"])
def test_the_help_of_all_verbs_has_what_they_share_once(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    told = capsys.readouterr().out
    assert told.count("a properties file with Kafka's client settings") == 1
    assert "\nwhich Kafka, for each of these:\n" in told


@pytest.mark.parametrize("arguments", [["topics", "--help"], ["--help"]])
def test_a_reader_of_the_help_may_leave_early(arguments: list[str]) -> None:
    """For example, `penstock topics --help | head`."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        ended = subprocess.run(
            [sys.executable, "-m", "penstock.cli", *arguments],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert (ended.returncode, ended.stderr) == (0, "")
