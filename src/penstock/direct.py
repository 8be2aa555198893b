"""The public names for direct streams: the stream, its strategies and positions, and its offset stores.

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
from penstock.core.offsets.offset_store_contract import OffsetStore
from penstock.core.options.direct_strategies import Assign, Subscribe, SubscribePattern
from penstock.engines.direct.direct_batch import Batch, BatchReport
from penstock.engines.direct.direct_stream import DirectStream
from penstock.engines.direct.range_frames import read_ranges
from penstock.engines.direct.record_functions import Record
from penstock.engines.direct.run_reports import RunOutcome
from penstock.stores.offsets.file_store import FileOffsetStore
from penstock.stores.offsets.kafka_store import KafkaOffsetStore
from penstock.stores.offsets.memory_store import MemoryOffsetStore
from penstock.stores.offsets.offset_store_addresses import open_offset_store
from penstock.stores.offsets.sql_store import SqlOffsetStore
from penstock.stores.offsets.zookeeper_store import ZooKeeperOffsetStore

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
    "OffsetStore",
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
