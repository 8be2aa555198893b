"""Parses a Java regular expression for topic names into a tree.

Rule: what Java accepts and this parser does not is refused with a message, never guessed. Refused are
constructs that do not define a set of names (back-references, possessive and atomic groups, `\\G`, `\\X`) and
the comment mode. Greedy and lazy are the same here, since only "does the whole name match" is asked. Classes
are worked out to sets of ASCII characters, with Java's nesting, `&&` and negation; case-insensitivity widens
the sets while reading, so flags need no scope later.

>>> parse_pattern("[a-c&&[^b]]").chars == frozenset("ac")
True
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from typing import TypeAlias

ASCII = frozenset(map(chr, range(128)))
WORD = frozenset(string.ascii_letters + string.digits + "_")
_DIGITS = frozenset(string.digits)
_SPACE = frozenset(" \t\n\x0b\f\r")
_LINE_ENDS = frozenset("\n\x0b\f\r")
_LETTERS = frozenset(string.ascii_letters)
_LOWER = frozenset(string.ascii_lowercase)
_UPPER = frozenset(string.ascii_uppercase)
_PUNCTUATION = frozenset(string.punctuation)
_CONTROL = frozenset(map(chr, [*range(32), 127]))
_SHORT = {"d": _DIGITS, "w": WORD, "s": _SPACE, "h": frozenset(" \t"), "v": _LINE_ENDS}
_SINGLE = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_PROPERTIES = {
    "lower": _LOWER, "upper": _UPPER, "ascii": ASCII, "alpha": _LETTERS, "digit": _DIGITS,
    "alnum": _LETTERS | _DIGITS, "punct": _PUNCTUATION, "graph": _LETTERS | _DIGITS | _PUNCTUATION,
    "print": _LETTERS | _DIGITS | _PUNCTUATION | {" "}, "blank": frozenset(" \t"), "cntrl": _CONTROL,
    "xdigit": frozenset(string.hexdigits), "space": _SPACE, "l": _LETTERS, "lu": _UPPER, "ll": _LOWER,
    "n": _DIGITS, "nd": _DIGITS, "isalphabetic": _LETTERS, "isletter": _LETTERS, "isdigit": _DIGITS,
    "islowercase": _LOWER, "isuppercase": _UPPER, "javalowercase": _LOWER, "javauppercase": _UPPER,
    "isl": _LETTERS, "islu": _UPPER, "isll": _LOWER, "isn": _DIGITS, "isnd": _DIGITS, "islatin": _LETTERS,
}  # fmt: skip


class PatternRefusedError(ValueError):
    """The part of a pattern that cannot be read, named in half a sentence."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of a set."""

    chars: frozenset[str]


@dataclass(frozen=True, slots=True)
class Sequence:
    """These parts, one after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """One of these."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A number of repetitions; with `most` None there is no limit."""

    inner: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Start:
    """The beginning of the name."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of the name."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """A word boundary, or, if not `wanted`, a place without one."""

    wanted: bool


@dataclass(frozen=True, slots=True)
class Lookaround:
    """A condition on what comes next, or, if not `ahead`, on what comes before."""

    inner: Node
    ahead: bool
    wanted: bool


Node: TypeAlias = Chars | Sequence | Either | Repeat | Start | End | Boundary | Lookaround


def parse_pattern(text: str) -> Node:
    """Return the tree of a whole pattern."""
    try:
        reader = _PatternText(text)
        node = reader.read_options()
        if reader.rest():
            raise PatternRefusedError(f"the closing parenthesis at {reader.at} has no opening one")
        return node
    except RecursionError:
        raise PatternRefusedError("it is nested too deeply") from None


class _PatternText:
    """A position in the pattern, and whether case is ignored there."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.ignore_case = False
        self.names: set[str] = set()

    def rest(self) -> str:
        return self.text[self.at :]

    def take(self, *starts: str) -> str:
        """Step over the first of these that matches here and return it; return "" if none does."""
        for start in starts:
            if self.text.startswith(start, self.at):
                self.at += len(start)
                return start
        return ""

    def take_match(self, expression: str) -> re.Match[str] | None:
        found = re.compile(expression).match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    # --- structure

    def read_options(self) -> Node:
        """Return the alternatives up to the group's end. Flags set inside end with the group."""
        case_outside = self.ignore_case
        options = [self.read_sequence()]
        while self.take("|"):
            options.append(self.read_sequence())
        self.ignore_case = case_outside
        return options[0] if len(options) == 1 else Either(tuple(options))

    def read_sequence(self) -> Node:
        parts: list[Node] = []
        while self.rest() and self.text[self.at] not in "|)":
            if self.take("\\Q"):
                quoted, _, _ = self.rest().partition("\\E")
                self.at += len(quoted)
                self.take("\\E")
                parts += [self.literal(char) for char in quoted]
                if parts and quoted:
                    parts[-1] = self.read_quantifier(parts[-1])
            elif not self.take_flags() and (node := self.read_one()) is not None:
                parts.append(self.read_quantifier(node))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def take_flags(self) -> bool:
        found = self.take_match(r"\(\?([a-zA-Z]*)(?:-([a-zA-Z]*))?\)")
        if found:
            self.set_flags(found[1], found[2] or "")
        return bool(found)

    def set_flags(self, on: str, off: str) -> None:
        # s, m, d, u and U change nothing for ASCII names without line ends.
        for flag in on + off:
            if flag not in "imsduU":
                raise PatternRefusedError(f"the flag `{flag}` is not supported")
        self.ignore_case = (self.ignore_case or "i" in on) and "i" not in off

    def read_one(self) -> Node:
        char = self.text[self.at]
        if char == "(":
            return self.read_group()
        if char == "[":
            self.at += 1
            return Chars(self.read_class())
        if char == "\\":
            return self.read_escape()
        if char in "*+?{":
            raise PatternRefusedError(f"`{char}` at {self.at} repeats nothing")
        self.at += 1
        match char:
            case ".":
                return Chars(ASCII - {"\n", "\r"})
            case "^":
                return Start()
            case "$":
                return End()
        return self.literal(char)

    def read_group(self) -> Node:
        opening = self.take("(?=", "(?!", "(?<=", "(?<!", "(?:", "(?>")
        case_outside = self.ignore_case
        if opening == "(?>":
            raise PatternRefusedError("atomic groups are not supported")
        if not opening and not self.take_name():
            if flags := self.take_match(r"\(\?([a-zA-Z]*)(?:-([a-zA-Z]*))?:"):
                self.set_flags(flags[1], flags[2] or "")
            elif self.take("(?"):
                raise PatternRefusedError(f"the group at {self.at - 2} is of a kind that is not supported")
            else:
                self.take("(")
        inner = self.read_options()
        self.ignore_case = case_outside
        if not self.take(")"):
            raise PatternRefusedError("a parenthesis is not closed")
        if opening in ("(?=", "(?!", "(?<=", "(?<!"):
            return Lookaround(inner, ahead="<" not in opening, wanted="=" in opening)
        return inner

    def take_name(self) -> bool:
        """Return whether a named group opens here, and step over its opening.

        Nothing can refer to the name, but Java wants each name once.
        """
        found = self.take_match(r"\(\?<([a-zA-Z][a-zA-Z0-9]*)>")
        if found and found[1] in self.names:
            raise PatternRefusedError(f"the group name `{found[1]}` is given twice")
        self.names.update(found.groups() if found else ())
        return bool(found)

    def read_quantifier(self, node: Node) -> Node:
        while (sign := self.take("*", "+", "?")) or self.rest().startswith("{"):
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(sign) or self.read_counts()
            if self.take("+"):
                raise PatternRefusedError("possessive quantifiers are not supported")
            self.take("?")
            node = Repeat(node, least, most)
            if self.rest()[:1] in ("*", "+", "?") and self.rest():
                raise PatternRefusedError(f"`{self.rest()[0]}` at {self.at} repeats a quantifier")
        return node

    def read_counts(self) -> tuple[int, int | None]:
        found = self.take_match(r"\{([0-9]{1,9})(,?)([0-9]{0,9})\}")
        if not found or (found[3] and not found[2]):
            raise PatternRefusedError(f"`{{` at {self.at} does not begin a count such as {{2}} or {{2,5}}")
        least = int(found[1])
        most = (int(found[3]) if found[3] else None) if found[2] else least
        if most is not None and most < least:
            raise PatternRefusedError(f"the count {found[0]} ends before it begins")
        return least, most

    # --- characters

    def literal(self, char: str) -> Chars:
        return Chars(self.widen(frozenset(char)))

    def widen(self, chars: frozenset[str]) -> frozenset[str]:
        return chars | {each.swapcase() for each in chars if each in _LETTERS} if self.ignore_case else chars

    def read_escape(self) -> Node:
        match self.text[self.at + 1 : self.at + 2]:
            case "A":
                node: Node = Start()
            case "z" | "Z":
                node = End()
            case "b" if self.text[self.at + 2 : self.at + 3] != "{":
                node = Boundary(True)
            case "B":
                node = Boundary(False)
            case "R":
                node = Chars(_LINE_ENDS)
            case _:
                return Chars(self.read_set_escape())
        self.at += 2
        return node

    def read_set_escape(self) -> frozenset[str]:
        """Return the characters of an escape for one character or a set, inside or outside a class."""
        self.take("\\")
        kind = self.text[self.at : self.at + 1]
        self.at += 1
        if kind.lower() in _SHORT and kind:
            found = _SHORT[kind.lower()]
            return found if kind.islower() else ASCII - found
        if kind in ("p", "P"):
            return self.read_property(negative=kind == "P")
        if kind in _SINGLE:
            return frozenset(_SINGLE[kind])
        if kind and kind in "0xuc":
            return self.widen(frozenset(self.read_code(kind)))
        if not kind or kind.isalnum():
            reason = "back-references are" if kind.isdigit() or kind == "k" else f"`\\{kind}` is"
            raise PatternRefusedError(f"{reason} not supported")
        return self.widen(frozenset(kind))

    def read_property(self, *, negative: bool) -> frozenset[str]:
        found = self.take_match(r"\{(\^?)(?:(?:general_category|gc|script|sc)=)?([A-Za-z]+)\}|()([LNPSMZC])")
        name = (found[2] or found[4]).lower() if found else ""
        if not found or name not in _PROPERTIES:
            raise PatternRefusedError(f"the character property at {self.at} is not supported")
        chars = _PROPERTIES[name]
        if self.ignore_case and chars in (_LOWER, _UPPER):
            chars = _LETTERS
        return ASCII - chars if negative != bool(found[1]) else chars

    def read_code(self, kind: str) -> str:
        forms = {
            "0": "[0-3]?[0-7]{1,2}",
            "x": r"[0-9A-Fa-f]{2}|\{[0-9A-Fa-f]+\}",
            "u": "[0-9A-Fa-f]{4}",
            "c": ".",
        }
        found = self.take_match(forms[kind])
        if not found:
            raise PatternRefusedError(f"the escape `\\{kind}` at {self.at} is incomplete")
        if kind == "c":
            return chr(ord(found[0]) ^ 64)
        code = int(found[0].strip("{}"), 8 if kind == "0" else 16)
        if code > 0x10FFFF:
            raise PatternRefusedError(f"the escape `\\{kind}` at {self.at} is beyond Unicode")
        return chr(code)

    # --- classes

    def read_class(self) -> frozenset[str]:
        """Return the characters of a class, read after its `[`.

        Intersections bind weaker than unions, and negation binds weakest.
        """
        negative = bool(self.take("^"))
        meeting: frozenset[str] | None = None
        union: frozenset[str] = frozenset()
        empty = True  # a bracket that closes at once is a plain character
        while True:
            if not self.rest():
                raise PatternRefusedError("a bracket is not closed")
            if self.take("&&"):
                if empty or self.rest()[:1] in ("&", "]"):
                    raise PatternRefusedError("`&&` in a class needs something on both sides")
                meeting = union if meeting is None else meeting & union
                union = frozenset()
            elif self.rest().startswith("]") and not empty:
                self.at += 1
                break
            else:
                union |= self.read_class_part()
                empty = False
        chars = union if meeting is None else meeting & union
        return ASCII - chars if negative else chars

    def read_class_part(self) -> frozenset[str]:
        if self.take("["):
            return self.read_class()
        if self.take("\\Q"):
            quoted, _, _ = self.rest().partition("\\E")
            self.at += len(quoted)
            self.take("\\E")
            return self.widen(frozenset(quoted))
        first = self.read_class_char()
        if len(first) != 1 or not re.match(r"-[^\[\]]", self.rest()):
            return self.widen(first)
        self.take("-")
        last = self.read_class_char()
        if len(last) != 1 or min(last) < min(first):
            raise PatternRefusedError(f"the range in the class before {self.at} is not a range")
        return self.widen(frozenset(map(chr, range(ord(min(first)), min(ord(min(last)), 127) + 1))))

    def read_class_char(self) -> frozenset[str]:
        if self.rest().startswith("\\"):
            before = self.ignore_case
            self.ignore_case = False  # widened once, after the range
            try:
                return self.read_set_escape()
            finally:
                self.ignore_case = before
        self.at += 1
        return frozenset(self.text[self.at - 1])
