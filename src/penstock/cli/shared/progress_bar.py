"""Shows that long work is alive: what it does, how long it has taken, and how long it may still take.

Rule: on a terminal it is one line that changes and that is erased or final in the end, whatever happens.
Elsewhere it is a plain line at the beginning, one every ten seconds at most, and one at the end, without
control characters. The line is also redrawn by a clock, not by progress alone: a big file may take a minute,
and a bar that does not move for a minute looks like a hung program. A closed or missing stream never ends the
work.

Only the standard library is used: `tools/install.py` shows its progress with this before there is a `.venv`.

    bar = ProgressBar("Fetching Kafka")
    bar(3, 92, "kafka-clients 4.3.0")
    bar(92, 92, COMPLETE)
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

#: The item of the last call.
COMPLETE = "complete"
_BAR_CELLS = 30
_DRAWN_EVERY_S = 0.5
_TOLD_EVERY_S = 10.0
#: No estimate before this time: the first steps say little about the others.
_ESTIMATE_AFTER_S = 3.0
_ERASE = "\r\x1b[K"
#: What is on the screen now; it must be hidden before anything else is printed.
_drawn: list[ProgressBar | LiveLine] = []


class ProgressBar:
    """A callback (steps done, total steps or None, the current item) that shows its progress.

    It begins with the first call, ends with the item `COMPLETE`, and may begin again. A `with` block ends it
    on errors too.
    """

    def __init__(
        self,
        what: str,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        escape: Callable[[str], str] = str,
    ) -> None:
        self._what, self._stream, self._clock, self._escape = what, stream, clock, escape
        self._lock = threading.RLock()
        self._ended: threading.Event | None = None
        self._began_s = self._told_s = 0.0
        self._done, self._item = 0, ""
        self._total: int | None = None

    def __call__(self, done: int, total: int | None, item: str) -> None:
        with self._lock:
            if self._ended is None:
                if item == COMPLETE:
                    return  # there was nothing to do
                self._begin()
            self._done, self._total, self._item = done, total, item
            if item == COMPLETE:
                self._finish(f"{self._what}: done in {_show_time(self._clock() - self._began_s)}.")
            elif self._is_live:
                self._draw()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Take the line away without claiming that anything was done. A second call does nothing."""
        with self._lock:
            if self._ended is not None:
                self._finish(None)

    def hide(self) -> None:
        """Take the line away until it is drawn again, so that something else can be printed."""
        with self._lock:
            if self._ended is not None and self._is_live:
                self._write(_ERASE)

    @property
    def _out(self) -> TextIO | None:
        return sys.stderr if self._stream is None else self._stream

    @property
    def _is_live(self) -> bool:
        return _can_write_over(self._out)

    def _begin(self) -> None:
        self._ended = threading.Event()
        self._began_s = self._told_s = self._clock()
        _drawn.append(self)
        if not self._is_live:
            self._write(f"{self._what} ...\n")
        threading.Thread(target=self._tick, args=(self._ended,), daemon=True).start()

    def _finish(self, last_words: str | None) -> None:
        assert self._ended is not None
        self._ended.set()
        self._ended = None
        _drawn.remove(self)
        erase = _ERASE if self._is_live else ""
        self._write(erase if last_words is None else f"{erase}{last_words}\n")

    def _tick(self, ended: threading.Event) -> None:
        while not ended.wait(_DRAWN_EVERY_S):
            with self._lock:
                if ended.is_set():
                    return
                now_s = self._clock()
                if self._is_live:
                    self._draw()
                elif now_s - self._told_s >= _TOLD_EVERY_S:
                    self._told_s = now_s
                    self._write(f"{self._what}: {self._describe()}\n")

    def _draw(self) -> None:
        filled = min(_BAR_CELLS, _BAR_CELLS * self._done // self._total) if self._total else 0
        bar = "#" * filled + "-" * (_BAR_CELLS - filled)
        with contextlib.suppress(OSError, ValueError):  # a terminal may be closed at any moment
            width = os.get_terminal_size(self._out.fileno()).columns if self._out is not None else 0
            width = width or shutil.get_terminal_size().columns
            self._write(_ERASE + f"{self._what} [{bar}] {self._describe()}"[: width - 1])

    def _describe(self) -> str:
        """Return a text such as `12/92, 9 s, about 60 s left: kafka-clients 4.3.0`."""
        took_s = self._clock() - self._began_s
        parts = [f"{self._done}/{self._total}" if self._total else str(self._done)] if self._done else []
        parts.append(_show_time(took_s))
        if self._total and 0 < self._done < self._total and took_s >= _ESTIMATE_AFTER_S:
            left_s = took_s / self._done * (self._total - self._done)
            parts.append(f"about {_show_time(left_s)} left")
        told = ", ".join(parts)
        return f"{told}: {self._escape(self._item)}" if self._item else told

    def _write(self, text: str) -> None:
        _write(self._out, text)


class LiveLine:
    """A line of the output that is overwritten again and again, and makes way for other output."""

    def __init__(self, *, on_errors: bool = False) -> None:
        self._on_errors = on_errors
        self._drawn_s = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Return whether it can be drawn, and was not for a while."""
        return time.monotonic() - self._drawn_s >= _DRAWN_EVERY_S and _can_write_over(self._out)

    @property
    def _out(self) -> TextIO | None:
        return sys.stderr if self._on_errors else sys.stdout

    def draw(self, text: str) -> None:
        """Show this text in place of the last one."""
        if self not in _drawn:
            _drawn.append(self)
        self._drawn_s = time.monotonic()
        _write(self._out, _ERASE + text)

    def hide(self) -> None:
        """Take the line away until it is drawn again."""
        _write(self._out, _ERASE)

    def end(self) -> None:
        """Take the line away, if it was drawn. A second call does nothing."""
        if self in _drawn:
            _drawn.remove(self)
            self.hide()


def _can_write_over(stream: TextIO | None) -> bool:
    """Return whether a line on this stream can be overwritten: it is an open terminal that can erase."""
    if stream is None or os.environ.get("TERM") == "dumb":
        return False
    try:
        return stream.isatty()
    except (OSError, ValueError):  # closed
        return False


def _write(stream: TextIO | None, text: str) -> None:
    if stream is not None:  # with `2>&-` there is none
        with contextlib.suppress(OSError, ValueError):
            stream.write(text)
            stream.flush()


def hide_bars() -> None:
    """Take all bars and live lines off the screen, because something else is about to be printed."""
    for bar in list(_drawn):
        bar.hide()


def end_bars() -> None:
    """End all bars and live lines when the command has ended; after an error nothing else ends them."""
    for bar in list(_drawn):
        bar.end()


def _show_time(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole} s" if whole < 120 else f"{whole // 60} min {whole % 60:02} s"
