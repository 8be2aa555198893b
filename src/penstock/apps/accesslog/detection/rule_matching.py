"""Matches rules against decoded texts: one automaton over all literals, then RE2 over the few candidates.

Rule: an expression runs only over texts in which the rule's literals were found, over all of them in one call
of Arrow. Texts are bytes, so no encoding can be wrong. Both steps are linear in the text, whatever an
attacker sends.

Why not one expression per rule over every line: 500 rules of 50 ns each take 25 microseconds per line, while
the automaton takes one step per byte for all rules together.

>>> from penstock.apps.accesslog.detection.rule_set import default_rules
>>> matcher = Matcher(default_rules().content)
>>> matcher.literals > 10
True
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.apps.accesslog.detection import rule_matching_kernel as k
from penstock.apps.accesslog.detection import text_decoding_kernel as d
from penstock.apps.accesslog.detection.rule_set import ContentRule
from penstock.apps.accesslog.detection.text_decoding import DecodedTexts

#: Maps the field of a rule to the kind of text and its region.
_PLACES = {
    "path": (d.TARGET, k.PATH),
    "query": (d.TARGET, k.QUERY),
    "target": (d.TARGET, k.WHOLE),
    "bare": (d.TARGET, k.BARE),
    "agent": (d.AGENT, k.WHOLE),
    "referrer": (d.REFERRER, k.WHOLE),
    "method": (d.METHOD, k.WHOLE),
    "protocol": (d.PROTOCOL, k.WHOLE),
    "request": (d.REQUEST, k.WHOLE),
}
#: Maps a region to the columns of `places` that bound it.
_BOUNDS = {
    k.PATH: (d.WHOLE_AT, d.PATH_END),
    k.QUERY: (d.QUERY_AT, d.WHOLE_END),
    k.WHOLE: (d.WHOLE_AT, d.WHOLE_END),
    k.BARE: (d.BARE_AT, d.BARE_END),
}
#: `.` matches any byte, also a line break: what an attacker sends has no lines.
_FLAGS = "(?s)"
_FIRST_ROOM = 4096


def build_automaton(literals: Sequence[bytes]) -> k.Automaton:
    """Return the automaton of these non-empty literals; its outputs are their numbers."""
    classes = np.zeros(256, np.uint8)
    for number, byte in enumerate(sorted({byte for literal in literals for byte in literal}), 1):
        classes[byte] = number
    width = int(classes.max()) + 1
    children: list[dict[int, int]] = [{}]
    ends: list[list[int]] = [[]]
    for number, literal in enumerate(literals):
        at = 0
        for byte in literal:
            step = int(classes[byte])
            if step not in children[at]:
                children[at][step] = len(children)
                children.append({})
                ends.append([])
            at = children[at][step]
        ends[at].append(number)
    steps = np.zeros((len(children), width), np.int32)
    falls = [0] * len(children)
    waiting: deque[int] = deque([0])
    while waiting:
        at = waiting.popleft()
        fallback = steps[falls[at]].copy()
        if at:
            ends[at] = ends[at] + ends[falls[at]]
            steps[at] = fallback
        for step, child in children[at].items():
            falls[child] = int(fallback[step]) if at else 0
            steps[at, step] = child
            waiting.append(child)
    ending = np.array([bool(each) for each in ends])
    order = np.argsort(ending, kind="stable")
    renamed = np.empty(order.size, np.int32)
    renamed[order] = np.arange(order.size, dtype=np.int32)
    listed = [ends[state] for state in order if ends[state]]
    output_at = np.cumsum([0, *(len(each) for each in listed)], dtype=np.int32)
    outputs = np.array([number for each in listed for number in each], np.int32)
    table = renamed[steps[order]].reshape(-1)
    if order.size <= np.iinfo(np.uint16).max:
        table = table.astype(np.uint16)  # halves the memory that is read
    return k.Automaton(classes, table, width, int((~ending).sum()), output_at, outputs)


class Matcher:
    """All literals and expressions of the content rules, ready to run."""

    def __init__(self, rules: Sequence[ContentRule]) -> None:
        self._rules = {rule.number: rule for rule in rules}
        probes: list[tuple[int, int]] = []  # rule number, region
        complete: list[int] = []
        links: dict[bytes, list[tuple[int, ...]]] = {}
        for rule in rules:
            for field in rule.look:
                kind, region = _PLACES[field]
                probe = len(probes)
                probes.append((rule.number, region))
                wanted = [(text, 1, 0, 0) for text in rule.any]
                wanted += [(text, 1, 1, 0) for text in rule.begins]
                wanted += [(text, 1, 0, 1) for text in rule.ends]
                wanted += [(text, 1, 1, 1) for text in rule.equals]
                wanted += [(text, 1 << bit, 0, 0) for bit, text in enumerate(rule.words, 1)]
                for text, bit, begins, ends in wanted:
                    literal = text.encode("latin-1")
                    link = (probe, bit, region, kind, begins, ends, len(literal))
                    links.setdefault(literal, []).append(link)
                complete.append(sum({bit for _, bit, _, _ in wanted}))
        literals = list(links)
        self.literals = len(literals)
        self._automaton = build_automaton(literals)
        rows = [link for literal in literals for link in links[literal]]
        self._probes = k.Probes(
            np.cumsum([0, *(len(links[each]) for each in literals)], dtype=np.int32),
            np.array(rows, np.int32).reshape(-1, k.LINK_WIDTH),
            np.array(complete, np.int32),
        )
        self._rule_of = np.array([number for number, _ in probes], np.int32)
        bounds = [_BOUNDS[region] for _, region in probes]
        self._begin_of = np.array([begin for begin, _ in bounds], np.int32)
        self._end_of = np.array([end for _, end in bounds], np.int32)

    def match(self, decoded: DecodedTexts) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return pairs of a text and the number of a rule that hits it; a pair may occur twice."""
        texts, probes = self.find_candidates(decoded)
        rules = self._rule_of[probes]
        if not texts.size:
            return texts, rules
        kept = np.ones(texts.size, np.bool_)
        order = np.argsort(rules, kind="stable")
        changes = np.flatnonzero(np.diff(rules[order])) + 1
        for chosen in np.split(order, changes):
            rule = self._rules[int(rules[chosen[0]])]
            if rule.regex:
                kept[chosen] = _matches(self._take(decoded, texts[chosen], probes[chosen]), rule.regex)
                chosen = chosen[kept[chosen]]
            if rule.veto and chosen.size:
                kept[chosen] = ~_matches(self._take(decoded, texts[chosen], probes[chosen]), rule.veto)
        return texts[kept], rules[kept]

    def find_candidates(self, decoded: DecodedTexts) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return pairs of a text and a probe whose literals are all in that text."""
        probes = self._probes.complete.size
        bits = np.zeros(probes, np.int32)
        stamps = np.full(probes, -1, np.int32)
        touched = np.empty(probes, np.int32)
        room = max(_FIRST_ROOM, probes, 2 * decoded.kinds.size)
        texts, found = np.empty(room, np.int32), np.empty(room, np.int32)
        state = np.zeros(1, np.int64)
        first = 0
        while True:
            first = k.find_candidates(
                decoded.out, decoded.places, decoded.kinds, first, self._automaton, self._probes,
                bits, stamps, touched, texts, found, state,
            )  # fmt: skip
            if first == decoded.kinds.size:
                return texts[: state[0]], found[: state[0]]
            texts, found = _double(texts), _double(found)

    def _take(self, decoded: DecodedTexts, texts: NDArray[np.int32], probes: NDArray[np.int32]) -> pa.Array:
        """Return the regions that these probes look at, as bytes in Arrow."""
        begins = decoded.places[texts, self._begin_of[probes]]
        ends = decoded.places[texts, self._end_of[probes]]
        target = np.empty(int((ends - begins).sum()), np.uint8)
        offsets = np.zeros(texts.size + 1, np.int64)
        k.gather_texts(decoded.out, begins, ends, target, offsets)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(target)]
        return pa.Array.from_buffers(pa.large_binary(), texts.size, buffers)


def _matches(texts: pa.Array, regex: str) -> NDArray[np.bool_]:
    found = pc.match_substring_regex(texts, _FLAGS + regex)
    return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)


def _double(array: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.concatenate([array, np.empty(array.size, np.int32)])
