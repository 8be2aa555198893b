"""How Spark cuts ranges, written again as plainly as possible, to check the planner.

It is written from the rule, not from the planner's code, without regard to reuse or speed. Shares are
doubles, because Spark computes them so: 29 of 100 offsets in 50 pieces are 14.499999999999998 pieces there,
not 14.5. Where the planner and this disagree, one of them is wrong.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from math import ceil, floor

Piece = tuple[str, int, int, int]  # topic, partition, start, until


def count_parts(size: int, total: int, wanted: int) -> int:
    half_up = floor(Fraction(float(size) / float(total) * wanted) + Fraction(1, 2))
    return max(1, half_up)


def cut(piece: Piece, parts: int) -> list[Piece]:
    topic, partition, start, until = piece
    edges = [start]
    for left in range(parts, 0, -1):
        edges.append(edges[-1] + (until - edges[-1]) // left)
    return [(topic, partition, a, b) for a, b in pairwise(edges) if a < b]


def split_like_spark(ranges: list[Piece], wanted: int | None, cap: int | None) -> list[Piece]:
    pieces = [each for each in ranges if each[2] < each[3]]
    if cap is not None:
        pieces = [part for each in pieces for part in cut(each, ceil(Fraction(each[3] - each[2], cap)))]
    if wanted is None or wanted <= len(pieces):
        return pieces
    total = sum(each[3] - each[2] for each in pieces)
    small = [each for each in pieces if count_parts(each[3] - each[2], total, wanted) == 1]
    whole = {each[:2] for each in small}
    rest = total - sum(each[3] - each[2] for each in small)
    parts_left = max(wanted - len(small), 1)
    result: list[Piece] = []
    for each in pieces:
        share = 1 if each[:2] in whole else count_parts(each[3] - each[2], rest, parts_left)
        result += cut(each, share)
    return result
