"""Live numbers of a run: one line that changes at a terminal, a plain line now and then elsewhere.

One word for one thing: a client is blocked once, however many decisions there are about it; a line is a dead
letter (it could not be parsed), out of order (behind lines that came before it, and judged at their time), or
too late for the load (in no table of the load; the rules have seen it).
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.cli.terminal import count, escape, say

if TYPE_CHECKING:
    from penstock.apps.accesslog.stream.pipeline import BatchNews, Pipeline

#: How often a plain line is written where there is no terminal.
PLAIN_EVERY_S = 5.0
_TOP_ATTACKERS = 3


class Display:
    """Told of each batch (`show`) and of the end (`close`)."""

    def __init__(self, pipeline: Pipeline, clock: Callable[[], float] = time.monotonic) -> None:
        self._pipeline, self._clock = pipeline, clock
        self._is_live = sys.stdout.isatty()
        self._since = self._shown = clock()
        self._fresh = self._lines = self._dead = self._late = self._decisions = self._subjects = 0
        self._too_late = 0
        self._attackers: dict[str, tuple[int, str]] = {}

    def show(self, news: BatchNews) -> None:
        self._fresh += news.lines
        self._lines += news.lines
        self._dead += news.dead
        self._late += news.late
        self._too_late = news.too_late
        self._subjects = news.subjects or self._subjects
        for decision in news.decisions.select(["client", "class", "action", "level", "rule"]).to_pylist():
            if decision["action"] == "block":
                self._decisions += 1
                is_new = decision["client"] not in self._attackers
                self._attackers[decision["client"]] = (decision["level"], decision["class"])
                if self._is_live and is_new:
                    self._write_over(f"blocked {escape(decision['client'])}: {decision['rule']}\n")
        now = self._clock()
        if self._is_live or (self._fresh and now - self._shown >= PLAIN_EVERY_S):
            self._tell(news, now)

    def _tell(self, news: BatchNews, now: float) -> None:
        rate = self._fresh / max(now - self._since, 0.001)
        report = news.report
        took = report.planning_ms + report.processing_ms + report.storing_ms
        text = (
            f"{rate:,.0f} lines/s, lag {self._pipeline.measure_lag():,}, "
            f"{count(len(self._attackers), 'client')} blocked, {self._lines:,} lines, batch {took:,.0f} ms"
        )
        if self._too_late:
            text += f", {self._too_late:,} too late for the load"
        if self._attackers:
            text += f"; top: {self._name_attackers()}"
        text += f"; {self._subjects:,} remembered"
        if self._is_live:
            self._write_over(cut(text, shutil.get_terminal_size().columns))
        else:
            say(text)
        if now - self._since >= PLAIN_EVERY_S or not self._is_live:
            self._since, self._fresh = now, 0
        self._shown = now

    def _name_attackers(self) -> str:
        last_first = reversed(self._attackers.items())
        worst = sorted(last_first, key=lambda each: -each[1][0])[:_TOP_ATTACKERS]
        return ", ".join(f"{escape(client)} ({attack})" for client, (_, attack) in worst)

    def _write_over(self, text: str) -> None:
        sys.stdout.write(f"\r\x1b[K{text}")
        sys.stdout.flush()

    def close(self, reason: str) -> None:
        if self._is_live:
            self._write_over("")
        say(
            f"Stopped ({reason}): {count(self._lines, 'line')}, {self._dead:,} of them dead letters, "
            f"{self._late:,} out of order."
        )
        if self._decisions:
            say(
                f"{count(len(self._attackers), 'client')} blocked in this run, by "
                f"{count(self._decisions, 'decision')} (who goes on gets more of them). "
                "Lists hold those whose ban has not ended."
            )
        if self._too_late:
            late = count(self._too_late, "line")
            say(f"{late} since the beginning came too late for the tables of the load; rules have seen them.")


def cut(text: str, columns: int) -> str:
    """So much of it that a terminal does not wrap it: a line that wraps cannot be written over."""
    most = max(columns - 1, 10)
    return text if len(text) <= most else f"{text[: most - 3]}..."
