"""The decoding kernels: bytes of Kafka record batches (format v2) into flat column buffers.

Rule: a kernel trusts no byte. Every length is compared with what is left *before* it is used, every
output position with its capacity; a kernel never raises: it returns a code that `record_decoder` turns into a
`CorruptBatchError`. Nothing is allocated here: the caller owns all buffers and may reuse them.

Why one resumable pass and not "measure, then fill": measuring walks every varint twice. The filler
stops when the output is full, saves its place in `state`, and goes on in the next Arrow batch.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from penstock.kernels.compilation import copy_bytes, inlined, kernel

# Columns of the batch table that `scan` fills, one row per record batch.
BASE_OFFSET, LAST_OFFSET, BEGIN, END, COUNT, CODEC, FLAGS, BASE_TIME, MAX_TIME, PRODUCER, EPOCH = range(11)
CHECKSUM = 11
TABLE_WIDTH = 12
HEADER_SIZE = 61

# FLAGS bits.
APPEND_TIME, TRANSACTIONAL, CONTROL, SKIP = 1, 2, 4, 8

# Return codes besides "go on".
DONE, FULL, OVERSIZED = 0, 1, 2
BAD_LENGTH, BAD_VARINT, BAD_OFFSET, BAD_COUNT, BAD_RECORD, BAD_HEADER, BAD_MARKER = 10, 11, 12, 13, 14, 15, 16
BAD_MAGIC, OLD_MAGIC, BAD_ORDER, BAD_TIME = 17, 18, 19, 20

# `state` of the filler.
SEGMENT, RECORD, POSITION, ROWS, KEY_BYTES, VALUE_BYTES, HEADERS, HEADER_KEY_BYTES = range(8)
HEADER_VALUE_BYTES, PREVIOUS, KEY_NULLS, VALUE_NULLS, HEADER_NULLS, HEADER_VALUE_NULLS = range(8, 14)
NEED_KEY, NEED_VALUE = range(14, 16)
NEED_HEADERS, NEED_HEADER_KEY, NEED_HEADER_VALUE, BAD_AT, BAD_VALUE, HEADER_KEY_HIGH = range(16, 22)
STATE_WIDTH = 22

MAX_MILLISECONDS = 9_223_372_036_854_775  # more does not fit Arrow's microseconds


@inlined
def big_endian(buf, at, size):
    """Return a signed big-endian number; the caller has checked the bounds."""
    value = np.int64(np.int8(buf[at]))
    for i in range(1, size):
        value = (value << np.int64(8)) | np.int64(buf[at + i])
    return value


@inlined
def varint(buf, at, end):
    """Read a zigzag number of up to 32 bits; return it and the next position, negative if malformed."""
    if at >= end:
        return np.int64(0), np.int64(-1)
    byte = np.int64(buf[at])
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), at + 1
    raw = byte & 127
    for i in range(1, 5):
        if at + i >= end:
            return np.int64(0), np.int64(-1)
        byte = np.int64(buf[at + i])
        raw |= (byte & 127) << np.int64(7 * i)
        if byte < 128:
            if raw > 0xFFFFFFFF:
                return np.int64(0), np.int64(-1)
            return (raw >> 1) ^ -(raw & 1), at + i + 1
    return np.int64(0), np.int64(-1)


@inlined
def varlong(buf, at, end):
    """Read a zigzag number of up to 64 bits; return it and the next position, negative if malformed."""
    if at >= end:
        return np.int64(0), np.int64(-1)
    byte = np.int64(buf[at])
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), at + 1
    raw = np.uint64(byte & 127)
    for i in range(1, 10):
        if at + i >= end:
            return np.int64(0), np.int64(-1)
        byte = np.int64(buf[at + i])
        raw |= np.uint64(byte & 127) << np.uint64(7 * i)
        if byte < 128:
            if i == 9 and byte > 1:
                return np.int64(0), np.int64(-1)
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), at + i + 1
    return np.int64(0), np.int64(-1)


@kernel
def scan(buf, at, end, expected, table):
    """Read batch headers from `at` into `table`; return (batches, next position, code).

    `expected` is the lowest offset the next batch may begin with, so offsets rise over the whole answer.
    A batch that is cut off at `end` is left for the next fetch: brokers cut answers at a size limit.
    """
    count = 0
    while count < table.shape[0]:
        if end - at < 17:
            return count, at, DONE
        magic = buf[at + 16]
        size = big_endian(buf, at + 8, 4) + 12
        if magic != 2:
            return count, at, OLD_MAGIC if magic < 2 else BAD_MAGIC
        if size < HEADER_SIZE:
            return count, at, BAD_LENGTH
        if at + size > end:
            return count, at, DONE
        base = big_endian(buf, at, 8)
        last_delta = big_endian(buf, at + 23, 4)
        if base < 0 or base > 0x7FFF_FFFF_0000_0000 or last_delta < 0:
            return count, at, BAD_OFFSET
        if base < expected:
            return count, at, BAD_ORDER
        records = big_endian(buf, at + 57, 4)
        # Each record takes at least 7 bytes, but not before it is decompressed.
        if records < 0 or records > last_delta + 1:
            return count, at, BAD_COUNT
        attributes = big_endian(buf, at + 21, 2)
        flags = 0
        if attributes & 8:
            flags |= APPEND_TIME
        if attributes & 16:
            flags |= TRANSACTIONAL
        if attributes & 32:
            flags |= CONTROL
        row = table[count]
        row[BASE_OFFSET] = base
        row[LAST_OFFSET] = base + last_delta
        row[BEGIN] = at
        row[END] = at + size
        row[COUNT] = records
        row[CODEC] = attributes & 7
        row[FLAGS] = flags
        row[BASE_TIME] = big_endian(buf, at + 27, 8)
        row[MAX_TIME] = big_endian(buf, at + 35, 8)
        row[PRODUCER] = big_endian(buf, at + 43, 8)
        row[EPOCH] = big_endian(buf, at + 12, 4)
        row[CHECKSUM] = big_endian(buf, at + 17, 4) & 0xFFFFFFFF
        expected = base + last_delta + 1
        at += size
        count += 1
    return count, at, FULL


@inlined
def is_abort_marker(buf, begin, end):
    """Return 1 if the control batch's first record aborts a transaction, 0 if not, -1 if malformed."""
    _, at = varint(buf, begin + HEADER_SIZE, end)
    if at < 0 or at >= end:
        return -1
    _, at = varlong(buf, at + 1, end)
    if at < 0:
        return -1
    _, at = varint(buf, at, end)
    if at < 0:
        return -1
    size, at = varint(buf, at, end)
    if at < 0 or size < 4 or at + size > end:
        return -1
    return 1 if big_endian(buf, at + 2, 2) == 0 else 0


@kernel
def hide_invisible(buf, table, aborted, firsts, slots, producers, open_count):
    """Mark control batches and aborted transactions as SKIP; return a code.

    `firsts` are the aborted transactions' first offsets, rising; `slots` their index in the sorted
    `producers`; `open_count` is all zeros, room for how many are open at a point of the log. A marker
    closes only a transaction that is open here: a lone marker must not use up a later entry.
    """
    next_aborted = 0
    for i in range(len(table)):
        row = table[i]
        flags = row[FLAGS]
        if aborted and row[PRODUCER] >= 0:
            while next_aborted < firsts.size and firsts[next_aborted] <= row[LAST_OFFSET]:
                open_count[slots[next_aborted]] = 1
                next_aborted += 1
            slot = np.searchsorted(producers, row[PRODUCER])
            if slot < producers.size and producers[slot] == row[PRODUCER]:
                if flags & CONTROL:
                    if row[COUNT] > 0:
                        ends = is_abort_marker(buf, row[BEGIN], row[END])
                        if ends < 0:
                            return BAD_MARKER
                        if ends == 1:
                            open_count[slot] = 0
                elif flags & TRANSACTIONAL and open_count[slot] > 0:
                    row[FLAGS] = flags | SKIP
        if flags & CONTROL:
            row[FLAGS] = flags | SKIP
    return DONE


@inlined
def set_bit(bits, row, valid):
    mask = np.uint8(1 << (row & 7))
    if valid:
        bits[row >> 3] |= mask
    else:
        bits[row >> 3] &= ~mask


class RecordChoice(NamedTuple):
    """Which columns are wanted, and the most rows. `times` are milliseconds times `time_scale`; 0: none."""

    max_rows: int
    want_key: bool
    want_value: bool
    want_headers: bool
    time_scale: int


class FilledColumns(NamedTuple):
    """The buffers of one Arrow batch."""

    offsets: Any
    times: Any
    time_types: Any
    key_ends: Any
    key_bits: Any
    keys: Any
    value_ends: Any
    value_bits: Any
    values: Any
    list_ends: Any
    list_bits: Any
    header_key_ends: Any
    header_keys: Any
    header_value_ends: Any
    header_value_bits: Any
    header_values: Any


@kernel
def fill(buf, segments, state, start, until, choice, columns):
    """Decode records of `segments` (rows of the batch table, BEGIN..END being the records themselves).

    Append rows with `start <= offset < until` until the segments are used up (DONE), the output is full
    (FULL), or one record is larger than the whole output (OVERSIZED, with what it needs in `state`). Any
    other code means damage; its offset is in `state[BAD_AT]`. A time in milliseconds may be any number.
    """
    max_rows, want_key, want_value, want_headers, time_scale = choice
    offsets, times, time_types, key_ends, key_bits, keys, value_ends, value_bits, values = columns[:9]
    list_ends, list_bits, header_key_ends, header_keys = columns[9:13]
    header_value_ends, header_value_bits, header_values = columns[13:]
    count = len(segments)
    segment, record, at = state[SEGMENT], state[RECORD], state[POSITION]
    rows, previous = state[ROWS], state[PREVIOUS]
    key_at, value_at = state[KEY_BYTES], state[VALUE_BYTES]
    headers, header_key_at = state[HEADERS], state[HEADER_KEY_BYTES]
    header_value_at = state[HEADER_VALUE_BYTES]
    key_nulls, value_nulls, list_nulls = state[KEY_NULLS], state[VALUE_NULLS], state[HEADER_NULLS]
    code = DONE
    while segment < count:
        row = segments[segment]
        end, base, records = row[END], row[BASE_OFFSET], row[COUNT]
        append_time = row[FLAGS] & APPEND_TIME
        if at < 0:
            at, record, previous = row[BEGIN], 0, base - 1
        while record < records:
            size, body = varint(buf, at, end)
            if body < 0 or size < 0 or size > end - body:
                code = BAD_RECORD
                break
            after = body + size
            delta_time, here = varlong(buf, body + 1, after)
            if here < 0:
                code = BAD_VARINT
                break
            delta, here = varint(buf, here, after)
            if here < 0:
                code = BAD_VARINT
                break
            offset = base + delta
            if offset <= previous or offset > row[LAST_OFFSET]:
                code = BAD_OFFSET
                break
            key_size, here = varint(buf, here, after)
            if here < 0 or key_size < -1 or key_size > after - here:
                code = BAD_LENGTH
                break
            key_from = here
            if key_size > 0:
                here += key_size
            value_size, here = varint(buf, here, after)
            if here < 0 or value_size < -1 or value_size > after - here:
                code = BAD_LENGTH
                break
            value_from = here
            if value_size > 0:
                here += value_size
            header_count, here = varint(buf, here, after)
            # A header takes at least two bytes.
            if here < 0 or header_count < 0 or header_count > (after - here) // 2:
                code = BAD_HEADER
                break
            headers_from = here
            header_key_size, header_value_size = np.int64(0), np.int64(0)
            for _ in range(header_count):
                length, here = varint(buf, here, after)
                if here < 0 or length < 0 or length > after - here:
                    code = BAD_HEADER
                    break
                here += length
                header_key_size += length
                length, here = varint(buf, here, after)
                if here < 0 or length < -1 or length > after - here:
                    code = BAD_HEADER
                    break
                if length > 0:
                    here += length
                    header_value_size += length
            if code != DONE:
                break
            if here != after:
                code = BAD_RECORD
                break
            time = row[MAX_TIME] if append_time else row[BASE_TIME] + delta_time
            if offset < start or offset >= until:
                previous = offset
                record += 1
                at = after
                continue
            # From here on the record is a row; first make sure that all of it fits.
            if (
                rows >= max_rows
                or (want_key and key_size > keys.size - key_at)
                or (want_value and value_size > values.size - value_at)
                or (
                    want_headers
                    and (
                        header_count > header_key_ends.size - 1 - headers
                        or header_key_size > header_keys.size - header_key_at
                        or header_value_size > header_values.size - header_value_at
                    )
                )
            ):
                code = FULL if rows > 0 else OVERSIZED
                state[NEED_KEY], state[NEED_VALUE], state[NEED_HEADERS] = key_size, value_size, header_count
                state[NEED_HEADER_KEY], state[NEED_HEADER_VALUE] = header_key_size, header_value_size
                break
            if time_scale > 0:
                if time_scale > 1 and (time > MAX_MILLISECONDS or time < -MAX_MILLISECONDS):
                    code = BAD_TIME
                    state[BAD_VALUE] = time
                    previous = offset - 1
                    break
                times[rows] = time * time_scale
            offsets[rows] = offset
            time_types[rows] = 1 if append_time else 0
            if want_key:
                if key_size > 0:
                    copy_bytes(keys, key_at, buf, key_from, key_size)
                    key_at += key_size
                elif key_size < 0:
                    key_nulls += 1
                set_bit(key_bits, rows, key_size >= 0)
                key_ends[rows + 1] = key_at
            if want_value:
                if value_size > 0:
                    copy_bytes(values, value_at, buf, value_from, value_size)
                    value_at += value_size
                elif value_size < 0:
                    value_nulls += 1
                set_bit(value_bits, rows, value_size >= 0)
                value_ends[rows + 1] = value_at
            if want_headers:
                here = headers_from
                for _ in range(header_count):
                    length, here = varint(buf, here, after)
                    for i in range(length):
                        if buf[here + i] > 127:
                            state[HEADER_KEY_HIGH] = 1
                    copy_bytes(header_keys, header_key_at, buf, here, length)
                    header_key_at += length
                    here += length
                    length, here = varint(buf, here, after)
                    set_bit(header_value_bits, headers, length >= 0)
                    if length > 0:
                        copy_bytes(header_values, header_value_at, buf, here, length)
                        header_value_at += length
                        here += length
                    elif length < 0:
                        state[HEADER_VALUE_NULLS] += 1
                    headers += 1
                    header_key_ends[headers] = header_key_at
                    header_value_ends[headers] = header_value_at
                if header_count == 0:
                    list_nulls += 1
                set_bit(list_bits, rows, header_count > 0)
                list_ends[rows + 1] = headers
            rows += 1
            previous = offset
            record += 1
            at = after
        if code != DONE:
            break
        if at != end:
            code = BAD_COUNT
            break
        segment += 1
        at = -1
    state[SEGMENT], state[RECORD], state[POSITION] = segment, record, at
    state[ROWS], state[PREVIOUS] = rows, previous
    state[KEY_BYTES], state[VALUE_BYTES] = key_at, value_at
    state[HEADERS], state[HEADER_KEY_BYTES] = headers, header_key_at
    state[HEADER_VALUE_BYTES] = header_value_at
    state[KEY_NULLS], state[VALUE_NULLS], state[HEADER_NULLS] = key_nulls, value_nulls, list_nulls
    state[BAD_AT] = previous + 1
    return code
