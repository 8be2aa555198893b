"""Signals that wait while something is made that nobody owns yet.

Rule: the handlers are replaced, the signals are not blocked. A blocked signal goes to any other thread that
does not block it, and Python then runs its handler in the main thread all the same. And processes that are
started meanwhile would inherit the block.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def hold_signals() -> Iterator[None]:
    """Let SIGTERM and SIGINT act only afterwards: an exception of a handler would lose what was just made.

    In another thread than the main one nothing is to be done: Python runs no handler there.
    """
    came: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    # An ignored one stays ignored, also for the processes started; None is a handler that is not Python's.
    held = {each: handler for each, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    for each in held:
        signal.signal(each, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for each, handler in held.items():
            signal.signal(each, handler)
        for number in came[:1]:
            signal.raise_signal(number)
