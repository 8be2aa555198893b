"""Numbers equal texts of a chunk of lines, so that facts about a text are worked out once and spread.

Rule: code that needs facts about a field's texts (rules that hit them, a client's address, how often a path
was asked for) works them out per number and brings them to the lines by `Grouped.spread`. Why: a chunk is
larger than the caches, so each walk over the bytes of all lines costs as much as the work done there, and
detection, events and monitoring would each take it for the same agents.

Nothing is kept between chunks, so earlier lines cannot change a verdict.

    grouped = group_lines(lines)
    findings = detector.detect(lines, grouped)
    partial = count_load(lines, grouped=grouped)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.apps.accesslog.texts import text_grouping_kernel as k

if TYPE_CHECKING:
    from penstock.apps.accesslog.parsing.line_parser import Lines

#: The fields that are numbered for all.
FIELDS = ("target", "agent", "referrer", "method", "protocol", "client")


@dataclass(frozen=True, slots=True)
class Grouped:
    """The texts of one field."""

    numbers: NDArray[np.int32]  # of each line; -1: it has no such text
    starts: NDArray[np.int32]  # of each number: where its text stands first ...
    lengths: NDArray[np.int32]
    is_json: NDArray[np.bool_]  # ... and whether that line escapes as JSON does
    hashes: NDArray[np.uint64]  # of each number; the last one, found by -1, is that of no text

    def spread(self, values: NDArray[Any], absent: Any) -> NDArray[Any]:
        """Return for each line what was worked out for its number, or `absent` if it has no such text."""
        return np.append(values, np.array(absent, values.dtype))[self.numbers]

    def spread_hashes(self) -> NDArray[np.uint64]:
        return self.hashes[self.numbers]

    def __len__(self) -> int:
        return self.starts.size


GroupedFields = Mapping[str, Grouped]


def group_lines(lines: Lines, fields: Sequence[str] = FIELDS) -> GroupedFields:
    return {name: group(lines, name) for name in fields}


def check_grouped(lines: Lines, grouped: GroupedFields) -> GroupedFields:
    """Return `grouped`, but refuse numbers of other lines: kernels trust them wherever they point."""
    if any(each.numbers.size != lines.rows.size for each in grouped.values()):
        raise ValueError("these texts were numbered for other lines")
    return grouped


def group(lines: Lines, field: str, only: NDArray[np.bool_] | None = None) -> Grouped:
    """Group one field, or only that of some lines."""
    starts, lengths = lines.starts[field], lines.lengths[field]
    if only is not None:
        lengths = np.where(only, lengths, np.int32(-1))
    rows = starts.size
    # Room for as many numbers as there are lines costs nothing until it is used.
    numbers, firsts, hashes = (
        np.empty(rows, np.int32),
        np.empty(rows, np.int32),
        np.empty(rows + 1, np.uint64),
    )
    table = np.full(1 << max(4, (2 * rows - 1).bit_length()), -1, np.int32)
    count = k.group_texts(lines.data, starts, lengths, lines.is_json, table, numbers, firsts, hashes)
    hashes[count] = k.NO_TEXT
    firsts = firsts[:count]
    return Grouped(
        numbers, starts[firsts], lengths[firsts], lines.is_json[firsts], hashes[: count + 1].copy()
    )
