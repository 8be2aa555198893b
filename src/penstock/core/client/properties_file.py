r"""Reads Java's properties files, as Kafka's own tools take them with `--command-config`.

Rule: a file is read as Java reads it: comments, continued lines, escapes, and the three separators. Why not
split lines at `=`: a login text spans several lines, and a password may hold `\=` or a `#`.

>>> parse_properties("# my cluster\nclient.id = a\\\n    b\n")
{'client.id': 'ab'}
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_NAME = re.compile(r"((?:\\.|[^\\=:\s])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.|\Z)", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Return names and values; if a name appears twice, the last value counts, as in Java."""
    found = {}
    for line in _join_lines(text):
        match = _NAME.fullmatch(line)
        assert match is not None  # every part of the expression may be empty
        found[_unescape(match[1])] = _unescape(match[2])
    return found


def _join_lines(text: str) -> Iterator[str]:
    """Yield whole lines, without comments and blank lines; join continued lines without their indentation."""
    whole = ""
    for line in re.split(r"\r\n|\r|\n", text):
        line = line.lstrip(" \t\f")
        if not whole and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:  # an even number are escaped backslashes
            whole += line[:-1]
            continue
        yield whole + line
        whole = ""
    if whole:
        yield whole


def _unescape(text: str) -> str:
    def replace(found: re.Match[str]) -> str:
        name = found[1]
        if len(name) == 5:
            return chr(int(name[1:], 16))
        return _CONTROLS.get(name, name)

    return _ESCAPE.sub(replace, text)
