"""Matches topic names against a Java regular expression, in bounded time.

Rule: a pattern must match the whole name, as in Kafka's consumers, and it means what it means in Java or it
is refused. The matcher keeps the set of all positions that the pattern can have reached, as the bits of one
integer, and moves them together. It never backtracks, so no pattern can take exponential time. Why not
Python's `re`: it reads possessives, classes with `&&`, `\\Q..\\E`, `\\h` or `\\z` differently or not at all,
and `(a*)*b` against a long name never returns.

Topic names are ASCII, at most 249 characters, without white space, so sets of ASCII characters suffice.

>>> TopicPattern("test").matches("test2")
False
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from penstock.core.errors import OptionError
from penstock.core.planning.topic_pattern_syntax import (
    WORD,
    Boundary,
    Chars,
    Either,
    End,
    Lookaround,
    Node,
    PatternRefusedError,
    Repeat,
    Sequence,
    Start,
    parse_pattern,
)

#: The most moves of the position set in one match. Real patterns need hundreds.
MOST_MOVES = 200_000


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """A pattern, parsed when created, so that a wrong one fails where the option is parsed.

    `option` is the option that holds it, for errors.
    """

    text: str
    option: str = field(default="subscribePattern", compare=False, repr=False)

    def __post_init__(self) -> None:
        try:
            _parse(self.text)
        except PatternRefusedError as error:
            raise OptionError(
                "PATTERN_REFUSED",
                f"Option `{self.option}` is {self.text!r}: {error}.",
                hint="Write it with plain characters, classes, groups, look-arounds and * + ? {}.",
                facts={"pattern": self.text},
            ) from None

    def matches(self, name: str) -> bool:
        """Return whether the whole name matches."""
        walk = _Walk(self, name)
        return bool(walk.move(_parse(self.text), 1, forward=True) >> len(name) & 1)

    def occurs_in(self, name: str) -> bool:
        """Return whether any part of the name matches, which is what Spark's own connector asks."""
        walk = _Walk(self, name)
        return bool(walk.move(_parse(self.text), walk.everywhere, forward=True))


_parse = lru_cache(maxsize=64)(parse_pattern)


class _Walk:
    """One match. Bit i of a mask says that position i of the name can have been reached."""

    def __init__(self, pattern: TopicPattern, name: str) -> None:
        self._pattern = pattern
        self._name = name
        self.everywhere = (1 << (len(name) + 1)) - 1
        self._places: dict[frozenset[str], int] = {}
        self._moves = 0

    def move(self, node: Node, mask: int, *, forward: bool) -> int:
        """Return where the positions in `mask` can be after `node`; backward, where it can have begun."""
        self._moves += 1
        if self._moves > MOST_MOVES:
            raise OptionError(
                "PATTERN_TOO_COSTLY",
                f"Option `{self._pattern.option}` is {self._pattern.text!r}; it takes too long on the topic "
                f"{self._name}.",
                hint="Nest fewer quantifiers.",
                facts={"pattern": self._pattern.text, "topic": self._name},
            )
        if not mask:
            return 0
        match node:
            case Chars(chars):
                place = self._find(chars)
                return (mask & place) << 1 if forward else (mask >> 1) & place
            case Sequence(parts):
                for part in parts if forward else reversed(parts):
                    mask = self.move(part, mask, forward=forward)
                return mask
            case Either(options):
                reached = 0
                for option in options:
                    reached |= self.move(option, mask, forward=forward)
                return reached
            case Repeat():
                return self._repeat(node, mask, forward=forward)
            case Start():
                return mask & 1
            case End():
                return mask & (1 << len(self._name))
            case Boundary(wanted):
                return mask & self._find_boundaries(wanted)
            case Lookaround(inner, ahead, wanted):
                # Ahead: where `inner` can begin, whatever follows; behind: where it can have ended.
                held = self.move(inner, self.everywhere, forward=not ahead)
                return mask & (held if wanted else ~held)

    def _repeat(self, node: Repeat, mask: int, *, forward: bool) -> int:
        for _ in range(node.least):
            before, mask = mask, self.move(node.inner, mask, forward=forward)
            if mask in (0, before):
                # Nothing left or nothing changed: the remaining rounds are the same.
                break
        reached = frontier = mask
        rounds = node.least
        while frontier and (node.most is None or rounds < node.most):
            frontier = self.move(node.inner, frontier, forward=forward) & ~reached
            reached |= frontier
            rounds += 1
        return reached

    def _find(self, chars: frozenset[str]) -> int:
        if chars not in self._places:
            self._places[chars] = sum(1 << at for at, char in enumerate(self._name) if char in chars)
        return self._places[chars]

    def _find_boundaries(self, wanted: bool) -> int:
        inside = [False, *(char in WORD for char in self._name), False]
        return sum(1 << at for at in range(len(self._name) + 1) if (inside[at] != inside[at + 1]) is wanted)
