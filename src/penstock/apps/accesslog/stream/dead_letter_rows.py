"""Dead letters: lines that no format fits, kept with place and reason, so that every line is accounted for.

Rule: a line is parsed, or it is a dead letter; lines = parsed + dead in each partition, always. A dead letter
names the record it came from (topic, partition, offset), so an audit can find it. It holds the line itself up
to `KEPT_BYTES`: a stranger decides how long a line is, and the whole of it can still be read in Kafka. Beyond
`TASK_BYTES` per task, only the beginnings are kept, because all letters pass through the driver.

    letters = make_dead_letters(values, lines.bad_rows, reasons, topic="log", partition=0, offsets=offsets)
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

#: How much of a line is kept.
KEPT_BYTES = 65_536
#: How much of all lines of a task is kept, and how much of each one beyond that.
TASK_BYTES, BEGINNING_BYTES = 16 << 20, 200
SCHEMA = pa.schema(
    [
        ("reason", pa.string()),
        ("length", pa.int64()),
        ("line", pa.binary()),
        ("penstock_topic", pa.string()),
        ("penstock_partition", pa.int32()),
        ("penstock_offset", pa.int64()),
    ]
)


def make_dead_letters(
    values: pa.Array,
    rows: NDArray[np.int32],
    reasons: pa.Array,
    *,
    topic: str,
    partition: int,
    offsets: NDArray[np.int64],
    room: int = TASK_BYTES,
) -> pa.RecordBatch:
    """Return letters for these rows of `values`; `reasons` says why, one text for each of them.

    Lines that do not fit into `room` bytes, together with those before them, are cut to their beginnings.
    """
    lines = values.take(pa.array(rows)).cast(pa.binary())
    kept = lines
    lengths = pc.binary_length(lines)
    longest = pc.max(lengths).as_py() or 0
    if longest > KEPT_BYTES:
        kept = pc.binary_slice(lines, 0, KEPT_BYTES)
    sizes = pc.binary_length(kept).fill_null(0).to_numpy()
    fits = np.cumsum(sizes, dtype=np.int64) <= room
    if not fits.all():
        kept = pc.if_else(pa.array(fits), kept, pc.binary_slice(kept, 0, BEGINNING_BYTES))
    count = len(rows)
    return pa.RecordBatch.from_arrays(
        [
            reasons.cast(pa.string()),
            lengths.cast(pa.int64()),
            kept,
            pa.array([topic]).take(pa.array(np.zeros(count, np.int8))),
            pa.array(np.full(count, partition, np.int32)),
            pa.array(offsets[rows]),
        ],
        schema=SCHEMA,
    )
