"""Kernel parts that decide about bans: whom to block, for how long, and when an order ends a ban early.

Rule: each ban of a subject is twice as long as the one before, up to a cap; after each quiet day
(`forget_us`) it is one step shorter (`escalate`). A banned client gets no second ban. A decision is still
made once for each new class of attack, so that operators see what else the client does. Lengths and limits
are in `defence_settings`.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from penstock.apps.accesslog.defence import behaviour_fold_arrays as s
from penstock.apps.accesslog.defence.allow_list_kernel import choose_action, order_covers
from penstock.kernels.compilation import inlined, kernel, part

_END_OF_TIME = np.int64((1 << 63) - 1)


@part
def escalate(rows, row, time, limits):
    """Begin a ban and return its length: twice the last one, a step less for each `forget_us` of quiet."""
    level = rows[row, s.LEVEL]
    if level > 0:
        level = max(np.int64(0), level - (time - rows[row, s.BAN_UNTIL]) // limits.forget_us)
    level += 1
    ban_us = np.int64(limits.most_ban_us)
    if level < 40 and limits.ban_us << (level - 1) < limits.most_ban_us:
        ban_us = np.int64(limits.ban_us) << (level - 1)
    rows[row, s.LEVEL] = level
    rows[row, s.BAN_FROM] = time
    rows[row, s.BAN_UNTIL] = time + ban_us
    keep_until(rows, row, time + ban_us + level * limits.forget_us)
    return ban_us


@part
def lift_ban(rows, row, time, limits):
    """End a running ban at the time from which an order about the client counts, if that has come."""
    high, low = np.uint64(rows[row, s.HIGH]), np.uint64(rows[row, s.LOW])
    for n in range(limits.grace_times.shape[0]):
        since = limits.grace_times[n, 0]
        if (
            rows[row, s.BAN_FROM] < since <= time
            and since < rows[row, s.BAN_UNTIL]
            and order_covers(limits, n, high, low)
        ):
            rows[row, s.BAN_UNTIL] = since


@kernel
def lift_bans(table, limits):
    """End all bans of earlier batches that an order covers; the fold ends those of its own batch."""
    for row in range(table.heads[s.ROWS_USED]):
        lift_ban(table.rows, row, _END_OF_TIME, limits)


@part
def decide_client(events, i, table, row, rules, rule, time, limits, out, out_score):
    """Block a client; while it is blocked, decide once more for each new class of attack."""
    rows = table.rows
    is_banned = time < rows[row, s.BAN_UNTIL]
    if is_banned and not names_new_class(rows, row, rules, limits, rule):
        return
    action = choose_action(limits, events.high[i], events.low[i], time)
    ban_us = np.int64(0)
    if is_banned:
        if action != s.BLOCK:
            return
        rows[row, s.CLASSES] |= rules.class_bit[rule]
        ban_us = rows[row, s.BAN_UNTIL] - time
    elif action == s.BLOCK:
        rows[row, s.CLASSES] = rules.class_bit[rule]
        ban_us = escalate(rows, row, time, limits)
    else:
        if time < rows[row, s.QUIET_UNTIL]:
            return
        rows[row, s.QUIET_UNTIL] = time + limits.quiet_us
        keep_until(rows, row, time + limits.quiet_us)
    write_decision(i, table, row, events.high[i], events.low[i], rule, action, rows[row, s.LEVEL],
                   ban_us, rows[row, s.REQUESTS], out, out_score)  # fmt: skip


@part
def decide_member(i, table, row, member, rules, b, time, limits, out, out_score):
    members, rows = table.members, table.rows
    rule = np.int64(rules.rule_of[b])
    high, low = np.uint64(members[member, s.MEMBER_HIGH]), np.uint64(members[member, s.MEMBER_LOW])
    action, ban_us = np.int64(s.SIMULATE), np.int64(0)
    if rules.enforced[rule] != 0:
        if time < members[member, s.MEMBER_UNTIL]:
            return
        action = choose_action(limits, high, low, time)
        ban_us = rows[row, s.BAN_UNTIL] - rows[row, s.BAN_FROM]
        members[member, s.MEMBER_UNTIL] = time + ban_us
    if action != s.BLOCK:
        ban_us = np.int64(0)
    write_decision(i, table, row, high, low, rule, action, rows[row, s.LEVEL], ban_us,
                   members[member, s.MEMBER_COUNT], out, out_score)  # fmt: skip


@part
def choose_rule(rows, row, rules, time, limits, tipped, rule):
    """Return which of two rules a decision names: the first, or, during a ban, the one of a new class."""
    if tipped < 0:
        return rule
    is_known = time < rows[row, s.BAN_UNTIL] and not names_new_class(rows, row, rules, limits, tipped)
    if is_known and names_new_class(rows, row, rules, limits, rule):
        return rule
    return tipped


@inlined
def names_new_class(rows, row, rules, limits, rule):
    """Return whether a rule has at least half a ban's points and a class that the running ban lacks."""
    return rows[row, s.CLASSES] & rules.class_bit[rule] == 0 and 2 * rules.points[rule] >= limits.blocking


@part
def write_decision(i, table, row, high, low, rule, action, level, ban_us, requests, out, out_score):
    n = table.heads[s.OUT_USED]
    out[n, s.OUT_EVENT] = i
    out[n, s.OUT_KIND] = table.rows[row, s.KIND]
    out[n, s.OUT_HIGH], out[n, s.OUT_LOW] = table.rows[row, s.HIGH], table.rows[row, s.LOW]
    out[n, s.OUT_CLIENT_HIGH], out[n, s.OUT_CLIENT_LOW] = np.int64(high), np.int64(low)
    out[n, s.OUT_RULE], out[n, s.OUT_ACTION] = rule, action
    out[n, s.OUT_LEVEL], out[n, s.OUT_BAN], out[n, s.OUT_REQUESTS] = level, ban_us, requests
    out_score[n] = table.marks[row, s.SHADOW if action == s.SIMULATE else s.SCORE]
    table.heads[s.OUT_USED] = n + 1


@inlined
def keep_until(rows, row, time):
    if time > rows[row, s.EXPIRES]:
        rows[row, s.EXPIRES] = time
