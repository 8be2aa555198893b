"""The live numbers of a run: a line that is redrawn on a terminal, and a plain line now and then elsewhere.

Rule: the output of a run shows that it is alive. Without a terminal, a line comes every ten seconds while
something changes or a batch is running, and once a minute while nothing does. The numbers come when a batch
ends, even if a line about the running batch has just come (`_told_at`). A batch may take minutes, and so may
the wait for a server that is away, so a separate thread watches the clock (`ticking`). That thread asks
neither the broker nor the database, which belong to the thread of the batches. About a running batch it says
how long it has run, and never that there were no lines.

Each thing has one word. Blocked: in the lists now, according to the database. Named, in no list: a rule
wanted the client blocked, and no list can hold it, such as a host name. Spared: a rule wanted the client
blocked, and it may not be, such as a proxy or a private address. A line is a dead letter (it could not be
parsed), out of order (behind lines that came before it, and judged at their time), or too late for the load
(in no table of the load; the rules have seen it). A client with several bans is shown with the class of the
one that ends last, as in the lists and in reports. A ban counts from the time in the log: one that was found
late may have ended before it was decided.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from penstock.apps.accesslog.blocking.blocklists import can_be_listed, rank_ban
from penstock.cli.accesslog.database_arguments import describe_unlisted
from penstock.cli.accesslog.spared_clients import Sparing
from penstock.cli.shared.progress_bar import LiveLine
from penstock.cli.shared.terminal import complain_dated, count, escape, say

if TYPE_CHECKING:
    from penstock.apps.accesslog.stream.pipeline import BatchNews, Pipeline
    from penstock.direct import BatchReport

#: How often a plain line is written without a terminal, while something changes.
PLAIN_EVERY_S = 10.0
#: How often one is written while nothing changes.
IDLE_EVERY_S = 60.0
#: How often the clock and a request to stop are checked.
_TICK_EVERY_S = 0.5
#: A batch that has run for this long is shown at a terminal.
_LONG_BATCH_S = 2.0
#: The time over which lines per second are measured.
_RATE_OVER_S = 5.0
_TOP_ATTACKERS = 3
_COLUMNS = ["client", "class", "action", "level", "rule", "decision_id", "decided_at", "expires_at"]


class CountBlocked(Protocol):
    """Returns how many clients are blocked now, or None if that is unknown."""

    def __call__(self, *, has_news: bool = False) -> int | None: ...


class Display:
    """Shows each batch (`watch`, `show`) and the end (`close`); another thread may call `tick`."""

    def __init__(
        self,
        pipeline: Pipeline,
        count_blocked: CountBlocked,
        list_troubles: Callable[[], Sequence[str]] = tuple,
        clock: Callable[[], float] = time.monotonic,
        *,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        describe_spared: Callable[[Sequence[str]], str] | None = None,
    ) -> None:
        self._turn = threading.RLock()
        self._wall_us, self._describe_spared = wall_us, describe_spared or Sparing().describe
        self._pipeline, self._list_troubles, self._clock = pipeline, list_troubles, clock
        self._count_blocked = count_blocked
        self._blocked: int | None = None
        self._spared: dict[str, None] = {}
        self._is_live = sys.stdout.isatty()
        self._line = LiveLine()
        self._since = self._shown = self._told_at = clock()
        self._fresh = self._lines = self._dead = self._late = self._decisions = self._subjects = 0
        self._too_late = 0
        self._has_news = False
        self._attackers: dict[str, Mapping[str, Any]] = {}
        self._over: dict[str, None] = {}
        self._unlisted: dict[str, None] = {}
        self._running: tuple[float, int, int] | None = None
        self._last = ""
        self._has_told_stop = False

    def watch(self, event: str, report: BatchReport) -> None:
        """Note that a batch has begun. `show` notes its end, after all outputs. This is a stream listener."""
        with self._turn:
            if event == "submitted":
                self._running = self._clock(), report.offsets, 1
            elif event == "started" and self._running is not None:
                self._running = *self._running[:2], report.attempts

    @contextmanager
    def ticking(self, every_s: float = _TICK_EVERY_S) -> Iterator[None]:
        """Call `tick` from a separate thread while the block runs."""
        ended = threading.Event()

        def keep_ticking() -> None:
            while not ended.wait(every_s):
                try:
                    self.tick()
                except (OSError, ValueError):
                    return  # nobody reads this any more; the thread of the batches finds out on its own

        thread = threading.Thread(target=keep_ticking, name="penstock-display", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def tick(self) -> None:
        """Say what only the clock shows: a batch is still running, nothing happens, or a stop is pending."""
        with self._turn:
            now = self._clock()
            running = self._running
            if running is not None and not self._has_told_stop and self._pipeline.stream.stop_reason:
                self._has_told_stop = True
                say("Stopping: the running batch is finished first.")
            since_s = now - self._shown
            if self._is_live:
                if running is not None and now - running[0] >= _LONG_BATCH_S:
                    text = self._describe_running(running, now)
                    self._line.draw(cut(text, shutil.get_terminal_size().columns))
            elif running is not None and now - running[0] >= PLAIN_EVERY_S and since_s >= PLAIN_EVERY_S:
                say(self._describe_running(running, now))
                self._shown = now
            elif since_s >= IDLE_EVERY_S:
                last = f"at the last batch: {self._last}" if self._last else "no batch is done yet"
                say(f"Nothing new for {since_s:.0f} s; {last}")
                self._shown = now

    def show(self, news: BatchNews) -> None:
        """Note what a batch has brought, and show the numbers if they are due."""
        with self._turn:
            self._running = None
        self._fresh += news.lines
        self._lines += news.lines
        self._dead += news.dead
        self._late += news.late
        self._too_late = news.too_late
        self._subjects = news.subjects or self._subjects
        for decision in news.decisions.select(_COLUMNS).to_pylist():
            if decision["action"] == "block":
                self._note_block(decision)
            elif decision["action"] == "allowed":
                self._spared[decision["client"]] = None
        now = self._clock()
        self._has_news |= bool(news.decisions.num_rows)
        if not self._is_live and now - self._told_at < PLAIN_EVERY_S:
            return
        before, self._blocked = self._blocked, self._count_blocked(has_news=self._has_news)
        has_changed = self._fresh or self._has_news or self._blocked != before
        self._has_news = False
        if self._is_live or has_changed or now - self._shown >= IDLE_EVERY_S:
            self._show_numbers(news, now)

    def _note_block(self, decision: Mapping[str, Any]) -> None:
        client = decision["client"]
        if not can_be_listed(client):
            is_new, done = client not in self._unlisted, "found (no list can hold it)"
            self._unlisted[client] = None
        else:
            self._decisions += 1
            known = self._attackers.get(client)
            is_new, done = known is None, "blocked"
            if decision["expires_at"] <= self._wall_us():
                done = "found too late to be blocked (the ban has ended)"
                if known is None:
                    self._over[client] = None
            else:
                self._over.pop(client, None)
            if known is None or _rank(known) < _rank(decision):
                self._attackers[client] = decision
        if self._is_live and is_new:
            with self._turn:
                say(f"{done} {escape(client)}: {decision['rule']}")

    def _show_numbers(self, news: BatchNews, now: float) -> None:
        rate = self._fresh / max(now - self._since, 0.001)
        report = news.report
        took = report.planning_ms + report.processing_ms + report.storing_ms
        lag = self._pipeline.measure_lag()
        text = (
            f"{rate:,.0f} lines/s, lag {'unknown' if lag is None else format(lag, ',')}, "
            f"{self._describe_blocked()}, {self._lines:,} lines{self._describe_dead()}, batch {took:,.0f} ms"
        )
        if self._unlisted:
            text += f", {len(self._unlisted):,} named, not in any list"
        if self._spared:
            text += f", {count(len(self._spared), 'client')} spared"
        if self._too_late:
            text += f", {self._too_late:,} too late for the load"
        if self._attackers:
            text += f"; top: {self._name_attackers()}"
        text += f"; {self._subjects:,} remembered"
        # Troubles come first, since a narrow terminal shows only the beginning of the line.
        text = "".join(f"{words}; " for words in self._list_troubles()) + text
        with self._turn:
            self._last, self._shown, self._told_at = text, now, now
            if self._is_live:
                self._line.draw(cut(text, shutil.get_terminal_size().columns))
            else:
                say(text)
        if now - self._since >= _RATE_OVER_S or not self._is_live:
            self._since, self._fresh = now, 0

    def _describe_blocked(self) -> str:
        if self._blocked is None:
            return "blocked: the database does not answer"
        ended = len(self._attackers) > self._blocked
        more = f" ({len(self._attackers):,} decided in this run)" if ended else ""
        return f"{count(self._blocked, 'client')} blocked{more}"

    def _describe_dead(self) -> str:
        if not self._dead:
            return ""
        return f", {self._dead:,} dead letter{'' if self._dead == 1 else 's'} in this run"

    def _name_attackers(self) -> str:
        last_first = reversed(self._attackers.items())
        worst = sorted(last_first, key=lambda each: -each[1]["level"])[:_TOP_ATTACKERS]
        return ", ".join(f"{escape(client)} ({each['class']})" for client, each in worst)

    def close(self, reason: str) -> None:
        self._line.end()
        say(
            f"Stopped ({reason}): {count(self._lines, 'line')}, {self._dead:,} of them dead letters, "
            f"{self._late:,} out of order."
        )
        if self._decisions:
            say(self._describe_decided())
        if self._unlisted:
            complain_dated(describe_unlisted(list(self._unlisted)))
        if self._spared:
            complain_dated(self._describe_spared(list(self._spared)))
        if self._too_late:
            late = count(self._too_late, "line")
            say(f"{late} since the beginning came too late for the tables of the load; rules have seen them.")

    def _describe_running(self, running: tuple[float, int, int], now: float) -> str:
        begun, offsets, attempts = running
        what = f"a batch of {offsets:,} offset{'' if offsets == 1 else 's'}" if offsets else "a batch"
        again = f" (attempt {attempts})" if attempts > 1 else ""
        before = f"before it: {self._last}" if self._last else "it is the first of this run"
        return f"{what} has been running for {now - begun:.0f} s{again}; {before}"

    def _describe_decided(self) -> str:
        """Return a sentence on how many clients were decided upon, and why the lists may have fewer now."""
        whole, over = len(self._attackers), len(self._over)
        now_us = self._wall_us()
        ended = sum(each["expires_at"] <= now_us for each in self._attackers.values()) - over
        text = (
            f"{count(whole, 'client')} decided upon in this run, by {count(self._decisions, 'decision')} "
            "(a client that goes on gets more of them)"
        )
        blocked = self._count_blocked(has_news=True)
        if blocked is not None:
            text += f"; {blocked:,} in the lists now"
        if over:
            whose = f"the ban{'' if over == 1 else 's'} of {over:,}" if over < whole else "their bans"
            text += f": {whose} had ended before the decision, since a ban counts from the time in the log"
        if ended > 0:
            text += f"; {count(ended, 'ban')} ended since"
        return f"{text}."


def _rank(decision: Mapping[str, Any]) -> tuple[float, float, str]:
    return rank_ban(decision["expires_at"], decision["decided_at"], decision["decision_id"])


def cut(text: str, columns: int) -> str:
    """Return the text, cut so that a terminal does not wrap it: a wrapped line cannot be overwritten."""
    most = max(columns - 1, 10)
    return text if len(text) <= most else f"{text[: most - 3]}..."
