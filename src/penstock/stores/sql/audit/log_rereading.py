"""Reads the log a second time and compares it with the offsets that a table's rows say they came from.

Rule: what has aged out is reported, not guessed; only what the log holds and the ledger has noted is
compared. Offsets are read as columns, a window at a time, so memory does not grow with the table.

    reread_partition(place, target, TopicPartition("t", 0), noted, client, topic_id)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing

import numpy as np

from penstock.core.audit.audit_report import Reread
from penstock.core.audit.tables_after_rewinds import subtract_ranges, unite_ranges
from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import DataLossError
from penstock.core.model import At, OffsetRange, RangeOrder, TopicPartition, WorkOrder
from penstock.core.options.storage_addresses import Place
from penstock.kafka.reading.kafka_log_view import KafkaLogView
from penstock.kafka.reading.kafka_reader import KafkaReader
from penstock.stores.sql.connections.sql_names import quote
from penstock.stores.sql.connections.sql_sessions import Database, Session
from penstock.stores.sql.sink.sql_sink import PROVENANCE
from penstock.stores.sql.sink.target_tables import Target

#: Offsets that are compared at once.
WINDOW_OFFSETS = 1_000_000
#: Offsets of each kind that are listed by number.
SHOWN = 10


def reread_partition(
    place: Place,
    target: Target,
    partition: TopicPartition,
    regions: Iterable[OffsetRange],
    client: ClientSettings,
    topic_id: bytes | None,
    awaited: Sequence[OffsetRange] = (),
) -> Reread:
    """Compare one partition in `regions`, which do not overlap, and return what was found.

    `awaited` are the parts of them that the stream has not read again yet, where records may lack their rows.
    """
    with closing(KafkaLogView(client)) as view:
        topic = view.describe([partition.topic]).get(partition.topic)
        if topic is None or partition.partition not in topic.partitions:
            return Reread(target.name, partition, problem="there is no such partition any more.")
        if None not in (topic_id, topic.topic_id) and topic_id != topic.topic_id:
            return Reread(target.name, partition, problem="another topic has this name now.")
        earliest, latest = view.earliest([partition])[partition], view.latest([partition])[partition]
    aged, beyond, read, late = [], [], [], []
    records, unread, missing, extra = 0, 0, [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    try:
        for each in sorted([*subtract_ranges(regions, awaited), *awaited]):
            start, until = (
                min(each.until, max(each.start, earliest)),
                max(each.start, min(each.until, latest)),
            )
            aged += [_make(each, each.start, start)] if start > each.start else []
            beyond += [_make(each, until, each.until)] if until < each.until else []
            for first in range(start, until, WINDOW_OFFSETS):
                window = _make(each, first, min(until, first + WINDOW_OFFSETS))
                log = _read_log(window, client, topic_id)
                rows = _read_table(place, target, window)
                absent = np.setdiff1d(log, rows, assume_unique=True)
                extra.append(np.setdiff1d(rows, log, assume_unique=True))
                if each in awaited and absent.size:
                    late.append(window)
                    unread += absent.size
                else:
                    read.append(window)
                    records += log.size
                    missing.append(absent)
    except DataLossError as error:
        return Reread(target.name, partition, problem=f"it changed while it was read: {error}")
    lost, surplus = np.concatenate(missing), np.concatenate(extra)
    return Reread(
        target.name,
        partition,
        tuple(unite_ranges(read)),
        tuple(aged),
        tuple(beyond),
        records,
        lost.size,
        tuple(lost[:SHOWN].tolist()),
        surplus.size,
        tuple(surplus[:SHOWN].tolist()),
        awaited=tuple(unite_ranges(late)),
        unread=unread,
    )


def _make(like: OffsetRange, start: int, until: int) -> OffsetRange:
    return OffsetRange(like.topic, like.partition, start, until)


def _read_log(window: OffsetRange, client: ClientSettings, topic_id: bytes | None) -> np.ndarray:
    wanted = RangeOrder(window.topic, window.partition, At(window.start), At(window.until), topic_id)
    order = WorkOrder((wanted,), client, ("offset",))
    batches = [batch.column(0).to_numpy(zero_copy_only=False) for batch in KafkaReader().read(order)]
    return np.concatenate([np.empty(0, np.int64), *batches])


def _read_table(place: Place, target: Target, window: OffsetRange) -> np.ndarray:
    topic, partition, offset = (quote(place.dialect, column) for column in PROVENANCE)

    def select(session: Session) -> np.ndarray:
        mark = session.grammar.mark
        rows = session.execute(
            f"SELECT DISTINCT {offset} FROM {target.quoted} WHERE {topic} = {mark} AND {partition} = {mark} "
            f"AND {offset} >= {mark} AND {offset} < {mark}",
            [window.topic, window.partition, window.start, window.until],
        )
        return np.unique(np.array(rows, dtype=np.int64))

    return Database(place).run(select)
