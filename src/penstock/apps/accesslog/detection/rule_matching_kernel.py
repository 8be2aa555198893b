"""The kernels of matching: they find the literals of all rules in one pass and assign hits to lines.

Rules: a byte takes one step, however many rules there are. All literals are in one automaton with a full
table, so nothing is read twice. If the outputs do not fit, the next call continues behind the last text that
did. No byte and no position is trusted: a text that is not inside its buffer is skipped.

A probe is one rule that looks at one field. Its literals are bits: bit 0 is "one of the alternatives", the
others are the words that must all occur. A probe whose bits are complete is a candidate.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from penstock.apps.accesslog.detection import text_decoding_kernel as d
from penstock.apps.accesslog.texts.text_grouping_kernel import hash_bytes
from penstock.kernels.compilation import copy_bytes, inlined, kernel, part

# Regions of a decoded text that a probe can look at.
PATH, QUERY, WHOLE, BARE = range(4)
# Columns of `links`, which lead from a literal to a probe.
LINK_PROBE, LINK_BIT, LINK_REGION, LINK_KIND, LINK_BEGINS, LINK_ENDS, LINK_SIZE = range(7)
LINK_WIDTH = 7
_PRIME = np.uint64(0x9E3779B97F4A7C15)
_SECOND = np.uint64(0xD6E8FEB86659FD93)


class Automaton(NamedTuple):
    """An Aho-Corasick automaton with a full table: state and class of a byte give the next state."""

    classes: Any  # byte to class; bytes that are in no literal share class 0
    steps: Any  # a state is a row, `width` wide
    width: int
    with_output: int  # states from this one on end literals
    output_at: Any
    outputs: Any


class Probes(NamedTuple):
    """What literals mean: the links of each, from `link_at[literal]` on, and the bits that a probe needs."""

    link_at: Any
    links: Any
    complete: Any


class ConditionTables(NamedTuple):
    """The conditions of the rules.

    `plain_at` says which of `plain_rules` a line can meet, by its status and by whether it is odd at all (a
    field is empty, or a trait was seen). Most lines meet none.
    """

    condition_of: Any
    status_allowed: Any
    method_allowed: Any
    longer: Any
    empty: Any
    seen: Any
    plain_at: Any
    plain_rules: Any
    unless_at: Any
    unless: Any


class LineFacts(NamedTuple):
    """The facts about lines that conditions check."""

    status: Any
    methods: Any
    target_lengths: Any
    empty: Any
    seen: Any


@kernel
def hash_paths(out, places, paths, shapes):
    """Hash the path of each decoded target, and the path's shape.

    The shape has `a` for each run of letters and `0` for each run of digits (and of letters with digits in
    it), all other signs, and the extension as it is: /wp-1/a7f3.php is /a-0/0.php.
    """
    for text in range(places.shape[0]):
        at, end = places[text, d.WHOLE_AT], places[text, d.PATH_END]
        paths[text] = hash_bytes(out, at, end - at)
        shapes[text] = hash_shape(out, at, end)


@part
def hash_shape(out, at, end):
    dot = end
    i = end - 1
    while i >= at and end - i <= 8 and out[i] != 0x2F:
        if out[i] == 0x2E:
            dot = i
            break
        i -= 1
    state = _SECOND
    run = 0  # 0: none, 1: letters, 2: with digits
    for i in range(at, end):
        c = out[i]
        if i < dot:
            if 0x30 <= c <= 0x39:
                run = 2
                continue
            if 0x61 <= c <= 0x7A or c >= 0x80:
                run = max(run, 1)
                continue
        if run > 0:
            state = (state ^ np.uint64(run)) * _PRIME
            run = 0
        state = (state ^ np.uint64(c)) * _PRIME
        state ^= state >> np.uint64(29)
    state = (state ^ np.uint64(run)) * _PRIME
    return state ^ state >> np.uint64(32)


@kernel
def find_candidates(
    out, places, kinds, first, automaton, probes, bits, stamps, touched, found_texts, found_probes, state
):  # fmt: skip
    """Find candidates in the texts from `first` on; return the first text whose candidates did not fit.

    `state[0]` counts the candidates. `bits` and `stamps` have one entry per probe; all stamps begin as -1.
    """
    classes, steps, width, with_output, output_at, outputs = automaton
    link_at, links, complete = probes
    count = state[0]
    for text in range(first, places.shape[0]):
        before = count
        met = np.int64(0)
        kind = kinds[text]
        for view in range(2):
            begin = places[text, d.WHOLE_AT] if view == 0 else places[text, d.BARE_AT]
            end = places[text, d.WHOLE_END] if view == 0 else places[text, d.BARE_END]
            if begin < 0 or end > out.size:
                continue
            path_end, query_at = places[text, d.PATH_END], places[text, d.QUERY_AT]
            at_state = np.int64(0)
            for i in range(begin, end):
                at_state = np.int64(steps[at_state * width + classes[out[i]]])
                if at_state < with_output:
                    continue
                ending = at_state - with_output
                for k in range(output_at[ending], output_at[ending + 1]):
                    literal = outputs[k]
                    for j in range(link_at[literal], link_at[literal + 1]):
                        if links[j, LINK_KIND] != kind:
                            continue
                        low, high = begin, end
                        region = links[j, LINK_REGION]
                        if (region == BARE) != (view == 1):
                            continue
                        if region == PATH:
                            high = path_end
                        elif region == QUERY:
                            low = query_at
                        start = i + 1 - links[j, LINK_SIZE]
                        if start < low or i + 1 > high:
                            continue
                        if links[j, LINK_BEGINS] != 0 and start != low:
                            continue
                        if links[j, LINK_ENDS] != 0 and i + 1 != high:
                            continue
                        probe = links[j, LINK_PROBE]
                        if stamps[probe] != text:
                            stamps[probe] = text
                            bits[probe] = 0
                            touched[met] = probe
                            met += 1
                        bits[probe] |= links[j, LINK_BIT]
        for k in range(met):
            probe = touched[k]
            if bits[probe] == complete[probe]:
                if count >= found_texts.size:
                    for again in range(met):  # the next call looks at this text anew
                        stamps[touched[again]] = -1
                    state[0] = before
                    return text
                found_texts[count] = text
                found_probes[count] = probe
                count += 1
    state[0] = count
    return places.shape[0]


@kernel
def gather_texts(out, begins, ends, target, offsets):
    """Copy regions one after the other into `target`, which must be large enough. `offsets` is Arrow's."""
    at = np.int64(0)
    for i in range(begins.size):
        size = ends[i] - begins[i]
        if begins[i] < 0 or size < 0 or ends[i] > out.size or size > target.size - at:
            size = np.int64(0)
        copy_bytes(target, at, out, begins[i], size)
        at += size
        offsets[i + 1] = at
    return at


@kernel
def settle_lines(
    first, texts, known, hit_at, hit_rules, conditions, lines, stamps, found_rows, found_rules, state
):  # fmt: skip
    """Turn hits of texts, and rules without literals, into sorted hits of lines; return the first line left.

    `texts[kind][row]` is the number of a text among those of its kind, or -1. `known[kind]` is the number of
    texts before those of the kind. `stamps` has one entry per rule, and all begin as -1. A line is begun only
    if there is room for all rules, so it is never half done.
    """
    count = state[0]
    for row in range(first, lines.status.size):
        if found_rows.size - count < stamps.size:
            state[0] = count
            return row
        begin = count
        for kind in range(known.size):
            text = texts[kind][row]
            if text < 0:
                continue
            text += known[kind]
            for k in range(hit_at[text], hit_at[text + 1]):
                rule = hit_rules[k]
                if stamps[rule] != row and holds(conditions, conditions.condition_of[rule], lines, row):
                    stamps[rule] = row
                    found_rules[count] = rule
                    count += 1
        code = np.int64(lines.status[row])
        if code < 0 or code >= conditions.status_allowed.shape[1]:
            code = np.int64(0)
        odd = np.int64(lines.empty[row] != 0 or lines.seen[row] != 0)
        for k in range(conditions.plain_at[odd, code], conditions.plain_at[odd, code + 1]):
            rule = conditions.plain_rules[odd, k]
            if holds(conditions, conditions.condition_of[rule], lines, row):
                stamps[rule] = row
                found_rules[count] = rule
                count += 1
        kept = begin
        for k in range(begin, count):
            rule = found_rules[k]
            spared = False
            for j in range(conditions.unless_at[rule], conditions.unless_at[rule + 1]):
                spared |= stamps[conditions.unless[j]] == row
            if not spared:
                at = kept
                while at > begin and found_rules[at - 1] > rule:
                    found_rules[at] = found_rules[at - 1]
                    at -= 1
                found_rules[at] = rule
                found_rows[kept] = row
                kept += 1
        count = kept
    state[0] = count
    return lines.status.size


@inlined
def holds(conditions, condition, lines, row):
    """Return whether the condition of a rule is true of a line; condition 0 always is."""
    if condition == 0:
        return True
    code = np.int64(lines.status[row])
    if code < 0 or code >= conditions.status_allowed.shape[1]:
        code = np.int64(0)
    if not conditions.status_allowed[condition, code]:
        return False
    if not conditions.method_allowed[condition, lines.methods[row]]:
        return False
    if lines.target_lengths[row] <= conditions.longer[condition] and conditions.longer[condition] > 0:
        return False
    if lines.empty[row] & conditions.empty[condition] != conditions.empty[condition]:
        return False
    return conditions.seen[condition] == 0 or lines.seen[row] & conditions.seen[condition] != 0
