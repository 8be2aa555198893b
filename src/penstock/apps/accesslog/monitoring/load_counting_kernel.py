"""The loops of load monitoring: they touch each line of a batch once per table and hash equal texts once.

Rule: a text is identified by a 64-bit hash and the cell (minute and server) it is counted in. Its bytes are
copied only if it is among the most frequent of its cell. Why not Arrow's group_by over a column of texts: it
copies and compares each text of each line, about 400 ns a line; here all tables together take about 80.

Tables are arrays of entries, in the order in which they were first seen, and slots that point at them. A
key's slot depends on a salt drawn for each table, so nobody can choose URLs that all collide in one slot. The
counts do not depend on the salt. Two texts with the same hash are counted as one.

Texts arrive numbered by `text_grouping`. Its table has no salt, but it bounds the length of a search.

No kernel allocates memory; the callers pass the arrays in.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from penstock.apps.accesslog.events.line_events_kernel import mix
from penstock.kernels.compilation import copy_bytes, inlined, kernel, load_word, part

MICROS = 1_000_000
MINUTE_MICROS = 60 * MICROS
#: Earlier than any time: a clock that has not moved yet.
NEVER = -(1 << 62)

#: Columns of the counts of a second; the last five count only the lines that came on time.
REQUESTS, BYTES, STATUS, ERRORS = 0, 1, 2, 7
ON_TIME, ON_TIME_ERRORS, LATENCIES, LATENCY_SUM, LATENCY_SQUARES = 8, 9, 10, 11, 12
COUNTS = 13

#: A bucket of latencies is 1/64 of a power of two wide, so its middle is within 0.8 % of what is in it.
BUCKET_BITS = 6
BUCKETS = (41 - BUCKET_BITS) << BUCKET_BITS
_LONGEST = (1 << 40) - 1

#: Registers of a sketch, as a power of two: a standard error of 0.6 %.
SKETCH_BITS = 15
STEPS = 1024

_K1, _K2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_QUESTIONS, _ONES = np.uint64(0x3F3F3F3F3F3F3F3F), np.uint64(0x0101010101010101)
_HIGHS, _ZERO, _ONE = np.uint64(0x8080808080808080), np.uint64(0), np.uint64(1)


# --- hashing and tables ------------------------------------------------------------------------------------


@inlined
def hash_text(data, at, end):
    """Return a 64-bit hash of `data[at:end]`, whose bounds the caller has checked."""
    state = np.uint64(end - at) * _K1
    while at + 8 <= end:
        state = (state ^ load_word(data, at)) * _K2
        state ^= state >> np.uint64(29)
        at += 8
    if at < end:
        word = _ZERO
        if at + 8 <= len(data):
            word = load_word(data, at) & ((_ONE << np.uint64(8 * (end - at))) - _ONE)
        else:
            for i in range(end - at):
                word |= np.uint64(data[at + i]) << np.uint64(8 * i)
        state = (state ^ word) * _K2
        state ^= state >> np.uint64(29)
    return mix(state)


@inlined
def _find_question(data, at, end):
    """Return the position of the first `?`, or the end."""
    while at + 8 <= end:
        word = load_word(data, at) ^ _QUESTIONS
        if (word - _ONES) & ~word & _HIGHS != _ZERO:
            break
        at += 8
    while at < end and data[at] != 0x3F:
        at += 1
    return at


@inlined
def _find_slot(slots, shift, salt, keys, cells, key, cell):
    """Return the slot of an entry, or the free one where it belongs."""
    mask = (np.int64(1) << (np.int64(64) - shift)) - 1
    at = np.int64(((key ^ (np.uint64(cell) * _K1)) * salt) >> np.uint64(shift))
    while True:
        entry = slots[at]
        if entry < 0 or (keys[entry] == key and cells[entry] == cell):
            return at
        at = (at + 1) & mask


@part
def _grow(slots, shift, salt, keys, cells, entries):
    """Fill twice as many slots; return the new shift, or the old one if there is no room."""
    size = np.int64(1) << (np.int64(65) - shift)
    if size > len(slots):
        return shift
    slots[:size] = -1
    for entry in range(entries):
        slots[_find_slot(slots, shift - 1, salt, keys, cells, keys[entry], cells[entry])] = entry
    return shift - 1


@inlined
def bucket_of(latency):
    """Return the bucket of a latency in microseconds; up to 127 each number has its own."""
    value = min(max(latency, np.int64(0)), np.int64(_LONGEST))
    exponent = np.int64(0)
    while value >> exponent >= 2 << BUCKET_BITS:
        exponent += 1
    return (exponent << BUCKET_BITS) + (value >> exponent)


# --- counting ----------------------------------------------------------------------------------------------


class CountedLines(NamedTuple):
    """What is counted of each line."""

    times: Any
    statuses: Any
    sizes: Any
    latencies: Any
    servers: Any


class SecondTable(NamedTuple):
    """Seconds of servers, the cell of each, and what was counted in it."""

    seconds: Any
    servers: Any
    cells: Any
    counts: Any
    slots: Any


class CellTable(NamedTuple):
    """Minutes of servers."""

    minutes: Any
    servers: Any
    slots: Any


@kernel
def count_lines(lines, grace, lateness, salt, clocks, late, second_table, cell_table, line_cells):
    """Count lines into seconds; return the number of seconds and the number of cells.

    `clocks` has a row for each server and a last one for all: first time, last time, and the highest time
    that two lines in a row have reached. `line_cells` gets the cell of each line, -1 if it came too late.
    """
    times, statuses, sizes, latencies, servers = lines
    seconds, second_servers, second_cells, counts, slots = second_table
    minutes, minute_servers, minute_slots = cell_table
    shift = minute_shift = np.int64(60)
    slots[:16] = -1
    minute_slots[:16] = -1
    second_count = cell_count = 0
    everyone = len(clocks) - 1
    last_second, last_server, entry = np.int64(NEVER), np.int32(-1), 0
    for line in range(len(times)):
        time, server = times[line], servers[line]
        for clock in (np.int64(server), np.int64(everyone)):
            if clocks[clock, 1] == NEVER:
                clocks[clock, 0] = time
            else:
                clocks[clock, 2] = max(clocks[clock, 2], min(clocks[clock, 1], time))
            clocks[clock, 1] = time
        second = time // MICROS
        minute = second // 60
        if clocks[server, 2] >= (minute + 1) * MINUTE_MICROS + grace:
            late[server, 0] += 1
            late[server, 1] += sizes[line]
            line_cells[line] = -1
            continue
        if second != last_second or server != last_server:
            slot = _find_slot(slots, shift, salt, seconds, second_servers, np.uint64(second), server)
            entry = slots[slot]
            if entry < 0:
                entry = second_count
                second_count += 1
                slots[slot] = entry
                seconds[entry], second_servers[entry] = np.uint64(second), server
                counts[entry, :] = 0
                slot = _find_slot(
                    minute_slots, minute_shift, salt, minutes, minute_servers, np.uint64(minute), server
                )
                cell = minute_slots[slot]
                if cell < 0:
                    cell = cell_count
                    cell_count += 1
                    minute_slots[slot] = cell
                    minutes[cell], minute_servers[cell] = np.uint64(minute), server
                    if cell_count << 1 > 1 << (64 - minute_shift):
                        minute_shift = _grow(
                            minute_slots, minute_shift, salt, minutes, minute_servers, cell_count
                        )
                second_cells[entry] = cell
                if second_count << 1 > 1 << (64 - shift):
                    shift = _grow(slots, shift, salt, seconds, second_servers, second_count)
            last_second, last_server = second, server
        line_cells[line] = second_cells[entry]
        status, group = statuses[line], statuses[line] // 100
        counts[entry, REQUESTS] += 1
        counts[entry, BYTES] += sizes[line]
        if 1 <= group <= 5:
            counts[entry, STATUS + group - 1] += 1
        if 500 <= status < 600:
            counts[entry, ERRORS] += 1
        if clocks[everyone, 2] < (second + 1) * MICROS + lateness:
            counts[entry, ON_TIME] += 1
            if 500 <= status < 600:
                counts[entry, ON_TIME_ERRORS] += 1
            if latencies[line] >= 0:
                bucket = bucket_of(latencies[line])
                counts[entry, LATENCIES] += 1
                counts[entry, LATENCY_SUM] += bucket
                counts[entry, LATENCY_SQUARES] += bucket * bucket
    return second_count, cell_count


@kernel
def count_latencies(latencies, line_cells, salt, slots, buckets, cells, hits):
    """Count latencies into (cell, bucket); return the number of entries."""
    shift, entries = np.int64(60), 0
    slots[:16] = -1
    for line in range(len(latencies)):
        cell = line_cells[line]
        if cell < 0 or latencies[line] < 0:
            continue
        bucket = np.uint64(bucket_of(latencies[line]))
        slot = _find_slot(slots, shift, salt, buckets, cells, bucket, cell)
        entry = slots[slot]
        if entry >= 0:
            hits[entry] += 1
            continue
        slots[slot] = entries
        buckets[entries], cells[entries], hits[entries] = bucket, cell, 1
        entries += 1
        if entries << 1 > 1 << (64 - shift):
            shift = _grow(slots, shift, salt, buckets, cells, entries)
    return entries


@kernel
def hash_numbered(data, starts, lengths, cut, keys, ends):
    """Hash each number's text and store where it ends. With `cut`, a text ends at its first question mark.

    The last hash is that of the empty text, for lines without a text.
    """
    for number in range(len(starts)):
        start = np.int64(starts[number])
        end = start + np.int64(lengths[number])
        if cut:
            end = _find_question(data, start, end)
        keys[number], ends[number] = hash_text(data, start, end), end
    keys[len(starts)] = hash_text(data, np.int64(0), np.int64(0))


@kernel
def count_texts(numbers, keys, sizes, line_cells, salt, slots, hashes, cells, hits, sums, texts):
    """Count texts into (cell, hash), with the bytes sent; return the number of entries.

    `keys` has the hash of each number's text, followed by that of lines without one (number -1). `texts`
    gets the number under which an entry's text was first seen.
    """
    shift, entries = np.int64(60), 0
    slots[:16] = -1
    for line in range(len(line_cells)):
        cell = line_cells[line]
        if cell < 0:
            continue
        number = np.int64(numbers[line])
        key = keys[number] if number >= 0 else keys[len(keys) - 1]
        slot = _find_slot(slots, shift, salt, hashes, cells, key, cell)
        entry = slots[slot]
        if entry >= 0:
            hits[entry] += 1
            sums[entry] += sizes[line]
            continue
        slots[slot] = entries
        hashes[entries], cells[entries], hits[entries], sums[entries] = key, cell, 1, sizes[line]
        texts[entries] = number
        entries += 1
        if entries << 1 > 1 << (64 - shift):
            shift = _grow(slots, shift, salt, hashes, cells, entries)
    return entries


@kernel
def keep_largest(cells, hits, room, crowded, steps, floors, keep):
    """Mark the `room` largest entries of each crowded cell and all entries of the others; return True.

    Of equal entries the first ones are kept. `crowded` numbers the crowded cells and is -1 elsewhere; `steps`
    has a row of 1,024 zeros for each of them. `floors` gets the most hits that a dropped entry may have.
    Return False if the counts are too large to be told apart.
    """
    for entry in range(len(hits)):
        which = crowded[cells[entry]]
        if which >= 0:
            steps[which, min(hits[entry], STEPS - 1)] += 1
    for which in range(len(steps)):
        kept = np.int64(0)
        step = STEPS - 1
        while step > 0 and kept + steps[which, step] <= room:
            kept += steps[which, step]
            step -= 1
        if step == STEPS - 1:
            return False
        floors[which] = step
        steps[which, 0] = room - kept  # how many entries with exactly this many hits still fit
    for entry in range(len(hits)):
        which = crowded[cells[entry]]
        keep[entry] = True
        if which < 0 or hits[entry] > floors[which]:
            continue
        keep[entry] = hits[entry] == floors[which] and steps[which, 0] > 0
        if keep[entry]:
            steps[which, 0] -= 1
    return True


@kernel
def copy_texts(data, starts, offsets, target):
    """Copy texts one after another; text i goes to `target[offsets[i]:offsets[i + 1]]`."""
    for i in range(len(starts)):
        size = offsets[i + 1] - offsets[i]
        if starts[i] >= 0 and 0 < size <= len(data) - starts[i] and offsets[i + 1] <= len(target):
            copy_bytes(target, np.int64(offsets[i]), data, np.int64(starts[i]), np.int64(size))


# --- sketches ----------------------------------------------------------------------------------------------


@kernel
def fill_registers(hashes, registers):
    """Add hashes to a sketch: their first bits choose a register, which keeps the longest run of zeros."""
    for i in range(len(hashes)):
        register = hashes[i] >> np.uint64(64 - SKETCH_BITS)
        rest = hashes[i] << np.uint64(SKETCH_BITS)
        rank = 1
        while rank <= 64 - SKETCH_BITS and rest & (_ONE << np.uint64(63)) == _ZERO:
            rest <<= _ONE
            rank += 1
        registers[register] = max(registers[register], np.uint8(rank))
