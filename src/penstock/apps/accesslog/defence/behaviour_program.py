"""The rules as arrays for the kernels: points, limits, half-lives, and which rule counts whose hits.

Rule: the number of a rule is its number in the `RuleSet`. Behaviour rules also have an index of their own,
`b`, in the order of their numbers. Hits without points that no rule counts never become part of an event.

A behaviour rule that counts every request of a client, without looking at a value, has its level in the row
of the client itself (`dense`). All others have an entry only where something was counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.apps.accesslog.detection.rule_set import ANY_REQUEST, CLASSES, DISTINCT, BehaviourRule, RuleSet
from penstock.apps.accesslog.events.subjects import CLIENT, KINDS, NET, PRINT

#: 404s that many clients share are broken links. Rules that count these signals by path skip such paths.
SHARED_SIGNALS = ("signal.not-found", "signal.client-error")
#: Files that a page loads automatically. A client that loads them, too, is a browser.
ASSET_SIGNAL = "signal.asset"
#: Bits of the groups that count a hit.
NET_BIT, PRINT_BIT = 1, 2
#: How long a counter is remembered, in half-lives or windows.
MEMORY_HALF_LIVES, MEMORY_WINDOWS = 8, 2


_MOST_COMPILED = 8


@dataclass(frozen=True, eq=False)
class RuleProgram:
    """The rules as the fold runs them."""

    ruleset: RuleSet
    points: NDArray[np.int32]  # per rule
    enforced: NDArray[np.uint8]  # per rule
    class_bit: NDArray[np.int64]  # per rule
    is_client_hit: NDArray[np.bool_]  # per rule: its hits are kept in a client's event
    groups: NDArray[np.uint8]  # per rule: bits of the groups that count it
    all_groups: int  # bits of the groups that count every line
    rule_of: NDArray[np.int32]  # per b, like all that follow
    limit: NDArray[np.float64]
    half_life: NDArray[np.float64]
    window: NDArray[np.int64]
    memory: NDArray[np.int64]
    distinct: NDArray[np.int8]
    leaves_shared: NDArray[np.uint8]
    dense: NDArray[np.int32]  # place among the dense levels, or -1
    any_lists: tuple[NDArray[np.int32], ...]  # per kind: those that count every line, dense ones left out
    dense_list: NDArray[np.int32]  # b of each dense level
    count_starts: NDArray[np.int32]  # [kind, rule]: where its list begins in ...
    count_lists: NDArray[np.int32]
    ids: tuple[str, ...]  # id of each b
    asset: int  # number of the rule that recognises assets, or -1

    @property
    def dense_count(self) -> int:
        return int(self.dense_list.size)


_compiled: dict[str, RuleProgram] = {}


def _compile(ruleset: RuleSet) -> RuleProgram:
    rules, behaviour = ruleset.rules, ruleset.behaviour
    counted = [_list_counted(ruleset, rule) for rule in behaviour]
    everything = [ANY_REQUEST in rule.count for rule in behaviour]
    kinds = [KINDS.index(rule.per) for rule in behaviour]
    groups = np.zeros(len(rules), np.uint8)
    is_client_hit = np.array(
        [not isinstance(rule, BehaviourRule) and rule.points > 0 for rule in rules], bool
    )
    all_groups = 0
    starts = np.zeros((3, len(rules) + 1), np.int32)
    flat: list[int] = []
    for kind in (CLIENT, NET, PRINT):
        for number in range(len(rules)):
            starts[kind, number] = len(flat)
            counting = [b for b in range(len(behaviour)) if kinds[b] == kind and number in counted[b]]
            flat += counting
            if counting and kind == CLIENT:
                is_client_hit[number] = True
            elif counting:
                groups[number] |= NET_BIT if kind == NET else PRINT_BIT
        starts[kind, len(rules)] = len(flat)
    dense = np.full(len(behaviour), -1, np.int32)
    dense_list: list[int] = []
    lists: list[list[int]] = [[], [], []]
    for b, rule in enumerate(behaviour):
        if not everything[b]:
            continue
        if kinds[b] != CLIENT:
            all_groups |= NET_BIT if kinds[b] == NET else PRINT_BIT
        if rule.distinct == "none" and rule.half_life_us and kinds[b] == CLIENT:
            dense[b] = len(dense_list)
            dense_list.append(b)
        else:
            lists[kinds[b]].append(b)
    shared = {number for number, rule in enumerate(rules) if rule.id in SHARED_SIGNALS}
    leaves = [
        rule.distinct == "path" and kinds[b] == CLIENT and bool(shared & set(counted[b]))
        for b, rule in enumerate(behaviour)
    ]
    return RuleProgram(
        ruleset,
        points=np.array([rule.points for rule in rules], np.int32),
        enforced=np.array([rule.mode == "enforce" for rule in rules], np.uint8),
        class_bit=np.array([1 << CLASSES.index(rule.attack_class) for rule in rules], np.int64),
        is_client_hit=is_client_hit,
        groups=groups,
        all_groups=all_groups,
        rule_of=np.array([rule.number for rule in behaviour], np.int32),
        limit=np.array([rule.limit for rule in behaviour], np.float64),
        half_life=np.array([rule.half_life_us for rule in behaviour], np.float64),
        window=np.array([rule.window_us for rule in behaviour], np.int64),
        memory=np.array([_memory(rule) for rule in behaviour], np.int64),
        distinct=np.array([DISTINCT.index(rule.distinct) for rule in behaviour], np.int8),
        leaves_shared=np.array(leaves, np.uint8),
        dense=dense,
        any_lists=tuple(np.array(each, np.int32) for each in lists),
        dense_list=np.array(dense_list, np.int32),
        count_starts=starts,
        count_lists=np.array([*flat, 0], np.int32),
        ids=tuple(rule.id for rule in behaviour),
        asset=next((number for number, rule in enumerate(rules) if rule.id == ASSET_SIGNAL), -1),
    )


def compile_rules(ruleset: RuleSet) -> RuleProgram:
    """Return the program of these rules; it is made once for each set."""
    if ruleset.digest not in _compiled:
        if len(_compiled) >= _MOST_COMPILED:
            _compiled.clear()
        _compiled[ruleset.digest] = _compile(ruleset)
    return _compiled[ruleset.digest]


def _list_counted(ruleset: RuleSet, rule: BehaviourRule) -> tuple[int, ...]:
    """Return the rules that a rule counts. For a group: those it names by id, and others that are `near`."""
    numbers = ruleset.counted(rule)
    if rule.per == KINDS[CLIENT]:
        return numbers
    return tuple(n for n in numbers if ruleset.rules[n].near or ruleset.rules[n].id in rule.count)


def _memory(rule: BehaviourRule) -> int:
    return MEMORY_HALF_LIVES * rule.half_life_us or MEMORY_WINDOWS * rule.window_us
