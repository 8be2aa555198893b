"""Fields of JSON lines that could be meant instead of those that are used: a second address, for example.

Rule: which of several keys counts is documented (`penstock.apps.accesslog.parsing.json_keys`), but a user
whose lines have both `ip` and `source_ip` cannot be expected to know it. So where their values differ, a
warning comes before any decision, with the option that chooses the other one. This is done in Python, on a
few lines of a sample, because the kernel that parses all lines keeps the field it uses and drops the rest.

>>> [(each.used, each.other, each.lines) for each in find_rivals([b'{"source_ip": "192.0.2.1", "ip": "x"}'])]
[('source_ip', 'ip', 1)]
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from penstock.apps.accesslog.parsing.json_keys import (
    WRAPPERS,
    list_keys,
    name_field,
    plain_name,
    read_choices,
)

#: How many JSON lines are looked at.
MOST_LINES = 200
_DEEPEST = 8
#: How many keys of a line a message names.
_MOST_KEYS = 12
#: The most common keys of the fields that a line must have.
COMMON_KEYS = {
    "client": ("remote_addr", "remote_ip", "client_ip", "source_ip", "ip"),
    "time": ("time", "timestamp", "ts", "time_iso8601", "time_local"),
}
#: Fields of which a line may have several by design: a target and its path, a list of proxies and its first
#: address.
_ALIKE = frozenset(("target", "query", "request", "protocol", "forwarded"))


@dataclass(frozen=True, slots=True)
class Rival:
    """A key `other` whose value differs from that of `used`, the key of `field`, in `lines` of `whole`."""

    field: str
    used: str
    other: str
    lines: int
    whole: int


def find_rivals(lines: Iterable[bytes], log_format: str = "json") -> tuple[Rival, ...]:
    """Return the keys that could be used but are not, those in most lines first."""
    keys = list_keys(read_choices(log_format) or ())
    found: Counter[tuple[str, str, str]] = Counter()
    whole = 0
    for line in lines:
        document = _read(line)
        if document is None:
            continue
        whole += 1
        fields: dict[str, list[tuple[int, str, str]]] = {}
        for path, value in _walk(document, "", 0):
            kind, slot, _, rank = keys.get(plain_name(path), (None, 0, 0, 0))
            if kind is not None and (field := name_field(kind, slot)) not in _ALIKE:
                fields.setdefault(field, []).append((rank, path, value))
        for field, some in fields.items():
            _, used, value = min(some, key=lambda each: each[0])  # of equal ranks the first
            for _, path, other in some:
                # One time may be written in two ways. Two texts of one length are two times.
                if path != used and other != value and (field != "time" or len(other) == len(value)):
                    found[field, used, path] += 1
    return tuple(Rival(*names, number, whole) for names, number in found.most_common())


@dataclass(frozen=True, slots=True)
class MissingFields:
    """The `fields` that a JSON line lacks, each with its possible keys, and the `keys` that it has."""

    fields: tuple[tuple[str, tuple[str, ...]], ...]
    keys: tuple[str, ...]


def find_missing(line: bytes, log_format: str = "json") -> MissingFields | None:
    """Return what a line that could not be parsed lacks; None if it is not, or not read as, a JSON object.

    >>> find_missing(b'{"when": 1, "srcIp": "192.0.2.1", "time": 2}', "json client=ip")
    MissingFields(fields=(('client', ('ip',)),), keys=('when', 'srcIp', 'time'))
    """
    choices = read_choices(log_format if log_format != "auto" else "json")
    document = None if choices is None else _read(line)
    if choices is None or document is None:
        return None
    keys = list_keys(choices)
    paths = [path for path, _ in _walk(document, "", 0)]
    found = {name_field(*keys[name][:2]) for path in paths if (name := plain_name(path)) in keys}
    chosen = dict(choices)
    lacking = [
        (field, (chosen[field],) if field in chosen else COMMON_KEYS[field])
        for field in COMMON_KEYS
        if field not in found and not (field == "client" and "forwarded" in found)
    ]
    return MissingFields(tuple(lacking), tuple(paths[:_MOST_KEYS]))


def _read(line: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(line[line.index(b"{") :])
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _walk(document: dict[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yield each text and number with the path to it, without objects that only wrap a line."""
    for key, value in document.items():
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(value, dict) and depth < _DEEPEST:
            is_wrapper = not prefix and plain_name(key) in WRAPPERS
            yield from _walk(value, prefix if is_wrapper else f"{prefix}{key}.", depth + 1)
        elif isinstance(first, str | int | float) and not isinstance(first, bool) and first != "":
            yield f"{prefix}{key}", str(first)
