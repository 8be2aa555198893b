"""Literals that every match of an expression contains: the automaton looks for them before RE2 runs.

Rule: no match is lost in a decoded text, where a run of blanks is one space or one line break. A set is
returned only if no text without one of its members can match. Otherwise there is none, and the rule must name
its literals itself. Why not leave it to the author of a rule: a list beside the expression is a second source
of truth, and an alternative that the list forgets silently never matches.

>>> sorted(find_literals(r"(?:drop|truncate)[a-z ]+table"))
['table']
>>> sorted(find_literals(r"sleep\\s*\\(|benchmark"))
['benchmark', 'sleep\\n(', 'sleep (', 'sleep(']
>>> find_literals(r"[a-z]+") is None
True
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from typing import Any, TypeAlias

_tree = importlib.import_module("re._parser")
_constants = importlib.import_module("re._constants")

Literals: TypeAlias = frozenset[str]
_EMPTY: Literals = frozenset({""})
_BLANKS: Literals = frozenset({" ", "\n"})
_DIGITS: Literals = frozenset("0123456789")
_MOST_EXACT, _MOST_SIGNS, _LONGEST = 400, 10, 24
#: Characters that ordinary targets are full of. One of them alone means nothing.
_ORDINARY = frozenset("abcdefghijklmnopqrstuvwxyz0123456789/=&.-_ %?+,:")
_ENOUGH, _LEAST = 5, 2


def find_literals(regex: str) -> Literals | None:
    """Return a set of literals, one of which is in every match; None if there is no such set."""
    try:
        parsed = _tree.parse(regex)
    except (re.error, OverflowError):
        return None  # an expression that only RE2 understands
    exact, required = _analyse(parsed)
    best = _choose([exact, required])
    if best is None or _weigh(best) < _LEAST:
        return None
    return frozenset(each for each in best if not any(other in each for other in best - {each}))


def _weigh(literals: Literals | None) -> int:
    """Return how distinctive the least distinctive of them is; rare characters count double."""
    if not literals:
        return 0
    return min(min(sum(1 if sign in _ORDINARY else 2 for sign in each), _ENOUGH) for each in literals)


def _choose(candidates: Iterable[Literals | None]) -> Literals | None:
    given = [each for each in candidates if each]
    return max(given, key=lambda each: (_weigh(each), -len(each)), default=None)


def _analyse(sequence: Any, before: Literals = _EMPTY) -> tuple[Literals | None, Literals | None]:
    """Return (all texts it can match, if they are few; a set of which each match contains one).

    `before` is what comes in front of it. Together with it, alternatives are more distinctive.
    """
    parts: list[Literals | None] = []  # candidates so far
    running = before
    whole = True
    for kind, argument in sequence:
        exact, required = _analyse_node(kind, argument)
        if exact is not None and len(exact) * len(running) <= _MOST_EXACT:
            joined = frozenset(head + tail for head in running for tail in exact)
            if max(map(len, joined)) <= _LONGEST:
                running = joined
                continue
        parts += [running, required]
        if running != _EMPTY and len(running) <= _MOST_SIGNS:
            parts.append(_analyse_with_prefix(kind, argument, running))
        whole = False
        running = exact if exact is not None else _EMPTY
    parts.append(running)
    return (running if whole else None), _choose(parts)


def _analyse_with_prefix(kind: Any, argument: Any, before: Literals) -> Literals | None:
    """Return what alternatives require together with what is in front of them."""
    if kind is _constants.SUBPATTERN:
        return _choose(_analyse(argument[3], before))
    if kind is not _constants.BRANCH:
        return None
    chosen = [_choose(_analyse(branch, before)) for branch in argument[1]]
    return None if None in chosen else frozenset().union(*chosen)  # type: ignore[arg-type]


def _analyse_node(kind: Any, argument: Any) -> tuple[Literals | None, Literals | None]:
    c = _constants
    if kind is c.LITERAL:
        return frozenset({chr(argument)}), None
    if kind is c.AT:
        return _EMPTY, None
    if kind is c.IN:
        return _list_signs(argument), None
    if kind is c.SUBPATTERN:
        return _analyse(argument[3])
    if kind is c.BRANCH:
        looked = [_analyse(branch) for branch in argument[1]]
        exacts = [exact for exact, _ in looked]
        union = None if None in exacts else frozenset().union(*exacts)  # type: ignore[arg-type]
        chosen = [_choose(each) for each in looked]
        required = None if None in chosen else frozenset().union(*chosen)  # type: ignore[arg-type]
        return (union if union is not None and len(union) <= _MOST_EXACT else None), required
    if kind in (c.MAX_REPEAT, c.MIN_REPEAT):
        least, most, inner = argument
        exact, required = _analyse(inner)
        if exact == _BLANKS:  # a run of blanks is one blank
            return (_BLANKS | _EMPTY if least == 0 else _BLANKS), None
        if least == 0:
            return (exact | _EMPTY if most == 1 and exact is not None else None), None
        if least == most == 1:
            return exact, required
        return None, _choose([exact, required])
    return None, None  # any character, a class that is too large, a reference


def _list_signs(members: Any) -> Literals | None:
    """Return the characters of a class if they are few."""
    c = _constants
    signs: set[str] = set()
    for kind, argument in members:
        if kind is c.LITERAL:
            signs.add(chr(argument))
        elif kind is c.RANGE and argument[1] - argument[0] < _MOST_SIGNS:
            signs.update(map(chr, range(argument[0], argument[1] + 1)))
        elif kind is c.CATEGORY and argument is c.CATEGORY_SPACE:
            signs |= _BLANKS
        elif kind is c.CATEGORY and argument is c.CATEGORY_DIGIT:
            signs |= _DIGITS
        else:
            return None
    return frozenset(signs) if len(signs) <= _MOST_SIGNS else None
