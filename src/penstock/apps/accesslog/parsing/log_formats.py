"""Compiles log formats, as servers' own configurations write them, into programs for the access-log kernel.

Rules: what a format means is decided once, here, and never per line. A format must have a client and a time,
and text between two fields that shows where the first one ends; otherwise it is refused, and the error names
the place. Fields that are not needed are skipped. If a format has several fields for one slot, the one with
the lowest rank counts, then the first.

>>> program = compile_format('%h %l %u %t "%r" %>s %b')
>>> program.steps.shape[1]
7
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from penstock.apps.accesslog.parsing import line_parsing_kernel as k
from penstock.apps.accesslog.parsing import line_slots as s
from penstock.apps.accesslog.parsing.json_keys import read_choices
from penstock.apps.accesslog.parsing.log_format_items import (
    Item,
    LogField,
    LogText,
    is_apache,
    is_nginx,
    read_apache,
    read_nginx,
    unwrap_directive,
)
from penstock.core.errors import OptionError
from penstock.kernels.byte_columns import Array

NAMED = {
    "common": '%h %l %u %t "%r" %>s %b',
    "combined": '%h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-Agent}i"',
    "vhost_combined": '%v:%p %h %l %u %t "%r" %>s %O "%{Referer}i" "%{User-Agent}i"',
    "nginx": (
        '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent '
        '"$http_referer" "$http_user_agent" "$http_x_forwarded_for"'
    ),
}
_TAIL = '"%r" %>s %b "%{Referer}i" "%{User-Agent}i" "%{X-Forwarded-For}i"'
PLAIN = f"%h %l %u %t {_TAIL}"
WITH_VHOST = f"%v:%p %h %l %u %t {_TAIL}"
FROM_LIST = f"%{{X-Forwarded-For}}i %l %u %t {_TAIL}"
_MUST_HAVE = (s.PEER, s.REQUEST, s.METHOD, s.TARGET)


@dataclass(frozen=True, slots=True)
class LineProgram:
    """The steps of a format and the texts between its fields."""

    steps: Array
    literals: Array
    begins_with_time: bool
    begins_with_quote: bool
    looks_like_json: bool


def compile_format(log_format: str) -> LineProgram:
    """Return the program of an Apache `LogFormat` or an nginx `log_format`."""
    items = parse_format(log_format)
    return build_program(items, log_format)


def parse_format(log_format: str) -> list[Item]:
    """Return the items of a format, each slot once."""
    log_format = unwrap_directive(log_format)
    if is_apache(log_format):
        return _keep_best(read_apache(log_format))
    if is_nginx(log_format):
        return _keep_best(read_nginx(log_format))
    raise _invalid(log_format, "it has no field, and no format has this name")


def logs_host_names(log_format: str) -> bool:
    """Return whether the client may be a host name: `%h` writes one if Apache looks names up."""
    if log_format == "auto" or read_choices(log_format) is not None:
        return True
    items = parse_format(NAMED.get(log_format, log_format))
    clients = [item for item in items if isinstance(item, LogField) and item.slot == s.PEER]
    return any(item.name.endswith("h") for item in clients)


def has_forwarded(log_format: str) -> bool:
    """Return whether the format has a place for X-Forwarded-For or a header like it."""
    if log_format == "auto" or read_choices(log_format) is not None:
        return True
    items = parse_format(NAMED.get(log_format, log_format))
    return any(isinstance(item, LogField) and item.slot == s.XFF for item in items)


def _keep_best(items: list[Item]) -> list[Item]:
    """Keep the field with the lowest rank of each slot, or the first of several; skip the others."""
    best: dict[int, LogField] = {}
    for item in items:
        if isinstance(item, LogField) and item.slot != s.NOWHERE:
            key = item.slot if item.kind == "text" else -1 - item.slot
            if key not in best or item.rank < best[key].rank:
                best[key] = item
    chosen = {id(item) for item in best.values()}
    return [
        replace(item, kind="text", slot=s.NOWHERE)
        if isinstance(item, LogField) and id(item) not in chosen
        else item
        for item in items
    ]


def build_program(items: list[Item], log_format: str) -> LineProgram:
    steps: list[list[int]] = []
    literals = bytearray()

    def literal(text: bytes) -> tuple[int, int]:
        literals.extend(text)
        return len(literals) - len(text), len(text)

    if items and isinstance(items[0], LogText):
        steps.append([k.LITERAL, 0, *literal(items[0].text), 0, 0, 0])
    for place, item in enumerate(items):
        if isinstance(item, LogText):
            continue
        before, behind = items[place - 1] if place else None, items[place + 1 : place + 2]
        if behind and isinstance(behind[0], LogField):
            raise _invalid(
                log_format, f"nothing shows where `{item.name}` ends and `{behind[0].name}` begins"
            )
        text = behind[0].text if behind and isinstance(behind[0], LogText) else b""
        steps.append(
            _make_step(item, isinstance(before, LogText) and before.text.endswith(b'"'), literal(text))
        )
    texts = {step[k.SLOT] for step in steps if step[k.OP] == k.TEXT}
    if not {s.PEER, s.XFF} & texts:
        raise _invalid(log_format, "it has no client: `%h`, `%a`, `$remote_addr`")
    if k.READ_TIME not in {step[k.OP] for step in steps}:
        raise _invalid(log_format, "it has no time: `%t`, `$time_local`, `$time_iso8601`, `$msec`")
    steps.append([k.END, 0, 0, 0, 0, 0, 0])
    must_have = _MUST_HAVE if s.PEER in texts else (s.XFF, *_MUST_HAVE)
    for step in reversed(steps):
        step[k.FREE] = 1
        if step[k.OP] in (k.READ_TIME, k.READ_STATUS) or (step[k.OP] == k.TEXT and step[k.SLOT] in must_have):
            break
    else:
        raise AssertionError("a format without a time was refused above")
    step[k.FREE] = 0
    first = next(item for item in items if isinstance(item, LogField))
    return LineProgram(
        np.array(steps, np.int64),
        np.frombuffer(bytes(literals) or b"\0", np.uint8).copy(),
        begins_with_time=first.kind == "time",
        begins_with_quote=isinstance(items[0], LogText) and items[0].text.startswith(b'"'),
        looks_like_json=isinstance(items[0], LogText) and items[0].text.lstrip().startswith(b"{"),
    )


def _make_step(field: LogField, after_quote: bool, literal: tuple[int, int]) -> list[int]:
    flags = 0
    if field.kind == "text":
        flags |= k.QUOTED if after_quote else 0
        flags |= k.LISTED if field.listed and not after_quote else 0
        flags |= k.REST if field.has_blanks else 0
        flags |= k.PORTED if field.has_port else 0
        return [k.TEXT, field.slot, *literal, flags, 0, 0]
    operation = {"time": k.READ_TIME, "status": k.READ_STATUS, "number": k.READ_NUMBER}[field.kind]
    return [operation, field.slot, *literal, flags, field.scale, 0]


def _invalid(log_format: str, why: str) -> OptionError:
    return OptionError(
        "LOG_FORMAT_INVALID",
        f"The log format `{log_format[:200]}` cannot be used: {why}.",
        hint="Give the server's own format, or auto, common, combined, vhost_combined, nginx, json.",
        facts={"log_format": log_format},
    )
