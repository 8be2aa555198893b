"""What `ship` says before it ships lines whose client it cannot find: their keys stay unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.apps.accesslog.parsing.line_parser import make_parser
from penstock.cli.commands.accesslog.ship import check_files
from penstock.core.errors import OptionError
from tests.support.console import drop_compilation

VHOST_FIRST = '/shop.example/ 203.0.113.{} [{}] 200 "GET / HTTP/1.1"\n'
PLAIN = '203.0.113.{} - - [01/Feb/2026:10:00:{:02d} +0000] "GET / HTTP/1.1" 200 5\n'
FOLLOWS = (
    "The lines are shipped all the same. Where no client is found, the first word of a line is its key: "
    "lines of many clients may share one key and one partition"
)


def look(path: Path, log_format: str, *, is_whole: bool = False) -> None:
    check_files([str(path)], make_parser(log_format), is_whole=is_whole)


@pytest.mark.parametrize("lines", [3, 300])
def test_a_log_that_fits_nothing_is_shipped_with_a_warning_that_says_what_follows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: int
) -> None:
    log = tmp_path / "access.log"
    log.write_text("".join(VHOST_FIRST.format(n % 250, n) for n in range(lines)))
    look(log, "auto")
    told = drop_compilation(capsys.readouterr().err)
    assert "WARNING [NOTHING_PARSED]" in told
    assert told.count(FOLLOWS) == 1
    assert "ship into a new topic" in told


def test_a_client_that_is_taken_for_another_field_has_the_same_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "access.log"
    log.write_text("".join("shop.example - " + PLAIN.format(n % 250, n % 60) for n in range(300)))
    look(log, "auto")
    assert FOLLOWS in drop_compilation(capsys.readouterr().err)


def test_a_log_that_fits_is_shipped_without_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "access.log"
    log.write_text("".join(PLAIN.format(n % 250, n % 60) for n in range(300)))
    look(log, "auto")
    assert drop_compilation(capsys.readouterr().err) == ""


@pytest.mark.parametrize(("lines", "is_whole"), [(300, False), (3, True)])
def test_a_format_that_was_named_and_fits_no_line_is_refused(
    tmp_path: Path, lines: int, is_whole: bool
) -> None:
    """With few lines it is refused only when no more will come: a log that has just begun proves nothing."""
    log = tmp_path / "access.log"
    log.write_text("".join(PLAIN.format(n % 250, n % 60) for n in range(lines)))
    with pytest.raises(OptionError, match="NOTHING_PARSED"):
        look(log, "json", is_whole=is_whole)
    if is_whole:
        look(log, "json")
