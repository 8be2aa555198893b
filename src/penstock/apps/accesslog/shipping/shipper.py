"""Ships log files into Kafka: each line once for readers of committed records, whatever is killed, and when.

Rule: lines and the position behind them are one transaction. Every life of a shipper begins the same way:
fence, read the position, and write that it is taken over. After any failure the shipper starts again from
there: there is only one way to recover, so it is well tested. Each life writes its own mark into the
position, which distinguishes a shipper that took too long from one that was replaced. An idle shipper writes
it as a heartbeat, to notice that it was replaced and to be seen.

Two shippers of one name replace each other, as at a restart. One that follows other files must not: it is
refused after it has fenced, because only then is the position settled; the other one finds its own mark and
continues. Why not read on while a transaction is written: two cannot be open at once, and reading takes less
time.

    shipper = Shipper(client, ShipSettings(("/var/log/apache2/access.log",), topic="lines", server="web1"))
    shipper.run(stopping)         # until `stopping` is set, or with `once` until all is read
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from penstock.apps.accesslog.parsing.line_parser import SERVER_HEADER, Parser, parse_input
from penstock.apps.accesslog.shipping.log_file_names import find_left_out
from penstock.apps.accesslog.shipping.log_follower import CHUNK_BYTES, LONGEST_LINE_BYTES, LogFollower, Piece
from penstock.apps.accesslog.shipping.shipped_positions import DEFAULT_TOPIC, PositionTopic, ShipState
from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import BrokerError, OptionError, SinkError
from penstock.core.loggers import get_logger
from penstock.core.outages import has_stopped, hearing_stop
from penstock.kafka.records.codecs import LZ4
from penstock.kafka.records.record_schema import HEADERS
from penstock.kafka.writing.transactional_producer import FENCED, TRANSACTION_LOST, TransactionalWriter
from penstock.kernels.byte_columns import open_column

log = get_logger(__name__)

KeyChoice = Literal["client", "server", "none"]
_AUTO = Parser()
CUT_HEADER = "cut"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
#: A shipper that takes over has usually left its mark by then; fencing it earlier would replace it.
_FENCED_PAUSE_S = 2.0
#: How often an idle shipper writes a heartbeat, and for how long after one it counts as running.
HEARTBEAT_S = 10.0
_THERE_FOR_S = 3 * HEARTBEAT_S
#: What a record has besides its line and the server's name: a key, headers, and the header of its batch.
_AROUND_A_LINE = 1_024


@dataclass(frozen=True, slots=True)
class ShipSettings:
    """What is shipped, where to, and how.

    `name` identifies a shipper; two that run at once need two names. `parser` says how lines are written and
    which proxies name the client; it is used for the key `client`.
    """

    files: tuple[str, ...]
    topic: str
    server: str
    key: KeyChoice = "client"
    parser: Parser = _AUTO
    name: str = ""
    positions_topic: str = DEFAULT_TOPIC
    once: bool = False
    from_end: bool = False
    history: bool = False
    codec: int = LZ4
    transaction_bytes: int = 8 << 20
    chunk_bytes: int = CHUNK_BYTES
    longest_line: int = LONGEST_LINE_BYTES
    poll_ms: int = 200
    quiet_s: float = 30.0
    heartbeat_s: float = HEARTBEAT_S
    transaction_timeout_ms: int = 60_000
    give_up_ms: int = 120_000

    @property
    def shipper(self) -> str:
        return self.name or f"{self.server}/{self.topic}"


@dataclass(slots=True)
class Shipped:
    """What this run has done so far."""

    lines: int = 0
    size: int = 0
    cut_lines: int = 0
    transactions: int = 0
    recoveries: int = 0
    lost_files: int = 0
    path: str = ""


class Shipper:
    """One shipper's life. `tell` is called after each transaction."""

    def __init__(
        self,
        client: ClientSettings,
        settings: ShipSettings,
        tell: Callable[[Shipped], None] = lambda _shipped: None,
    ) -> None:
        self.settings = settings
        self.shipped = Shipped()
        self._tell = tell
        self._life = secrets.token_hex(8)
        self._store = PositionTopic(client, settings.positions_topic)
        self._writer = TransactionalWriter(
            client,
            f"penstock-ship-{settings.shipper}",
            codec=settings.codec,
            transaction_timeout_ms=settings.transaction_timeout_ms,
        )
        self._state = ShipState()
        self._follower: LogFollower | None = None
        self._lost: set[tuple[str, int, int]] = set()
        self._lines_before: int | None = None
        self._was_refused = False
        self._patterns = tuple(os.path.abspath(each) for each in settings.files)
        self._wrote_at = 0.0

    def run(self, stopping: threading.Event) -> Shipped:
        """Ship until `stopping` is set or, with `once`, all is read; return what was shipped.

        The transaction under way is ended first. Brokers that are unreachable then are waited for only a few
        seconds. Nothing is at stake: the next life finds out on its own what they have not received.
        """
        with hearing_stop(_note_moment(stopping)):
            return self._run(stopping)

    def _run(self, stopping: threading.Event) -> Shipped:
        self._store.prepare()
        _check_line_limit(self._writer.learn_limit(self.settings.topic), self.settings)
        self._writer.learn_limit(self._store.topic)  # known now, it takes no time of a transaction
        pause_s, failing_since = _FIRST_PAUSE_S, 0.0
        try:
            while True:
                before = self.shipped.transactions
                try:
                    self._take_over()
                    self._ship(stopping)
                    self._sign_off()
                    return self.shipped
                except BrokerError as error:
                    if stopping.is_set() and (error.retriable or has_stopped(error)):
                        log.warning("Ended without an answer; the next start ships what is left: %s", error)
                        return self.shipped
                    if self.shipped.transactions > before or not failing_since:
                        pause_s, failing_since = _FIRST_PAUSE_S, time.monotonic()
                    self._judge(error, time.monotonic() - failing_since)
                if stopping.wait(max(pause_s, _FENCED_PAUSE_S) if self._was_refused else pause_s):
                    return self.shipped
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        finally:
            self._close_files()
            self._writer.close()  # nothing stays open that readers would have to wait for

    def _judge(self, error: BrokerError, failing_s: float) -> None:
        """Raise the error if a retry will not help."""
        self._was_refused |= error.condition == FENCED
        if not (error.retriable or error.condition == FENCED or error.condition in TRANSACTION_LOST):
            raise error
        if self.settings.once and failing_s * 1000 > self.settings.give_up_ms:
            raise error
        self.shipped.recoveries += 1
        log.warning("Continuing from the stored position after a failure: %s", error)

    # --- the steps ----------------------------------------------------------------------------------

    def _take_over(self) -> None:
        """Fence, read the stable position, open the files at it, and write the mark of this life."""
        self._close_files()
        settings = self.settings
        if self._was_refused and self._store.load(settings.shipper).life != self._life:
            raise SinkError(
                "SHIPPER_REPLACED",
                f"Another shipper named {settings.shipper} has taken over.",
                hint="Run one at a time, or give them different names.",
                facts={"name": settings.shipper},
            )
        self._writer.fence()
        state = self._store.load(settings.shipper)
        self._demand_place(state)
        if self._lines_before is None:
            self._lines_before = state.lines
        self.shipped.lines = state.lines - self._lines_before  # also after an unknown outcome
        self._follower = LogFollower(
            settings.files,
            state.files,
            from_end=settings.from_end and not state.life,
            history=settings.history,
            chunk_bytes=settings.chunk_bytes,
            longest_line=settings.longest_line,
            quiet_s=0.0 if settings.once else settings.quiet_s,
        )
        self._count_lost()
        mine = replace(state, life=self._life, patterns=self._patterns, is_over=False)
        with self._writer.transaction():
            self._write_position(state, replace(mine, files=self._follower.positions()))
        self._was_refused, self._wrote_at = False, time.monotonic()

    def _demand_place(self, state: ShipState) -> None:
        """Raise SHIPPER_IS_THERE if a shipper of this name works on files that this one does not follow."""
        ago_s = abs(time.time() - state.written_ms / 1000)
        if state.is_over or state.life in ("", self._life) or ago_s > _THERE_FOR_S:
            return
        left = find_left_out(state.patterns, self._patterns)
        if left:
            name, told = self.settings.shipper, ", ".join(left[:3] + ["others"] * bool(left[3:]))
            raise SinkError(
                "SHIPPER_IS_THERE",
                f"A shipper named {name} follows {told}, and was there {ago_s:.0f} s ago. This one follows "
                "other files: it would end that shipper, and its files would no longer be shipped.",
                hint="Give this one a name of its own with --name, or give all files to one shipper. If that "
                f"one was killed, try again in {_THERE_FOR_S:.0f} s.",
                facts={"name": name, "left_out": left},
            )

    def _sign_off(self) -> None:
        """Write that this life is over, so that a shipper with other files may take over at once."""
        with self._writer.transaction():
            self._write_position(self._state, replace(self._state, is_over=True))

    def _count_lost(self) -> None:
        assert self._follower is not None
        self._lost |= {(each.path, *each.identity) for each in self._follower.lost}
        self.shipped.lost_files = len(self._lost)

    def _ship(self, stopping: threading.Event) -> None:
        follower = self._follower
        assert follower is not None
        while not stopping.is_set():
            pieces = self._read()
            is_due = time.monotonic() - self._wrote_at >= self.settings.heartbeat_s
            if pieces or is_due or follower.positions() != self._state.files:
                self._send(pieces)
            elif self.settings.once and follower.is_drained:
                if not follower.is_following:
                    raise _nothing_found(self.settings.files)
                return
            if not pieces and not (self.settings.once and not follower.is_drained):
                stopping.wait(min(self.settings.poll_ms / 1000, self.settings.heartbeat_s))

    def _read(self) -> list[Piece]:
        assert self._follower is not None
        pieces = self._follower.read(self.settings.transaction_bytes)
        self._count_lost()
        return pieces

    def _send(self, pieces: list[Piece]) -> None:
        assert self._follower is not None
        lines = sum(len(piece.lines) for piece in pieces)
        state = replace(self._state, files=self._follower.positions(), lines=self._state.lines + lines)
        self._writer.begin()
        if pieces:
            self._write_lines(self._make_records(pieces))
        self._write_position(self._state, state)
        self._end()
        self._wrote_at = time.monotonic()
        self.shipped.lines += lines
        self.shipped.size += sum(piece.size for piece in pieces)
        self.shipped.cut_lines += sum(piece.cut_rows.size for piece in pieces)
        self.shipped.transactions += 1
        self.shipped.path = pieces[-1].path if pieces else self.shipped.path
        self._tell(self.shipped)

    def _make_records(self, pieces: list[Piece]) -> pa.RecordBatch:
        return make_records(pieces, self.settings.server, self.settings.key, self.settings.parser)

    def _write_lines(self, records: pa.RecordBatch) -> None:
        self._writer.write(self.settings.topic, records)

    def _write_position(self, before: ShipState, state: ShipState) -> None:
        """Write the position. Any failure leads to a restart, so the state written last is the stored one."""
        state = replace(state, step=before.step + 1)
        self._writer.write(self._store.topic, self._store.make_records(self.settings.shipper, before, state))
        self._state = state

    def _end(self) -> None:
        self._writer.commit()

    def _close_files(self) -> None:
        if self._follower is not None:
            self._follower.close()
            self._follower = None


def _note_moment(stopping: threading.Event) -> Callable[[], float | None]:
    """Return a function that says when `stopping` was set, on the monotonic clock; None if it is not."""
    moments: list[float] = []

    def find() -> float | None:
        if stopping.is_set() and not moments:
            moments.append(time.monotonic())
        return moments[0] if moments else None

    return find


def make_records(pieces: list[Piece], server: str, key: KeyChoice, parser: Parser = _AUTO) -> pa.RecordBatch:
    """Return lines as columns of records: client or server as the key, the server's name in a header."""
    lines = pieces[0].lines if len(pieces) == 1 else pa.concat_arrays([piece.lines for piece in pieces])
    columns = {"value": lines, "headers": _make_headers(pieces, len(lines), server)}
    if key == "client":
        columns["key"] = find_clients(lines, parser)
    elif key == "server":
        columns["key"] = pa.array([server.encode()]).take(pa.array(np.zeros(len(lines), np.int64)))
    return pa.record_batch(columns)


def find_clients(lines: pa.Array, parser: Parser = _AUTO) -> pa.Array:
    """Return the client of each line as a pipeline with this parser finds it; for IPv6, its network."""
    from penstock.apps.accesslog.shipping.client_key_kernel import (
        ADDRESS_SIZE,
        JSON_NAMES,
        JSON_STARTS,
        LONGEST_KEY,
        cut_clients,
    )

    column = open_column(lines.cast(pa.binary()))
    parsed = parse_input(column, parser)
    known_at, known_size = np.zeros(len(lines), np.int64), np.zeros(len(lines), np.int64)
    known_at[parsed.rows], known_size[parsed.rows] = parsed.starts["client"], parsed.lengths["client"]
    ends = column.ends.astype(np.int64)
    sizes = np.clip(np.diff(ends), ADDRESS_SIZE, LONGEST_KEY)
    out = np.empty(int(sizes.sum()), np.uint8)
    starts = np.zeros(len(lines) + 1, np.int64)
    if not cut_clients(column.data, ends, known_at, known_size, out, starts, JSON_NAMES, JSON_STARTS):
        raise AssertionError("a client is longer than its line")
    return pa.Array.from_buffers(
        pa.large_binary(), len(lines), [None, pa.py_buffer(starts), pa.py_buffer(out)]
    )


def _make_headers(pieces: list[Piece], rows: int, server: str) -> pa.Array:
    plain = [{"key": SERVER_HEADER, "value": server.encode()}]
    choice = np.zeros(rows, np.int64)
    before = 0
    for piece in pieces:
        choice[before + piece.cut_rows] = 1
        before += len(piece.lines)
    cut = [*plain, {"key": CUT_HEADER, "value": b"1"}]
    return pa.array([plain, cut], HEADERS).take(pa.array(choice))


def _check_line_limit(limit: int | None, settings: ShipSettings) -> None:
    """Refuse lines that would not fit into the largest batch that the topic takes."""
    if limit is None:
        return
    # What cannot be compressed grows a little in the attempt.
    most = int(limit * 0.99) - _AROUND_A_LINE - len(settings.server.encode())
    if settings.longest_line > most:
        raise OptionError(
            "LINE_LIMIT_TOO_LARGE",
            f"Lines of up to {settings.longest_line} bytes are to be shipped, but topic {settings.topic} "
            f"takes messages of up to {limit} bytes.",
            hint=f"Set --max-line-bytes to {max(most, 1)} or less, or raise max.message.bytes of the topic.",
            facts={"topic": settings.topic, "limit": limit, "asked": settings.longest_line},
        )


def _nothing_found(patterns: tuple[str, ...]) -> OptionError:
    return OptionError(
        "NO_SUCH_FILE",
        f"No file matches {', '.join(patterns)}.",
        hint="Check the names and the permission to read them. Without --once, they are waited for.",
        facts={"patterns": list(patterns)},
    )
