"""Treats SIGTERM and SIGINT as a request to stop, for commands that first finish what is under way.

Rule: a handler only notes the request; whoever installed it restores the previous handlers.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def hearing_signals(hear: Callable[[int], None], *, once: bool = False) -> Iterator[None]:
    """Call `hear` with the number of each signal; with `once`, a second one does what it did before."""

    def handle(number: int, _: object) -> None:
        if once:
            put_back()
        hear(number)

    def put_back() -> None:
        for each, handler in before.items():
            signal.signal(each, handler)

    before = {each: signal.signal(each, handle) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        put_back()
