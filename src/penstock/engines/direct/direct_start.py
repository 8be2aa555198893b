"""Finds where a direct stream starts. `core.streaming.start_precedence` decides what takes precedence; this
looks at the log, so that positions such as `Latest()` become numbers."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import replace

from penstock.core.errors import BrokerError, OffsetStoreError
from penstock.core.loggers import get_logger
from penstock.core.model import Position, TopicPartition
from penstock.core.offsets.offset_store_contract import SEEK, Change, plan_change
from penstock.core.offsets.stream_position import NOWHERE, StreamPosition
from penstock.core.options.direct_options import DirectOptions
from penstock.core.streaming.start_precedence import choose_start
from penstock.engines.reading.stream_watch import StreamWatch

log = get_logger(__name__)


def find_start(
    watch: StreamWatch,
    options: DirectOptions,
    stored: StreamPosition | None,
    seek: Mapping[TopicPartition, Position],
) -> StreamPosition:
    """Return the first position of a run."""
    if stored is not None and not stored.offsets and not stored.gone and not seek:
        raise OffsetStoreError(
            "STORED_OFFSETS_LOST",
            "The store knows this stream, but has no offset of it.",
            hint="Restore the store. To start anew, say where with `seek`, or give the stream another name.",
        )
    forced = watch.resolve(options.make_reading(seek)) if seek else NOWHERE
    known = stored or NOWHERE
    asked = {
        each: position
        for each, position in options.starting.items()
        if each not in known.offsets and each not in known.gone and each not in forced.offsets
    }
    explicit = watch.resolve(options.make_reading(asked)) if asked else NOWHERE
    # A stream that has run before finds new partitions while it runs, and reads them from their start.
    rule = watch.resolve(options.first_reading) if stored is None else NOWHERE
    choice = choose_start(
        forced=forced.offsets,
        stored=stored,
        explicit=explicit.offsets,
        by_rule=rule.offsets if options.reset is not None else dict.fromkeys(rule.offsets),
    )
    log.info("Starts: %s", "; ".join(str(each) for each in choice.notes))
    return _name_logs(choice.position, (rule, explicit, forced))


def plan_seek(
    watch: StreamWatch,
    options: DirectOptions,
    seek: Mapping[TopicPartition, Position],
    stored: StreamPosition,
) -> Change | None:
    """Return the change of position that a seek asks for; None if the stream is already there."""
    start = find_start(watch, options, stored, seek)
    who = f"{socket.gethostname()}/{os.getpid()}"
    return plan_change(time.time_ns() // 1_000_000, who, SEEK, stored, start)


def doubt_seek(error: BrokerError) -> BrokerError:
    """Return the error for a stream that was asked to stop before its seek was over."""
    return BrokerError(
        "STOPPED_WAITING",
        f"{error.what} Its `seek` was not carried out, or not everywhere.",
        hint="Start it again with the same `seek`.",
        facts=error.facts,
    )


def _name_logs(position: StreamPosition, looks: tuple[StreamPosition, ...]) -> StreamPosition:
    """Return the same position, adding the log identities seen in `looks` where it has none."""
    ids, epochs = dict(position.topic_ids), dict(position.leader_epochs)
    for seen in looks:
        for topic, topic_id in seen.topic_ids.items():
            ids.setdefault(topic, topic_id)
        for each, epoch in seen.leader_epochs.items():
            if ids.get(each.topic) == seen.topic_ids.get(each.topic):
                epochs.setdefault(each, epoch)
    return replace(position, topic_ids=ids, leader_epochs=epochs)
