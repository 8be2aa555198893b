"""The JSON part of the slow access-log parser: reads one object recursively, and knows the log's keys."""

from __future__ import annotations

import re
from typing import Any

from penstock.apps.accesslog.parsing import line_slots as slots
from penstock.apps.accesslog.parsing.json_keys import WRAPPERS, list_keys
from penstock.apps.accesslog.parsing.json_line_kernel import (
    AS_LATENCY,
    AS_SIZE,
    AS_STATUS,
    AS_TEXT,
    AS_TIME,
    GUESS,
)
from tests.reference.accesslog_values import Bad, Line, read_time

NUMBER = re.compile(rb"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
STRING = re.compile(rb'"((?:\\.|[^"\\])*)"', re.DOTALL)
BLANKS = re.compile(rb"[ \t\r\n]*")
Scalar = tuple[tuple[bytes, ...] | None, bytes, int, bytes, int, int]
KEYS = {name.encode(): what for name, what in list_keys().items()}


class Document:
    """One object; `scalars` are its values in order: path, last key, list, first byte, begin and end."""

    def __init__(self, text: bytes) -> None:
        self.text, self.at, self.scalars, self.lists = text, 0, list[Scalar](), 0
        if not text.startswith(b"{"):
            raise Bad(slots.NOT_JSON)
        self.value((), b"", 0, 0)
        self.blanks()
        if self.at != len(text):
            raise Bad(slots.NOT_JSON)

    def blanks(self) -> bytes:
        found = BLANKS.match(self.text, self.at)
        assert found
        self.at = found.end()
        return self.text[self.at : self.at + 1]

    def take(self, pattern: re.Pattern[bytes]) -> re.Match[bytes]:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise Bad(slots.NOT_JSON)
        self.at = found.end()
        return found

    def value(self, path: tuple[bytes, ...] | None, key: bytes, of_list: int, depth: int) -> None:
        first = self.blanks()
        if first in (b"{", b"["):
            if depth >= 64:
                raise Bad(slots.NOT_JSON)
            self.at += 1
            if first == b"{":
                self.members(path if not of_list else None, depth + 1)
            else:
                self.lists += 1
                self.elements(path, key, self.lists, depth + 1)
            return
        if first == b'"':
            found = self.take(STRING)
            begin, stop = found.span(1)
        else:
            word = re.compile(rb"true|false|null") if first.isalpha() else NUMBER
            begin, stop = self.take(word).span()
        self.scalars.append((path, key, of_list, first, begin, stop))

    def members(self, path: tuple[bytes, ...] | None, depth: int) -> None:
        if self.blanks() == b"}":
            self.at += 1
            return
        while True:
            self.blanks()
            raw = self.take(STRING)[1]
            if self.blanks() != b":":
                raise Bad(slots.NOT_JSON)
            self.at += 1
            key = raw.lower().translate(None, b"_-@\0")
            inner = None if path is None or len(raw) > 64 else (*path, key)
            if path == () and key.decode("latin-1") in WRAPPERS:
                inner = () if self.blanks() == b"{" else None
            self.value(inner, raw, 0, depth)
            if not self.next(b"}"):
                return

    def elements(self, path: tuple[bytes, ...] | None, key: bytes, number: int, depth: int) -> None:
        if self.blanks() == b"]":
            self.at += 1
            return
        while True:
            self.value(path, key, number, depth)
            if not self.next(b"]"):
                return

    def next(self, closing: bytes) -> bool:
        c = self.blanks()
        if c not in (b",", closing):
            raise Bad(slots.NOT_JSON)
        self.at += 1
        return c == b","


def read_json(text: bytes) -> Line:
    best: dict[str, tuple[int, Any]] = {}
    names = dict(enumerate(slots.TEXT_FIELDS))
    names |= {slots.XFF: "xff", slots.REQUEST: "request", slots.QUERY: "query"}
    open_list = 0
    named = set()
    for path, key, of_list, first, begin, stop in Document(text).scalars:
        if of_list and of_list == open_list:
            best["xff"] = (best["xff"][0], (best["xff"][1][0], stop))
            continue
        dotted = path is not None and len(path) > 1 and any(b"." in each for each in path)
        what = None if path is None or dotted else KEYS.get(b".".join(path))
        if what is None:
            continue
        kind, slot, scale, rank = what
        if kind == AS_TEXT:
            named.add(names[slot])
        if not (first in b'"-' or first.isdigit()):
            continue
        raw = text[begin:stop]
        value: Any = None
        if kind == AS_TEXT:
            name = names[slot]
            value = (begin, stop) if raw or name in ("request", "target") else None
        elif kind == AS_TIME:
            name = "time"
            inner = raw[1:-1] if len(raw) >= 2 and raw[:1] == b"[" and raw[-1:] == b"]" else raw
            time = read_time(inner, 0)
            value = time[0] if time and time[1] == len(inner) else None
        elif kind == AS_STATUS:
            name, value = "status", int(raw) if re.fullmatch(rb"\d{3}", raw) else None
        else:
            name = "latency" if kind == AS_LATENCY else "size"
            assert kind in (AS_LATENCY, AS_SIZE)
            value = read_amount(raw, key, scale, kind == AS_LATENCY)
        if value is not None and (name not in best or rank < best[name][0]):
            best[name] = (rank, value)
            if name == "xff" and of_list:
                open_list = of_list
    if "time" not in best:
        raise Bad(slots.BAD_TIME)
    values = {
        name: text[value[0] : value[1]] if isinstance(value, tuple) else value
        for name, (_, value) in best.items()
    }
    return {**values, "named": named}


def read_amount(raw: bytes, key: bytes, scale: int, is_latency: bool) -> int | None:
    found = NUMBER.match(raw)
    if found is None or raw[:1] == b"-":
        return None
    whole, fraction, exponent = found.groups()
    power = int((exponent or b"e0")[1:]) - len((fraction or b".")[1:])
    digits = whole + (fraction or b".")[1:]
    if len(digits) > 19 or not -22 <= power <= 22:
        return None
    value = int(digits) * 10.0**power if power >= 0 else int(digits) / 10.0**-power
    unit = raw[found.end() :]
    if is_latency:
        units = {b"s": 10**9, b"ms": 10**6, b"us": 10**3, b"\xc2\xb5s": 10**3, b"ns": 1}
        if scale == GUESS:
            scale = 1 if key[:1].isupper() else 10**6 if power == 0 else 10**9
        if unit in units:
            scale, unit = units[unit], b""
        value = value * scale / 1000.0
    return round(value) if not unit and value < 2**53 else None
