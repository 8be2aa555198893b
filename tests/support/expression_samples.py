"""Random texts that an expression matches, to check that its literals occur in them."""

from __future__ import annotations

import importlib
import random
from typing import Any

_tree = importlib.import_module("re._parser")
_constants = importlib.import_module("re._constants")
_SIGNS = "abcdefghijklmnopqrstuvwxyz0123456789_-./ =\"'();\n{}[]<>$|&`*?!@#%^~,:+\\"


def make_samples(regex: str, count: int, dice: random.Random) -> list[str]:
    """Return `count` samples for each top-level alternative; blanks are single, as in decoded texts."""
    branches = _split(_tree.parse(regex))
    return [_write(branch, dice) for branch in branches for _ in range(count)]


def _split(tree: Any) -> list[Any]:
    c = _constants
    if len(tree) == 1 and tree[0][0] is c.SUBPATTERN:
        return _split(tree[0][1][3])
    if len(tree) == 1 and tree[0][0] is c.BRANCH:
        return [part for branch in tree[0][1][1] for part in _split(branch)]
    return [tree]


def _write(tree: Any, dice: random.Random) -> str:
    c = _constants
    written = []
    for kind, argument in tree:
        if kind is c.LITERAL:
            written.append(chr(argument))
        elif kind is c.NOT_LITERAL:
            written.append(dice.choice([sign for sign in _SIGNS if ord(sign) != argument]))
        elif kind is c.ANY:
            written.append(dice.choice(_SIGNS))
        elif kind is c.IN:
            written.append(_pick(argument, dice))
        elif kind is c.BRANCH:
            written.append(_write(dice.choice(argument[1]), dice))
        elif kind is c.SUBPATTERN:
            written.append(_write(argument[3], dice))
        elif kind in (c.MAX_REPEAT, c.MIN_REPEAT):
            least, most, inner = argument
            most = min(most, least + 2)
            if list(inner) == [(c.IN, [(c.CATEGORY, c.CATEGORY_SPACE)])]:
                least, most = min(least, 1), 1
            written += [_write(inner, dice) for _ in range(dice.randint(least, most))]
        else:
            assert kind is c.AT, kind
    return "".join(written)


def _pick(members: Any, dice: random.Random) -> str:
    refused = any(kind is _constants.NEGATE for kind, _ in members)
    signs = [sign for sign in _SIGNS if _is_in(sign, members) != refused]
    return dice.choice(signs) if signs else next(chr(_first(each)) for each in members)


def _first(member: Any) -> int:
    kind, argument = member
    return int(argument[0] if kind is _constants.RANGE else argument)


def _is_in(sign: str, members: Any) -> bool:
    c = _constants
    classes = {"SPACE": sign.isspace(), "DIGIT": sign.isdigit(), "WORD": sign.isalnum() or sign == "_"}
    for kind, argument in members:
        if kind is c.LITERAL and ord(sign) == argument:
            return True
        if kind is c.RANGE and argument[0] <= ord(sign) <= argument[1]:
            return True
        if kind is c.CATEGORY:
            name = str(argument).rpartition("_")[2]
            if classes[name] != ("NOT" in str(argument)):
                return True
    return False
