"""Reads a file of rules: turns YAML into checked rules, or says what is wrong in words an operator can use.

Rule: nothing is guessed. These are refused: an unknown key, a literal in capitals (texts are matched in lower
case), an expression that RE2 does not accept, one in which no literal can be found (it would run over every
line), a number that would make the rule hit every client or none, and a rule without examples. The error
names the file, the rule and the next step.

>>> from penstock.core.errors import OptionError
>>> try:
...     read_rules("mine.yaml", "- {id: a.b, class: xss, what: It., wrods: [x]}")
... except OptionError as error:
...     print(error)
[RULE_INVALID] mine.yaml, rule `a.b`: there is no key `wrods`. Did you mean `words`?
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import yaml

from penstock.apps.accesslog.detection import rule_set as r
from penstock.apps.accesslog.detection.literal_prefilter import find_literals
from penstock.core.errors import OptionError

_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*(\.[a-z0-9]+(-[a-z0-9]+)*)+")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_UNITS_US = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
#: Syntax of RE2 that may hold capitals, or, as the only group, a capital that would have to match.
_CAPITAL = re.compile(r"\\[A-Zpx].?|\[\[:\^?[a-z]+:\]|\(\?[a-zA-Z-]+[:)]|\(\?P<\w+>|([A-Z])")
_LONGEST_LITERAL, _MOST_WORDS, _MOST_POINTS = 64, 15, 100
_SHORTEST_US, _LONGEST_US = _UNITS_US["ms"], 366 * _UNITS_US["d"]

_SHARED = {"id", "class", "what", "points", "block", "mode", "near", "hits", "misses"}
_LITERALS = ("any", "begins", "ends", "equals")
_CONTENT = _SHARED | {"look", "words", *_LITERALS, "regex", "except", "unless", "when"}
_BEHAVIOUR = _SHARED | {"count", "distinct", "per", "limit", "half_life", "window"}
_EXAMPLE = {"request", "status", "agent", "referrer", "pad"}
_WHEN = {"status", "not_status", "method", "not_method", "longer", "empty", "seen"}


def read_rules(name: str, text: str) -> list[r.DetectionRule]:
    """Return the rules of one file; the set they go into gives them their numbers."""
    try:
        listed = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        raise OptionError(
            "RULE_INVALID",
            f"{name}{line}: this is not YAML: {getattr(error, 'problem', None) or error}.",
            hint="Put texts with : # { [ ' or \\ into single quotes.",
        ) from error
    if listed is None:
        return []
    if not isinstance(listed, list):
        raise _refuse(
            name, f"a file of rules is a list, but this is a {_kind(listed)}", "Begin each rule with `- id:`"
        )
    return [_RuleText(name, place, given).read() for place, given in enumerate(listed, 1)]


def parse_duration(text: str) -> int:
    """Return `30s`, `1.5m` or `24h` in microseconds; 0 if it is not a duration."""
    found = _DURATION.fullmatch(text.strip())
    return round(float(found[1]) * _UNITS_US[found[2]]) if found else 0


class _RuleText:
    """One entry of a file while it is read. Its errors name the file and the rule."""

    def __init__(self, name: str, place: int, given: object) -> None:
        if not isinstance(given, dict):
            raise _refuse(
                f"{name}, entry {place}", f"a rule has keys, but this is a {_kind(given)}", "Write `id: ...`"
            )
        identity = given.get("id")
        if not isinstance(identity, str) or not _ID.fullmatch(identity):
            raise _refuse(
                f"{name}, entry {place}",
                f"`id` is {identity!r}",
                "Use lower-case words with dots and dashes, like sqli.union-select",
            )
        self._where = f"{name}, rule `{identity}`"
        self._given: dict[Any, Any] = given
        self._id = identity

    def read(self) -> r.DetectionRule:
        counting = "count" in self._given
        self._check_keys("", self._given, _BEHAVIOUR if counting else _CONTENT)
        return self._read_behaviour() if counting else self._read_content()

    def _read_content(self) -> r.ContentRule:
        groups = {group: self._literals(group) for group in ("words", *_LITERALS)}
        regex, veto = self._regex("regex"), self._regex("except")
        when = self._when()
        look = self._texts("look", r.FIELDS)
        if regex and not any(groups[each] for each in _LITERALS):
            groups["any"] = self._derive(regex, needed=not groups["words"])
        literal = any(groups.values())
        if veto and not literal:
            raise self._refuse("`except` stands alone", "Say what to look for: `regex`, `words` or `any`")
        if literal and not look:
            raise self._refuse("`look` is missing", f"Name the fields: {', '.join(r.FIELDS)}")
        if look and not literal:
            raise self._refuse(
                "nothing to look for", "Give `regex`, `words`, `any`, `begins`, `ends` or `equals`"
            )
        if not literal and when == r.Condition():
            raise self._refuse(
                "it would hit every line", "Give literals to look for or a condition in `when`"
            )
        if len(groups["words"]) > _MOST_WORDS:
            raise self._refuse(
                f"more than {_MOST_WORDS} `words`", "Keep the rarest; the expression does the rest"
            )
        hits, misses = self._examples("hits"), self._examples("misses")
        if not hits or not misses:
            raise self._refuse("examples are missing", "Give `hits` and near `misses`: the tests run them")
        return r.ContentRule(
            self._id,
            self._choice("class", r.CLASSES),
            self._what(),
            look=look,
            words=groups["words"],
            any=groups["any"],
            begins=groups["begins"],
            ends=groups["ends"],
            equals=groups["equals"],
            regex=regex,
            veto=veto,
            unless=self._texts("unless"),
            when=when,
            points=self._points(0),
            mode=self._choice("mode", r.MODES, "enforce"),
            near=self._flag("near"),
            hits=hits,
            misses=misses,
        )

    def _read_behaviour(self) -> r.BehaviourRule:
        count = self._texts("count")
        if not count:
            raise self._refuse("`count` is empty", "Name the rules whose hits are counted")
        half_life, window = self._duration("half_life"), self._duration("window")
        if bool(half_life) == bool(window):
            raise self._refuse(
                "it needs either `half_life` or `window`", "Give one of them, like `half_life: 30s`"
            )
        return r.BehaviourRule(
            self._id,
            self._choice("class", r.CLASSES),
            self._what(),
            count=count,
            limit=self._whole("limit", 1, 1_000_000_000),
            distinct=self._choice("distinct", r.DISTINCT, "none"),
            per=self._choice("per", r.SUBJECTS, "client"),
            half_life_us=half_life,
            window_us=window,
            points=self._points(r.BLOCKING_POINTS, least=1),
            mode=self._choice("mode", r.MODES, "enforce"),
            near=self._flag("near"),
            hits=self._scenarios("hits"),
            misses=self._scenarios("misses"),
        )

    def _refuse(self, what: str, hint: str) -> OptionError:
        return _refuse(self._where, what, hint)

    def _check_keys(self, within: str, given: Mapping[Any, Any], known: Iterable[str]) -> None:
        for key in given:
            if key not in known:
                close = difflib.get_close_matches(str(key), list(known), 1)
                hint = f"Did you mean `{close[0]}`?" if close else f"Known: {', '.join(sorted(known))}"
                raise self._refuse(f"there is no key `{within}{key}`", hint)

    def _what(self) -> str:
        what = self._given.get("what")
        if not isinstance(what, str) or not what.strip():
            raise self._refuse("`what` is missing", "Say in one sentence what a hit means")
        return " ".join(what.split())

    def _choice(self, key: str, known: tuple[str, ...], default: str = "") -> str:
        value = self._given.get(key, default)
        if value not in known:
            told = f"`{key}` is {value!r}" if value else f"`{key}` is missing"
            raise self._refuse(told, f"Use one of: {', '.join(known)}")
        return str(value)

    def _flag(self, key: str) -> bool:
        value = self._given.get(key, False)
        if not isinstance(value, bool):
            raise self._refuse(f"`{key}` is {value!r}", "Use true or false")
        return value

    def _whole(self, key: str, least: int, most: int, value: object = None) -> int:
        number = self._given.get(key) if value is None else value
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
            raise self._refuse(f"`{key}` is {number!r}", f"Use a whole number from {least} to {most}")
        return number

    def _points(self, default: int, *, least: int = 0) -> int:
        if "block" in self._given:
            if "points" in self._given:
                raise self._refuse("`block` and `points` are both given", "Keep one of them")
            blocks = self._flag("block")
            if not blocks and least:
                raise self._refuse(
                    "`block` is False", "Leave it out, or give `points`: nothing counts its hits"
                )
            return r.BLOCKING_POINTS if blocks else 0
        return self._whole("points", least, _MOST_POINTS, self._given.get("points", default))

    def _duration(self, key: str) -> int:
        value = self._given.get(key)
        if value is None:
            return 0
        duration = parse_duration(str(value))
        if not _SHORTEST_US <= duration <= _LONGEST_US:
            raise self._refuse(
                f"`{key}` is {value!r}", "Use a number and ms, s, m, h or d, like 30s; from 1ms to 366d"
            )
        return duration

    def _texts(
        self, key: str, known: tuple[str, ...] = (), holder: Mapping[Any, Any] | None = None
    ) -> tuple[str, ...]:
        value = (self._given if holder is None else holder).get(key, [])
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, list):
            raise self._refuse(f"`{key}` is {value!r}", "Write a list of texts")
        for each in value:
            if not isinstance(each, str) or not each:
                raise self._refuse(f"`{key}` has {each!r}, which is not text", "Put it into single quotes")
        for each in value:
            if known and each not in known:
                raise self._refuse(f"`{key}` has {each!r}", f"Use: {', '.join(known)}")
        return tuple(value)

    def _literals(self, key: str) -> tuple[str, ...]:
        texts = self._texts(key)
        for text in texts:
            if text != text.lower() or not text.isascii():
                raise self._refuse(
                    f"`{key}` has {text!r}", "Texts are matched in lower-case ASCII: write it that way"
                )
            if len(text) > _LONGEST_LITERAL:
                raise self._refuse(
                    f"`{key}` has a literal of {len(text)} bytes", f"Cut it to at most {_LONGEST_LITERAL}"
                )
        return texts

    def _regex(self, key: str) -> str:
        """Return one expression; a list means "one of these"."""
        value = self._given.get(key, "")
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(part, str) for part in parts):
            raise self._refuse(f"`{key}` is {value!r}", "Put each expression into single quotes")
        value = "|".join(f"(?:{part})" for part in parts) if len(parts) > 1 else "".join(parts)
        if not value:
            return ""
        capital = next((found[1] for found in _CAPITAL.finditer(value) if found[1]), None)
        if capital:
            raise self._refuse(
                f"`{key}` has the capital {capital!r} and can never match", "Texts are matched in lower case"
            )
        try:
            pc.match_substring_regex(pa.array([b""], pa.binary()), value)
        except pa.ArrowInvalid as error:
            raise self._refuse(
                f"`{key}` is not a valid RE2 expression ({error})", "RE2 has no look-around"
            ) from error
        return value

    def _derive(self, regex: str, needed: bool) -> tuple[str, ...]:
        """Return the literals by which the automaton finds candidates, for a rule that names none."""
        literals = find_literals(regex)
        if literals is None:
            if not needed:
                return ()
            raise self._refuse(
                "the expression has no distinctive part and would run over every line",
                "Give `words` (all must occur), `any`, `begins`, `ends` or `equals` as well",
            )
        return tuple(sorted(literals))

    def _when(self) -> r.Condition:
        given = self._given.get("when", {})
        if not isinstance(given, dict):
            raise self._refuse("`when` has no keys", "Write it like `when: {status: [404]}`")
        self._check_keys("when.", given, _WHEN)
        return r.Condition(
            status=self._statuses("status", given),
            not_status=self._statuses("not_status", given),
            method=tuple(each.upper() for each in self._texts("method", holder=given)),
            not_method=tuple(each.upper() for each in self._texts("not_method", holder=given)),
            longer=self._whole("when.longer", 1, 1 << 30, given["longer"]) if "longer" in given else 0,
            empty=self._texts("empty", r.EMPTY_FIELDS, given),
            seen=self._texts("seen", r.TRAITS, given),
        )

    def _statuses(self, key: str, given: Mapping[Any, Any]) -> tuple[tuple[int, int], ...]:
        value = given.get(key, [])
        ranges = []
        for each in value if isinstance(value, list) else [value]:
            text = str(each)
            if text == "unknown":
                ranges.append((0, 1))
            elif re.fullmatch(r"[1-9]xx", text):
                ranges.append((int(text[0]) * 100, int(text[0]) * 100 + 100))
            elif re.fullmatch(r"[1-9][0-9]{2}", text):
                ranges.append((int(text), int(text) + 1))
            else:
                raise self._refuse(f"`when.{key}` has {each!r}", "Use statuses like 404 or 4xx, or unknown")
        return tuple(ranges)

    def _examples(self, key: str) -> tuple[r.Example, ...]:
        value = self._given.get(key, [])
        if not isinstance(value, list):
            raise self._refuse(f"`{key}` is not a list", 'Write requests like "GET /a?b=c"')
        return tuple(self._example(key, each) for each in value)

    def _example(self, key: str, given: object) -> r.Example:
        if isinstance(given, str):
            return r.Example(given)
        if not isinstance(given, dict):
            raise self._refuse(f"`{key}` has {given!r}", 'Write "GET /a" or {request: ..., status: 404}')
        self._check_keys(f"{key}.", given, _EXAMPLE)
        texts = {name: given[name] for name in ("request", "agent", "referrer") if name in given}
        if "request" not in texts or not all(isinstance(each, str) for each in texts.values()):
            raise self._refuse(f"`{key}` has {given!r}", "`request`, `agent` and `referrer` are texts")
        status = self._whole("status", 0, 999, given.get("status", 200))
        pad = self._whole("pad", 0, 1 << 20, given.get("pad", 0))
        return r.Example(status=status, pad=pad, **texts)

    def _scenarios(self, key: str) -> tuple[Mapping[str, Any], ...]:
        value = self._given.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise self._refuse(f"`{key}` is not a list of scenarios", "Each is a mapping with its keys")
        return tuple(value)


def _kind(value: object) -> str:
    return {dict: "mapping", str: "text", list: "list", type(None): "nothing"}.get(
        type(value), type(value).__name__
    )


def _refuse(where: str, what: str, hint: str) -> OptionError:
    end = "" if hint.endswith("?") else "."
    return OptionError("RULE_INVALID", f"{where}: {what}.", hint=f"{hint}{end}")
