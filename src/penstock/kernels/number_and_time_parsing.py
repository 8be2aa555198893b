"""Parses numbers in text for the kernels: whole numbers, floating point, decimals, dates and times.

Rule: a number is right to the last bit or it is not decided here. A decimal fraction whose digits fit 53 bits
and whose power of ten is at most 22 is one exact division or product; Arrow's parser handles all others
afterwards, in bulk. Why not compute with powers of ten throughout: the last bit would be wrong for about one
number in ten with 17 digits.
"""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import numpy as np

from penstock.kernels.compilation import bits_of, part, single_of

_TENS = 10.0 ** np.arange(23)  # exact up to 10^22
_HIGHS = np.array([(10**n) >> 64 for n in range(39)], np.uint64)
_LOWS = np.array([(10**n) & ((1 << 64) - 1) for n in range(39)], np.uint64)
_LOW_HALF = np.uint64(0xFFFFFFFF)
_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)

_LAST_SECOND = 9_223_372_036_854  # whose microseconds still fit 64 bits

#: Kinds of number tokens.
NO_NUMBER, WHOLE, FRACTION = 0, 1, 2


@part
def read_number(buf, at, end):
    """Return a JSON number: (kind, position after it, digits as a number, power of ten, negative, exact).

    `exact` is False if there are more digits than 64 bits hold; then do not use the digits.
    """
    negative = False
    exact = True
    digits = np.uint64(0)
    used = 0
    if at < end and buf[at] == 0x2D:
        negative = True
        at += 1
    begin = at
    while at < end:
        c = np.uint64(buf[at]) - np.uint64(0x30)
        if c > np.uint64(9):
            break
        used += 1
        digits = digits * np.uint64(10) + c
        at += 1
    if at == begin or (buf[begin] == 0x30 and at > begin + 1):
        return NO_NUMBER, at, digits, np.int64(0), negative, exact
    kind = WHOLE
    power = np.int64(0)
    if at < end and buf[at] == 0x2E:
        kind = FRACTION
        at += 1
        begin = at
        while at < end:
            c = np.uint64(buf[at]) - np.uint64(0x30)
            if c > np.uint64(9):
                break
            used += 1
            digits = digits * np.uint64(10) + c
            at += 1
        if at == begin:
            return NO_NUMBER, at, digits, power, negative, exact
        power = begin - at
    if at < end and (buf[at] == 0x65 or buf[at] == 0x45):
        kind = FRACTION
        at += 1
        down = False
        if at < end and (buf[at] == 0x2D or buf[at] == 0x2B):
            down = buf[at] == 0x2D
            at += 1
        begin = at
        exponent = np.int64(0)
        while at < end:
            c = np.int64(buf[at]) - 0x30
            if c < 0 or c > 9:
                break
            if exponent < 100_000_000:
                exponent = exponent * 10 + c
            at += 1
        if at == begin:
            return NO_NUMBER, at, digits, power, negative, exact
        power += -exponent if down else exponent
    if used > 19:
        exact = False
    return kind, at, digits, power, negative, exact


@part
def easy_real(digits, power, exact):
    """Return whether `make_real` is right to the last bit."""
    return exact and digits <= np.uint64(1 << 53) and -22 <= power <= 22


@part
def make_real(digits, power, negative):
    value = np.float64(digits)
    value = value * _TENS[power] if power >= 0 else value / _TENS[-power]
    return -value if negative else value


@part
def rounds_as_float(value):
    """Return whether a double rounds to the same float as the decimal it was made from.

    It may not if it lies half-way between two floats: the decimal may be a little more or less.
    """
    bits = bits_of(value)
    return value == 0.0 or ((bits >> 52) & 0x7FF >= 897 and bits & 0x1FFFFFFF != 0x10000000)


@part
def spell_decimal(target, source, at, end):
    """Write a decimal such as `+1,234.` or `.5` to `target` as in JSON; return its end, or -1 if it is none.

    It grows by one byte at most, so within one array it must not begin at 0. An exponent is copied.
    """
    to = np.int64(0)
    if at < end and (source[at] == 0x2B or source[at] == 0x2D):
        if source[at] == 0x2D:
            target[to] = 0x2D
            to += 1
        at += 1
    first = to
    digits, point = False, np.int64(-1)
    while at < end and source[at] != 0x65 and source[at] != 0x45:
        c = source[at]
        at += 1
        if c == 0x2E and point < 0:
            if to == first:
                target[to] = 0x30
                to += 1
            target[to] = c
            point = to
            to += 1
        elif 0x30 <= c <= 0x39:
            digits = True
            if to == first + 1 and target[first] == 0x30:
                to = first  # a zero in front of other digits
            target[to] = c
            to += 1
        elif c != 0x2C:
            return np.int64(-1)
    if to == point + 1:
        to = point
    if not digits:
        return np.int64(-1)
    while at < end:
        if source[at] != 0x2C:
            target[to] = source[at]
            to += 1
        at += 1
    return to


@part
def wide_times_ten(high, low, digit):
    """Return 128 bits times ten plus a digit; the caller knows that it fits."""
    first = (low & _LOW_HALF) * np.uint64(10) + digit
    second = (low >> np.uint64(32)) * np.uint64(10) + (first >> np.uint64(32))
    high = high * np.uint64(10) + (second >> np.uint64(32))
    return high, (second << np.uint64(32)) | (first & _LOW_HALF)


@part
def read_decimal(buf, at, end, precision, scale):
    """Return a number checked by `read_number` as a decimal, halves away from zero: (fits, high, low)."""
    negative = buf[at] == 0x2D
    if negative:
        at += 1
    # First find the point, counted in digits from the first. Then take the digits before the rounding place
    # one by one; missing ones are zeros.
    whole = np.int64(0)
    power = np.int64(0)
    stop = at
    seen_point = False
    while stop < end and buf[stop] != 0x65 and buf[stop] != 0x45:
        if buf[stop] == 0x2E:
            seen_point = True
        elif not seen_point:
            whole += 1
        stop += 1
    if stop < end:
        i = stop + 1
        down = buf[i] == 0x2D
        if buf[i] == 0x2D or buf[i] == 0x2B:
            i += 1
        while i < end:
            if power < 100_000_000_000:
                power = power * 10 + np.int64(buf[i]) - 0x30
            i += 1
        if power > 2_147_483_647:  # Java's decimals end here
            return False, np.uint64(0), np.uint64(0)
        if down:
            power = -power
    keep = whole + power + scale
    high, low = np.uint64(0), np.uint64(0)
    taken = np.int64(0)
    round_up = False
    significant = 0
    i = at
    while i < stop:
        if buf[i] != 0x2E:
            digit = np.uint64(buf[i]) - np.uint64(0x30)
            if taken == keep:
                round_up = digit >= np.uint64(5)
            if taken >= keep:
                break
            if significant > 0 or digit > np.uint64(0):
                significant += 1
                if significant > precision:
                    return False, np.uint64(0), np.uint64(0)
                high, low = wide_times_ten(high, low, digit)
            taken += 1
        i += 1
    if significant > 0 and keep > taken:
        if significant + keep - taken > precision:
            return False, np.uint64(0), np.uint64(0)
        for _ in range(keep - taken):
            high, low = wide_times_ten(high, low, np.uint64(0))
    if round_up:
        low += np.uint64(1)
        if low == np.uint64(0):
            high += np.uint64(1)
        if not below_power(high, low, precision):
            return False, high, low
    if negative:
        high, low = negate(high, low)
    return True, high, low


@part
def below_power(high, low, precision):
    """Return whether unsigned 128 bits are less than 10^precision."""
    return high < _HIGHS[precision] or (high == _HIGHS[precision] and low < _LOWS[precision])


@part
def negate(high, low):
    low = ~low + np.uint64(1)
    high = ~high
    if low == np.uint64(0):
        high += np.uint64(1)
    return high, low


@part
def days_of(year, month, day):
    """Return the days since 1970-01-01 in the proleptic Gregorian calendar, as Spark does."""
    if month <= 2:
        year -= 1
    era = year // 400
    of_era = year - era * 400
    month += 9 if month <= 2 else -3
    of_year = (153 * month + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@part
def read_digits(buf, at, end, most):
    """Return up to `most` digits: (value, position after them)."""
    value = np.int64(0)
    stop = min(end, at + most)
    while at < stop and 0x30 <= buf[at] <= 0x39:
        value = value * 10 + np.int64(buf[at]) - 0x30
        at += 1
    return value, at


@part
def trim(buf, at, end):
    """Return the bounds without the blanks and control characters at the ends: (begin, end)."""
    while at < end and (buf[at] <= 0x20 or buf[at] == 0x7F):
        at += 1
    while end > at and (buf[end - 1] <= 0x20 or buf[end - 1] == 0x7F):
        end -= 1
    return at, end


@part
def read_date(buf, at, end, longest_year):
    """Return `year[-month[-day]]`: (days, position after it, whether the day was given).

    The position is -1 if it is not a date.
    """
    negative = False
    if at < end and (buf[at] == 0x2D or buf[at] == 0x2B):
        negative = buf[at] == 0x2D
        at += 1
    year, stop = read_digits(buf, at, end, longest_year)
    if stop - at < 4:
        return np.int64(0), np.int64(-1), False
    at = stop
    if negative:
        year = -year
    month, day = np.int64(1), np.int64(1)
    whole = False
    if at < end and buf[at] == 0x2D:
        month, stop = read_digits(buf, at + 1, end, 2)
        if stop == at + 1:
            return np.int64(0), np.int64(-1), False
        at = stop
        if at < end and buf[at] == 0x2D:
            day, stop = read_digits(buf, at + 1, end, 2)
            if stop == at + 1:
                return np.int64(0), np.int64(-1), False
            at = stop
            whole = True
    if month < 1 or month > 12 or day < 1:
        return np.int64(0), np.int64(-1), False
    last = _DAYS[month]
    if month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
        last = np.int64(29)
    if day > last:
        return np.int64(0), np.int64(-1), False
    return days_of(year, month, day), at, whole


@part
def read_day(buf, at, end):
    """Return a date, ignoring a time after it: (fits, days)."""
    at, end = trim(buf, at, end)
    days, stop, whole = read_date(buf, at, end, 7)
    fits = stop == end or (stop >= 0 and whole and (buf[stop] == 0x54 or buf[stop] == 0x20))
    return fits and -(1 << 31) <= days < 1 << 31, days


@part
def read_zone(buf, at, end):
    """Return a zone, `Z`, or `UTC`, `GMT`, `UT` and an offset, or only one of the two: (fits, seconds east).

    An offset is `+h`, `+hh`, `+hhmm`, `+hhmmss`, or with colons, where hours and minutes may have one digit.
    """
    if end - at == 1 and buf[at] == 0x5A:
        return True, np.int64(0)
    named = False
    if end - at >= 2 and buf[at] == 0x55 and buf[at + 1] == 0x54:
        named = True
        at += 3 if end - at >= 3 and buf[at + 2] == 0x43 else 2
    elif end - at >= 3 and buf[at] == 0x47 and buf[at + 1] == 0x4D and buf[at + 2] == 0x54:
        named = True
        at += 3
    if at >= end:
        return named, np.int64(0)
    if buf[at] != 0x2B and buf[at] != 0x2D:
        return False, np.int64(0)
    west = buf[at] == 0x2D
    hours, stop = read_digits(buf, at + 1, end, 2)
    if stop == at + 1:
        return False, np.int64(0)
    pairs = stop == at + 3
    at = stop
    minutes, seconds = np.int64(0), np.int64(0)
    if at < end:
        colon = buf[at] == 0x3A
        if not colon and not pairs:
            return False, np.int64(0)
        at += 1 if colon else 0
        minutes, stop = read_digits(buf, at, end, 2)
        pairs = stop == at + 2
        if stop == at or (not pairs and (not colon or stop != end)):
            return False, np.int64(0)
        at = stop
        if at < end:
            if (buf[at] == 0x3A) != colon:
                return False, np.int64(0)
            at += 1 if colon else 0
            seconds, stop = read_digits(buf, at, end, 2)
            if stop != at + 2 or stop != end:
                return False, np.int64(0)
    total = hours * 3600 + minutes * 60 + seconds
    return total <= 64800 and minutes < 60 and seconds < 60, -total if west else total


@part
def read_timestamp(buf, at, end, zoned):
    """Return a date and time: (fits, microseconds). No zone means UTC; without `zoned` a zone is an error."""
    at, end = trim(buf, at, end)
    days, at, whole = read_date(buf, at, end, 6)
    if at < 0:
        return False, np.int64(0)
    seconds, micros = np.int64(0), np.int64(0)
    if at < end:
        if not whole or (buf[at] != 0x54 and buf[at] != 0x20):
            return False, np.int64(0)
        hour, stop = read_digits(buf, at + 1, end, 2)
        if stop == at + 1 or (stop < end and buf[stop] != 0x3A) or hour > 23:
            return False, np.int64(0)
        at = stop
        minute, second = np.int64(0), np.int64(0)
        if at < end:
            minute, stop = read_digits(buf, at + 1, end, 2)
            if stop == at + 1 or minute > 59:
                return False, np.int64(0)
            at = stop
        if at < end and buf[at] == 0x3A:
            second, stop = read_digits(buf, at + 1, end, 2)
            if stop == at + 1 or second > 59:
                return False, np.int64(0)
            at = stop
            if at < end and buf[at] == 0x2E:
                micros, stop = read_digits(buf, at + 1, end, 6)
                for _ in range(7 - (stop - at)):
                    micros *= 10
                at = stop
                while at < end and 0x30 <= buf[at] <= 0x39:  # finer than we can keep
                    at += 1
        seconds = hour * 3600 + minute * 60 + second
        while at < end and buf[at] <= 0x20:
            at += 1
        if at < end:
            if not zoned:
                return False, np.int64(0)
            fits, east = read_zone(buf, at, end)
            if not fits:
                return False, np.int64(0)
            seconds -= east
    seconds += days * 86400
    if seconds > _LAST_SECOND or (seconds == _LAST_SECOND and micros > 775_807):
        return False, np.int64(0)
    if seconds < -_LAST_SECOND - 1 or (seconds == -_LAST_SECOND - 1 and micros < 224_192):
        return False, np.int64(0)
    return True, seconds * 1_000_000 + micros


@part
def wide_at(buf, at, size, precision):
    """Return a signed big-endian number of `size` bytes, all present: (fits the precision, high, low)."""
    negative = size > 0 and buf[at] >= 0x80
    while size > 16:  # bytes that only repeat the sign
        if buf[at] != (0xFF if negative else 0) or (buf[at + 1] >= 0x80) != negative:
            return False, np.uint64(0), np.uint64(0)
        at += 1
        size -= 1
    high = ~np.uint64(0) if negative else np.uint64(0)
    low = high
    for i in range(size):
        high = (high << np.uint64(8)) | (low >> np.uint64(56))
        low = (low << np.uint64(8)) | np.uint64(buf[at + i])
    plain_high, plain_low = high, low
    if negative:
        plain_high, plain_low = negate(high, low)
    return below_power(plain_high, plain_low, precision), high, low


@part
def float_at(buf, at):
    """Return four bytes, all present, as a little-endian floating point number."""
    word = np.uint32(0)
    for i in range(4):
        word |= np.uint32(np.uint32(buf[at + i]) << np.uint32(8 * i))
    return np.float64(single_of(word))


@part
def read_varint(buf, at, end):
    """Return a number of seven bits a byte: (64 bits, next position, whether bits beyond them are left out).

    Position -1 means that the bytes end before the number does, and -2 that it has more than ten of them.
    Those are the faults CUT_OFF and BAD_NUMBER of Avro and of Protobuf, negated.
    """
    raw = np.uint64(0)
    for i in range(10):
        if at + i >= end:
            return raw, np.int64(-1), False
        byte = np.uint64(buf[at + i])
        raw |= (byte & np.uint64(127)) << np.uint64(7 * i)
        if byte < np.uint64(128):
            return raw, at + i + 1, i == 9 and byte > np.uint64(1)
    return raw, np.int64(-2), False
