"""Prepares the kernels that read and write records, before they are needed.

Rule: this calls what a real read or write calls, with the same types; `kernels.compilation_lock`
makes one process per machine compile while the others wait.

    ensure_compiled()
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.kafka.records import compressed_frame_kernel
from penstock.kafka.records.murmur2_kernel import group_rows, partition_of_keys
from penstock.kafka.records.record_decoder import RecordDecoder
from penstock.kafka.records.record_encoder import Encoder, record_columns
from penstock.kafka.records.record_schema import ARROW_TYPES
from penstock.kernels.compilation_lock import compile_in_turn

_done = False


def ensure_compiled() -> None:
    """Prepare the decoding kernels in this process; return at once if they are ready."""
    global _done  # noqa: PLW0603  (once per process, whatever calls it)
    if not _done:
        compile_in_turn("records", __name__, _decode_nothing, told="the decoding kernels")
        _done = True


def compile_encoding() -> None:
    """Prepare the kernels a writer calls: those that partition records and those that encode them."""
    columns = record_columns(pa.record_batch({"key": pa.array([b"k"]), "value": pa.array([b"v"])}), now_ms=0)
    rows, _ = group_rows(partition_of_keys(columns.keys, 2), 2)
    for _ in Encoder(max_batch_bytes=1_000).encode(columns, rows):
        pass


def _decode_nothing() -> None:
    """Call every decoding kernel with the types a real read uses."""
    decoder = RecordDecoder("", 0, tuple(ARROW_TYPES), max_rows=8, max_bytes=8)
    empty = np.empty(0, np.uint8)
    decoder.open(empty)
    for _ in (*decoder.rows(0, 0), *decoder.rest()):
        raise AssertionError("an empty buffer has no rows")
    decoder.compile_fill()
    for bound in (compressed_frame_kernel.bound_lz4, compressed_frame_kernel.bound_zstd):
        bound(empty, 0, 0)
