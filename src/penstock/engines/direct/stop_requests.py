"""Asks a direct stream to stop: from another thread, by a signal, or by a file that appears.

Rule: a request only sets the switch. The loop checks it between batches, so a running batch is finished and
its offsets are stored. Waits for brokers are cut short where nothing is at stake (`hearing`). Why a pipe and
not an event: a signal handler runs in the very thread that waits, and if that thread holds the event's lock,
setting the event there deadlocks. (The lock here is reentrant.) A request after the end does nothing: by then
the pipe's descriptor may belong to a file.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from penstock.core.outages import hearing_stop

_LOOK_AT_FILE_S = 0.5


class StopSwitch:
    """A switch that is set once, by any thread. `reason` says what set it, and `find_moment` when."""

    def __init__(self, marker: Path | None = None) -> None:
        self.reason: str | None = None
        self._moment: float | None = None
        self._marker = marker
        self._turn = threading.RLock()
        self._pipe: tuple[int, int] | None = None  # exists while a thread may wait

    def set(self, reason: str) -> None:
        with self._turn:
            if self.reason is None:
                self._moment = time.monotonic()
                self.reason = reason
            if self._pipe is not None:
                with contextlib.suppress(BlockingIOError):  # the pipe is full, so the switch is already set
                    os.write(self._pipe[1], b"x")

    @property
    def is_set(self) -> bool:
        if self.reason is None and self._marker is not None and self._marker.exists():
            self.set(f"the file {self._marker}")
        return self.reason is not None

    def find_moment(self) -> float | None:
        """Return when the switch was set, on the monotonic clock, or None."""
        return self._moment if self.is_set else None

    def hearing(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which requests to brokers are abandoned soon after the switch is set. Use it
        only for what is then not needed: for looks at the log, never for the offsets of finished work."""
        return hearing_stop(self.find_moment)

    def wait(self, seconds: float) -> bool:
        """Wait for this time or until the switch is set; return whether it is set."""
        deadline = time.monotonic() + seconds
        reads = self._open()
        while not self.is_set:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            select.select([reads], [], [], left if self._marker is None else min(left, _LOOK_AT_FILE_S))
        return True

    def _open(self) -> int:
        with self._turn:
            if self._pipe is None:
                self._pipe = os.pipe()
                os.set_blocking(self._pipe[1], False)
            return self._pipe[0]

    def close(self) -> None:
        """Remove the stop file if it stopped this run: it was meant for this run only."""
        if self._marker is not None and self.reason == f"the file {self._marker}":
            self._marker.unlink(missing_ok=True)
        with self._turn:
            pipe, self._pipe = self._pipe, None
            for end in pipe or ():
                os.close(end)


@contextlib.contextmanager
def stop_on_signals(switch: StopSwitch) -> Iterator[None]:
    """Let SIGTERM and SIGINT ask the stream to stop during the block. A second signal ends the program.

    Python delivers signals only to the main thread. Stop a stream that runs in another thread with `stop()`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, _frame: FrameType | None) -> None:
        if switch.reason is None:
            switch.set(signal.Signals(number).name)
            return
        # The user insists: do whatever the signal did before our handler was set.
        signal.signal(number, before[signal.Signals(number)] or signal.SIG_DFL)
        os.kill(os.getpid(), number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
