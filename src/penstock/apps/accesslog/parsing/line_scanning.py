"""Scans the bytes of access-log lines for the kernels: stop bytes, times, numbers, syslog prefixes.

Rules: each function gets `end` and never looks at a byte at or behind it. Each looks at a byte a bounded
number of times, so a line twice as long takes twice as long. Times are recognised by their form, not by a
given pattern: `10/Oct/2000:13:55:36 -0700`, `2000-10-10T13:55:36.5Z` and seconds, milli-, micro- or
nanoseconds since 1970.

Why not a regular expression per line: the usual one for a combined line backtracks at every quote that does
not match, and makes ten objects of every line that does.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numba
import numpy as np
from numba.cpython.unsafe.numbers import trailing_zeros

from penstock.kernels.compilation import inlined, load_word, part
from penstock.kernels.number_and_time_parsing import days_of

_ONES = np.uint64(0x0101010101010101)
_TOPS = np.uint64(0x8080808080808080)
_SLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)
_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTHS = np.array([int.from_bytes(name.encode()) for name in _NAMES], np.int64)
#: Zones further from UTC than this are invalid; no clock on earth has one.
_FURTHEST_ZONE_S = 18 * 3600
#: No server has logged before 1970 or will after 9999: times outside are damaged.
_LAST_DAY = 2_932_896

if numba.config.BOUNDSCHECK:  # also the way the kernels run as plain Python, to count their steps

    @inlined
    def first_marked(mask):
        at = np.int64(0)
        while (np.uint64(mask) >> np.uint64(8 * at)) & np.uint64(0x80) == 0:
            at += 1
        return at

else:

    @inlined
    def first_marked(mask):
        """Return the number of the first byte in a word whose top bit is set; there must be one."""
        return np.int64(trailing_zeros(mask)) >> 3


@inlined
def find_byte(buf, at, end, wanted):
    """Return where `wanted` first occurs; `end` if it does not."""
    pattern = _ONES * np.uint64(wanted)
    while end - at >= 8:
        word = load_word(buf, at) ^ pattern
        hits = (word - _ONES) & ~word & _TOPS
        if hits != 0:
            return at + first_marked(hits)
        at += 8
    while at < end and buf[at] != wanted:
        at += 1
    return at


@inlined
def find_byte_or_backslash(buf, at, end, wanted):
    """Return where `wanted` or a backslash first occurs; `end` if neither does."""
    pattern = _ONES * np.uint64(wanted)
    while end - at >= 8:
        word = load_word(buf, at)
        other = word ^ _SLASHES
        word ^= pattern
        hits = (((word - _ONES) & ~word) | ((other - _ONES) & ~other)) & _TOPS
        if hits != 0:
            return at + first_marked(hits)
        at += 8
    while at < end and buf[at] != wanted and buf[at] != 0x5C:
        at += 1
    return at


@inlined
def matches(buf, at, end, literals, literal, size):
    """Return whether the bytes at `at` are this literal."""
    if size > end - at:
        return False
    for i in range(size):  # noqa: SIM110  (numba has no generators)
        if buf[at + i] != literals[literal + i]:
            return False
    return True


@inlined
def is_digit(c):
    return 0x30 <= c <= 0x39


@inlined
def two_digits(buf, at):
    """Return two digits, both within the line, as a number; -1 if they are not digits."""
    high, low = np.int64(buf[at]) - 0x30, np.int64(buf[at + 1]) - 0x30
    return high * 10 + low if 0 <= high <= 9 and 0 <= low <= 9 else np.int64(-1)


@inlined
def month_at(buf, at):
    """Return the month whose three letters, all within the line, are here; 0 for none."""
    name = (np.int64(buf[at]) << 16) | (np.int64(buf[at + 1]) << 8) | np.int64(buf[at + 2]) | 0x202020
    for month in range(12):
        if _MONTHS[month] == name:
            return np.int64(month + 1)
    return np.int64(0)


@inlined
def day_number(year, month, day):
    """Return the days since 1970; -1 for a day that does not exist or that no log can have."""
    if year < 1970 or month < 1 or month > 12 or day < 1:
        return np.int64(-1)
    last = _DAYS[month]
    if month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
        last = np.int64(29)
    return days_of(year, month, day) if day <= last else np.int64(-1)


@inlined
def read_clock(buf, at, end):
    """Read `hh:mm:ss[.fraction]`, maybe a leap second (60); return (microseconds or -1, position behind)."""
    if end - at < 8 or buf[at + 2] != 0x3A or buf[at + 5] != 0x3A:
        return np.int64(-1), at
    hour, minute, second = two_digits(buf, at), two_digits(buf, at + 3), two_digits(buf, at + 6)
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 60:
        return np.int64(-1), at
    at += 8
    micros = (hour * 3600 + minute * 60 + second) * 1_000_000
    if end - at >= 2 and buf[at] == 0x2E and is_digit(buf[at + 1]):
        at += 1
        unit = np.int64(100_000)
        while at < end and is_digit(buf[at]):
            micros += (np.int64(buf[at]) - 0x30) * unit
            unit //= 10
            at += 1
    return micros, at


@inlined
def read_offset(buf, at, end):
    """Read `Z`, `+hhmm`, `+hh:mm` or `+hh`, maybe behind a blank; return (fits, seconds east, end)."""
    begin = at
    if at < end and buf[at] == 0x20:
        at += 1
    if at < end and (buf[at] == 0x5A or buf[at] == 0x7A):
        return True, np.int64(0), at + 1
    if end - at < 3 or (buf[at] != 0x2B and buf[at] != 0x2D) or not is_digit(buf[at + 1]):
        return True, np.int64(0), begin  # no zone: UTC
    hours = two_digits(buf, at + 1)
    west = buf[at] == 0x2D
    at += 3
    minutes = np.int64(0)
    if end - at >= 3 and buf[at] == 0x3A and is_digit(buf[at + 1]):
        at += 1
    if end - at >= 2 and is_digit(buf[at]):
        minutes = two_digits(buf, at)
        at += 2
    seconds = hours * 3600 + minutes * 60
    fits = hours >= 0 and 0 <= minutes <= 59 and seconds <= _FURTHEST_ZONE_S
    return fits, -seconds if west else seconds, at


@part
def read_epoch(buf, at, end):
    """Read seconds, milli-, micro- or nanoseconds since 1970, told apart by their number of digits."""
    whole = np.uint64(0)  # nineteen digits are more than a signed number holds
    begin = at
    while at < end and at - begin < 19 and is_digit(buf[at]):
        whole = whole * np.uint64(10) + np.uint64(buf[at] - 0x30)
        at += 1
    digits = at - begin
    if digits < 9 or (at < end and is_digit(buf[at])):
        return False, np.int64(0), at
    scale = np.int64(1_000_000)
    if digits >= 18:
        whole //= np.uint64(1000)
        scale = np.int64(1)
    elif digits >= 15:
        scale = np.int64(1)
    elif digits >= 12:
        scale = np.int64(1000)
    micros = np.int64(whole) * scale
    if end - at >= 2 and buf[at] == 0x2E and is_digit(buf[at + 1]):
        at += 1
        while at < end and is_digit(buf[at]):
            scale //= 10
            micros += (np.int64(buf[at]) - 0x30) * scale
            at += 1
    return micros < (_LAST_DAY + 1) * 86_400_000_000, micros, at


@inlined
def read_time(buf, at, end):
    """Read a time of a log; return (fits, microseconds since 1970, position behind it)."""
    if end - at < 9 or not is_digit(buf[at]):
        return False, np.int64(0), at
    if end - at >= 20 and buf[at + 2] == 0x2F and buf[at + 6] == 0x2F and buf[at + 11] == 0x3A:
        century, rest = two_digits(buf, at + 7), two_digits(buf, at + 9)
        year = century * 100 + rest if century >= 0 and rest >= 0 else np.int64(-1)
        days = day_number(year, month_at(buf, at + 3), two_digits(buf, at))
        at += 12
    elif (
        end - at >= 19
        and (buf[at + 4] == 0x2D or buf[at + 4] == 0x2F)
        and buf[at + 7] == buf[at + 4]
        and (buf[at + 10] == 0x54 or buf[at + 10] == 0x20)
    ):
        century, rest = two_digits(buf, at), two_digits(buf, at + 2)
        year = century * 100 + rest if century >= 0 and rest >= 0 else np.int64(-1)
        days = day_number(year, two_digits(buf, at + 5), two_digits(buf, at + 8))
        at += 11
    else:
        return read_epoch(buf, at, end)
    micros, at = read_clock(buf, at, end)
    if days < 0 or micros < 0:
        return False, np.int64(0), at
    fits, east, at = read_offset(buf, at, end)
    return fits, days * 86_400_000_000 + micros - east * 1_000_000, at


@part
def find_token_end(buf, at, end):
    return find_byte(buf, at, end, 0x20)


@part
def skip_syslog(buf, at, end):
    """Return the position behind a prefix of syslog; `at` if there is none.

    `<34>` may stand in front; then `Oct 11 22:14:15 host tag:`, the same with an ISO time, with the host or
    the tag left out, or the later form `1 time host app pid id -`.
    """
    begin = at
    if at < end and buf[at] == 0x3C:
        stop = at + 1
        while stop < end and stop - at < 5 and is_digit(buf[stop]):
            stop += 1
        if stop == at + 1 or stop >= end or buf[stop] != 0x3E:
            return begin
        at = stop + 1
        if end - at > 2 and buf[at] == 0x31 and buf[at + 1] == 0x20:
            return skip_newer_syslog(buf, at + 2, end, begin)
    if end - at >= 16 and buf[at + 3] == 0x20 and buf[at + 6] == 0x20 and buf[at + 15] == 0x20:
        if month_at(buf, at) == 0 or read_clock(buf, at + 7, end)[0] < 0:
            return begin
        at += 16
    elif end - at >= 20 and buf[at + 4] == 0x2D and buf[at + 7] == 0x2D and buf[at + 10] == 0x54:
        fits, _, stop = read_time(buf, at, end)
        if not fits or stop >= end or buf[stop] != 0x20:
            return begin
        at = stop + 1
    elif at == begin:
        return begin
    first = find_token_end(buf, at, end)
    if first >= end:
        return begin
    if first > at and buf[first - 1] == 0x3A:
        return first + 1
    second = find_token_end(buf, first + 1, end)
    if second < end and second > first + 1 and buf[second - 1] == 0x3A:
        return second + 1
    return first + 1


@part
def skip_newer_syslog(buf, at, end, begin):
    """Skip what follows the version: time, host, application, process, message id, data."""
    for _ in range(5):
        at = find_token_end(buf, at, end)
        if at >= end:
            return begin
        at += 1
    if at < end and buf[at] == 0x2D:
        return at + 2 if end - at >= 2 and buf[at + 1] == 0x20 else begin
    while at < end and buf[at] == 0x5B:
        at = find_byte(buf, at, end, 0x5D) + 1
    return at + 1 if at < end and buf[at] == 0x20 else begin
