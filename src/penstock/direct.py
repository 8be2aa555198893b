"""Direct streams, for users: the stream, its strategies and positions, and the places for its offsets.

from penstock.direct import DirectStream, FileOffsetStore, Subscribe
"""

from __future__ import annotations

from penstock.core.model import (
    Ago,
    At,
    Earliest,
    Latest,
    OffsetRange,
    RecordsBeforeEnd,
    Since,
    TopicPartition,
)
from penstock.core.strategies import Assign, Subscribe, SubscribePattern
from penstock.engines.direct.batch import Batch, BatchReport
from penstock.engines.direct.ranges import read_ranges
from penstock.engines.direct.records import Record
from penstock.engines.direct.stream import DirectStream, RunOutcome

__all__ = [
    "Ago",
    "Assign",
    "At",
    "Batch",
    "BatchReport",
    "DirectStream",
    "Earliest",
    "Latest",
    "OffsetRange",
    "Record",
    "RecordsBeforeEnd",
    "RunOutcome",
    "Since",
    "Subscribe",
    "SubscribePattern",
    "TopicPartition",
    "read_ranges",
]
