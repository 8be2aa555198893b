"""Parses lines of access logs into columns: common, combined, virtual hosts, any `LogFormat`, nginx, JSON.

Rules: every line is parsed or is a bad row with a reason, and the two add up to the lines given. A parsed
line has a client and a time; a request that is `-`, binary or odd in another way is parsed, and its text is
the target. Text fields are spans of the bytes that came in: nothing is copied or decoded, so what matters to
a rule is still there. Why not decode here: code that examines a target must decode it in its own way, twice.

>>> import pyarrow as pa
>>> log = [b'192.0.2.7 - - [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.0" 200 23', b"nonsense"]
>>> lines = make_parser().parse(pa.array(log))
>>> take_texts(lines, "target").to_pylist(), lines.status.tolist(), lines.time_us.tolist()
([b'/a'], [200], [971211336000000])
>>> lines.bad_rows.tolist(), BAD_REASONS[lines.bad_reasons[0]]
([1], 'the line ends too early')
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.apps.accesslog.parsing import line_parsing_kernel as k
from penstock.apps.accesslog.parsing import log_formats
from penstock.apps.accesslog.parsing.client_addresses import make_networks
from penstock.apps.accesslog.parsing.json_keys import make_key_table, read_choices
from penstock.apps.accesslog.parsing.json_line_kernel import MAX_DEPTH
from penstock.apps.accesslog.parsing.line_slots import (
    BAD_REASONS,
    COUNT_OF_NUMBERS,
    COUNT_OF_SPANS,
    COUNT_OF_TEXTS,
    TARGET,
    TEXT_FIELDS,
)
from penstock.apps.accesslog.parsing.line_texts import copy_texts, join_queries
from penstock.kernels.byte_columns import Array, ByteColumn, open_column

__all__ = ["BAD_REASONS", "SERVER_HEADER", "TEXT_FIELDS", "Lines", "Parser", "make_parser", "take_texts"]

#: The header of a record that names the web server its line is from.
SERVER_HEADER = "server"
_idle = threading.local()


@dataclass(frozen=True, slots=True)
class Lines:
    """The parsed lines of a column, and the rows that could not be parsed.

    Text fields, each in `starts` and `lengths`: `client` (behind trusted proxies; always there), `peer` (as
    it was logged), `user`, `method`, `target`, `protocol`, `referrer`, `agent`, `vhost` (without its port).
    A field that is `-` says something about the client; a field that the log does not have says nothing. So
    there are two lengths for a missing text: -1 if the field is `-`, null or the like; -2 if the format has
    no such field, or (`auto` and JSON) the line has none.
    """

    data: NDArray[np.uint8]  # the bytes of all lines; the column's own, unless queries had to be joined
    rows: NDArray[np.int32]  # the row of each parsed line, ascending
    starts: dict[str, NDArray[np.int32]]  # where a text begins in `data` ...
    lengths: dict[str, NDArray[np.int32]]  # ... and its length; -1: `-` or the like; -2: no such field
    time_us: NDArray[np.int64]  # since 1970, UTC
    status: NDArray[np.int16]  # 0: none
    size: NDArray[np.int64]  # bytes sent; 0 for `-`
    latency_us: NDArray[np.int64]  # -1: not logged
    is_json: NDArray[np.bool_]  # texts have JSON's escapes, not Apache's
    bad_rows: NDArray[np.int32]  # rows that could not be parsed, ascending
    bad_reasons: NDArray[np.int8]  # why, as indexes into `BAD_REASONS`

    def __len__(self) -> int:
        return int(self.rows.size)


@dataclass(frozen=True, slots=True)
class Parser:
    """A log format and the trusted proxies, as a value to send around; programs are built where they run."""

    log_format: str = "auto"
    trusted_proxies: tuple[str, ...] = ()

    def parse(self, values: pa.Array | pa.ChunkedArray) -> Lines:
        """Parse each value as one line. Values are binary or text; a null is a bad row."""
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if not (pa.types.is_binary(values.type) or pa.types.is_string(values.type)):
            values = values.cast(pa.binary())
        return parse_input(open_column(values), self)


def make_parser(log_format: str = "auto", trusted_proxies: Iterable[str] = ()) -> Parser:
    """Return a parser for `auto`, a format's name, or a format string of Apache or nginx; checked at once."""
    parser = Parser(log_format, tuple(trusted_proxies))
    _make_program(parser.log_format, parser.trusted_proxies)
    return parser


def take_texts(lines: Lines, field: str) -> pa.BinaryArray:
    """Return a copy of a text field of all parsed lines; null for a line without it."""
    return copy_texts(lines.data, lines.starts[field], lines.lengths[field])


def parse_input(source: ByteColumn, parser: Parser, allocate: Callable[..., Array] = np.empty) -> Lines:
    """Parse an opened column; the arrays that are filled come from `allocate`."""
    count = source.rows
    parsed = k.ParsedColumns(
        starts=allocate((COUNT_OF_TEXTS, count), np.int32),
        lengths=allocate((COUNT_OF_TEXTS, count), np.int32),
        time_us=allocate(count, np.int64),
        status=allocate(count, np.int16),
        size=allocate(count, np.int64),
        latency_us=allocate(count, np.int64),
        is_json=allocate(count, np.bool_),
        rows=allocate(count, np.int32),
        bad_rows=allocate(count, np.int32),
        bad_reasons=allocate(count, np.int8),
        queries=allocate((count, 3), np.int32),
    )
    program = _make_program(parser.log_format, parser.trusted_proxies)
    good, bad, apart = k.parse_lines(source.data, source.ends, source.present, program, _scratch(), parsed)
    starts, lengths = parsed.starts, parsed.lengths
    data = _hold(source.data, source)
    if apart:
        data = join_queries(data, starts[TARGET], lengths[TARGET], parsed.queries[:apart])
    return Lines(
        data=data,
        rows=parsed.rows[:good],
        starts={name: starts[slot, :good] for slot, name in enumerate(TEXT_FIELDS)},
        lengths={name: lengths[slot, :good] for slot, name in enumerate(TEXT_FIELDS)},
        time_us=parsed.time_us[:good],
        status=parsed.status[:good],
        size=parsed.size[:good],
        latency_us=parsed.latency_us[:good],
        is_json=parsed.is_json[:good],
        bad_rows=parsed.bad_rows[:bad],
        bad_reasons=parsed.bad_reasons[:bad],
    )


@functools.lru_cache(maxsize=64)
def _make_program(log_format: str, proxies: tuple[str, ...]) -> k.LinePlan:
    """Return the plan that the kernel gets for a format."""
    plan = np.zeros(k.PLAN_WIDTH, np.int64)
    choices = read_choices(log_format)
    plan[[k.LOOK_FOR_PREFIX, k.LOOK_FOR_WRAPPING]] = 1
    if log_format == "auto":
        plan[k.MODE] = k.CHOOSE
        formats = [log_formats.PLAIN, log_formats.WITH_VHOST, log_formats.FROM_LIST]
    else:
        plan[k.MODE] = k.FIXED if choices is None else k.ONLY_JSON
        formats = [log_formats.NAMED.get(log_format, log_format)] if choices is None else [log_formats.PLAIN]
    programs = [log_formats.compile_format(each) for each in formats]
    if plan[k.MODE] == k.FIXED:
        texts_of = programs[0].steps[programs[0].steps[:, k.OP] == k.TEXT, k.SLOT]
        plan[k.FIELDS] = np.bitwise_or.reduce(1 << texts_of)
    if len(programs) == 1:
        plan[k.LOOK_FOR_PREFIX] = not programs[0].begins_with_time
        plan[k.LOOKS_LIKE_JSON] = programs[0].looks_like_json
        plan[k.LOOK_FOR_WRAPPING] = not programs[0].begins_with_quote
    steps: list[Array] = []
    literals = b""
    for place, program in zip((k.PLAIN, k.WITH_VHOST, k.FROM_LIST), programs, strict=False):
        plan[place] = sum(len(each) for each in steps)
        moved = program.steps.copy()
        moved[:, k.LITERAL_AT] += len(literals)
        literals += program.literals.tobytes()
        steps.append(moved)
    texts = np.frombuffer(bytearray(literals), np.uint8)
    keys, key_text = make_key_table(choices or ())
    return k.LinePlan(plan, np.concatenate(steps), texts, make_networks(proxies), keys, key_text)


def _scratch() -> k.LineScratch:
    """Return memory for one line, kept per thread."""
    kept: k.LineScratch | None = getattr(_idle, "scratch", None)
    if kept is None:
        kept = _idle.scratch = k.LineScratch(
            spans=np.zeros((COUNT_OF_SPANS, 2), np.int64),
            numbers=np.zeros(COUNT_OF_NUMBERS, np.int64),
            ranks=np.zeros(COUNT_OF_SPANS + COUNT_OF_NUMBERS, np.int64),
            stack=np.zeros(MAX_DEPTH, np.int64),
        )
    return kept


def _hold(data: Array, owner: object) -> Array:
    """Return the same bytes as an array that keeps their owner, the column, alive: it owns the memory."""
    if not data.size:
        return data
    memory = (ctypes.c_uint8 * data.size).from_address(data.ctypes.data)
    memory.owner = owner  # type: ignore[attr-defined]
    return np.ctypeslib.as_array(memory)
