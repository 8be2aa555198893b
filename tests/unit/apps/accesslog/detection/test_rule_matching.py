"""Matching: the automaton and RE2 compared with plain search, and what a detector makes of the matches."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.apps.accesslog.detection import text_decoding_kernel as d
from penstock.apps.accesslog.detection.detector import Detector, Findings
from penstock.apps.accesslog.detection.literal_prefilter import find_literals
from penstock.apps.accesslog.detection.rule_examples import make_lines
from penstock.apps.accesslog.detection.rule_matching import Matcher, build_automaton
from penstock.apps.accesslog.detection.rule_set import ContentRule, Example, RuleSet, default_rules
from penstock.apps.accesslog.detection.text_decoding import DecodedTexts
from penstock.apps.accesslog.parsing.line_parser import make_parser
from tests.support.checked_kernels import check_bounds
from tests.support.guard_page import GuardedMemory

_LETTERS = st.text("ab/?", min_size=1, max_size=4)


def make_decoded(texts: list[tuple[str, str]]) -> DecodedTexts:
    """Return path and query, in memory that ends at a protected page."""
    joined = "".join(path + "?" + query for path, query in texts).encode()
    places = np.zeros((len(texts), d.PLACES_WIDTH), np.int64)
    at = 0
    for number, (path, query) in enumerate(texts):
        split, end = at + len(path), at + len(path) + 1 + len(query)
        places[number, [d.WHOLE_AT, d.PATH_END, d.QUERY_AT, d.WHOLE_END]] = at, split, split + 1, end
        places[number, [d.BARE_AT, d.BARE_END]] = end
        at = end
    out = GuardedMemory(max(1, len(joined))).place(joined)
    return DecodedTexts(out, places, np.zeros(len(texts), np.int8))


def region(field: str, path: str, query: str) -> str:
    return {"path": path, "query": query, "target": path + "?" + query}[field]


@given(
    st.lists(_LETTERS, min_size=1, max_size=12, unique=True),
    st.lists(st.text("ab/?c", max_size=12), min_size=1, max_size=5),
)
def test_the_automaton_finds_every_literal_where_it_ends(literals: list[str], texts: list[str]) -> None:
    automaton = build_automaton([literal.encode() for literal in literals])
    for text in texts:
        state, found = 0, set()
        for end, byte in enumerate(text.encode(), 1):
            state = int(automaton.steps[state * automaton.width + automaton.classes[byte]])
            if state >= automaton.with_output:
                ending = state - automaton.with_output
                for at in range(automaton.output_at[ending], automaton.output_at[ending + 1]):
                    found.add((int(automaton.outputs[at]), end))
        wanted = {
            (number, end)
            for number, literal in enumerate(literals)
            for end in range(len(text) + 1)
            if text[:end].endswith(literal)
        }
        assert found == wanted


@given(
    st.lists(
        st.builds(
            lambda look, words, some, begins, ends, equals: ContentRule(
                "a.b", "xss", "", (look,), words, some, begins, ends, equals
            ),
            st.sampled_from(["path", "query", "target"]),
            *(st.lists(_LETTERS, max_size=2).map(tuple) for _ in range(5)),
        ),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.tuples(st.text("ab/c", max_size=8), st.text("ab/?c", max_size=8)), min_size=1, max_size=6),
)
def test_literals_are_found_as_plain_search_finds_them(
    given_rules: list[ContentRule], texts: list[tuple[str, str]]
) -> None:
    rules = [
        ContentRule(r.id, "xss", "", r.look, r.words, r.any, r.begins, r.ends, r.equals, number=number)
        for number, r in enumerate(given_rules)
        if r.words or r.any or r.begins or r.ends or r.equals
    ]
    if not rules:
        return
    found_texts, found_rules = Matcher(rules).match(make_decoded(texts))
    found = set(zip(found_texts.tolist(), found_rules.tolist(), strict=True))
    wanted = set()
    for number, (path, query) in enumerate(texts):
        for rule in rules:
            text = region(rule.look[0], path, query)
            alternatives = [word in text for word in rule.any]
            alternatives += [text.startswith(word) for word in rule.begins]
            alternatives += [text.endswith(word) for word in rule.ends]
            alternatives += [text == word for word in rule.equals]
            if all(word in text for word in rule.words) and (any(alternatives) or not alternatives):
                wanted.add((number, rule.number))
    assert found == wanted


@pytest.mark.parametrize(
    "regex", ["a+b", "a/|b/", "(?:a|b)c?/", "[ab]{2}", "ab?c", "a.*c", r"b\Wa", "(?:ab)+"]
)
@given(st.lists(st.text("abc/ ", max_size=10), min_size=1, max_size=8))
def test_expressions_hit_what_plain_search_hits(regex: str, texts: list[str]) -> None:
    texts = [re.sub(" +", " ", text) for text in texts]
    literals = tuple(find_literals(regex) or "abc")
    rule = ContentRule("a.b", "xss", "", ("query",), any=literals, regex=regex, number=0)
    found, _ = Matcher([rule]).match(make_decoded([("/", text) for text in texts]))
    assert found.tolist() == [number for number, text in enumerate(texts) if re.search(regex, text)]


def test_candidates_that_do_not_fit_are_taken_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.apps.accesslog.detection import rule_matching

    monkeypatch.setattr(rule_matching, "_FIRST_ROOM", 1)
    rules = [ContentRule("a.b", "xss", "", ("query",), any=("a",), number=number) for number in range(40)]
    texts, numbers = Matcher(rules).match(make_decoded([("/", "a")] * 50))
    pairs = set(zip(texts.tolist(), numbers.tolist(), strict=True))
    assert len(pairs) == texts.size == 40 * 50


def detect(*examples: Example) -> tuple[Findings, RuleSet]:
    ruleset = default_rules()
    return Detector(ruleset).detect(make_lines(examples)), ruleset


def name_hits(findings: Findings, ruleset: RuleSet, row: int) -> set[str]:
    return {ruleset.rules[rule].id for rule in findings.hit_rules[findings.hit_rows == row]}


def test_findings_are_sorted_and_each_pair_is_there_once() -> None:
    findings, _ = detect(
        Example("GET /?a=<script>alert(1)</script>"), Example("GET /x.css"), Example("GET /.env")
    )
    pairs = list(zip(findings.hit_rows.tolist(), findings.hit_rules.tolist(), strict=True))
    assert pairs == sorted(set(pairs))
    assert {row for row, _ in pairs} == {0, 1, 2}


def test_any_split_into_batches_finds_the_same() -> None:
    ruleset = default_rules()
    detector = Detector(ruleset)
    examples = [example for rule in ruleset.content for example in rule.hits[:2]]
    whole = detector.detect(make_lines(examples))
    for row in range(0, len(examples), 37):
        alone = detector.detect(make_lines(examples[row : row + 1]))
        assert alone.hit_rules.tolist() == whole.hit_rules[whole.hit_rows == row].tolist()
        assert alone.path_hash[0] == whole.path_hash[row]
        assert alone.agent_hash[0] == whole.agent_hash[row]
        assert alone.print_hash[0] == whole.print_hash[row]


def test_hashes_tell_apart_what_should_be_told_apart() -> None:
    findings, _ = detect(
        Example("GET /a?x=1"),
        Example("GET /%61?y=2"),
        Example("GET /b", agent="other"),
        Example("POST /wp-1/x7.php"),
        Example("POST /wp-2/y8.php"),
    )
    paths, prints = findings.path_hash, findings.print_hash
    assert paths[0] == paths[1] != paths[2]
    assert findings.agent_hash[0] == findings.agent_hash[1] != findings.agent_hash[2]
    assert prints[3] == prints[4] != prints[0]


@pytest.mark.parametrize(("ending", "says_so"), [(b"", False), (b' "-" "-"', True)])
def test_a_log_without_agents_and_referrers_makes_nobody_look_alike_or_bare(
    ending: bytes, says_so: bool
) -> None:
    """Otherwise, in a common log, each visitor who sends a form would count as one of many spammers."""
    line = b'192.0.2.%d - - [01/Jan/2024:00:00:00 +0000] "POST /contact HTTP/1.1" 200 1' + ending
    ruleset = default_rules()
    lines = make_parser().parse(pa.array([line % client for client in (1, 2, 3, 1)]))
    findings = Detector(ruleset).detect(lines)
    assert ("signal.bare-form-post" in name_hits(findings, ruleset, 0)) == says_so
    prints = findings.print_hash.tolist()
    assert len(set(prints)) == (1 if says_so else 3)
    assert prints[0] == prints[3]


def test_a_detector_travels_without_examples_and_finds_the_same() -> None:
    detector = Detector(default_rules())
    packed = pickle.dumps(detector)
    assert b"UNION+SELECT" not in packed
    lines = make_lines([Example("GET /?id=1+UNION+SELECT+1")])
    assert pickle.loads(packed).detect(lines).hit_rules.tolist() == detector.detect(lines).hit_rules.tolist()


@pytest.mark.slow  # compiles its kernels anew
def test_no_kernel_leaves_its_arrays() -> None:
    """All examples of all rules, and answers that no server gives, run with every index checked."""
    program = (
        "from dataclasses import replace\n"
        "import numpy as np\n"
        "from penstock.apps.accesslog.detection.detector import Detector\n"
        "from penstock.apps.accesslog.detection.rule_examples import find_broken_examples, make_lines\n"
        "from penstock.apps.accesslog.detection.rule_set import Example, default_rules\n"
        "assert find_broken_examples(default_rules()) == []\n"
        "lines = make_lines([Example('GET /')] * 4)\n"
        "lines = replace(lines, status=np.array([-5, 0, 1200, 32767], np.int16))\n"
        "assert not set(Detector(default_rules()).detect(lines).hit_rows.tolist()) - {0, 1, 2, 3}\n"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **check_bounds()},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert outcome.returncode == 0, outcome.stderr[-2000:]


def test_nothing_is_found_in_no_lines() -> None:
    findings = Detector(default_rules()).detect(make_parser().parse(pa.array([], pa.binary())))
    assert findings.hit_rows.size == findings.path_hash.size == 0


def test_json_and_apache_escapes_hide_nothing() -> None:
    logs = [
        '{"remote_addr":"192.0.2.1","time_iso8601":"2024-01-01T00:00:00+00:00","status":200,'
        '"request":"GET /?q=\\u003cscript\\u003ealert(1) HTTP/1.1"}',
        r'192.0.2.1 - - [01/Jan/2024:00:00:00 +0000] "GET /?q=\x3cscript\x3ealert(1) HTTP/1.1" 200 1',
    ]
    ruleset = default_rules()
    findings = Detector(ruleset).detect(make_parser().parse(pa.array([log.encode() for log in logs])))
    assert all("xss.script-tag" in name_hits(findings, ruleset, row) for row in (0, 1))
