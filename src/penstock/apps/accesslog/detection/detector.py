"""From parsed lines to findings: which rules each line hits, and the hashes that the fold counts by.

Rule: a finding is a function of its line and the rules alone, so any split of a log into batches gives the
same findings.

    detector = Detector(default_rules())
    findings = detector.detect(parser.parse(values))

How: equal texts of the batch are numbered (`text_grouping`), decoded once and matched once (`rule_matching`).
Their hits are then assigned to the lines that have them, where the rules' conditions on status, method and
length decide. A detector is cheap to pickle: a worker builds its tables once per process and set of rules.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.apps.accesslog.detection import rule_matching_kernel as k
from penstock.apps.accesslog.detection import text_decoding_kernel as d
from penstock.apps.accesslog.detection.rule_matching import Matcher
from penstock.apps.accesslog.detection.rule_set import (
    EMPTY_FIELDS,
    TRAITS,
    Condition,
    ContentRule,
    DetectionRule,
    RuleSet,
)
from penstock.apps.accesslog.detection.text_decoding import DecodedTexts, Texts, decode
from penstock.apps.accesslog.parsing.line_slots import NO_FIELD
from penstock.apps.accesslog.texts.text_grouping import (
    Grouped,
    GroupedFields,
    check_grouped,
    group,
    group_lines,
)
from penstock.apps.accesslog.texts.text_grouping_kernel import NO_TEXT

if TYPE_CHECKING:
    from penstock.apps.accesslog.parsing.line_parser import Lines

#: The fields whose texts the rules look at, in the order of the kinds. Malformed requests come after them.
_KINDS = ("target", "agent", "referrer", "method", "protocol")
_STATUSES = 1000
_TRUE = Condition()


@dataclass(frozen=True, slots=True)
class Findings:
    """What the rules found; `hit_rows` and `hit_rules` are pairs, sorted by parsed line, then rule."""

    hit_rows: NDArray[np.int32]
    hit_rules: NDArray[np.int16]
    path_hash: NDArray[np.uint64]  # of the decoded path without the query
    agent_hash: NDArray[np.uint64]
    print_hash: NDArray[np.uint64]  # agent (and client, if no agents are logged), method, shape of the path


class Detector:
    """The content rules of a set, ready to look at lines."""

    def __init__(self, ruleset: RuleSet) -> None:
        self._ruleset = ruleset
        self._matcher = Matcher(ruleset.content)
        self._conditions = _Conditions(ruleset)

    def __reduce__(self) -> tuple[object, ...]:
        return (make_detector, (RuleSet(tuple(_strip(rule) for rule in self._ruleset.rules)),))

    def detect(self, lines: Lines, grouped: GroupedFields | None = None) -> Findings:
        """Return what the rules find in these lines. `grouped` has their texts, if numbered already."""
        grouped = group_lines(lines) if grouped is None else check_grouped(lines, grouped)
        target = grouped["target"]
        odd = group(lines, "target", only=lines.lengths["method"] < 0)  # all of a malformed request
        kinds = (*(grouped[name] for name in _KINDS), odd)
        texts = Texts(
            lines.data,
            np.concatenate([each.starts for each in kinds]),
            np.concatenate([each.lengths for each in kinds]),
            np.concatenate([np.full(len(each), kind, np.int8) for kind, each in enumerate(kinds)]),
            np.concatenate([each.is_json for each in kinds]),
        )
        decoded = decode(texts)
        paths, shapes = np.empty(len(target), np.uint64), np.empty(len(target), np.uint64)
        k.hash_paths(decoded.out, decoded.places[: len(target)], paths, shapes)
        hit_rows, hit_rules = self._settle(lines, kinds, decoded)
        agents = grouped["agent"].spread_hashes()
        looks = _mix(_mix(agents, grouped["method"].spread_hashes()), target.spread(shapes, NO_TEXT))
        return Findings(
            hit_rows,
            hit_rules,
            path_hash=target.spread(paths, NO_TEXT),
            agent_hash=agents,
            print_hash=_separate_agentless(lines, grouped["client"], looks),
        )

    def _settle(
        self, lines: Lines, kinds: tuple[Grouped, ...], decoded: DecodedTexts
    ) -> tuple[NDArray[np.int32], NDArray[np.int16]]:
        """Return the hits of lines, from the hits of their texts."""
        texts, rules = self._matcher.match(decoded)
        order = np.argsort(texts, kind="stable")
        hit_at = np.searchsorted(texts[order], np.arange(decoded.kinds.size + 1)).astype(np.int32)
        conditions = self._conditions
        target = kinds[d.TARGET]
        seen = target.spread(decoded.places[: len(target), d.SEEN].astype(np.int32), 0)
        known = np.cumsum([0, *(len(each) for each in kinds[:-1])], dtype=np.int32)
        rows = lines.rows.size
        room = 2 * rows + 2 * conditions.rules
        found_rows, found_rules = np.empty(room, np.int32), np.empty(room, np.int16)
        stamps = np.full(conditions.rules, -1, np.int32)
        state = np.zeros(1, np.int64)
        methods = conditions.number_methods(decoded, kinds[d.METHOD])
        facts = k.LineFacts(lines.status, methods, lines.lengths["target"], _find_empty(lines), seen)
        texts_of = tuple(each.numbers for each in kinds)
        rules = rules[order]
        first = 0
        while True:
            first = k.settle_lines(
                first, texts_of, known, hit_at, rules, conditions.tables, facts,
                stamps, found_rows, found_rules, state,
            )  # fmt: skip
            if first == rows:
                return found_rows[: state[0]], found_rules[: state[0]]
            found_rows = np.concatenate([found_rows, np.empty_like(found_rows)])
            found_rules = np.concatenate([found_rules, np.empty_like(found_rules)])


class _Conditions:
    """The conditions of the rules as tables; each distinct one has a number, and 0 is always true."""

    def __init__(self, ruleset: RuleSet) -> None:
        self.rules = len(ruleset.rules)
        content = ruleset.content
        distinct = [_TRUE, *dict.fromkeys(rule.when for rule in content if rule.when != _TRUE)]
        number_of = {condition: number for number, condition in enumerate(distinct)}
        condition_of = np.zeros(self.rules, np.int32)
        for rule in content:
            condition_of[rule.number] = number_of[rule.when]
        methods = sorted({name for each in distinct for name in (*each.method, *each.not_method)})
        self._methods = pa.array([name.lower().encode() for name in methods], pa.large_binary())
        status_allowed = np.ones((len(distinct), _STATUSES), np.uint8)
        method_allowed = np.ones((len(distinct), len(methods) + 1), np.uint8)  # the last column: any other
        for number, condition in enumerate(distinct):
            if condition.status:
                status_allowed[number] = 0
            for low, high in condition.status:
                status_allowed[number, low:high] = 1
            for low, high in condition.not_status:
                status_allowed[number, low:high] = 0
            if condition.method:
                method_allowed[number] = [name in condition.method for name in methods] + [False]
            for name in condition.not_method:
                method_allowed[number, methods.index(name)] = 0
        empty = np.array([_bits(EMPTY_FIELDS, each.empty) for each in distinct], np.int32)
        seen = np.array([_bits(TRAITS, each.seen) for each in distinct], np.int32)
        plain = np.array([each.number for each in content if not each.look], np.int32)
        asked = condition_of[plain]
        plain_at, plain_rules = _list_plain(plain, status_allowed[asked], (empty[asked] | seen[asked]) != 0)
        unless = _list_unless(self.rules, content)
        self.tables = k.ConditionTables(
            condition_of=condition_of,
            status_allowed=status_allowed,
            method_allowed=method_allowed,
            longer=np.array([each.longer for each in distinct], np.int32),
            empty=empty,
            seen=seen,
            plain_at=plain_at,
            plain_rules=plain_rules,
            unless_at=np.cumsum([0, *(len(each) for each in unless)], dtype=np.int32),
            unless=np.array([number for each in unless for number in each], np.int32),
        )

    def number_methods(self, decoded: DecodedTexts, methods: Grouped) -> NDArray[np.int32]:
        """Return the number of each line's method; all methods that no condition names have one number."""
        other = len(self._methods)
        mine = np.flatnonzero(decoded.kinds == d.METHOD)
        begins, ends = decoded.places[mine, d.WHOLE_AT], decoded.places[mine, d.WHOLE_END]
        target = np.empty(int((ends - begins).sum()), np.uint8)
        offsets = np.zeros(mine.size + 1, np.int64)
        k.gather_texts(decoded.out, begins, ends, target, offsets)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(target)]
        names = pa.Array.from_buffers(pa.large_binary(), mine.size, buffers)
        found = pc.fill_null(pc.index_in(names, self._methods), other).to_numpy()
        return methods.spread(found.astype(np.int32), other)


def _strip(rule: DetectionRule) -> DetectionRule:
    """Return the rule without what is only shown or tested."""
    if isinstance(rule, ContentRule):
        return replace(rule, what="", hits=(), misses=())
    return replace(rule, what="", hits=(), misses=())


@functools.lru_cache(maxsize=4)
def make_detector(ruleset: RuleSet) -> Detector:
    """Return a detector; a process builds one for each set of rules."""
    return Detector(ruleset)


def _list_plain(
    rules: NDArray[np.int32], status_allowed: NDArray[np.uint8], asks_odd: NDArray[np.bool_]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return where each status begins in two lists of rules without a text, and the lists.

    A list has, in the order of the status, the rules that a line can meet. The first list is for lines in
    which no field is empty and no trait was seen, the second for all others.
    """
    at = np.zeros((2, _STATUSES + 1), np.int32)
    listed = np.zeros((2, _STATUSES * len(rules)), np.int32)
    for odd in (0, 1):
        can_meet = status_allowed.astype(np.bool_) & (~asks_odd | bool(odd))[:, np.newaxis]
        _, chosen = np.nonzero(can_meet.T)
        listed[odd, : chosen.size] = rules[chosen]
        at[odd, 1:] = np.cumsum(can_meet.sum(axis=0))
    return at, listed


def _list_unless(rules: int, content: Sequence[ContentRule]) -> list[list[int]]:
    by_id = {rule.id: rule.number for rule in content}
    listed: list[list[int]] = [[] for _ in range(rules)]
    for rule in content:
        listed[rule.number] = [by_id[name] for name in rule.unless]
    return listed


def _bits(names: tuple[str, ...], chosen: tuple[str, ...]) -> int:
    return sum(1 << names.index(each) for each in chosen)


def _find_empty(lines: Lines) -> NDArray[np.int32]:
    """Return a bit per line for each empty field; a field that the log does not have is not empty."""
    found = np.zeros(lines.rows.size, np.int32)
    for bit, name in enumerate(EMPTY_FIELDS):
        sizes = lines.lengths[name]
        found |= ((sizes <= 0) & (sizes != NO_FIELD)).astype(np.int32) << bit
    return found


def _separate_agentless(lines: Lines, clients: Grouped, prints: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the fingerprints, mixed with the client where the log has no agents: all would look alike."""
    lacking = lines.lengths["agent"] == NO_FIELD
    if not lacking.any():
        return prints
    return np.where(lacking, _mix(prints, clients.spread_hashes()), prints)


def _mix(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        return (one ^ (other >> np.uint64(7))) * np.uint64(0x9E3779B97F4A7C15) + other
