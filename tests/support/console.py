"""Runs a `penstock` command inside the test: its output, its complaints and its exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock.cli import main

Run = Callable[..., str]


def make_console(capsys: pytest.CaptureFixture[str], bootstrap: str) -> Run:
    """`run("topics", "list")` -> what it printed; with `code=1` or `code=2`, what it complained about."""

    def run(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        ended = main([*arguments, "--bootstrap-server", bootstrap])
        printed = capsys.readouterr()
        assert ended == code, printed.out + printed.err
        return drop_compilation(printed.err) if code else printed.out

    return run


def ask_why(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """How `penstock why` ended and what it told."""
    capsys.readouterr()
    ended = main(["why", *arguments, "--json"])
    printed = capsys.readouterr()
    assert printed.out, printed.err
    return ended, json.loads(printed.out)


def drop_compilation(told: str) -> str:
    """What was said on stderr, apart from a first compilation, which depends on what ran before."""
    lines = told.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("Compiling kernels"))


def read_json(printed: str) -> Any:
    """The one JSON object that was printed."""
    return json.loads(printed)


def read_lines(printed: str) -> list[list[str]]:
    """A table, cut at its blanks."""
    return [line.split() for line in printed.splitlines()]
