"""The arrays that the fold's kernels work on: which column means what, and the bundles they are passed in.

Rule: a place in an array has a name here and nowhere else. Rows are subjects. Counters and members are
entries of pools, linked by index; -1 ends a chain.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# Columns of `rows`: a subject.
HIGH, LOW, KIND, LAST, EXPIRES, REQUESTS = 0, 1, 2, 3, 4, 5
BAN_FROM, BAN_UNTIL, LEVEL, CHAIN, MEMBERS, QUIET_UNTIL, AGENT, SCORED_AT = 6, 7, 8, 9, 10, 11, 12, 13
SLOT, CLASSES, VOUCHED = 14, 15, 16
ROW_WIDTH = 17
# Columns of `marks`: a subject's score, its score with simulated rules, then the dense levels.
SCORE, SHADOW, DENSE = 0, 1, 2
# Columns of `counters`: a behaviour rule that has counted something of a subject.
NEXT, BEHAVIOUR, COUNTED_AT, HOT_UNTIL, WINDOW_INDEX = 0, 1, 2, 3, 4
COUNTER_WIDTH = 5
# Columns of `levels`.
NOW_LEVEL, PREVIOUS = 0, 1
FILTER_WORDS = 4
# Columns of `members`: a client that took part in what a network or a fingerprint did.
MEMBER_NEXT, MEMBER_HIGH, MEMBER_LOW, MEMBER_LAST, MEMBER_MASK, MEMBER_UNTIL, MEMBER_COUNT = range(7)
MEMBER_WIDTH = 7
MOST_MEMBERS = 64
# Columns of `paths`: something that was not found, and the networks of up to two clients that asked for it.
PATH_KEY, PATH_FIRST, PATH_SECOND, PATH_LAST = 0, 1, 2, 3
PATH_WIDTH = 4
# `heads`: how many entries of a pool were ever used, the first free one, and how many are free.
ROWS_USED, ROWS_FREE, ROWS_FREE_COUNT = 0, 1, 2
COUNTERS_USED, COUNTERS_FREE, COUNTERS_FREE_COUNT = 3, 4, 5
MEMBERS_USED, MEMBERS_FREE, MEMBERS_FREE_COUNT = 6, 7, 8
OUT_USED, EVICTED, FORGOTTEN, LIVE = 9, 10, 11, 12
HEADS = 13
# Columns of `out`: a decision.
(OUT_EVENT, OUT_KIND, OUT_HIGH, OUT_LOW, OUT_CLIENT_HIGH, OUT_CLIENT_LOW, OUT_RULE, OUT_ACTION, OUT_LEVEL,
 OUT_BAN, OUT_REQUESTS) = range(11)  # fmt: skip
OUT_WIDTH = 11
BLOCK, SIMULATE, ALLOWED, GRACE = 0, 1, 2, 3
ACTIONS = ("block", "simulate", "allowed", "grace")

#: Places in a bucket of subjects, and in one of paths.
WAYS, PATH_WAYS = 16, 8
#: A score does not grow beyond this, so that it fades in a known time.
MOST_SCORE = 20.0
#: A filter with more bits set than this is cleared.
MOST_BITS = 160
#: A line that was moved up further than this counts in no counter: its time means nothing.
MOST_LATE_US = 60_000_000
#: Bits of an event's answer: the target exists, and it is a file that pages load automatically.
FOUND, ASSET = 1, 2
#: For how many missing paths one client can vouch that they are broken links. Its column is 0 until the
#: client has loaded a page, and counts from 1 on then.
MOST_VOUCHED = 8
#: How long a path is remembered as shared.
PATH_MEMORY_US = 24 * 3_600_000_000


class SubjectTable(NamedTuple):
    """All clients, or all groups, of a lane: a bucket table, and pools for what belongs to them."""

    tags: Any  # uint32, WAYS per bucket
    slots: Any  # int32: row, or -1
    rows: Any
    marks: Any
    counters: Any
    levels: Any
    filters: Any
    members: Any
    heads: Any
    paths: Any


class Events(NamedTuple):
    """Columns of the events to fold, in order."""

    high: Any
    low: Any
    kind: Any
    group: Any
    time: Any
    late: Any
    path: Any
    agent: Any
    answer: Any
    hit_starts: Any
    hit_rules: Any
    noted: Any  # the fold writes 1 where a client showed an agent that it had not shown before


class Rules(NamedTuple):
    """The program's arrays for clients, or for groups."""

    points: Any
    enforced: Any
    class_bit: Any
    rule_of: Any
    limit: Any
    half_life: Any
    window: Any
    memory: Any
    distinct: Any
    leaves_shared: Any
    dense_list: Any
    any_client: Any
    any_net: Any
    any_print: Any
    count_starts: Any
    count_lists: Any


class FoldLimits(NamedTuple):
    """Settings, and the addresses that may not be blocked: sorted ranges, and ranges with a time."""

    score_half_life: float
    ban_us: int
    most_ban_us: int
    forget_us: int
    quiet_us: int
    blocking: float
    allow_first_high: Any
    allow_first_low: Any
    allow_last_high: Any
    allow_last_low: Any
    grace_bounds: Any  # uint64 [n, 4]
    grace_times: Any  # int64 [n, 2]
