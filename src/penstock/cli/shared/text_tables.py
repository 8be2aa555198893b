"""Tables on the terminal: columns as wide as needed, with control characters escaped in every cell.

>>> align(("name", "size"), [("a", "10"), ("bcd", "5")], right={1})
['name  size', 'a       10', 'bcd      5']
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.cli.shared.terminal import escape


def align(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> list[str]:
    """Return the lines of a table, its head first; the columns in `right` hold numbers."""
    shown = [head, *([escape(cell).replace("\t", "\\t") for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in shown) for column in range(len(head))]
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in shown
    ]
