"""Parses Spark's DDL into column types: `id BIGINT, tags ARRAY<STRING>` or `struct<id:bigint,...>`.

Rule: text that Spark would read differently is refused, never guessed at. Why not ask Spark: schemas are
checked at `load()` and in workers, where there is no session to parse them, and fewer types than Spark's
can be filled.

>>> parse_ddl("id BIGINT, price DECIMAL(10, 2)").ddl
'struct<id:bigint,price:decimal(10,2)>'
"""

from __future__ import annotations

import re

from penstock.core.errors import OptionError
from penstock.formats.columns.column_types import ColumnType, Decimal, Field, List, Map, Scalar, Struct

_SYNONYMS = {
    "boolean": "boolean", "bool": "boolean", "tinyint": "tinyint", "byte": "tinyint", "smallint": "smallint",
    "short": "smallint", "int": "int", "integer": "int", "bigint": "bigint", "long": "bigint",
    "float": "float", "real": "float", "double": "double", "string": "string", "binary": "binary",
    "date": "date", "timestamp": "timestamp", "timestamp_ltz": "timestamp", "timestamp_ntz": "timestamp_ntz",
}  # fmt: skip
_TOKEN = re.compile(r"\s*(?:(?P<word>\w+)|`(?P<quoted>(?:[^`]|``)+)`|(?P<mark>[<>(),:])|(?P<text>'[^']*'))")
#: The deepest nesting of a schema.
MAX_DEPTH = 32


def parse_ddl(text: str) -> Struct:
    """Return the struct of a DDL text or of a list of columns."""
    tokens = _Tokens(text)
    if tokens.peek_word() == "struct" and tokens.peek_mark(1) == "<":
        found = _read_type(tokens, 0)
    else:
        found = Struct(_read_fields(tokens, "", 0))
    if not tokens.done or not isinstance(found, Struct):
        raise tokens.wrong("the end of the schema")
    return found


class _Tokens:
    """The words and marks of a DDL text, which are taken one by one."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._tokens: list[tuple[str, str]] = []
        at = 0
        while text[at:].strip():
            found = _TOKEN.match(text, at)
            if not found:
                raise _invalid(f"it cannot be parsed from `{text[at : at + 20].strip()}` onwards")
            self._tokens.append((str(found.lastgroup), found[str(found.lastgroup)]))
            at = found.end()

    @property
    def done(self) -> bool:
        return self._at >= len(self._tokens)

    def peek(self, ahead: int = 0) -> tuple[str, str]:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ("end", "")

    def peek_word(self) -> str:
        kind, text = self.peek()
        return text.lower() if kind == "word" else ""

    def peek_mark(self, ahead: int = 0) -> str:
        kind, text = self.peek(ahead)
        return text if kind == "mark" else ""

    def take(self) -> tuple[str, str]:
        token = self.peek()
        self._at += 1
        return token

    def expect(self, mark: str) -> None:
        if self.peek_mark() != mark:
            raise self.wrong(f"`{mark}`")
        self._at += 1

    def accept(self, mark: str) -> bool:
        if self.peek_mark() != mark:
            return False
        self._at += 1
        return True

    def wrong(self, expected: str) -> OptionError:
        kind, text = self.peek()
        return _invalid(f"expected {expected}, found {'its end' if kind == 'end' else f'`{text}`'}")


def _read_type(tokens: _Tokens, depth: int) -> ColumnType:
    if depth > MAX_DEPTH:
        raise _invalid(f"it is nested deeper than {MAX_DEPTH} levels")
    word = tokens.peek_word()
    if not word:
        raise tokens.wrong("a type")
    tokens.take()
    if word in _SYNONYMS:
        return Scalar(_SYNONYMS[word])
    if word in ("decimal", "dec", "numeric"):
        return _read_decimal(tokens)
    if word not in ("array", "map", "struct"):
        raise OptionError(
            "FORMAT_UNSUPPORTED",
            f"The schema uses the type `{word}`, which cannot be decoded.",
            hint=f"Use one of {', '.join(sorted(set(_SYNONYMS.values())))}, decimal, array, map, struct.",
            facts={"type": word},
        )
    tokens.expect("<")
    found: ColumnType
    if word == "array":
        found = List(_read_type(tokens, depth + 1))
    elif word == "map":
        key = _read_type(tokens, depth + 1)
        tokens.expect(",")
        found = Map(key, _read_type(tokens, depth + 1))
    else:
        found = Struct(_read_fields(tokens, ">", depth))
    tokens.expect(">")
    return found


def _read_decimal(tokens: _Tokens) -> Decimal:
    precision, scale = 10, 0
    if tokens.accept("("):
        precision = _read_number(tokens)
        if tokens.accept(","):
            scale = _read_number(tokens)
        tokens.expect(")")
    if not 1 <= precision <= 38 or scale > precision:
        raise _invalid(
            f"decimal({precision},{scale}) is not a type; at most 38 digits are allowed, including the scale"
        )
    return Decimal(precision, scale)


def _read_number(tokens: _Tokens) -> int:
    kind, text = tokens.peek()
    if kind != "word" or not text.isdecimal():
        raise tokens.wrong("a number")
    tokens.take()
    return int(text)


def _read_fields(tokens: _Tokens, closing: str, depth: int) -> tuple[Field, ...]:
    fields: list[Field] = []
    while True:
        kind, text = tokens.peek()
        if kind not in ("word", "quoted"):
            raise tokens.wrong("a field's name")
        tokens.take()
        tokens.accept(":")
        fields.append(Field(text.replace("``", "`"), _read_type(tokens, depth + 1)))
        _drop_remarks(tokens)
        if not tokens.accept(","):
            break
    if tokens.peek_mark() != closing and not (closing == "" and tokens.done):
        raise tokens.wrong("`,` or the end of the fields")
    names = [each.name for each in fields]
    for name in names:
        if names.count(name) > 1:
            raise _invalid(f"it has two fields named `{name}`")
    return tuple(fields)


def _drop_remarks(tokens: _Tokens) -> None:
    """Skip `NOT NULL` and `COMMENT '...'`: a bad row is null whatever the schema says."""
    if tokens.peek_word() == "not" and tokens.peek(1)[1].lower() == "null":
        tokens.take(), tokens.take()
    if tokens.peek_word() == "comment" and tokens.peek(1)[0] == "text":
        tokens.take(), tokens.take()


def _invalid(why: str) -> OptionError:
    return OptionError(
        "SCHEMA_INVALID",
        f"The schema text is not Spark DDL: {why}.",
        hint="Write it like `id BIGINT, tags ARRAY<STRING>, price DECIMAL(10,2)`.",
    )
