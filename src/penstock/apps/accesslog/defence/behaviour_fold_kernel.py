"""The fold itself: adds events, one after the other, to counters and scores; `ban_kernel` decides.

Rules. The state of a subject at an event depends only on the events before it, so batches can be cut
anywhere. Levels fade when an event touches them, never at the end of a batch. An expired subject starts anew
at its next event, whether its row was swept before or not. A bucket has sixteen places. A seventeenth subject
takes the place of an expired one, or else of the least suspicious one.

Why not a dictionary of objects: that takes a microsecond per event; this takes about 60 ns for an ordinary
line. `tests/reference/accesslog_fold.py` is the same fold in plain Python.
"""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import numpy as np

from penstock.apps.accesslog.defence import behaviour_fold_arrays as s
from penstock.apps.accesslog.defence.ban_kernel import (
    choose_rule,
    decide_client,
    decide_member,
    escalate,
    keep_until,
    lift_ban,
    write_decision,
)
from penstock.apps.accesslog.defence.broken_links_kernel import note_missing_path
from penstock.apps.accesslog.defence.subject_table_kernel import find_member, find_row
from penstock.apps.accesslog.events.line_events_kernel import mix, mix_subject
from penstock.apps.accesslog.parsing.client_addresses import cut_to_net
from penstock.kernels.compilation import inlined, kernel, part


@kernel
def fold_events(events, first, table, rules, limits, out, out_score):
    """Fold events from `first` on; return the first that is left because a pool or `out` was too small."""
    behaviours = rules.limit.size
    heads = table.heads
    for i in range(first, events.time.size):
        if (
            heads[s.OUT_USED] + s.MOST_MEMBERS + 2 > out.shape[0]
            or table.rows.shape[0] - heads[s.ROWS_USED] + heads[s.ROWS_FREE_COUNT] < 1
            or table.counters.shape[0] - heads[s.COUNTERS_USED] + heads[s.COUNTERS_FREE_COUNT] < behaviours
            or table.members.shape[0] - heads[s.MEMBERS_USED] + heads[s.MEMBERS_FREE_COUNT] < 1
        ):
            return i
        if events.kind[i] == 0:
            fold_client(events, i, table, rules, limits, out, out_score)
        elif events.late[i] <= s.MOST_LATE_US:
            fold_group(events, i, table, rules, limits, out, out_score)
    return events.time.size


@inlined
def fold_client(events, i, table, rules, limits, out, out_score):
    time = events.time[i]
    row = find_row(table, events.high[i], events.low[i], 0, time, limits)
    rows, marks = table.rows, table.marks
    rows[row, s.REQUESTS] += 1
    if rows[row, s.LEVEL] > 0 and limits.grace_times.shape[0] > 0:
        lift_ban(rows, row, time, limits)
    if events.answer[i] == s.FOUND and rows[row, s.VOUCHED] == 0:
        rows[row, s.VOUCHED] = 1
    is_counted = events.late[i] <= s.MOST_LATE_US
    tipped, simulated = np.int64(-1), np.int64(-1)
    begin, end = events.hit_starts[i], events.hit_starts[i + 1]
    if begin < end:
        harmless = True
        for j in range(begin, end):
            rule = np.int64(events.hit_rules[j])
            if rules.points[rule] > 0:
                harmless = False
                verdict = add_points(table, row, rules, rule, time, limits)
                if verdict == 1:
                    tipped = choose_rule(rows, row, rules, time, limits, tipped, rule)
                elif verdict == 2 and simulated < 0:
                    simulated = rule
        shared = np.int64(-1)
        for j in range(begin, end if is_counted else begin):
            rule = np.int64(events.hit_rules[j])
            for at in range(rules.count_starts[0, rule], rules.count_starts[0, rule + 1]):
                b = rules.count_lists[at]
                if harmless and rules.leaves_shared[b] != 0:
                    if shared < 0:
                        shared = note_missing_path(table, row, events.path[i], time)
                    if shared == 1:
                        continue
                if count_one(table, row, rules, b, pick_value(events, i, rules.distinct[b]), time)[0]:
                    tipped, simulated = note_trigger(table, row, rules, b, time, limits, tipped, simulated)
    for at in range(rules.dense_list.size if is_counted else 0):
        b = rules.dense_list[at]
        level = marks[row, s.DENSE + at]
        passed = time - rows[row, s.LAST]
        if passed > 0:
            level *= 2.0 ** (-np.float64(passed) / rules.half_life[b])
        level += 1.0
        marks[row, s.DENSE + at] = level
        if time + rules.memory[b] > rows[row, s.EXPIRES]:
            rows[row, s.EXPIRES] = time + rules.memory[b]
        if level > rules.limit[b]:
            tipped, simulated = note_trigger(table, row, rules, b, time, limits, tipped, simulated)
    for at in range(rules.any_client.size if is_counted else 0):
        b = rules.any_client[at]
        if rules.distinct[b] == 2:
            if events.answer[i] == s.FOUND | s.ASSET and uncount_agent(
                table, row, rules, b, events.agent[i], time
            ):
                continue
            if rows[row, s.REQUESTS] == 1 or rows[row, s.AGENT] == np.int64(events.agent[i]):
                continue
            remember_first_agent(table, row, b, rows[row, s.AGENT], time)
            if not is_remembered(
                table.filters, find_counter(table, row, b, time), np.uint64(events.agent[i])
            ):
                events.noted[i] = 1
        if count_one(table, row, rules, b, pick_value(events, i, rules.distinct[b]), time)[0]:
            tipped, simulated = note_trigger(table, row, rules, b, time, limits, tipped, simulated)
    rows[row, s.AGENT] = np.int64(events.agent[i])
    if is_counted:
        rows[row, s.LAST] = time  # from which the dense levels fade
    if tipped >= 0:
        decide_client(events, i, table, row, rules, tipped, time, limits, out, out_score)
    elif simulated >= 0 and time >= rows[row, s.QUIET_UNTIL] and time >= rows[row, s.BAN_UNTIL]:
        rows[row, s.QUIET_UNTIL] = time + limits.quiet_us
        keep_until(rows, row, time + limits.quiet_us)
        write_decision(i, table, row, events.high[i], events.low[i], simulated, s.SIMULATE,
                       rows[row, s.LEVEL], 0, rows[row, s.REQUESTS], out, out_score)  # fmt: skip


@inlined
def fold_group(events, i, table, rules, limits, out, out_score):
    """Count an event for a client's network or fingerprint; decide about the client while that is hot."""
    time, kind = events.time[i], events.kind[i]
    if kind == 1:
        high, low = cut_to_net(events.high[i], events.low[i])
    else:
        high, low = np.uint64(0), events.group[i]
    row = find_row(table, high, low, kind, time, limits)
    table.rows[row, s.REQUESTS] += 1
    table.rows[row, s.LAST] = time
    member = find_member(table, row, events.high[i], events.low[i])
    table.members[member, s.MEMBER_LAST] = time
    table.members[member, s.MEMBER_COUNT] += 1
    for j in range(events.hit_starts[i], events.hit_starts[i + 1]):
        rule = np.int64(events.hit_rules[j])
        for at in range(rules.count_starts[kind, rule], rules.count_starts[kind, rule + 1]):
            count_group(
                events, i, table, row, member, rules, rules.count_lists[at], time, limits, out, out_score
            )
    if kind == 1:
        for at in range(rules.any_net.size):
            count_group(events, i, table, row, member, rules, rules.any_net[at], time, limits, out, out_score)
    else:
        for at in range(rules.any_print.size):
            count_group(
                events, i, table, row, member, rules, rules.any_print[at], time, limits, out, out_score
            )


@part
def count_group(events, i, table, row, member, rules, b, time, limits, out, out_score):
    """Count for one rule. A simulated rule changes no ban and decides about each member once."""
    members, rows = table.members, table.rows
    bit = np.int64(1) << np.int64(b)
    is_enforced = rules.enforced[rules.rule_of[b]] != 0
    is_new = members[member, s.MEMBER_MASK] & bit == 0
    members[member, s.MEMBER_MASK] |= bit
    over, entry = count_one(table, row, rules, b, pick_value(events, i, rules.distinct[b]), time)
    if time < table.counters[entry, s.HOT_UNTIL]:
        if is_enforced or is_new:
            decide_member(i, table, row, member, rules, b, time, limits, out, out_score)
    elif over and rules.points[rules.rule_of[b]] >= limits.blocking:
        ban_us = np.int64(limits.ban_us)
        if is_enforced:
            ban_us = escalate(rows, row, time, limits)
        keep_until(rows, row, time + ban_us)
        table.counters[entry, s.HOT_UNTIL] = time + ban_us
        each = rows[row, s.MEMBERS]
        while each >= 0:
            if members[each, s.MEMBER_MASK] & bit != 0:
                if members[each, s.MEMBER_LAST] >= time - rules.memory[b]:
                    decide_member(i, table, row, each, rules, b, time, limits, out, out_score)
                elif not is_enforced:
                    members[each, s.MEMBER_MASK] &= ~bit
            each = members[each, s.MEMBER_NEXT]


@part
def note_trigger(table, row, rules, b, time, limits, tipped, simulated):
    """Add the points of a behaviour rule over its limit; one with too few to block starts counting anew."""
    rule = np.int64(rules.rule_of[b])
    if rules.points[rule] < limits.blocking:
        reset_level(table, row, rules, b)
    verdict = add_points(table, row, rules, rule, time, limits)
    if verdict == 1:
        tipped = choose_rule(table.rows, row, rules, time, limits, tipped, rule)
    elif verdict == 2 and simulated < 0:
        simulated = rule
    return tipped, simulated


@part
def reset_level(table, row, rules, b):
    for at in range(rules.dense_list.size):
        if rules.dense_list[at] == b:
            table.marks[row, s.DENSE + at] = 0.0
    entry = table.rows[row, s.CHAIN]
    while entry >= 0:
        if table.counters[entry, s.BEHAVIOUR] == b:
            table.levels[entry, s.NOW_LEVEL] = 0.0
            table.levels[entry, s.PREVIOUS] = 0.0
        entry = table.counters[entry, s.NEXT]


@part
def add_points(table, row, rules, rule, time, limits):
    """Add a rule's points; return 1 if the score blocks, 2 if it would with simulated rules, else 0."""
    rows, marks = table.rows, table.marks
    passed = time - rows[row, s.SCORED_AT]
    if passed > 0:
        fading = 2.0 ** (-np.float64(passed) / limits.score_half_life)
        marks[row, s.SCORE] *= fading
        marks[row, s.SHADOW] *= fading
    rows[row, s.SCORED_AT] = time
    points = np.float64(rules.points[rule])
    marks[row, s.SHADOW] = min(marks[row, s.SHADOW] + points, s.MOST_SCORE)
    if rules.enforced[rule] != 0:
        marks[row, s.SCORE] = min(marks[row, s.SCORE] + points, s.MOST_SCORE)
    keep_until(rows, row, time + np.int64(8.0 * limits.score_half_life))
    if rules.enforced[rule] != 0 and marks[row, s.SCORE] >= limits.blocking:
        return 1
    if rules.enforced[rule] == 0 and marks[row, s.SHADOW] >= limits.blocking:
        return 2
    return 0


@inlined
def pick_value(events, i, distinct):
    if distinct == 1:
        return np.uint64(events.path[i])
    if distinct == 2:
        return np.uint64(events.agent[i])
    if distinct == 3:
        return mix_subject(events.high[i], events.low[i], 0)
    return np.uint64(0)


@part
def find_counter(table, row, b, time):
    """Return the entry of a behaviour rule in a subject's chain; a new one if it has none."""
    entry = table.rows[row, s.CHAIN]
    while entry >= 0:
        if table.counters[entry, s.BEHAVIOUR] == b:
            return entry
        entry = table.counters[entry, s.NEXT]
    heads = table.heads
    if heads[s.COUNTERS_FREE] >= 0:
        entry = heads[s.COUNTERS_FREE]
        heads[s.COUNTERS_FREE] = table.counters[entry, s.NEXT]
        heads[s.COUNTERS_FREE_COUNT] -= 1
    else:
        entry = heads[s.COUNTERS_USED]
        heads[s.COUNTERS_USED] += 1
    table.counters[entry, s.NEXT] = table.rows[row, s.CHAIN]
    table.counters[entry, s.BEHAVIOUR] = b
    table.counters[entry, s.COUNTED_AT] = time
    table.counters[entry, s.HOT_UNTIL] = -(1 << 62)
    table.counters[entry, s.WINDOW_INDEX] = -(1 << 62)
    table.levels[entry, s.NOW_LEVEL] = 0.0
    table.levels[entry, s.PREVIOUS] = 0.0
    for word in range(s.FILTER_WORDS):
        table.filters[entry, word] = np.uint64(0)
    table.rows[row, s.CHAIN] = entry
    return entry


@part
def count_one(table, row, rules, b, value, time):
    """Count a value in a subject's counter; return whether it is now over the limit, and the counter."""
    entry = find_counter(table, row, b, time)
    counters, levels = table.counters, table.levels
    keep_until(table.rows, row, time + rules.memory[b])
    if rules.half_life[b] > 0.0:
        level = levels[entry, s.NOW_LEVEL]
        passed = time - counters[entry, s.COUNTED_AT]
        if passed > 0:
            level *= 2.0 ** (-np.float64(passed) / rules.half_life[b])
        if rules.distinct[b] != 0:
            if level < 0.5:
                clear_filter(table.filters, entry)
            if not remember(table.filters, entry, value):
                return level > rules.limit[b], entry
        levels[entry, s.NOW_LEVEL] = level + 1.0
        counters[entry, s.COUNTED_AT] = time
        return level + 1.0 > rules.limit[b], entry
    window = rules.window[b]
    index = time // window
    steps = index - counters[entry, s.WINDOW_INDEX]
    if steps > 1:
        levels[entry, s.PREVIOUS], levels[entry, s.NOW_LEVEL] = 0.0, 0.0
        clear_filter(table.filters, entry)
    elif steps == 1:
        levels[entry, s.PREVIOUS], levels[entry, s.NOW_LEVEL] = levels[entry, s.NOW_LEVEL], 0.0
    counters[entry, s.WINDOW_INDEX] = index
    counters[entry, s.COUNTED_AT] = time
    if rules.distinct[b] == 0 or remember(table.filters, entry, value):
        levels[entry, s.NOW_LEVEL] += 1.0
    left = 1.0 - np.float64(time - index * window) / np.float64(window)
    return levels[entry, s.PREVIOUS] * left + levels[entry, s.NOW_LEVEL] > rules.limit[b], entry


@part
def remember_first_agent(table, row, b, agent, time):
    """Remember the agent before the first switch, so that going back to it does not count as a new one."""
    entry = find_counter(table, row, b, time)
    if levels_empty(table.levels, entry):
        remember(table.filters, entry, np.uint64(agent))


@part
def uncount_agent(table, row, rules, b, agent, time):
    """Take an agent that loads assets off the count again: it is a browser behind a shared address.

    Return False if there is nothing to take back: the agent is new, or nothing was counted.
    """
    entry = table.rows[row, s.CHAIN]
    while entry >= 0 and table.counters[entry, s.BEHAVIOUR] != b:
        entry = table.counters[entry, s.NEXT]
    if entry < 0 or not is_remembered(table.filters, entry, np.uint64(agent)):
        return False
    level = table.levels[entry, s.NOW_LEVEL]
    if rules.half_life[b] > 0.0:
        passed = time - table.counters[entry, s.COUNTED_AT]
        if passed > 0:
            level *= 2.0 ** (-np.float64(passed) / rules.half_life[b])
        table.counters[entry, s.COUNTED_AT] = time
    table.levels[entry, s.NOW_LEVEL] = max(level - 1.0, 0.0)
    return True


@inlined
def levels_empty(levels, entry):
    return levels[entry, s.NOW_LEVEL] == 0.0 and levels[entry, s.PREVIOUS] == 0.0


@inlined
def clear_filter(filters, entry):
    for word in range(s.FILTER_WORDS):
        filters[entry, word] = np.uint64(0)


@part
def is_remembered(filters, entry, value):
    """Return whether both bits of a value are in a filter."""
    spread = mix(value + np.uint64(0x9E3779B97F4A7C15))
    first, second = np.int64(spread & np.uint64(255)), np.int64((spread >> np.uint64(8)) & np.uint64(255))
    one = np.uint64(1)
    has_first = (filters[entry, first >> 6] >> np.uint64(first & 63)) & one
    has_second = (filters[entry, second >> 6] >> np.uint64(second & 63)) & one
    return has_first == one and has_second == one


@part
def remember(filters, entry, value):
    """Put a value into a filter of 256 bits, two bits per value; return False if it was there already."""
    if is_remembered(filters, entry, value):
        return False
    spread = mix(value + np.uint64(0x9E3779B97F4A7C15))
    first, second = np.int64(spread & np.uint64(255)), np.int64((spread >> np.uint64(8)) & np.uint64(255))
    one = np.uint64(1)
    bits = 0
    for word in range(s.FILTER_WORDS):
        left = filters[entry, word]
        while left != np.uint64(0):
            left &= left - one
            bits += 1
    if bits > s.MOST_BITS:
        clear_filter(filters, entry)
    filters[entry, first >> 6] |= one << np.uint64(first & 63)
    filters[entry, second >> 6] |= one << np.uint64(second & 63)
    return True
