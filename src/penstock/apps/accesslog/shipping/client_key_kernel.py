"""The kernel that cuts the client out of each log line: it becomes the key of the record.

Rules: every line gets a key, and a client always gets the same one. If the parser has found the client, that
is the key, whatever the format. The client of a line that it cannot read is guessed: the first word of a
common or combined line, the second word behind the name of a virtual host, or the address field of a JSON
line, after a syslog prefix and quotes around the line are skipped. A line that fits nothing has its first
word as the key. An IPv6 address becomes the network that is one client
(`penstock.apps.accesslog.parsing.client_prefixes`), so that the lines of a client keep their order whichever
of its addresses it uses. Where each address is a client of its own, it is written out in full, and IPv4
inside of IPv6 is written as IPv4: a client has one key however its server writes it. A wrong guess may cost
the order of that client's lines, but never a line. Guessing is one pass over the beginning of a line, no more
than `_LOOKED_AT` bytes of it.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from penstock.apps.accesslog.parsing.client_addresses import (
    cut_to_client,
    is_mapped,
    is_one_client,
    read_address,
)
from penstock.apps.accesslog.parsing.line_scanning import is_digit, matches
from penstock.kernels.compilation import copy_bytes, inlined, kernel, part

LONGEST_KEY = 255
#: A key may be longer than its line: `2001:0db8:0001:0002::`, or an address with all its digits.
ADDRESS_SIZE = 39
_HOSTS = np.uint64(1)  # in numbers of clients, 1::/16 stands for host names
_LOOKED_AT = 8192
#: Names of JSON fields that hold the client, as servers call them.
_NAMES = (
    b"client",
    b"client_ip",
    b"clientip",
    b"remote_addr",
    b"remote_ip",
    b"remote_host",
    b"ip",
)
JSON_NAMES = np.frombuffer(b"".join(_NAMES), np.uint8).copy()
JSON_STARTS = np.cumsum([0, *map(len, _NAMES)]).astype(np.int64)


@inlined
def _skip_blanks(buf, at, end):
    while at < end and (buf[at] == 0x20 or buf[at] == 0x09):
        at += 1
    return at


@inlined
def _skip_word(buf, at, end):
    while at < end and buf[at] != 0x20 and buf[at] != 0x09:
        at += 1
    return at


@part
def _skip_syslog(buf, at, end):
    """Return the position behind `<134>`, a time, a host and a tag, if they are there."""
    start = at
    if at < end and buf[at] == 0x3C:
        close = at + 1
        while close < end and close - at <= 4 and is_digit(buf[close]):
            close += 1
        if close >= end or buf[close] != 0x3E:
            return start
        at = close + 1
        if at + 1 < end and buf[at] == 0x31 and buf[at + 1] == 0x20:
            # RFC 5424: version, time, host, program, process, message id, structured data.
            at += 2
            for _ in range(5):
                at = _skip_blanks(buf, _skip_word(buf, at, end), end)
            if at < end and buf[at] == 0x5B:
                while at < end and buf[at] != 0x5D:
                    at += 1
            return _skip_blanks(buf, _skip_word(buf, at, end), end)
    dated = at
    if at + 16 <= end and buf[at + 3] == 0x20 and buf[at + 6] == 0x20 and buf[at + 9] == 0x3A:
        # `Feb  1 10:00:00 `
        if not (buf[at + 12] == 0x3A and buf[at + 15] == 0x20 and is_digit(buf[at + 14])):
            return start
        at = at + 16
    elif at + 20 <= end and buf[at + 4] == 0x2D and buf[at + 7] == 0x2D and buf[at + 10] == 0x54:
        # `2026-02-01T10:00:00.123456+00:00 `
        if not (is_digit(buf[at]) and is_digit(buf[at + 8])):
            return start
        at = _skip_blanks(buf, _skip_word(buf, at, end), end)
    if at == dated:
        return start
    at = _skip_blanks(buf, _skip_word(buf, at, end), end)  # the host
    tag_end = _skip_word(buf, at, end)
    if tag_end > at and buf[tag_end - 1] == 0x3A:
        at = _skip_blanks(buf, tag_end, end)
    return at


@part
def _find_json(buf, at, end, names, name_starts):
    """Return (begin, end) of the first field that is named like a client, or (-1, -1)."""
    while at < end:
        while at < end and buf[at] != 0x22:
            at += 1
        begin = at + 1
        at = begin
        while at < end and buf[at] != 0x22:
            at += 2 if buf[at] == 0x5C else 1
        if at >= end:
            break
        size = at - begin
        value = _skip_blanks(buf, at + 1, end)
        is_name = value < end and buf[value] == 0x3A
        at += 1
        if not is_name:
            continue
        value = _skip_blanks(buf, value + 1, end)
        if value >= end or buf[value] != 0x22:
            continue
        for number in range(len(name_starts) - 1):
            if name_starts[number + 1] - name_starts[number] != size:
                continue
            if matches(buf, begin, end, names, name_starts[number], size):
                stop = value + 1
                while stop < end and buf[stop] != 0x22:
                    stop += 1
                return value + 1, stop
    return np.int64(-1), np.int64(-1)


@part
def _find_client(buf, at, end, names, name_starts):
    """Return where the client of one line begins and ends."""
    at = _skip_blanks(buf, at, end)
    if at < end and buf[at] == 0x22:
        at += 1
    at = _skip_syslog(buf, at, end)
    if at < end and buf[at] == 0x22:
        at += 1
    if at < end and buf[at] == 0x7B:
        begin, stop = _find_json(buf, at, end, names, name_starts)
        if begin >= 0:
            return begin, stop
    begin = at
    stop = _skip_word(buf, at, end)
    # `client ident user [time]`, or one word more in front: the virtual host.
    second = _skip_blanks(buf, stop, end)
    word, number = second, 1
    while word < end and number < 4:
        after = _skip_word(buf, word, end)
        word, number = _skip_blanks(buf, after, end), number + 1
        if word < end and buf[word] == 0x5B:
            break
    if number == 4 and word < end and buf[word] == 0x5B:
        begin, stop = second, _skip_word(buf, second, end)
    while stop > begin and (buf[stop - 1] == 0x0D or buf[stop - 1] == 0x22 or buf[stop - 1] == 0x2C):
        stop -= 1
    return begin, stop


@inlined
def _has_colon(buf, at, end):
    """Return whether the first number ends in a colon, as in every IPv6 address."""
    for i in range(at, min(at + 5, end)):  # noqa: SIM110  (numba has no generators)
        if buf[i] == 0x3A:
            return True
    return False


@part
def _write_ipv4(out, at, low):
    """Write four numbers with dots between; return where they end."""
    for byte in range(4):
        value = np.int64((low >> np.uint64(24 - 8 * byte)) & np.uint64(255))
        if byte > 0:
            out[at] = 0x2E
            at += 1
        if value >= 100:
            out[at] = 0x30 + value // 100
            at += 1
        if value >= 10:
            out[at] = 0x30 + value // 10 % 10
            at += 1
        out[at] = 0x30 + value % 10
        at += 1
    return at


@part
def _write_groups(out, at, word):
    """Write four groups of four digits, with colons between; return where they end."""
    for digit in range(16):
        value = np.int64((word >> np.uint64(60 - 4 * digit)) & np.uint64(15))
        out[at] = value + (0x30 if value < 10 else 0x57)
        at += 1
        if digit % 4 == 3 and digit < 15:
            out[at] = 0x3A
            at += 1
    return at


@part
def _write_address(out, at, high, low):
    """Write the client of an address, the same however the address was written; return where it ends."""
    if is_mapped(high, low):
        return _write_ipv4(out, at, low)
    at = _write_groups(out, at, cut_to_client(high, low)[0])
    out[at] = 0x3A
    if not is_one_client(high):
        return _write_groups(out, at + 1, low)
    out[at + 1] = 0x3A
    return at + 2


@kernel
def cut_clients(buf, starts, known_at, known_size, out, out_starts, names, name_starts):
    """Copy each line's client to `out`, one after another; return False if there is no room for one.

    `known_at` and `known_size` say where the parser has found it; a size of 0 or less says that it has not.
    """
    at = np.int64(0)
    out_starts[0] = 0
    for row in range(len(starts) - 1):
        begin, end = starts[row], starts[row + 1]
        if begin < 0 or end < begin or end > len(buf):
            return False
        if known_size[row] > 0:
            first = known_at[row]
            if first < begin or known_size[row] > end - first:
                return False
            stop = first + known_size[row]
        else:
            if end > begin + _LOOKED_AT:
                end = begin + _LOOKED_AT
            first, stop = _find_client(buf, begin, end, names, name_starts)
        size = min(stop - first, LONGEST_KEY)
        if _has_colon(buf, first, stop):
            fits, high, low = read_address(buf, first, stop)
            if fits and high >> np.uint64(48) != _HOSTS:
                if at + ADDRESS_SIZE > len(out):
                    return False
                at = _write_address(out, at, high, low)
                out_starts[row + 1] = at
                continue
        if at + size > len(out):
            return False
        if size > 0:
            copy_bytes(out, at, buf, first, size)
            at += size
        out_starts[row + 1] = at
    return True
