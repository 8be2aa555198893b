"""Finds which values are UTF-8. It is used only for a batch in which at least one is not."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.kernels.byte_columns import open_column
from penstock.kernels.compilation import kernel
from penstock.kernels.text_scanning import is_utf8


@kernel
def mark_text(buf, ends, present, good):
    for row in range(len(present)):
        good[row] = present[row] != 0 and is_utf8(buf, ends[row], ends[row + 1])


def find_text(values: pa.Array) -> pa.Array:
    """Return for each value whether it is present and UTF-8."""
    source = open_column(values)
    good = np.zeros(source.rows, np.bool_)
    mark_text(source.data, source.ends, source.present, good)
    return pa.array(good)
