"""What a simulation is made of: texts by number, clients by number, requests as rows of numbers.

Rule: no line needs a Python object. A request is one row of `EVENT`, a text is its number in a pool, and a
client its number in a table; only when lines are written do numbers become bytes, in a kernel. The random
generators (`dice`) are always passed in: the same seed gives the same lines.

>>> pool = TextPool()
>>> pool.add(b"GET / HTTP/1.1"), pool.add(b"GET / HTTP/1.1"), pool.add(b"-")
(1, 1, 0)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
EventRows = npt.NDArray[Any]

#: `begin` is when the request came, in seconds of the simulation; it is logged `latency_us` later.
EVENT = np.dtype(
    [
        ("begin", np.float64),
        ("client", np.int32),
        ("request", np.int32),
        ("referrer", np.int32),
        ("agent", np.int32),
        ("size", np.int32),
        ("latency_us", np.int32),
        ("status", np.int16),
    ]
)
NO_TEXT = 0  # `-`
BENIGN = 0
LONGEST_REQUEST_US = 25_000_000
_LEAST_ROOM = 1024
#: First numbers of addresses: kept for attackers' networks, then reserved or known. All others are free.
_KEPT_FOR_NETS = (45, 91, 185, 193)
_ELSEWHERE = (0, 10, 17, 20, 40, 52, 57, 66, 69, 72, 100, 127, 157, 169, 172, 192, 198, 199, 203, 207, 213)
_OPEN = np.array([n for n in range(1, 224) if n not in (*_KEPT_FOR_NETS, *_ELSEWHERE)], np.uint64)
_SCRAMBLE = np.uint64(0x9E3779B1)  # odd, so different numbers stay different


def escape_as_apache(text: bytes) -> bytes:
    """Return a request as the server logs it: quotes and backslashes escaped, the rest as hex."""
    shown = bytearray()
    for byte in text:
        if byte in b'"\\':
            shown += b"\\" + bytes([byte])
        elif 0x20 <= byte < 0x7F:
            shown.append(byte)
        else:
            shown += b"\\n" if byte == 0x0A else b"\\r" if byte == 0x0D else b"\\x%02x" % byte
    return bytes(shown)


class TextPool:
    """Distinct texts and their numbers."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {b"-": NO_TEXT}
        self._columns: tuple[npt.NDArray[np.uint8], Numbers] | None = None

    def add(self, text: bytes) -> int:
        number = self._numbers.setdefault(text, len(self._numbers))
        if number == len(self._numbers) - 1:
            self._columns = None
        return number

    def add_all(self, texts: Sequence[bytes]) -> Numbers:
        return np.array([self.add(text) for text in texts], np.int64)

    def columns(self) -> tuple[npt.NDArray[np.uint8], Numbers]:
        """Return all bytes, and where each text begins, followed by where the last one ends."""
        if self._columns is None:
            starts = np.cumsum([0, *map(len, self._numbers)]).astype(np.int64)
            self._columns = np.frombuffer(b"".join(self._numbers), np.uint8), starts
        return self._columns


class ClientTable:
    """Addresses and what is known about their owners; grows by doubling."""

    def __init__(self) -> None:
        self.count = 0
        self._given_out = 0
        self._nets = 0
        self.highs = np.zeros(_LEAST_ROOM, np.uint64)
        self.lows = np.zeros(_LEAST_ROOM, np.uint64)
        self.are_v6 = np.zeros(_LEAST_ROOM, np.bool_)
        self.classes = np.zeros(_LEAST_ROOM, np.int16)
        self.agents = np.zeros(_LEAST_ROOM, np.int32)
        self.requests = np.zeros(_LEAST_ROOM, np.int64)
        self.firsts = np.full(_LEAST_ROOM, np.inf)

    def add(
        self,
        count: int,
        dice: np.random.Generator,
        *,
        label: int = BENIGN,
        v6_share: float = 0.15,
    ) -> Numbers:
        """Add unused addresses, spread over the whole Internet; return their numbers."""
        numbers = np.arange(self._given_out, self._given_out + count, dtype=np.uint64)
        self._given_out += count
        mixed = (numbers * _SCRAMBLE + np.uint64(0x51ED270B)) & np.uint64(0xFFFFFFFF)
        # The first number is one of the open ones. The counter is in the rest, so no two are the same.
        low = (_OPEN[(mixed >> np.uint64(24)) % np.uint64(_OPEN.size)] << np.uint64(24)) | (
            (numbers * np.uint64(0x9E3779) + np.uint64(0x1F35)) & np.uint64(0xFFFFFF)
        )
        v6 = dice.random(count) < v6_share
        return self._append(low, numbers, v6, label)

    def add_net(self, count: int, dice: np.random.Generator, *, label: int, v6: bool) -> Numbers:
        """Add unused addresses of one /24, or of one /64; return their numbers."""
        self._nets += 1
        net = np.uint64(self._nets)
        if v6:
            hosts = np.arange(1, count + 1, dtype=np.uint64)
            return self._append(hosts, np.full(count, 1 << 23, np.uint64) + net, np.ones(count, bool), label)
        first = np.uint64(_KEPT_FOR_NETS[self._nets % len(_KEPT_FOR_NETS)])
        hosts = dice.permutation(np.arange(1, 255, dtype=np.uint64))[:count]
        low = (first << np.uint64(24)) | ((net * np.uint64(7919) & np.uint64(0xFFFF)) << np.uint64(8)) | hosts
        return self._append(low, low, np.zeros(count, bool), label)

    def add_known(self, lows: Sequence[int]) -> Numbers:
        """Add these IPv4 addresses; return their numbers."""
        low = np.array(lows, np.uint64)
        return self._append(low, low, np.zeros(low.size, bool), BENIGN)

    def _append(
        self,
        lows: npt.NDArray[np.uint64],
        nets: npt.NDArray[np.uint64],
        v6: npt.NDArray[np.bool_],
        label: int,
    ) -> Numbers:
        first, self.count = self.count, self.count + lows.size
        self._make_room()
        there = slice(first, self.count)
        # 2a02:..., the net in the next two groups, and no group that is zero.
        high = np.uint64(0x2A02_0000_0000_0001) | ((nets & np.uint64(0xFFFFFF)) << np.uint64(20))
        high |= np.uint64(0x0000_8000_0008_0000)
        host = (lows * np.uint64(0x9E3779B97F4A7C15)) | np.uint64(0x1000_1000_1000_1000)
        self.highs[there] = np.where(v6, high, np.uint64(0))
        self.lows[there] = np.where(v6, host, lows)
        self.are_v6[there] = v6
        self.classes[there] = label
        return np.arange(first, self.count, dtype=np.int64)

    def _make_room(self) -> None:
        if self.count <= self.lows.size:
            return
        size = 1 << self.count.bit_length()
        for name in ("highs", "lows", "are_v6", "classes", "agents", "requests", "firsts"):
            old = getattr(self, name)
            new = np.full(size, np.inf) if name == "firsts" else np.zeros(size, old.dtype)
            new[: old.size] = old
            setattr(self, name, new)


def make_events(count: int, **fields: object) -> EventRows:
    """Return rows with these fields, each one value for all or one for each."""
    events = np.zeros(count, EVENT)
    for name, values in fields.items():
        events[name] = values
    return events


def pick_latencies(count: int, dice: np.random.Generator, median_us: float) -> Numbers:
    """Return latencies: most are near the median, some ten times and a few a hundred times as long."""
    values = median_us * np.exp(dice.normal(0.0, 0.7, count))
    slow = dice.random(count) < 0.004
    values[slow] *= dice.uniform(20, 150, int(slow.sum()))
    return np.minimum(values, LONGEST_REQUEST_US).astype(np.int64)
