"""Lets signals end a command cleanly, and delays them while something is made that has no owner yet.

Rule: handlers are replaced, but signals are not blocked. A blocked signal goes to any other thread that does
not block it, and Python would still run its handler in the main thread. Also, processes that are started
meanwhile would inherit the block.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


def _find_handlers() -> dict[signal.Signals, Any]:
    """Return the handlers that may be replaced for a while; none outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    handlers = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    # An ignored signal stays ignored, for child processes too. None is a handler that is not Python's.
    return {each: handler for each, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}


@contextlib.contextmanager
def hold_signals() -> Iterator[None]:
    """Delay SIGTERM and SIGINT until afterwards: an exception from a handler would lose what was just made.

    Outside the main thread this does nothing, because Python runs no handlers there.
    """
    came: list[int] = []
    held = _find_handlers()
    for each in held:
        signal.signal(each, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for each, handler in held.items():
            signal.signal(each, handler)
        for number in came[:1]:
            signal.raise_signal(number)


@contextlib.contextmanager
def unwinding_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGINT end the block with an exception, so that all it started is ended and removed.

    By default SIGTERM ends Python at once, and Kafka's folder would stay. Only the first signal counts, so
    that another one cannot interrupt the cleanup. Outside the main thread this does nothing.
    """

    def unwind(number: int, _: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    before = _find_handlers()
    for each in before:
        signal.signal(each, unwind)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
