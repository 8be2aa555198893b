"""Shows the progress of compiling the kernels: a minute the first time on a computer, nothing afterwards.

Rule: the library is not asked to report. numba itself reports each compilation, and only real ones: a kernel
loaded from the cache is not reported, so there is no bar when all are cached. The bar ends when nothing was
compiled for a moment, so the block may be a whole command that runs for hours. It also shows when we wait for
another process that compiles the same kernels.

    with showing_compilation(DECODING):
        ensure_compiled()
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from numba.core import event

from penstock.cli.shared.progress_bar import COMPLETE
from penstock.cli.shared.terminal import SafeProgressBar
from penstock.kafka.records.record_warmup import ensure_compiled
from penstock.kernels.compilation_lock import WAITING

#: How many functions are compiled on a new computer, for the estimate: of the decoder, of JSON and Avro
#: values, of the access-log application, and of what encodes records. If one is added, only the bar is
#: slightly wrong.
DECODING, FORMATS, ACCESS_LOG, ENCODING = 22, 81, 217, 6
_COMPILED = "numba:compile"
_WAITS = "waiting for another process to compile them"
_IDLE_S = 1.5


@contextmanager
def showing_compilation(expected: int | None = None) -> Iterator[None]:
    """Show a bar while something is compiled in the block; `expected` is how many functions that may be."""
    with SafeProgressBar("Compiling kernels, once on this computer") as bar:
        listener = _Listener(bar, expected)
        with event.install_listener(_COMPILED, listener), event.install_listener(WAITING, listener):
            yield
        listener.finish()


def compile_decoding() -> None:
    """Compile what decodes records, with a bar the first time on this computer.

    For a command that prints what it reads: its lines and the bar must not share the screen.
    """
    with showing_compilation(DECODING):
        ensure_compiled()


class _Listener(event.Listener):  # type: ignore[misc]
    """Counts compilations, which are nested: a kernel triggers the compilation of those it calls."""

    def __init__(self, bar: SafeProgressBar, expected: int | None) -> None:
        self._bar, self._expected = bar, expected
        self._done = self._depth = 0
        self._lock = threading.RLock()
        self._idle: threading.Timer | None = None

    def on_start(self, event: event.Event) -> None:
        with self._lock:
            self._stop_waiting()
            self._depth += 1
            self._tell(event)

    def on_end(self, event: event.Event) -> None:
        with self._lock:
            self._depth -= 1
            self._done += event.kind == _COMPILED
            self._tell(event)
            if not self._depth:
                self._idle = threading.Timer(_IDLE_S, self._finish_if_idle)
                self._idle.daemon = True
                self._idle.start()

    def finish(self) -> None:
        with self._lock:
            self._stop_waiting()
            self._bar(self._done, self._done, COMPLETE)
            # A bar that begins again restarts its clock, so restart the count; what is left is then unknown.
            self._done, self._expected = 0, None

    def _finish_if_idle(self) -> None:
        with self._lock:
            if not self._depth and self._idle is not None:
                self.finish()

    def _stop_waiting(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _tell(self, event: event.Event) -> None:
        total = self._expected if self._expected is not None and self._done <= self._expected else None
        is_waiting = event.kind == WAITING
        name = _WAITS if is_waiting else getattr(event.data["dispatcher"], "__name__", "")
        self._bar(self._done, total, name)
