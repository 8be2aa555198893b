"""Turns requests into lines as a web server would have logged them: examples of rules, and payloads.

Rule: an example takes the same path as real traffic. It is escaped and written as Apache does it, then
parsed, decoded and matched. So `hits` and `misses` are true of a real log, and not only of a shortcut.

>>> escape_like_apache('a"b\\n')
'a\\\\"b\\\\n'
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.apps.accesslog.detection.detector import Detector
from penstock.apps.accesslog.detection.rule_set import Example, RuleSet
from penstock.apps.accesslog.parsing.line_parser import Lines, make_parser

_ESCAPED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\v": "\\v", "\\": "\\\\", '"': '\\"'}
_SPECIAL = re.compile(r'[\x00-\x1f\x7f-\U0010ffff\\"]')


def escape_like_apache(text: str) -> str:
    """Return a text as Apache logs it: quotes, backslashes, control bytes and non-ASCII escaped."""
    return _SPECIAL.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    return _ESCAPED.get(character) or "".join(f"\\x{byte:02x}" for byte in character.encode())


def make_lines(examples: Sequence[Example]) -> Lines:
    """Return each example as one parsed line, in order."""
    written = []
    for example in examples:
        spoken = example.request + "a" * example.pad
        before, _, last = spoken.rpartition(" ")
        if before and not last.startswith("HTTP/"):
            spoken = f"{spoken} HTTP/1.1"
        texts = (escape_like_apache(each) or "-" for each in (spoken, example.referrer, example.agent))
        request, referrer, agent = texts
        status = example.status or "-"
        stamp = "[01/Jan/2024:00:00:00 +0000]"
        written.append(f'192.0.2.1 - - {stamp} "{request}" {status} 0 "{referrer}" "{agent}"'.encode())
    lines = make_parser("combined").parse(pa.array(written, pa.binary()))
    assert len(lines) == len(examples), "what we write can be parsed"
    return lines


def find_broken_examples(ruleset: RuleSet) -> list[str]:
    """Return a sentence for each example that its rule misses, or hits and should not."""
    wanted = [(rule, example, True) for rule in ruleset.content for example in rule.hits]
    wanted += [(rule, example, False) for rule in ruleset.content for example in rule.misses]
    if not wanted:
        return []
    findings = Detector(ruleset).detect(make_lines([example for _, example, _ in wanted]))
    hits = set(zip(findings.hit_rows.tolist(), findings.hit_rules.tolist(), strict=True))
    broken = []
    for row, (rule, example, should) in enumerate(wanted):
        if ((row, rule.number) in hits) != should:
            told = "does not hit" if should else "hits"
            broken.append(f"Rule `{rule.id}` {told} {example.request!r} (status {example.status}).")
    return broken


def make_target_lines(targets: pa.Array) -> Lines:
    """Return each text as the target of a GET request about which nothing else is known."""
    escaped = pa.compute.replace_substring(targets.cast(pa.large_binary()), "\\", "\\\\")
    escaped = pa.compute.fill_null(escaped, b"")
    joined = b"".join(escaped.to_pylist())
    data = np.frombuffer(joined + b"GET", np.uint8)
    rows = len(escaped)
    sizes = pa.compute.binary_length(escaped).to_numpy().astype(np.int32)
    begins = (np.cumsum(sizes, dtype=np.int64) - sizes).astype(np.int32)
    absent = np.full(rows, -1, np.int32)
    names = ("client", "peer", "user", "protocol", "referrer", "agent", "vhost")
    starts = {name: np.zeros(rows, np.int32) for name in names}
    lengths = dict.fromkeys(names, absent)
    starts |= {"target": begins, "method": np.full(rows, len(joined), np.int32)}
    lengths |= {"target": sizes, "method": np.full(rows, 3, np.int32)}
    return Lines(
        data=data,
        rows=np.arange(rows, dtype=np.int32),
        starts=starts,
        lengths=lengths,
        time_us=np.zeros(rows, np.int64),
        status=np.zeros(rows, np.int16),
        size=np.zeros(rows, np.int64),
        latency_us=np.full(rows, -1, np.int64),
        is_json=np.zeros(rows, np.bool_),
        bad_rows=np.empty(0, np.int32),
        bad_reasons=np.empty(0, np.int8),
    )
