"""Rules: what is refused and how it is reported, what examples promise, and what is derived."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import pytest

from penstock.apps.accesslog.detection.literal_prefilter import find_literals
from penstock.apps.accesslog.detection.rule_examples import find_broken_examples
from penstock.apps.accesslog.detection.rule_files import parse_duration
from penstock.apps.accesslog.detection.rule_set import (
    CLASSES,
    BehaviourRule,
    ContentRule,
    RuleSet,
    default_rules,
)
from penstock.core.errors import OptionError
from tests.support.expression_samples import make_samples

GOOD = "{id: a.b, class: xss, what: It., look: [query], any: [x], hits: [GET /?x], misses: [GET /]%s}"
COUNTING = "{id: c.d, class: flood, what: It., count: [a.b], limit: 5%s}"


def make(extra: str = "", base: str = GOOD) -> str:
    return "- " + base % (", " + extra if extra else "")


def complain_about(text: str) -> str:
    with pytest.raises(OptionError) as told:
        RuleSet.parse(text, "mine.yaml")
    assert told.value.condition == "RULE_INVALID"
    return str(told.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- {id: 'x", "mine.yaml, line 1: this is not YAML"),
        ("a: b", "a file of rules is a list, but this is a mapping. Begin each rule with `- id:`."),
        ("- just text", "entry 1: a rule has keys, but this is a text"),
        ("- {id: Loud.Id}", "entry 1: `id` is 'Loud.Id'. Use lower-case words with dots and dashes"),
        (make("wrods: [x]"), "mine.yaml, rule `a.b`: there is no key `wrods`. Did you mean `words`?"),
        (make("regex: '(?=x)'"), "`regex` is not a valid RE2 expression"),
        (make("regex: 'Select'"), "`regex` has the capital 'S' and can never match"),
        (make("words: [Select]"), "`words` has 'Select'. Texts are matched in lower-case ASCII"),
        (make("words: [1]"), "`words` has 1, which is not text. Put it into single quotes."),
        (make("points: many"), "`points` is 'many'. Use a whole number from 0 to 100."),
        (make("points: 5, block: true"), "`block` and `points` are both given. Keep one of them."),
        (make("mode: audit"), "`mode` is 'audit'. Use one of: enforce, simulate."),
        (make("near: maybe"), "`near` is 'maybe'. Use true or false."),
        (make("when: {status: [4]}"), "`when.status` has 4. Use statuses like 404 or 4xx, or unknown."),
        (make("when: {status: ['000']}"), "`when.status` has '000'. Use statuses like 404 or 4xx"),
        (make("when: {not_status: [0xx]}"), "`when.not_status` has '0xx'. Use statuses like 404 or 4xx"),
        (make("when: {longer: 0}"), "`when.longer` is 0. Use a whole number from 1 to"),
        (make("when: {longer: -5}"), "`when.longer` is -5. Use a whole number from 1 to"),
        (make("points: -1"), "`points` is -1. Use a whole number from 0 to 100."),
        (make("window: 5s", COUNTING).replace("limit: 5", "limit: 0"), "`limit` is 0. Use a whole number"),
        (make("window: 5s", COUNTING).replace("limit: 5", "limit: -5"), "`limit` is -5. Use a whole number"),
        (make("window: 5s, points: 0", COUNTING), "`points` is 0. Use a whole number from 1 to 100."),
        (make("window: 5s, block: false", COUNTING), "`block` is False. Leave it out, or give `points`"),
        (make("window: 0s", COUNTING), "`window` is '0s'. Use a number and ms, s, m, h or d"),
        (make("window: -5s", COUNTING), "`window` is '-5s'. Use a number and ms, s, m, h or d"),
        (make("half_life: 0.1ms", COUNTING), "`half_life` is '0.1ms'. Use a number and ms, s, m, h or d"),
        (make("half_life: 367d", COUNTING), "`half_life` is '367d'. Use a number and ms, s, m, h or d"),
        (make("when: {stauts: [404]}"), "there is no key `when.stauts`. Did you mean `status`?"),
        (make("when: {seen: [magic]}"), "`seen` has 'magic'. Use: bad_escape"),
        (make("unless: [c.d]"), "`unless` names `c.d`, which is not a content rule without `unless`."),
        (make().replace("look: [query], ", ""), "`look` is missing. Name the fields: path, query"),
        (make().replace("look: [query]", "look: [body]"), "`look` has 'body'. Use: path"),
        (make().replace("any: [x], ", ""), "nothing to look for"),
        (make("regex: '[a-z]+'").replace("any: [x], ", ""), "the expression has no distinctive part"),
        (make().replace("look: [query], any: [x], ", ""), "it would hit every line"),
        (
            make().replace("hits: [GET /?x]", "hits: []"),
            "examples are missing. Give `hits` and near `misses`",
        ),
        (
            make().replace("hits: [GET /?x]", "hits: [{status: 4}]"),
            "`request`, `agent` and `referrer` are texts",
        ),
        (make().replace("class: xss", "class: sorcery"), "`class` is 'sorcery'. Use one of: agent_switching"),
        (make().replace("what: It., ", ""), "`what` is missing. Say in one sentence what a hit means."),
        (make() + "\n" + make(), "Rule `a.b` is defined twice. Give one of them another id."),
        (make() + "\n" + make("", COUNTING), "it needs either `half_life` or `window`"),
        (
            make() + "\n" + make("window: soon", COUNTING),
            "`window` is 'soon'. Use a number and ms, s, m, h or d",
        ),
        (make("window: 5s", COUNTING), "`count` names `a.b`, which matches no content rule."),
    ],
)
def test_what_is_wrong_is_told_with_the_next_step(text: str, said: str) -> None:
    assert said in complain_about(text)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="RULE_FILE_UNREADABLE"):
        RuleSet.load(tmp_path / "none.yaml")
    with pytest.raises(OptionError, match="has no file"):
        RuleSet.load(tmp_path)


def test_rules_are_numbered_found_and_counted() -> None:
    ruleset = RuleSet.parse("\n".join([make(), make("window: 5s, per: net, distinct: path", COUNTING)]))
    content, behaviour = ruleset.rules
    assert isinstance(content, ContentRule)
    assert isinstance(behaviour, BehaviourRule)
    assert (content.number, behaviour.number) == (0, 1)
    assert ruleset.find("c.d") is behaviour
    assert (behaviour.window_us, behaviour.per, behaviour.distinct, behaviour.points) == (
        5_000_000,
        "net",
        "path",
        10,
    )
    assert ruleset.counted(behaviour) == (0,)
    with pytest.raises(OptionError, match="RULE_UNKNOWN"):
        ruleset.find("e.f")


@pytest.mark.parametrize("entry", ["a.b", "a.*", "class:xss", "any-hit"])
def test_what_is_counted_can_be_named_in_four_ways(entry: str) -> None:
    counting = make("window: 5s", COUNTING).replace("[a.b]", f"['{entry}']")
    ruleset = RuleSet.parse(make("points: 3") + "\n" + counting)
    assert ruleset.counted(ruleset.behaviour[0]) == (0,)


def test_the_digest_changes_with_decisions_and_not_with_words() -> None:
    digest = RuleSet.parse(make()).digest
    assert RuleSet.parse(make().replace("It.", "That.")).digest == digest
    assert RuleSet.parse(make("points: 3")).digest != digest
    assert pickle.loads(pickle.dumps(RuleSet.parse(make()))).digest == digest


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [("30s", 30_000_000), ("1.5m", 90_000_000), ("2h", 7_200_000_000), ("5", 0), ("x", 0)],
)
def test_durations_have_a_unit(text: str, microseconds: int) -> None:
    assert parse_duration(text) == microseconds


def test_a_status_that_is_not_known_is_met_only_where_it_is_named() -> None:
    for named, broken in (("404", 1), ("404, unknown", 0)):
        rule = make(f"when: {{status: [{named}]}}").replace("[GET /?x]", "[{request: GET /?x, status: 0}]")
        assert len(find_broken_examples(RuleSet.parse(rule))) == broken


def test_every_example_of_every_rule_holds() -> None:
    assert find_broken_examples(default_rules()) == []


def test_an_example_that_does_not_hold_is_told() -> None:
    broken = find_broken_examples(
        RuleSet.parse(make().replace("GET /?x", "GET /?y").replace("[GET /]", "[GET /?x]"))
    )
    assert broken == [
        "Rule `a.b` does not hit 'GET /?y' (status 200).",
        "Rule `a.b` hits 'GET /?x' (status 200).",
    ]


def test_every_class_that_one_line_can_show_has_rules() -> None:
    counted_only = {"flood", "brute_force", "form_spam", "agent_switching", "distributed_scan", "probing"}
    one_line = {rule.attack_class for rule in default_rules().content if rule.points}
    assert set(CLASSES) - counted_only <= one_line


def test_more_rules_that_count_than_a_word_has_bits_are_refused() -> None:
    counting = [make("half_life: 5s", COUNTING).replace("c.d", f"c.n{n}") for n in range(64)]
    assert len(RuleSet.parse("\n".join([make(), *counting[:63]])).behaviour) == 63
    assert "64 rules that count, more than 63" in complain_about("\n".join([make(), *counting]))


@pytest.mark.parametrize(
    "rule", [rule for rule in default_rules().content if rule.regex], ids=lambda rule: str(rule.id)
)
def test_whatever_an_expression_matches_has_the_literals_of_its_rule(rule: ContentRule) -> None:
    """Otherwise a part of the expression could never be reached."""
    alternatives = rule.any + rule.begins + rule.ends + rule.equals
    for text in make_samples(rule.regex, 60, random.Random(rule.id)):
        assert all(word in text for word in rule.words), text
        assert not alternatives or any(literal in text for literal in alternatives), text


@pytest.mark.parametrize(
    ("regex", "literals"),
    [
        ("union|select", {"union", "select"}),
        ("(?:drop|alter)[a-z]+table", {"table"}),
        (r"a\s+b", {"a b", "a\nb"}),
        ("x?yz", {"yz"}),
        ("[ab]cd", {"acd", "bcd"}),
        ("a|b", None),
        (".*", None),
        ("(?:ab)*", None),
        (r"\pL", None),
    ],
)
def test_literals_are_derived_from_expressions(regex: str, literals: set[str] | None) -> None:
    assert find_literals(regex) == (frozenset(literals) if literals else None)
