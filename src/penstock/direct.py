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
from penstock.engines.direct.reports import RunOutcome
from penstock.engines.direct.stream import DirectStream
from penstock.stores.offsets.addresses import open_offset_store
from penstock.stores.offsets.file import FileOffsetStore
from penstock.stores.offsets.kafka import KafkaOffsetStore
from penstock.stores.offsets.memory import MemoryOffsetStore
from penstock.stores.offsets.sql import SqlOffsetStore
from penstock.stores.offsets.zookeeper import ZooKeeperOffsetStore

__all__ = [
    "Ago",
    "Assign",
    "At",
    "Batch",
    "BatchReport",
    "DirectStream",
    "Earliest",
    "FileOffsetStore",
    "KafkaOffsetStore",
    "Latest",
    "MemoryOffsetStore",
    "OffsetRange",
    "Record",
    "RecordsBeforeEnd",
    "RunOutcome",
    "Since",
    "SqlOffsetStore",
    "Subscribe",
    "SubscribePattern",
    "TopicPartition",
    "ZooKeeperOffsetStore",
    "open_offset_store",
    "read_ranges",
]
