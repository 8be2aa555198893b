"""Single requests judged by their target alone: attack or clean, of which class, with how many points.

Rule: the rules are those of the pipeline, without status, agent and history. Rules that need those never hit
a target (an unknown status meets no condition unless the condition names `unknown`).

>>> judged = classify(["/?id=1'+OR+'1'='1", "/shop?page=2"], default_rules())
>>> [(each.verdict, each.attack_class) for each in judged]
[('attack', 'sql_injection'), ('clean', '')]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.apps.accesslog.detection.detector import make_detector
from penstock.apps.accesslog.detection.rule_examples import make_target_lines
from penstock.apps.accesslog.detection.rule_set import (
    ATTACK_POINTS,
    BLOCKING_POINTS,
    DetectionRule,
    RuleSet,
    default_rules,
)

__all__ = ["Judgement", "classify", "default_rules"]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the rules say about one target."""

    verdict: str  # attack or clean
    attack_class: str  # of the rule that decides; empty when clean
    score: int
    rules: tuple[str, ...]  # those with points


def classify(targets: Sequence[str], ruleset: RuleSet, *, least: int = ATTACK_POINTS) -> list[Judgement]:
    """Return a judgement of each target on its own."""
    lines = make_target_lines(
        pa.array([target.encode(errors="surrogateescape") for target in targets], pa.binary())
    )
    findings = make_detector(ruleset).detect(lines)
    hits: list[list[int]] = [[] for _ in targets]
    for row, number in zip(findings.hit_rows.tolist(), findings.hit_rules.tolist(), strict=True):
        if ruleset.rules[number].points:
            hits[row].append(number)
    return [_judge([ruleset.rules[number] for number in found], least) for found in hits]


def _judge(rules: Sequence[DetectionRule], least: int) -> Judgement:
    """Return the judgement of a request that these rules have hit.

    The class is that of the rule which brings enough points to block, as in a decision of the pipeline. If
    the request would not be blocked, it is that of the rule which made it an attack.
    """
    score, suspected, blocked = 0, "", ""
    for rule in rules:
        score += rule.points
        if score >= least and not suspected:
            suspected = rule.attack_class
        if score >= BLOCKING_POINTS and not blocked:
            blocked = rule.attack_class
    verdict, attack_class = ("attack", blocked or suspected) if suspected else ("clean", "")
    return Judgement(verdict, attack_class, score, tuple(rule.id for rule in rules))
