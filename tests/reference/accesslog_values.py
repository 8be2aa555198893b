"""Times, addresses and numbers in access-log lines in plain Python, with `datetime` and `ipaddress`."""

from __future__ import annotations

import ipaddress
import re
from datetime import date
from typing import Any

from penstock.apps.accesslog.parsing import line_slots as slots

Line = dict[str, Any]
MONTHS = (b"jan", b"feb", b"mar", b"apr", b"may", b"jun", b"jul", b"aug", b"sep", b"oct", b"nov", b"dec")
CLF = re.compile(rb"(\d\d)/(...)/(\d{4}):(\d\d):(\d\d):(\d\d)(\.\d+)?", re.DOTALL)
ISO = re.compile(rb"(\d{4})([-/])(\d\d)\2(\d\d)[T ](\d\d):(\d\d):(\d\d)(\.\d+)?")
EPOCH = re.compile(rb"(\d{9,19})(?!\d)(\.\d+)?")
ZONE = re.compile(rb" ?(?:([Zz])|([+-])(\d\d)(?::?(\d\d))?)")
SOME_ZONE = re.compile(rb" ?[+-]\d.", re.DOTALL)


class Bad(Exception):  # noqa: N818  (an outcome)
    def __init__(self, reason: int) -> None:
        super().__init__(slots.BAD_REASONS[reason])
        self.reason = reason


def read_time(text: bytes, at: int) -> tuple[int, int] | None:
    """Return (microseconds, position behind) or None."""
    if found := CLF.match(text, at):
        day, name, year, *clock = found.groups()
        if name.lower() not in MONTHS:
            return None
        month = MONTHS.index(name.lower()) + 1
    elif found := ISO.match(text, at):
        year, _, month_text, day, *clock = found.groups()
        month = int(month_text)
    elif found := EPOCH.match(text, at):
        return _read_epoch(found)
    else:
        return None
    hour, minute, second = map(int, clock[:3])
    if int(year) < 1970 or hour > 23 or minute > 59 or second > 60:
        return None
    try:
        days = (date(int(year), month, int(day)) - date(1970, 1, 1)).days
    except ValueError:
        return None
    micros = (days * 86400 + hour * 3600 + minute * 60 + second) * 1_000_000
    micros += int(((clock[3] or b".")[1:] + b"000000")[:6])
    stop = found.end()
    if zone := ZONE.match(text, stop):
        if zone[1] is None:
            east = int(zone[3]) * 60 + int(zone[4] or 0)
            if int(zone[4] or 0) > 59 or east > 18 * 60:
                return None
            micros -= east * 60_000_000 * (-1 if zone[2] == b"-" else 1)
        stop = zone.end()
        if zone[1] is None and zone[4] is None and re.compile(rb":?\d.", re.DOTALL).match(text, stop):
            return None
    elif SOME_ZONE.match(text, stop):
        return None
    return micros, stop


def _read_epoch(found: re.Match[bytes]) -> tuple[int, int] | None:
    digits, fraction = found[1], (found[2] or b".")[1:]
    scale = 1_000_000 if len(digits) < 12 else 1000 if len(digits) < 15 else 1
    micros = int(digits) // 1000 if len(digits) >= 18 else int(digits) * scale
    if scale > 1:
        micros += int((fraction + b"0" * 6)[: len(str(scale)) - 1])
    return (micros, found.end()) if micros < 253402300800_000_000 else None


def strip_port(text: bytes) -> bytes:
    if len(text) >= 3 and text[:1] == b"[" and b"]" in text:
        return text[1 : text.index(b"]")]
    found = re.fullmatch(rb"([^:]+):\d+", text, re.DOTALL)
    return found[1] if found else text


def strip_zone(text: bytes) -> bytes:
    address, percent, _ = text.partition(b"%")
    is_ipv6 = percent and b":" in address and read_address(address) is not None
    return address if is_ipv6 else text


def read_address(text: bytes) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text.decode("ascii"))
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        if b"%" in text:
            return None
        return address.ipv4_mapped or address
    return address
