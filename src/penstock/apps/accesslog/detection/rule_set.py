"""The rules of the defence as data: YAML files in, a checked and numbered `RuleSet` out.

Rule: a set that loads can be run. `rule_files` checks each field, and an error names the file, the rule and
what to do. No other module looks at raw YAML. A rule's place in the set is its number in all arrays, and
`digest` changes with anything that could change a decision, so stored state shows which rules made it.

A content rule looks at one line (`look`, `words`, `regex` ...). A behaviour rule counts the hits of others
over time (`count`, `limit`, `half_life` ...). Points add up per client and fade; a client with 10 is blocked.
A rule with zero points is a signal, which is only counted. Why not Python for the rules: an operator must be
able to read, add and switch off a rule without a release. The tests run a rule's examples (`hits`, `misses`).

>>> default_rules().find("secret.env").points
10
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeAlias

from penstock.core.errors import OptionError

#: A client that has this many points is blocked.
BLOCKING_POINTS = 10
#: `classify` calls a single request with this many points an attack.
ATTACK_POINTS = 5
#: More behaviour rules than this are refused: each has a bit in a word of the fold.
MOST_BEHAVIOUR_RULES = 63
#: In `count`, these stand for every line, and for every hit of a rule with points.
ANY_REQUEST, ANY_HIT = "any-request", "any-hit"
FOLDER = Path(__file__).parents[1] / "rules"

CLASSES = (
    "agent_switching",
    "bad_agent",
    "brute_force",
    "cms_probe",
    "command_injection",
    "cve_probe",
    "distributed_scan",
    "enumeration",
    "file_inclusion",
    "flood",
    "form_spam",
    "java_injection",
    "path_traversal",
    "php_injection",
    "probing",
    "protocol_abuse",
    "proxy_abuse",
    "scanner",
    "secret_file",
    "sql_injection",
    "template_injection",
    "web_shell",
    "xss",
)
#: What a content rule can look at; all but `request` are decoded and in lower case.
FIELDS = ("path", "query", "target", "bare", "agent", "referrer", "method", "protocol", "request")
#: What the decoder can notice about a target.
TRAITS = ("bad_escape", "comment", "control", "double", "entity", "nul", "overlong", "unicode_escape")
#: The fields that `when: {empty: [...]}` can name.
EMPTY_FIELDS = ("agent", "referrer", "user", "vhost", "method", "protocol", "target")
MODES = ("enforce", "simulate")
DISTINCT = ("none", "path", "agent", "client")
SUBJECTS = ("client", "net", "print")


@dataclass(frozen=True, slots=True)
class Condition:
    """What else must be true of a line, read from its columns. An empty condition is true of every line."""

    status: tuple[tuple[int, int], ...] = ()  # half-open ranges; [404, unknown] is ((404, 405), (0, 1))
    not_status: tuple[tuple[int, int], ...] = ()
    method: tuple[str, ...] = ()
    not_method: tuple[str, ...] = ()
    longer: int = 0  # the target as logged has more bytes than this
    empty: tuple[str, ...] = ()  # these fields of the line are missing, `-` or empty
    seen: tuple[str, ...] = ()  # one of these was met while the target was decoded


@dataclass(frozen=True, slots=True)
class Example:
    """A request that a content rule must hit or must leave alone; texts as the client sent them."""

    request: str
    status: int = 200
    agent: str = "Mozilla/5.0"
    referrer: str = ""
    pad: int = 0  # how many letters are appended to the request


@dataclass(frozen=True, slots=True)
class ContentRule:
    """A rule about one line. Its literals are the prefilter, and its regular expression decides."""

    id: str
    attack_class: str
    what: str
    look: tuple[str, ...] = ()
    words: tuple[str, ...] = ()  # all of them occur in one field ...
    any: tuple[str, ...] = ()  # ... and one of these, if there are any:
    begins: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    equals: tuple[str, ...] = ()
    regex: str = ""
    veto: str = ""  # a second expression that must not match the same text
    unless: tuple[str, ...] = ()  # rules that must not have hit the same line
    when: Condition = Condition()
    points: int = 0
    mode: str = "enforce"
    near: bool = False
    hits: tuple[Example, ...] = ()
    misses: tuple[Example, ...] = ()
    number: int = -1


@dataclass(frozen=True, slots=True)
class BehaviourRule:
    """A rule that counts the hits of other rules over time and triggers at more than `limit` of them."""

    id: str
    attack_class: str
    what: str
    count: tuple[str, ...]  # ids, `class:NAME`, `prefix.*`, `any-request` or `any-hit`
    limit: int
    distinct: str = "none"
    per: str = "client"
    half_life_us: int = 0  # either this ...
    window_us: int = 0  # ... or this
    points: int = BLOCKING_POINTS
    mode: str = "enforce"
    near: bool = False
    hits: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)  # scenarios for the fold's tests
    misses: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    number: int = -1


DetectionRule: TypeAlias = ContentRule | BehaviourRule


@dataclass(frozen=True)
class RuleSet:
    """Rules by number. Build it with `load`, `parse` or `default_rules`, which check the rules."""

    rules: tuple[DetectionRule, ...]

    @classmethod
    def load(cls, *paths: Path | str) -> RuleSet:
        """Return the rules of these files in order; a folder stands for its `*.yaml` files, by name."""
        files = [file for path in paths for file in _list_files(Path(path))]
        return cls.from_texts([(file.name, _read(file)) for file in files])

    @classmethod
    def parse(cls, text: str, name: str = "rules.yaml") -> RuleSet:
        return cls.from_texts([(name, text)])

    @classmethod
    def from_texts(cls, texts: Iterable[tuple[str, str]]) -> RuleSet:
        from penstock.apps.accesslog.detection.rule_files import read_rules

        rules = [rule for name, text in texts for rule in read_rules(name, text)]
        made = cls(tuple(replace(rule, number=number) for number, rule in enumerate(rules)))
        made._check_references()
        return made

    @cached_property
    def content(self) -> tuple[ContentRule, ...]:
        return tuple(rule for rule in self.rules if isinstance(rule, ContentRule))

    @cached_property
    def behaviour(self) -> tuple[BehaviourRule, ...]:
        return tuple(rule for rule in self.rules if isinstance(rule, BehaviourRule))

    @cached_property
    def _by_id(self) -> dict[str, DetectionRule]:
        return {rule.id: rule for rule in self.rules}

    def find(self, rule_id: str) -> DetectionRule:
        """Return the rule with that id; its `number` is its index in `rules`."""
        try:
            return self._by_id[rule_id]
        except KeyError:
            raise OptionError(
                "RULE_UNKNOWN",
                f"There is no rule `{rule_id}`.",
                hint="`penstock accesslog rules list` shows all.",
            ) from None

    def counted(self, rule: BehaviourRule) -> tuple[int, ...]:
        """Return the numbers of the content rules whose hits it counts; `any-request` is not among them."""
        return tuple(each.number for each in self.content if _counts(rule.count, each))

    @cached_property
    def digest(self) -> str:
        """Return sixteen hexadecimal digits that change with anything that can change a decision."""
        deciding = []
        for rule in self.rules:
            known = asdict(rule)
            for told_only in ("what", "hits", "misses"):
                del known[told_only]
            deciding.append(known)
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:16]

    def _check_references(self) -> None:
        seen: set[str] = set()
        free = {rule.id for rule in self.content if not rule.unless}
        for rule in self.rules:
            if rule.id in seen:
                raise OptionError(
                    "RULE_INVALID", f"Rule `{rule.id}` is defined twice.", hint="Give one of them another id."
                )
            seen.add(rule.id)
        if len(self.behaviour) > MOST_BEHAVIOUR_RULES:
            raise OptionError(
                "RULE_INVALID",
                f"There are {len(self.behaviour)} rules that count, more than {MOST_BEHAVIOUR_RULES}.",
                hint="Leave some of them out.",
            )
        for rule in self.content:
            for named in rule.unless:
                if named not in free:
                    raise OptionError(
                        "RULE_INVALID",
                        f"Rule `{rule.id}`: `unless` names `{named}`, which is not a content rule without "
                        "`unless`.",
                        hint="Name ids of such rules.",
                    )
        for counting in self.behaviour:
            for entry in counting.count:
                if entry != ANY_REQUEST and not any(_counts((entry,), each) for each in self.content):
                    raise OptionError(
                        "RULE_INVALID",
                        f"Rule `{counting.id}`: `count` names `{entry}`, which matches no content rule.",
                        hint="Name ids of content rules, class:NAME, prefix.*, any-request or any-hit.",
                    )


@cache
def default_rules() -> RuleSet:
    """Return the rules that come with Penstock; a process reads them once."""
    return RuleSet.load(FOLDER)


def _counts(entries: Sequence[str], rule: ContentRule) -> bool:
    for entry in entries:
        if entry == rule.id or entry == f"class:{rule.attack_class}":
            return True
        if entry.endswith(".*") and rule.id.startswith(entry[:-1]):
            return True
        if entry == ANY_HIT and rule.points > 0:
            return True
    return False


def _list_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.yaml"))
    if not files:
        raise OptionError(
            "RULE_FILE_UNREADABLE", f"The folder {path} has no file `*.yaml`.", hint="Name a file of rules."
        )
    return files


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            "RULE_FILE_UNREADABLE",
            f"The rules in {path} cannot be read: {error}.",
            hint="Name a readable file in UTF-8.",
        ) from error
