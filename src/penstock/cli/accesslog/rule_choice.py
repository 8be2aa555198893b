"""The rules that a verb uses: the shipped ones, or those of `--rules`; and a sentence about that.

Rule: a user who names rules gets those alone, and a sentence says so; the word `default` names the shipped
ones, so both can be used together. A choice without a single rule is refused: a file that was cut off must
not silently switch the defence off.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.apps.accesslog.detection.rule_set import FOLDER, RuleSet, default_rules
from penstock.cli.shared.terminal import count
from penstock.core.errors import OptionError

SHIPPED = "default"
HELP = f"rules instead of ours: a file or folder, `{SHIPPED}` for ours; may be given several times"


def find_rules(given: Sequence[str]) -> tuple[str | Path, ...]:
    """Return the paths of the rules that were given."""
    return tuple(FOLDER if each == SHIPPED else each for each in given)


def load_rules(given: Sequence[str]) -> RuleSet:
    """Return the rules that were chosen; raise RULES_EMPTY if there are none."""
    if not given:
        return default_rules()
    ruleset = RuleSet.load(*find_rules(given))
    if not ruleset.rules:
        raise OptionError(
            "RULES_EMPTY",
            f"There is no rule in {', '.join(given)}.",
            hint="Is the file whole? Without rules nobody would be found; leave --rules out to use ours.",
            facts={"paths": list(given)},
        )
    return ruleset


def describe_rules(given: Sequence[str], ruleset: RuleSet) -> str:
    """Return one sentence about which rules are used, and which are not."""
    number = count(len(ruleset.rules), "rule")
    if not given:
        return f"{number} (the shipped ones)."
    if SHIPPED in given:
        return f"{number} from {', '.join(given)}."
    shipped = len(default_rules().rules)
    return (
        f"{number} from {', '.join(given)}; the {shipped} shipped ones are not used "
        f"(--rules {SHIPPED} adds them)."
    )
