"""Hides secrets: the one place that decides which part of an option may be shown.

Rule: all code that shows options (in a log line, an error, a plan, a page) shows them through here. A value
is hidden as a whole if its name says so (password, secret, token, credential, private key, access key); a
text that mixes secret and plain parts, such as a JAAS text or an address, loses only its secret parts, so
that it still helps. Why not the pattern Spark uses: it cleans `password="..."` in double quotes only, which
leaves single quotes, `clientSecret` and keys pasted as PEM text readable.

>>> redact_value("kafka.ssl.key.password", "x"), redact_value("subscribe", "t")
('***', 't')
"""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "***"
#: Parts of secret names, without dots, dashes and underscores, in lower case.
_SECRET_NAMES = (
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "token",
    "credential",
    "privatekey",
    "accesskey",
    "apikey",
    "keystorekey",
    "authorization",
)
# Settings whose names hold a secret word but whose values are not secret.
_PLAIN_NAMES = ("tokenmechanism", "tokenendpointurl", "passwordfile", "tokenauth")

_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]*PRIVATE KEY)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)
_URL_LOGIN = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*://)(?P<user>[^/\s:@]*):(?P<secret>\S*)@")
# name=value (or name: value) as JAAS, JSON, URL queries and connection texts write it: in either quotes (a
# backslash protects the next character, an unclosed quote hides the rest), or bare up to a separator.
_PAIR = re.compile(
    r"(?P<name>[A-Za-z_][\w.\-]*)(?P<equals>[\"']?\s*[=:]\s*)"
    r"(?P<value>\"(?:[^\"\\]|\\.)*(?:\"|\Z)|'(?:[^'\\]|\\.)*(?:'|\Z)|[^\s;&\"'][^\s;&]*)",
    re.DOTALL,
)
# The parts of a statement in which a quote means something else. An unclosed part extends to the end, because
# servers cut off long statements.
_SINGLE = r"'(?:[^']|'')*(?:'|\Z)"
_DOUBLE = r"\"(?:[^\"]|\"\")*(?:\"|\Z)"
_BLOCK_COMMENT = r"/\*.*?(?:\*/|\Z)"
_SQL_PARTS = re.compile(
    rf"(?P<literal>{_SINGLE}|\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?(?:\$(?P=tag)\$|\Z))"
    rf"|(?P<comment>--[^\n]*|{_BLOCK_COMMENT})|(?P<name>{_DOUBLE})",
    re.DOTALL,
)
_MYSQL_PARTS = re.compile(
    rf"(?P<literal>{_SINGLE}|{_DOUBLE}|\b0x[0-9A-Fa-f]+)"
    rf"|(?P<comment>--(?:\s[^\n]*|\Z)|\#[^\n]*|{_BLOCK_COMMENT})|(?P<name>`[^`]*(?:`|\Z))",
    re.DOTALL,
)
_PROTECTED_QUOTE = re.compile(r"\\[\"']")


def is_secret_name(name: str) -> bool:
    """Return whether any value under this name is hidden."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    if any(plain.endswith(each) for each in _PLAIN_NAMES):
        return False
    return any(each in plain for each in _SECRET_NAMES)


def redact_value(name: str, value: Any) -> Any:
    """Return one value as it may be shown under this name; None and empty text stay as they are."""
    if value is None or value == "":
        return value
    if is_secret_name(name):
        return HIDDEN
    return redact_text(value) if isinstance(value, str) else value


def redact_text(text: str) -> str:
    """Return free text with private keys, passwords in addresses and secret `name=value` pairs hidden."""
    text = _PEM.sub(f"-----{HIDDEN} private key {HIDDEN}-----", text)
    text = _URL_LOGIN.sub(lambda found: f"{found['scheme']}{found['user']}:{HIDDEN}@", text)
    return _PAIR.sub(_hide_pair, text)


def _hide_pair(found: re.Match[str]) -> str:
    if not is_secret_name(found["name"]):
        # The value may hold pairs of its own: url=postgresql://h/db?password=x
        return found["name"] + found["equals"] + _PAIR.sub(_hide_pair, found["value"])
    quote = found["value"][0] if found["value"][0] in "\"'" else ""
    return f"{found['name']}{found['equals']}{quote}{HIDDEN}{quote}"


def redact_statement(text: str, dialect: str) -> str:
    """Return an SQL statement without its literals and comments: a password is a literal like any other."""
    # A server setting decides whether a backslash protects a quote, so where such a literal ends is unknown.
    if _PROTECTED_QUOTE.search(text):
        text = text[: min(text.index(each) for each in "\"'" if each in text)] + f"'{HIDDEN}'"
    parts = _MYSQL_PARTS if dialect == "mysql" else _SQL_PARTS
    return redact_text(parts.sub(_hide_part, text))


def _hide_part(found: re.Match[str]) -> str:
    return {"literal": f"'{HIDDEN}'", "comment": " "}.get(str(found.lastgroup), found[0])
