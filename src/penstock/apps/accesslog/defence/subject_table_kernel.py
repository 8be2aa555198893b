"""Kernel parts that find the row of a subject or a member, assign a new one, and sweep out expired ones.

Rule: which subjects a bucket holds at an event is a function of the events before it. A place is free if its
subject has expired by then. If none is free, the least suspicious subject is evicted: one that was never
banned before one that was, then the one with the lower score, then the one seen longest ago.
"""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import numpy as np

from penstock.apps.accesslog.defence import behaviour_fold_arrays as s
from penstock.apps.accesslog.events.line_events_kernel import mix_subject
from penstock.kernels.compilation import inlined, kernel, part


@inlined
def find_row(table, high, low, kind, time, limits):
    """Return the row of a subject, started anew if it was missing or had expired."""
    word = mix_subject(high, low, kind)
    buckets = np.uint64(table.slots.size // s.WAYS)
    begin = np.int64((word & np.uint64(0xFFFFFFFF)) % buckets) * s.WAYS
    tag = np.uint32(word >> np.uint64(32))
    signed_high, signed_low = np.int64(high), np.int64(low)
    for at in range(begin, begin + s.WAYS):
        if table.tags[at] == tag:
            row = np.int64(table.slots[at])
            if (
                row >= 0
                and table.rows[row, s.HIGH] == signed_high
                and table.rows[row, s.LOW] == signed_low
                and table.rows[row, s.KIND] == kind
            ):
                if time > table.rows[row, s.EXPIRES]:
                    clear_row(table, row)
                    table.heads[s.FORGOTTEN] += 1
                    begin_row(table, row, signed_high, signed_low, kind, time, at)
                return row
    return add_row(table, begin, tag, signed_high, signed_low, kind, time, limits)


@part
def add_row(table, begin, tag, high, low, kind, time, limits):
    place = np.int64(-1)
    for at in range(begin, begin + s.WAYS):
        row = np.int64(table.slots[at])
        if row < 0:
            place = at
            break
        if place < 0 and time > table.rows[row, s.EXPIRES]:
            place = at
    if place < 0:
        place = find_least(table, begin, time, limits)
        table.heads[s.EVICTED] += 1
    old = np.int64(table.slots[place])
    if old >= 0:
        clear_row(table, old)
        row = old
        table.heads[s.LIVE] -= 1
    elif table.heads[s.ROWS_FREE] >= 0:
        row = table.heads[s.ROWS_FREE]
        table.heads[s.ROWS_FREE] = table.rows[row, s.CHAIN]
        table.heads[s.ROWS_FREE_COUNT] -= 1
    else:
        row = table.heads[s.ROWS_USED]
        table.heads[s.ROWS_USED] += 1
    table.slots[place] = row
    table.tags[place] = tag
    table.heads[s.LIVE] += 1
    begin_row(table, row, high, low, kind, time, place)
    return row


@part
def find_least(table, begin, time, limits):
    least = begin
    for at in range(begin + 1, begin + s.WAYS):
        if is_less_suspicious(table, np.int64(table.slots[at]), np.int64(table.slots[least]), time, limits):
            least = at
    return least


@part
def is_less_suspicious(table, row, other, time, limits):
    rows = table.rows
    banned, other_banned = rows[row, s.LEVEL] > 0, rows[other, s.LEVEL] > 0
    if banned != other_banned:
        return other_banned
    score, other_score = fade_score(table, row, time, limits), fade_score(table, other, time, limits)
    if score != other_score:
        return score < other_score
    if rows[row, s.LAST] != rows[other, s.LAST]:
        return rows[row, s.LAST] < rows[other, s.LAST]
    if rows[row, s.HIGH] != rows[other, s.HIGH]:
        return rows[row, s.HIGH] < rows[other, s.HIGH]
    return rows[row, s.LOW] < rows[other, s.LOW]


@inlined
def fade_score(table, row, time, limits):
    score = table.marks[row, s.SHADOW]
    passed = time - table.rows[row, s.SCORED_AT]
    if score > 0.0 and passed > 0:
        score *= 2.0 ** (-np.float64(passed) / limits.score_half_life)
    return score


@part
def begin_row(table, row, high, low, kind, time, place):
    rows = table.rows
    rows[row, s.HIGH], rows[row, s.LOW], rows[row, s.KIND] = high, low, kind
    rows[row, s.LAST], rows[row, s.EXPIRES], rows[row, s.REQUESTS] = time, time, 0
    rows[row, s.BAN_FROM], rows[row, s.BAN_UNTIL], rows[row, s.LEVEL] = time, -(1 << 62), 0
    rows[row, s.CHAIN], rows[row, s.MEMBERS], rows[row, s.QUIET_UNTIL] = -1, -1, -(1 << 62)
    rows[row, s.AGENT], rows[row, s.SCORED_AT], rows[row, s.SLOT] = 0, time, place
    rows[row, s.CLASSES], rows[row, s.VOUCHED] = 0, 0
    for column in range(table.marks.shape[1]):
        table.marks[row, column] = 0.0


@part
def clear_row(table, row):
    """Give the counters and members of a subject back to their pools."""
    heads = table.heads
    entry = table.rows[row, s.CHAIN]
    while entry >= 0:
        following = table.counters[entry, s.NEXT]
        table.counters[entry, s.NEXT] = heads[s.COUNTERS_FREE]
        heads[s.COUNTERS_FREE] = entry
        heads[s.COUNTERS_FREE_COUNT] += 1
        entry = following
    entry = table.rows[row, s.MEMBERS]
    while entry >= 0:
        following = table.members[entry, s.MEMBER_NEXT]
        table.members[entry, s.MEMBER_NEXT] = heads[s.MEMBERS_FREE]
        heads[s.MEMBERS_FREE] = entry
        heads[s.MEMBERS_FREE_COUNT] += 1
        entry = following


@part
def find_member(table, row, high, low):
    """Return a client's entry in a group, or a new one; a full group reuses the one seen longest ago."""
    members, rows, heads = table.members, table.rows, table.heads
    signed_high, signed_low = np.int64(high), np.int64(low)
    entry, count, oldest = rows[row, s.MEMBERS], 0, np.int64(-1)
    while entry >= 0:
        if members[entry, s.MEMBER_HIGH] == signed_high and members[entry, s.MEMBER_LOW] == signed_low:
            return entry
        if oldest < 0 or members[entry, s.MEMBER_LAST] < members[oldest, s.MEMBER_LAST] or (
            members[entry, s.MEMBER_LAST] == members[oldest, s.MEMBER_LAST]
            and (members[entry, s.MEMBER_HIGH] < members[oldest, s.MEMBER_HIGH]
                 or (members[entry, s.MEMBER_HIGH] == members[oldest, s.MEMBER_HIGH]
                     and members[entry, s.MEMBER_LOW] < members[oldest, s.MEMBER_LOW]))
        ):  # fmt: skip
            oldest = entry
        count += 1
        entry = members[entry, s.MEMBER_NEXT]
    if count >= s.MOST_MEMBERS:
        entry = oldest
    else:
        if heads[s.MEMBERS_FREE] >= 0:
            entry = heads[s.MEMBERS_FREE]
            heads[s.MEMBERS_FREE] = members[entry, s.MEMBER_NEXT]
            heads[s.MEMBERS_FREE_COUNT] -= 1
        else:
            entry = heads[s.MEMBERS_USED]
            heads[s.MEMBERS_USED] += 1
        members[entry, s.MEMBER_NEXT] = rows[row, s.MEMBERS]
        rows[row, s.MEMBERS] = entry
    members[entry, s.MEMBER_HIGH], members[entry, s.MEMBER_LOW] = signed_high, signed_low
    members[entry, s.MEMBER_MASK], members[entry, s.MEMBER_COUNT] = 0, 0
    members[entry, s.MEMBER_UNTIL] = -(1 << 62)
    return entry


@kernel
def sweep(table, before):
    """Remove all subjects that expired before this time and return how many."""
    swept = 0
    for place in range(table.slots.size):
        row = np.int64(table.slots[place])
        if row >= 0 and table.rows[row, s.EXPIRES] < before:
            clear_row(table, row)
            table.slots[place] = -1
            table.rows[row, s.CHAIN] = table.heads[s.ROWS_FREE]
            table.heads[s.ROWS_FREE] = row
            table.heads[s.ROWS_FREE_COUNT] += 1
            table.heads[s.LIVE] -= 1
            swept += 1
    table.heads[s.FORGOTTEN] += swept
    return swept


@kernel
def place_rows(table, count):
    """Put rows that were read from storage into their buckets; return False if a bucket is full."""
    buckets = np.uint64(table.slots.size // s.WAYS)
    for row in range(count):
        high, low = np.uint64(table.rows[row, s.HIGH]), np.uint64(table.rows[row, s.LOW])
        word = mix_subject(high, low, table.rows[row, s.KIND])
        begin = np.int64((word & np.uint64(0xFFFFFFFF)) % buckets) * s.WAYS
        placed = False
        for at in range(begin, begin + s.WAYS):
            if table.slots[at] < 0:
                table.slots[at] = row
                table.tags[at] = np.uint32(word >> np.uint64(32))
                table.rows[row, s.SLOT] = at
                placed = True
                break
        if not placed:
            return False
    return True


@kernel
def list_chains(table, row_numbers, counter_order, counter_owner, member_order, member_owner):
    """List these rows' chains in order, with the owners as places in `row_numbers`; return both counts."""
    counters, members = 0, 0
    for n in range(row_numbers.size):
        entry = table.rows[row_numbers[n], s.CHAIN]
        while entry >= 0:
            counter_order[counters], counter_owner[counters] = entry, n
            counters += 1
            entry = table.counters[entry, s.NEXT]
        entry = table.rows[row_numbers[n], s.MEMBERS]
        while entry >= 0:
            member_order[members], member_owner[members] = entry, n
            members += 1
            entry = table.members[entry, s.MEMBER_NEXT]
    return counters, members


@kernel
def link_chains(table, counter_owner, member_owner):
    """Link entries 0, 1, 2 ... to their owners' rows in this order: the reverse of `list_chains`."""
    for entry in range(counter_owner.size - 1, -1, -1):
        table.counters[entry, s.NEXT] = table.rows[counter_owner[entry], s.CHAIN]
        table.rows[counter_owner[entry], s.CHAIN] = entry
    for entry in range(member_owner.size - 1, -1, -1):
        table.members[entry, s.MEMBER_NEXT] = table.rows[member_owner[entry], s.MEMBERS]
        table.rows[member_owner[entry], s.MEMBERS] = entry
