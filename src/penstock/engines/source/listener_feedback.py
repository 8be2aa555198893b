"""Lets a query listener report to a running stream how long its batches took.

Spark does not report this to a source, and the source cannot know: a batch that is done in 0.1 s and then
waits for the next tick of a trigger seems to have taken the whole interval. A query listener knows. It runs
in the user's process, and the stream's reader in another one on the same computer, so they use the loopback
address: the reader opens a port and shows it, with a random word, in its progress report, and the listener
sends datagrams. A lost datagram costs one measurement. Without a listener the reader uses its own clock.
"""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.core.loggers import get_logger

log = get_logger(__name__)

_MAX_BYTES = 512  # ours need half of that; a longer datagram is cut and is then not valid JSON
_MOST_AT_ONCE = 1000  # a flood of datagrams must not hold up a trigger
_LONGEST_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class FinishedBatch:
    """One finished batch: the short name of its end, and how long its trigger took."""

    end: str
    trigger_ms: int


class FeedbackPort:
    """The reader's end of the connection. `address` is what it shows in its progress report."""

    def __init__(self) -> None:
        self._word = secrets.token_hex(16)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.setblocking(False)

    @property
    def address(self) -> str:
        return f"{self._socket.getsockname()[1]}/{self._word}"

    def close(self) -> None:
        self._socket.close()

    def drain(self) -> Iterator[FinishedBatch]:
        """Yield what has arrived since the last call. Any program may send here: skip what is invalid."""
        for _ in range(_MOST_AT_ONCE):
            try:
                datagram = self._socket.recv(_MAX_BYTES)
            except OSError:  # nothing more to read, or the port is closed
                return
            told = _read(datagram, self._word)
            if told is not None:
                yield told


def _read(datagram: bytes, word: str) -> FinishedBatch | None:
    try:
        message = json.loads(datagram)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict):
        return None
    given = str(message.get("word")).encode("utf-8", "replace")
    end, trigger_ms = message.get("end"), message.get("triggerMs")
    if not secrets.compare_digest(given, word.encode()) or not isinstance(end, str):
        return None
    if type(trigger_ms) is not int or not 0 <= trigger_ms <= _LONGEST_MS:
        return None
    return FinishedBatch(end, trigger_ms)


def name_end(offset: Any) -> str:
    """Return a short name for a batch's end, the same on both sides whatever the JSON's spacing."""
    import hashlib

    return hashlib.sha256(json.dumps(offset, sort_keys=True).encode()).hexdigest()


def tell(address: str, end: Any, trigger_ms: int) -> None:
    """Send a batch's duration to the reader; the listener calls this."""
    port, _, word = address.partition("/")
    message = json.dumps({"word": word, "end": name_end(end), "triggerMs": trigger_ms}).encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(message, ("127.0.0.1", int(port)))
