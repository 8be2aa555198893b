"""The command line finds its commands, ends with the right exit code, and prints nothing dangerous."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.cli import COMMANDS, main
from penstock.cli.shared.terminal import escape


def test_without_arguments_all_commands_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in COMMANDS)


def test_every_command_has_a_file_that_can_be_run() -> None:
    for name in COMMANDS:
        command = importlib.import_module(f"penstock.cli.commands.{name}")
        assert callable(command.run)
        assert callable(command.add_arguments)


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"penstock {penstock.__version__}\n"


@pytest.mark.parametrize("arguments", [["nonsense"], ["cluster"], ["cluster", "up", "--brokers", "many"]])
def test_wrong_usage_ends_with_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err


def test_an_error_of_ours_is_printed_with_its_condition_and_ends_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path))
    assert main(["cluster", "logs"]) == 1
    assert capsys.readouterr().err.startswith("[CLUSTER_NOT_UP] ")


@pytest.mark.parametrize("name", ["../other", "/etc/passwd", "", "a b", "x" * 65, "é"])
def test_a_cluster_name_cannot_leave_the_state_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name with dots and slashes is refused, not followed."""
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    assert main(["cluster", "down", "--name", name]) == 1
    assert capsys.readouterr().err.startswith("[BAD_CLUSTER_NAME] ")
    assert list(tmp_path.iterdir()) == []


def test_a_state_file_of_another_version_is_not_guessed_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path))
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "default.json").write_text('{"version": 99, "brokers": []}')
    assert main(["cluster", "status"]) == 1
    assert "[STATE_UNREADABLE]" in capsys.readouterr().err


def test_help_imports_neither_spark_nor_arrow() -> None:
    code = "import sys; from penstock.cli import main; main([]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pyspark", "pyarrow", "numba", "kafka"} & set(done.stdout.split())


HOSTILE = [
    "\x1b[31mred",
    "\x1b]0;title\x07",
    "\x1b]8;;http://x\x1b\\link",
    "\x1b]52;c;clipboard\x07",
    "\x1b[2J\x1b[H",
    "a\rb",
    "a\nb",
    "\x9b31m",
    "\u202eevil",
    "\u2066x\u2069",
    "\x7f",
    "\x00",
    "\ud800",
    "\u2028",
    "zero\u200bwidth",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_control_and_bidi_characters_are_shown_and_not_obeyed(text: str) -> None:
    """S33: colours, titles, clipboards, cursors, line breaks and bidi marks become visible escapes."""
    shown = escape(text)
    assert shown.isprintable()
    assert "\\" in shown
    shown.encode()


def test_ordinary_text_of_all_languages_is_left_alone() -> None:
    text = "Grüße, 你好, مرحبا, 🙂\tend"
    assert escape(text) == text
