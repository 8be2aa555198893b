"""What every error class promises: it survives pickling, and its condition is a proper name."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core import errors
from penstock.core.errors import PenstockError
from tools.reference import find_error_texts

SOURCES = Path(__file__).parents[2] / "src"


def walk_tree(kind: type[PenstockError]) -> Iterator[type[PenstockError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from walk_tree(each)


ALL_KINDS = sorted(set(walk_tree(PenstockError)), key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.__qualname__)
def test_an_error_survives_pickling_whole(kind: type[PenstockError]) -> None:
    error = kind("SOME_CONDITION", "It broke.", hint="Mend it.", facts={"offset": 7}, retriable=True)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == "[SOME_CONDITION] It broke. Mend it."
    assert (copy.condition, copy.what, copy.hint) == ("SOME_CONDITION", "It broke.", "Mend it.")
    assert (copy.facts, copy.retriable) == ({"offset": 7}, True)


def test_errors_are_defined_in_one_place() -> None:
    names = {kind.__name__ for kind in ALL_KINDS}
    elsewhere = [
        f"{path.name}: {node.name}"
        for path in sorted(SOURCES.rglob("*.py"))
        if path != Path(errors.__file__)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and names & {ast.unparse(base) for base in node.bases}
    ]
    assert elsewhere == []


def test_every_condition_is_a_name_in_capitals_and_every_text_a_sentence() -> None:
    texts = list(find_error_texts(SOURCES))
    assert len(texts) > 20
    assert [each for each in texts if not re.fullmatch(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+", each.condition)] == []
    assert [each for each in texts if not each.what.endswith((".", "…", "?"))] == []
