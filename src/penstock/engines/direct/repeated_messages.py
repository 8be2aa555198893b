"""Logs something now and then while a block runs, from a second thread.

Rule: the thread ends with the block, however it ends; its messages carry the stream's name.

    with repeating(tell, every_s=5.0):
        work()
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

THREAD = "penstock-telling"


@contextmanager
def repeating(tell: Callable[[], None], every_s: float) -> Iterator[None]:
    """Call `tell` every `every_s` seconds while the block runs."""
    is_over = threading.Event()

    def keep_telling(context: contextvars.Context) -> None:
        while not is_over.wait(every_s):
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
