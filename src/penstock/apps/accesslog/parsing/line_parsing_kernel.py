"""The access-log kernel: turns lines into spans and numbers in one pass, by the program of a log format.

Rules: a program is a list of steps, each a field and the text behind it. A field ends where that text
begins; in quotes a backslash protects the byte behind it. Where a time or a status must follow, that text
counts only if one does follow, so a user name with brackets or a request with a bare quote does no harm.
Once client, time, request and status are read, anything that does not fit ends the reading, and the line is
good: logs have undeclared fields at their end, and lines that were cut off.

Nothing is copied or allocated per line: a text field is a position and a length.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from penstock.apps.accesslog.parsing.client_addresses import (
    find_forwarded,
    is_client,
    is_trusted,
    read_address,
    strip_port,
    strip_zone,
)
from penstock.apps.accesslog.parsing.json_line_kernel import read_document, unit_at
from penstock.apps.accesslog.parsing.line_scanning import (
    find_byte,
    find_byte_or_backslash,
    find_token_end,
    is_digit,
    matches,
    read_time,
    skip_syslog,
)
from penstock.apps.accesslog.parsing.line_slots import (
    AGENT,
    BAD_TIME,
    CLIENT,
    COUNT_OF_TEXTS,
    CUT_OFF,
    EMPTY,
    GOOD,
    LATENCY,
    METHOD,
    NO_CLIENT,
    NO_FIELD,
    NO_REQUEST,
    NO_TEXT,
    NOT_THE_FORMAT,
    NULL,
    PEER,
    PROTOCOL,
    QUERY,
    REFERRER,
    REQUEST,
    SIZE,
    STATUS,
    TARGET,
    TIME,
    USER,
    VHOST,
    XFF,
)
from penstock.kernels.compilation import inlined, kernel, part

# Operations of a program.
END, LITERAL, TEXT, READ_TIME, READ_STATUS, READ_NUMBER = range(6)
# Columns of a step. FREE: all that a line must have is read before it.
OP, SLOT, LITERAL_AT, LITERAL_SIZE, FLAGS, SCALE, FREE = range(7)
# Flags of a text: it is quoted; commas join its words; it goes on to the end of the line; it ends in a port.
QUOTED, LISTED, REST, PORTED = 1, 2, 4, 8

# What a plan says: how to choose, where each program begins, and (bits) which texts each line must have.
MODE, PLAIN, WITH_VHOST, FROM_LIST, LOOK_FOR_PREFIX, LOOK_FOR_WRAPPING, LOOKS_LIKE_JSON = range(7)
FIELDS, PLAN_WIDTH = 7, 8
FIXED, CHOOSE, ONLY_JSON = range(3)

_MAX_DIGITS = 15


class LinePlan(NamedTuple):
    """How to read a log format: how to choose a program, the steps, the trusted proxies, the JSON keys."""

    plan: Any
    steps: Any
    literals: Any
    networks: Any
    keys: Any
    key_text: Any


class LineScratch(NamedTuple):
    """Memory for one line."""

    spans: Any
    numbers: Any
    ranks: Any
    stack: Any


class ParsedColumns(NamedTuple):
    """The arrays to fill: good lines, bad lines, and queries that are in another field than the target."""

    starts: Any
    lengths: Any
    time_us: Any
    status: Any
    size: Any
    latency_us: Any
    is_json: Any
    rows: Any
    bad_rows: Any
    bad_reasons: Any
    queries: Any


@kernel
def parse_lines(buf, ends, present, program, scratch, parsed):
    """Parse all lines; return how many are good, how many are bad, how many have their query elsewhere."""
    plan, steps, literals, networks, keys, key_text = program
    spans, numbers, ranks, stack = scratch
    starts, lengths, time_us, status, size, latency_us, is_json, rows, bad_rows, bad_reasons, queries = parsed
    good = np.int64(0)
    bad = np.int64(0)
    apart = np.int64(0)
    for row in range(len(present)):
        reason = NULL
        document = False
        if present[row] != 0:
            at, end = np.int64(ends[row]), np.int64(ends[row + 1])
            while end > at and (buf[end - 1] == 0x0A or buf[end - 1] == 0x0D):
                end -= 1
            reason = EMPTY
            if end > at:
                for slot in range(len(spans)):
                    spans[slot, 1] = NO_TEXT if plan[FIELDS] >> slot & 1 != 0 else NO_FIELD
                numbers[TIME] = -1
                numbers[STATUS] = 0
                numbers[SIZE] = 0
                numbers[LATENCY] = -1
                at, end, first, document = choose_program(buf, at, end, plan)
                if document:
                    reason = read_document(buf, at, end, keys, key_text, spans, numbers, ranks, stack)
                else:
                    reason, at = run_program(buf, at, end, steps, first, literals, spans, numbers)
                    if plan[MODE] == CHOOSE and at < end and reason == GOOD:
                        read_tail(buf, at, end, numbers)
                if reason == GOOD:
                    reason = finish_line(buf, spans, networks)
        if reason != GOOD:
            bad_rows[bad] = row
            bad_reasons[bad] = reason
            bad += 1
            continue
        for slot in range(COUNT_OF_TEXTS):
            starts[slot, good] = spans[slot, 0]
            lengths[slot, good] = spans[slot, 1]
        time_us[good] = numbers[TIME]
        status[good] = numbers[STATUS]
        size[good] = numbers[SIZE]
        latency_us[good] = numbers[LATENCY]
        is_json[good] = document or plan[LOOKS_LIKE_JSON] != 0
        if spans[QUERY, 1] > 0 and has_query_apart(buf, spans):
            queries[apart, 0], queries[apart, 1], queries[apart, 2] = good, spans[QUERY, 0], spans[QUERY, 1]
            apart += 1
        rows[good] = row
        good += 1
    return good, bad, apart


@inlined
def choose_program(buf, at, end, plan):
    """Skip what surrounds a line and choose its program; return (begin, end, program, is JSON)."""
    if end - at > 3 and buf[at] == 0xEF and buf[at + 1] == 0xBB and buf[at + 2] == 0xBF:
        at += 3  # a byte order mark
    if plan[LOOK_FOR_WRAPPING] != 0 and buf[at] == 0x22 and end - at > 1:
        at += 1
        if buf[end - 1] == 0x22:
            end -= 1
    if plan[LOOK_FOR_PREFIX] != 0:
        at = skip_syslog(buf, at, end)
    if plan[MODE] == FIXED:
        return at, end, plan[PLAIN], False
    begin = at
    while begin < end and (buf[begin] == 0x20 or buf[begin] == 0x09):
        begin += 1
    if plan[MODE] == ONLY_JSON or (begin < end and buf[begin] == 0x7B):
        return begin, end, np.int64(0), True
    first = find_byte(buf, at, end, 0x20)
    if first > at and end - first >= 3 and buf[first + 1] == 0x2D and buf[first + 2] == 0x20:
        return at, end, plan[PLAIN if buf[first - 1] != 0x2C else FROM_LIST], False
    return at, end, choose_by_head(buf, at, first, end, plan), False


@part
def choose_by_head(buf, at, first, end, plan):
    """Decide, if the second word is not `-`, whether the first is a list, a virtual host or the client."""
    if first >= end:
        return plan[PLAIN]
    if first > at and buf[first - 1] == 0x2C:
        return plan[FROM_LIST]
    if read_address(buf, at, strip_zone(buf, at, first))[0]:
        return plan[PLAIN]
    second = strip_zone(buf, first + 1, find_token_end(buf, first + 1, end))
    if read_address(buf, first + 1, second)[0]:
        return plan[WITH_VHOST]
    begin, stop = strip_port(buf, at, first)
    return plan[WITH_VHOST] if stop - begin < first - at else plan[PLAIN]


@inlined
def read_status(buf, at, end):
    """Read three digits or `-`; return (status, position behind it), with status -1 if neither is there."""
    if end - at >= 3 and is_digit(buf[at]) and is_digit(buf[at + 1]) and is_digit(buf[at + 2]):
        if end - at == 3 or not is_digit(buf[at + 3]):
            value = np.int64(buf[at]) * 100 + np.int64(buf[at + 1]) * 10 + np.int64(buf[at + 2])
            return value - 0x30 * 111, at + 3
    elif end > at and buf[at] == 0x2D and (end - at == 1 or buf[at + 1] == 0x20):
        return np.int64(0), at + 1
    return np.int64(-1), at


@inlined
def read_measure(buf, at, end, scale, nothing):
    """Read a number or `-`, times `scale`, rounded; return (value, position behind it or -1)."""
    begin = at
    value = np.int64(0)
    while at < end and is_digit(buf[at]):
        if at - begin >= _MAX_DIGITS:
            return nothing, np.int64(-1)
        value = value * 10 + np.int64(buf[at]) - 0x30
        at += 1
    if at == begin:
        if at < end and buf[at] == 0x2D:
            return nothing, at + 1
        return nothing, np.int64(-1)
    if value > (np.int64(1) << 62) // scale:
        return nothing, np.int64(-1)
    value *= scale
    if end - at >= 2 and buf[at] == 0x2E and is_digit(buf[at + 1]):
        at += 1
        while at < end and is_digit(buf[at]):
            if scale == 1 and buf[at] >= 0x35:  # the first digit that is too fine decides
                value += 1
            scale //= 10
            value += (np.int64(buf[at]) - 0x30) * scale
            at += 1
    return value, at


@part
def run_program(buf, at, end, steps, step, literals, spans, numbers):
    """Run the steps over one line; return (GOOD or the reason why it is bad, where the reading ended)."""
    while True:
        operation = steps[step, OP]
        if operation == END:
            return GOOD, at
        literal, size = steps[step, LITERAL_AT], steps[step, LITERAL_SIZE]
        reason = NOT_THE_FORMAT
        if operation == TEXT:
            close, at, more = read_text(buf, at, end, steps, step, literals, spans, numbers)
            if close < 0:
                follower = steps[step + 1, OP]
                if follower == READ_TIME:
                    return BAD_TIME, at
                return (NO_REQUEST if follower == READ_STATUS else CUT_OFF), at
            if steps[step, FLAGS] & PORTED != 0:
                cut_port(buf, spans, steps[step, SLOT])
            if more == 0:
                return GOOD, at
            step += more
            continue
        if operation == READ_TIME:
            fits, numbers[TIME], stop = read_time(buf, at, end)
            reason = GOOD if fits else BAD_TIME
        elif operation == READ_STATUS:
            code, stop = read_status(buf, at, end)
            if code >= 0:
                numbers[STATUS] = code
                reason = GOOD
        elif operation == READ_NUMBER:
            slot = steps[step, SLOT]
            value, stop = read_measure(buf, at, end, steps[step, SCALE], numbers[slot])
            if stop >= 0:
                numbers[slot] = value
                reason = GOOD
        else:
            stop = at
            reason = GOOD
        if reason != GOOD:
            return (GOOD if steps[step, FREE] != 0 else reason), at
        if not matches(buf, stop, end, literals, literal, size):
            if steps[step, FREE] != 0:
                return GOOD, stop
            if steps[step + 1, FREE] != 0 and (stop >= end or buf[stop] == 0x20):
                return GOOD, stop
            return (CUT_OFF if stop + size > end else NOT_THE_FORMAT), at
        at = stop + size
        step += 1


@part
def cut_port(buf, spans, slot):
    """Drop the last colon and the digits behind it."""
    begin = spans[slot, 0]
    stop = begin + spans[slot, 1]
    colon = stop - 1
    while colon > begin and is_digit(buf[colon]):
        colon -= 1
    if begin < colon < stop - 1 and buf[colon] == 0x3A:
        spans[slot, 1] = colon - begin


@inlined
def read_text(buf, at, end, steps, step, literals, spans, numbers):
    """Read a text field; return (its end or -1, where to continue, steps done or 0 if the line is done)."""
    literal, size, flags = steps[step, LITERAL_AT], steps[step, LITERAL_SIZE], steps[step, FLAGS]
    slot = steps[step, SLOT]
    free = steps[step, FREE] != 0
    begin = at
    quoted = flags & QUOTED != 0
    if size == 0:  # the last field, and nothing behind it
        close = end if flags & REST != 0 else find_byte(buf, at, end, 0x20)
        spans[slot, 0], spans[slot, 1] = begin, close - begin
        return close, close, np.int64(1)
    wanted = literals[literal]
    follower = steps[step + 1, OP]
    escaped = quoted
    while True:
        escapes = False
        while at < end:
            at = find_byte_or_backslash(buf, at, end, wanted) if escaped else find_byte(buf, at, end, wanted)
            if at >= end:
                break
            if escaped and buf[at] == 0x5C:
                escapes = True
                at += 2
                continue
            listed = flags & LISTED != 0 and at > begin and buf[at - 1] == 0x2C
            if not listed and matches(buf, at, end, literals, literal, size):
                stop = at + size
                more = np.int64(1)
                if follower == READ_TIME:
                    fits, micros, stop = read_time(buf, stop, end)
                    behind = steps[step + 1, LITERAL_SIZE]
                    if fits and matches(buf, stop, end, literals, steps[step + 1, LITERAL_AT], behind):
                        numbers[TIME] = micros
                        stop += behind
                        more = np.int64(2)
                    else:
                        more = np.int64(0)
                elif follower == READ_STATUS and read_status(buf, stop, end)[0] < 0:
                    more = np.int64(0)
                if more > 0:
                    spans[slot, 0], spans[slot, 1] = begin, at - begin
                    return at, stop, more
            elif quoted and free and (at + 1 == end or buf[at + 1] == 0x20):
                spans[slot, 0], spans[slot, 1] = begin, at - begin
                return at, at + 1, np.int64(0)
            at += 1
        # The server may escape nothing, and the request may end in a backslash: retry without escapes.
        if not escapes or free:
            break
        escaped = False
        at = begin
    if not free:
        return np.int64(-1), at, np.int64(0)
    close = end if quoted else find_byte(buf, begin, end, 0x20)
    spans[slot, 0], spans[slot, 1] = begin, close - begin
    return close, close, np.int64(0)


@part
def read_tail(buf, at, end, numbers):
    """Read the latency behind all known fields: the first number with a fraction (seconds) or a unit."""
    while at < end:
        if buf[at] == 0x22:
            at = find_byte(buf, at + 1, end, 0x22) + 1
            continue
        if buf[at] == 0x20:
            at += 1
            continue
        stop = find_byte(buf, at, end, 0x20)
        if is_digit(buf[at]):
            digits = at
            while digits < stop and (is_digit(buf[digits]) or buf[digits] == 0x2E):
                digits += 1
            unit = unit_at(buf, digits, stop)
            scale = unit // 1000 if unit >= 1000 else np.int64(1_000_000)
            value, behind = read_measure(buf, at, digits, scale, np.int64(-1))
            fraction = behind == digits and find_byte(buf, at, digits, 0x2E) < digits
            if behind == digits and ((digits == stop and fraction) or unit >= 1000):
                numbers[LATENCY] = value
                return
        at = stop


@part
def has_query_apart(buf, spans):
    """Return whether the query is a field of its own, and not behind the target already."""
    if spans[TARGET, 1] < 0 or (spans[QUERY, 1] == 1 and buf[spans[QUERY, 0]] == 0x2D):
        return False
    stop = spans[TARGET, 0] + spans[TARGET, 1]
    return find_byte(buf, spans[TARGET, 0], stop, 0x3F) == stop


@inlined
def finish_line(buf, spans, networks):
    """Derive client, method, target and the rest from what was logged; return GOOD or why the line is bad."""
    if spans[REQUEST, 1] >= 0:
        split_request(buf, spans)
        for slot in (METHOD, PROTOCOL):
            spans[slot, 1] = max(spans[slot, 1], NO_TEXT)
    for slot in (USER, METHOD, PROTOCOL, REFERRER, AGENT, VHOST, XFF):
        if spans[slot, 1] == 1 and buf[spans[slot, 0]] == 0x2D:
            spans[slot, 1] = NO_TEXT
    if spans[VHOST, 1] > 0:
        begin, stop = strip_port(buf, spans[VHOST, 0], spans[VHOST, 0] + spans[VHOST, 1])
        spans[VHOST, 0], spans[VHOST, 1] = begin, stop - begin
    has_peer = spans[PEER, 1] >= 0
    begin, stop = spans[PEER, 0], spans[PEER, 0]
    if has_peer:
        begin, stop = strip_port(buf, begin, begin + spans[PEER, 1])
        if not is_client(buf, begin, stop):
            return NO_CLIENT
        stop = strip_zone(buf, begin, stop)
        spans[PEER, 0], spans[PEER, 1] = begin, stop - begin
    # If the log has no peer, whoever configured it vouches for the right end of the list.
    if spans[XFF, 1] >= 0 and (
        not has_peer or (len(networks) > 0 and is_trusted(buf, begin, stop, networks)[1])
    ):
        first, last = find_forwarded(buf, spans[XFF, 0], spans[XFF, 0] + spans[XFF, 1], networks)
        if first >= 0:
            spans[CLIENT, 0], spans[CLIENT, 1] = first, last - first
            return GOOD
    spans[CLIENT, 0], spans[CLIENT, 1] = begin, stop - begin
    return GOOD if has_peer else NO_CLIENT


@inlined
def is_word(buf, at, end):
    """Return whether these bytes can be a method: letters, digits, `-`, `_` and `.`."""
    for i in range(at, end):
        c = buf[i]
        if not (0x41 <= c <= 0x5A or 0x61 <= c <= 0x7A or is_digit(c) or c == 0x2D or c == 0x5F or c == 0x2E):
            return False
    return end > at


@inlined
def is_protocol(buf, at, end):
    """Return whether these bytes are capital letters, a slash, and a digit: `HTTP/1.1`."""
    i = at
    while i < end and 0x41 <= buf[i] <= 0x5A:
        i += 1
    return i > at and end - i >= 2 and buf[i] == 0x2F and is_digit(buf[i + 1])


@inlined
def split_request(buf, spans):
    """Split `METHOD TARGET PROTOCOL`, or `METHOD /...`; anything else is a target as a whole.

    A method or target that is logged in a field of its own takes precedence, unless the request is complete.
    """
    begin = spans[REQUEST, 0]
    end = begin + spans[REQUEST, 1]
    alone = spans[METHOD, 1] < 0 and spans[TARGET, 1] < 0
    first = find_byte(buf, begin, end, 0x20)
    if first < end and is_word(buf, begin, first):
        last = end - 1
        while buf[last] != 0x20:
            last -= 1
        if last > first + 1 and is_protocol(buf, last + 1, end):
            spans[METHOD, 0], spans[METHOD, 1] = begin, first - begin
            spans[TARGET, 0], spans[TARGET, 1] = first + 1, last - first - 1
            spans[PROTOCOL, 0], spans[PROTOCOL, 1] = last + 1, end - last - 1
            return
        if alone and end - first >= 2 and buf[first + 1] == 0x2F:
            spans[METHOD, 0], spans[METHOD, 1] = begin, first - begin
            spans[TARGET, 0], spans[TARGET, 1] = first + 1, end - first - 1
            return
    if spans[TARGET, 1] < 0:
        spans[TARGET, 0], spans[TARGET, 1] = begin, end - begin
