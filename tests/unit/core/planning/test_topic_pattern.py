"""Topic patterns mean what they mean in Java, match whole names, and always finish."""

from __future__ import annotations

import pickle
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import OptionError
from penstock.core.planning.topic_pattern import TopicPattern


def matches(pattern: str, *names: str) -> list[str]:
    return [name for name in names if TopicPattern(pattern).matches(name)]


def test_a_pattern_must_match_the_whole_name() -> None:
    """B11, B142: `test` matches `test` and nothing longer."""
    assert matches("test", "test", "test2", "mytest", "tes") == ["test"]


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("test", "my-test-2", True),
        ("^test", "my-test", False),
        ("test$", "my-test", True),
        ("t(?=e)", "test", True),
        ("x", "test", False),
    ],
)
def test_a_pattern_can_be_looked_for_inside_a_name(pattern: str, name: str, expected: bool) -> None:
    assert TopicPattern(pattern).occurs_in(name) is expected


# Each expectation was checked against java.util.regex.
@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("[a-c&&[^b]]", "a", True),
        ("[a-c&&[^b]]", "b", False),
        ("[a-z&&b-c&&[^c]]", "b", True),
        ("[^a&&b]", "b", True),
        ("[^a-b[0]]", "0", False),
        ("[a[0-9]]+", "a7", True),
        ("[]a]", "]", True),
        ("[a-]", "-", True),
        ("[a\\-b]", "-", True),
        ("[\\w&&[^_]]+", "a_b", False),
        ("\\Qa.b\\E", "a.b", True),
        ("\\Qa.b\\E", "axb", False),
        ("\\Qa.\\E+", "a...", True),
        ("[\\Qa]\\E]", "]", True),
        ("\\p{Alpha}+", "aB", True),
        ("\\p{Lower}", "A", False),
        ("(?i)\\p{Lower}", "A", True),
        ("\\P{Lower}", "A", True),
        ("\\p{IsAlphabetic}\\p{Lu}\\pL", "aBc", True),
        ("\\p{javaLowerCase}", "b", True),
        ("\\h", "a", False),
        ("\\H\\S\\D\\W", "aaa-", True),
        ("a\\R?", "a", True),
        ("a\\z", "a", True),
        ("a\\Z", "a", True),
        ("\\Aa", "a", True),
        ("(?<name>a)b", "ab", True),
        ("(?i)orders", "OrDeRs", True),
        ("a(?i)b", "aB", True),
        ("a(?i)b", "Ab", False),
        ("(?i:a)b", "Ab", True),
        ("(?i:a)b", "AB", False),
        ("((?i)a)b", "AB", False),
        ("(?i)a(?-i)b", "Ab", True),
        ("(?i)[^A]", "a", False),
        ("(?i)[a-b]+", "AB", True),
        ("(?!test-).*", "test-x", False),
        ("(?!test-).*", "prod-x", True),
        ("^(?=.*-eu$)orders.*", "orders-eu", True),
        ("^(?=.*-eu$)orders.*", "orders-us", False),
        (".*(?<!-tmp)", "a-tmp", False),
        (".*(?<=-eu)", "a-eu", True),
        ("a\\b.*", "a-b", True),
        ("a\\B.*", "a-b", False),
        ("a{2}", "aa", True),
        ("a{2,}", "aaa", True),
        ("a{0,2}", "aaa", False),
        ("(ab){2}c??", "abab", True),
        ("\\x61\\x{62}\\u0063\\0144", "abcd", True),
        ("a|b|", "b", True),
        ("}", "}", True),
        ("$a^", "a", False),
        ("(?s).+(?m)$", "a.b", True),
    ],
)
def test_a_construct_means_what_it_means_in_java(pattern: str, name: str, expected: bool) -> None:
    """T30: even where Python's own expressions read it differently or not at all."""
    assert TopicPattern(pattern).matches(name) is expected


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "[a", "a**", "*a", "a{", "a{,3}", "a{3,2}", "a*+", "a++", "(?>a)", "(a)\\1",
        "(?<n>a)\\k<n>", "(?<n>a)(?<n>b)", "\\G", "\\X", "\\b{g}", "\\p{Nonsense}", "\\p{InGreek}", "(?x)a b",
        "(?#c)", "\\y", "[b-a]", "[a&&&b]", "[&&a]", "[a&&]", "\\", "\\x6",
        "\\x{110000}", "(?P<n>a)", "(" * 5000,
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_with_a_reason(pattern: str) -> None:
    """T30: translated or refused, never guessed."""
    with pytest.raises(OptionError, match=r"\[PATTERN_REFUSED\] Option `subscribePattern`"):
        TopicPattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a*)*b", "(a+)+b", "(a|a)*b", "(a|aa)+b", ".*.*.*.*.*.*b", "(.*)*(.*)*b", "((a{0,99}){0,99}){0,99}b",
        "(((a?){99}){99}){99}b", "(?=(a*)*b)(a*)*c", "(a?){249}a{249}b", "((((a*)*)*)*)*b", "(a*a*a*a*)*b",
    ],
)  # fmt: skip
def test_no_pattern_takes_long_on_the_longest_name(pattern: str) -> None:
    """T30: these make a backtracking matcher run practically forever."""
    began = time.monotonic()
    assert not TopicPattern(pattern).matches("a" * 249)
    assert time.monotonic() - began < 5


def test_a_pattern_that_costs_too_much_is_refused_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """T30: the limit counts steps, so it is the same on every machine."""
    monkeypatch.setattr("penstock.core.planning.topic_pattern.MOST_MOVES", 100)
    with pytest.raises(OptionError, match="PATTERN_TOO_COSTLY"):
        TopicPattern("(a|b)*c").matches("ab" * 100)


def test_a_pattern_travels_to_a_worker() -> None:
    pattern = pickle.loads(pickle.dumps(TopicPattern("a+")))
    assert pattern.matches("aa")


atoms = st.sampled_from(
    ["a", "b", "0", "-", "\\.", "[ab]", "[^a]", "\\d", "\\w", ".", "(?=a)", "(?!b)", "\\b"]
)
quantified = st.tuples(atoms, st.sampled_from(["", "*", "+", "?", "{2}", "{1,2}", "*?"])).map("".join)


def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    repeated = st.tuples(inner, st.sampled_from(["(%s)", "(?:%s)?", "(%s)*", "(%s){2}"])).map(
        lambda x: x[1] % x[0]
    )
    return st.tuples(inner, inner).map("".join) | st.tuples(inner, inner).map("|".join) | repeated


@settings(max_examples=300, deadline=None)
@given(st.recursive(quantified, grow, max_leaves=6), st.text("ab0-.", max_size=8))
def test_where_both_languages_agree_the_answer_is_pythons(pattern: str, name: str) -> None:
    """T30: the two matchers are built in entirely different ways."""
    try:
        expected = re.compile(pattern, re.ASCII)
    except re.error:
        return
    assert TopicPattern(pattern).matches(name) is bool(expected.fullmatch(name))
