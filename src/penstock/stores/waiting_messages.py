"""Repeats a log message from a second thread while a block runs.

Rule: the thread ends when the block ends, even if the block fails. Its messages carry the stream's name.

    with repeating(tell, 5.0):
        work()
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

THREAD = "penstock-telling"


@contextmanager
def repeating(tell: Callable[[], None], first_s: float, every_s: float | None = None) -> Iterator[None]:
    """Call `tell` after `first_s` seconds and then every `every_s` (or `first_s`), while the block runs."""
    is_over = threading.Event()

    def keep_telling(context: contextvars.Context) -> None:
        pause_s = first_s
        while not is_over.wait(pause_s):
            pause_s = every_s or first_s
            context.run(tell)

    thread = threading.Thread(
        target=keep_telling, args=(contextvars.copy_context(),), name=THREAD, daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
