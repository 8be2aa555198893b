"""Chooses the partition of each row that is written: the one it names, else by its key, else in runs.

Rule: a row without a partition and without a key goes where the run before it ended. Runs keep batches large:
dealing out single rows would make a small batch for each partition.

    PartitionChoice().choose(batch, columns.keys, 12)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.errors import SinkError
from penstock.kafka.records.murmur2_kernel import NO_KEY, partition_of_keys
from penstock.kernels.byte_columns import ByteColumn

#: Rows without a key go to a partition in runs of at least this many.
KEYLESS_RUN = 1_000


class PartitionChoice:
    """The choices of one producer, which remembers where its last run ended."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, batch: pa.RecordBatch, keys: ByteColumn, partitions: int) -> npt.NDArray[np.int32]:
        """Return the partition of each row; raise if a row names one that the topic does not have."""
        chosen = partition_of_keys(keys, partitions)
        if "partition" in batch.schema.names:
            column = batch.column("partition")
            wanted = column.cast(pa.int32()).fill_null(NO_KEY).to_numpy(zero_copy_only=False)
            named = column.is_valid().to_numpy(zero_copy_only=False)
            outside = np.unique(wanted[named & ((wanted < 0) | (wanted >= partitions))])
            if outside.size:
                raise SinkError(
                    "PARTITION_OUT_OF_RANGE",
                    f"Partition {', '.join(map(str, outside[:10]))} is asked for; the topic has 0 to "
                    f"{partitions - 1}.",
                    hint="Correct the `partition` column, or leave it null to choose by key.",
                    facts={"partitions": partitions},
                )
            chosen = np.where(named, wanted, chosen).astype(np.int32)
        free = np.flatnonzero(chosen == NO_KEY)
        if free.size:
            run = max(-(-free.size // partitions), KEYLESS_RUN)
            chosen[free] = (self._turn + np.arange(free.size) // run) % partitions
            self._turn = (self._turn + -(-free.size // run)) % partitions
        return chosen
