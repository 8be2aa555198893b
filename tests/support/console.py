"""Runs a `penstock` command inside the test and returns its output, its error output or its exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock.cli import main

Run = Callable[..., str]


def make_console(capsys: pytest.CaptureFixture[str], bootstrap: str) -> Run:
    """Return `run`: `run("topics", "list")` returns stdout; with `code=1` or `code=2` it returns stderr."""

    def run(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        ended = main([*arguments, "--bootstrap-server", bootstrap])
        printed = capsys.readouterr()
        assert ended == code, printed.out + printed.err
        return drop_compilation(printed.err) if code else printed.out

    return run


def ask_why(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run `penstock why` and return its exit code and its report."""
    capsys.readouterr()
    ended = main(["why", *arguments, "--json"])
    printed = capsys.readouterr()
    assert printed.out, printed.err
    return ended, json.loads(printed.out)


def drop_compilation(told: str) -> str:
    """Return stderr without the notes on a first compilation, which depend on what ran before."""
    lines = told.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("Compiling kernels"))


def read_json(printed: str) -> Any:
    """Return the one JSON object that was printed."""
    return json.loads(printed)


def read_lines(printed: str) -> list[list[str]]:
    """Return a table as rows of words, split at blanks."""
    return [line.split() for line in printed.splitlines()]
