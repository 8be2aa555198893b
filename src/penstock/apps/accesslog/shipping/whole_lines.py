"""Takes the whole lines from the bytes of a log, and leaves out what is too long or was never text.

Rule: a line ends with a newline. A line longer than the limit is cut there, and its rest is left out up to
the next newline. A run of NULs at the beginning of a file is a hole: the file was emptied, and its writer,
which does not append, continued at its old offset. The hole is left out, and the line behind it is whole.

>>> take_whole(b"one\\ntwo\\nthr", skipping=False, behind_nuls=True, longest=100)
(8, b'one\\ntwo\\n', False)
>>> take_whole(b"\\0\\0\\0one\\n", skipping=False, behind_nuls=True, longest=100)
(7, b'one\\n', False)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Piece:
    """Lines of one file, without their newlines; `cut_rows` were longer than the limit."""

    path: str
    lines: pa.Array
    cut_rows: npt.NDArray[np.int64]
    size: int


def take_whole(data: bytes, *, skipping: bool, behind_nuls: bool, longest: int) -> tuple[int, bytes, bool]:
    """Return how many bytes are done, their lines, and whether a line is being skipped at the end.

    `skipping` says that the rest of a long line comes first, `behind_nuls` that nothing but NULs came before.
    """
    begin = 0
    if (skipping and behind_nuls) or (data[:1] == b"\0" and (skipping or behind_nuls)):
        begin = len(data) - len(data.lstrip(b"\0"))
        if begin == len(data):
            return begin, b"", skipping
    elif skipping:
        begin = data.find(b"\n") + 1
        if not begin:
            return len(data), b"", True
    last = data.rfind(b"\n") + 1
    if last > begin:
        return last, data[begin:last], False
    if len(data) - begin > longest:
        return len(data), data[begin : begin + longest + 1] + b"\n", True
    return begin, b"", False
