"""The generated pages are up to date, and their sources are sound."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tools.reference import CLAIM, read_catalogues, read_claims, write_pages


def known_ids() -> dict[str, str]:
    return {each: text for catalogue in read_catalogues().values() for each, text in catalogue.lines.items()}


@cache
def list_written_pages() -> dict[str, tuple[Path, str]]:
    """Return each page as the sources make it, with its path, by name."""
    return {path.name: (path, text) for path, text in write_pages().items()}


@pytest.mark.parametrize(
    "name", ["spec.md", "behaviours.md", "traps.md", "options.md", "errors.md", "README.md"]
)
def test_a_reference_page_is_up_to_date(name: str) -> None:
    path, text = list_written_pages()[name]
    assert path.read_text() == text, f"{name} is stale: run `make docs` and commit the page"


def test_every_docstring_names_known_ids_in_the_agreed_form() -> None:
    claims = read_claims()
    assert claims.malformed == ()
    assert set(claims.proofs) - set(known_ids()) == set()


def test_every_line_of_the_catalogues_is_there_once() -> None:
    counts = {name: len(each.lines) for name, each in read_catalogues().items()}
    assert counts == {"spec": 266, "behaviours": 308, "traps": 82}
    assert len(known_ids()) == sum(counts.values())


def test_scopes_and_answers_speak_of_lines_that_exist() -> None:
    for catalogue in read_catalogues().values():
        assert set(catalogue.scopes) | set(catalogue.answers) <= set(catalogue.lines)
        assert all(re.search(r"\w", text) and "|" not in text for text in catalogue.lines.values())


@pytest.mark.parametrize(
    ("docstring", "ids"),
    [
        ("T01, B041: a range ends on a marker.", "T01, B041"),
        ("B4: keys go where Kafka's hash says.", "B4"),
        ("B041,\n    S10: over two lines", "B041,\n    S10"),
        ("Nothing is claimed here: T01 is only mentioned.", None),
        ("T1: too few digits for a trap.", None),
    ],
)
def test_a_claim_is_the_ids_before_the_first_colon(docstring: str, ids: str | None) -> None:
    found = CLAIM.match(docstring)
    assert (found[1] if found else None) == ids


def test_a_test_that_is_gone_takes_its_tick_with_it(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    module = tests / "test_one.py"
    module.write_text('def test_it_holds():\n    """T01: it does."""\n')
    assert [proof.name for proof in read_claims(tests).proofs["T01"]] == ["test_it_holds"]
    module.write_text("def test_it_holds():\n    pass\n")
    assert read_claims(tests).proofs == {}
