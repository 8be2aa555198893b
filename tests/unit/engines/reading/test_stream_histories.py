"""Random histories of a log and of a stream that reads it, compared with what was written.

Every record has a unique value, so the expected result is simple: what is in the log at the end was read,
nothing was read twice, and what is missing is named by a loss. A miniature of Spark's engine runs them, with
kills at every step; the slow tests use real Spark and real Kafka. A failing history prints its seed and
steps.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock.core.model import TopicPartition
from penstock.stores.loss_ledger import open_loss_ledger
from penstock.testing.memory_log import MemoryLog
from tests.support.micro_batches import STEPS, KilledError, MemorySource, MicroBatches

HISTORIES = 60
LENGTH = 60


@dataclass
class History:
    """One log, one stream, and everything that was ever written."""

    seed: int
    ledger: Path | None = None
    random: random.Random = field(init=False)
    log: MemoryLog = field(default_factory=MemoryLog)
    written: dict[bytes, tuple[bytes | None, int, int]] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    topics: int = 0
    names: dict[bytes | None, str] = field(default_factory=dict)
    cut: set[bytes] = field(default_factory=set)
    skipped: list[tuple[bytes | None, int, int]] = field(default_factory=list)
    seen_ends: dict[tuple[TopicPartition, bytes | None], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.create()
        self.source = MemorySource(self.log)
        options = {
            "subscribePattern": "t.*",
            "startingOffsets": "earliest",
            "kafkaConsumer.pollTimeoutMs": "1",
        }
        if self.ledger is not None:
            options |= {"failOnDataLoss": "false", "lossLedger": str(self.ledger)}
        if self.random.random() < 0.7:
            options["maxOffsetsPerTrigger"] = str(self.random.randint(1, 20))
        self.query = MicroBatches(self.source, **options)
        self.query.start()

    # --- what happens to the log ------------------------------------------------------------------------

    def create(self) -> None:
        self.log.create_topic(f"t{self.topics}", self.random.randint(1, 3))
        self.topics += 1

    def pick(self) -> TopicPartition:
        found = self.log.view().topics()
        topic = self.random.choice(sorted(found))
        return TopicPartition(topic, self.random.choice(found[topic].partitions))

    def append(self) -> None:
        where = self.pick()
        topic_id = self.log.view().topics()[where.topic].topic_id
        for _ in range(self.random.randint(1, 8)):
            value = str(len(self.written)).encode()
            offset = self.log.append(where.topic, where.partition, value=value)
            self.written[value] = (topic_id, where.partition, offset)
            self.names[topic_id] = where.topic
        if self.random.random() < 0.2:
            self.log.skip(where.topic, where.partition)
            self.skipped.append((topic_id, where.partition, offset + 1))

    def add_partitions(self) -> None:
        topic = self.pick().topic
        self.log.add_partitions(topic, len(self.log.view().topics()[topic].partitions) + 1)

    def move_leader(self) -> None:
        self.log.move_leader(*self._where())

    def delete(self) -> None:
        if len(self.log.view().topics()) > 1:
            self.log.delete_topic(self.pick().topic)

    def recreate(self) -> None:
        topic = self.pick().topic
        self.log.delete_topic(topic)
        self.log.create_topic(topic, self.random.randint(1, 3))

    def age_out(self) -> None:
        where = self.pick()
        first, last = self._ends(where)
        self.log.truncate_before(where.topic, where.partition, self.random.randint(first, last))

    def cut_off(self) -> None:
        where = self.pick()
        first, last = self._ends(where)
        cut = self.random.randint(first, last)
        self.cut |= {each.value or b"" for each in self.log.find(where).records if each.offset >= cut}
        self.log.truncate_after(where.topic, where.partition, cut)

    def _where(self) -> tuple[str, int]:
        where = self.pick()
        return where.topic, where.partition

    def _ends(self, where: TopicPartition) -> tuple[int, int]:
        view = self.log.view()
        return view.earliest([where])[where], view.latest([where])[where]

    # --- what happens to the stream -----------------------------------------------------------------------

    def trigger(self) -> None:
        self.query.trigger()

    def trigger_and_die(self) -> None:
        self.remember()
        step = self.random.choice(STEPS)
        self.steps.append(f"  before {step}")
        try:
            self.query.trigger(die_at=step)
        except KilledError:
            pass
        else:
            self.query.kill()

    def restart(self) -> None:
        self.remember()
        self.query.kill()

    # --- running --------------------------------------------------------------------------------------------

    def run(self) -> None:
        quiet = [self.append] * 6 + [self.add_partitions, self.create, self.move_leader]
        loud = [self.delete, self.recreate, self.age_out, self.cut_off]
        stream = [self.trigger] * 6 + [self.trigger_and_die] * 2 + [self.restart]
        for _ in range(LENGTH):
            step = self.random.choice(quiet + stream + (loud if self.ledger else []))
            self.steps.append(step.__name__)
            if step in stream and not self.query.running:
                self.query.start()
            step()
        if not self.query.running:
            self.query.start()
        self.query.drain()
        self.remember()

    def remember(self) -> None:
        """Record what the stream has seen of the log in this life of its reader."""
        if self.query.reader is not None:
            for key, end in self.query.reader.watch._known_ends.items():
                self.seen_ends[key] = max(end, self.seen_ends.get(key, 0))

    def in_log(self) -> Counter[bytes]:
        found: Counter[bytes] = Counter()
        for name, view in self.log.view().topics().items():
            for partition in view.partitions:
                found.update(
                    record.value or b"" for record in self.log.find(TopicPartition(name, partition)).records
                )
        return found


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_without_loss_every_record_is_read_once_and_in_order(seed: int) -> None:
    """B059, F48, F25, G11, T47, T48: data, partitions and topics are added; kills at every step; restarts."""
    history = History(seed)
    history.run()
    story = "\n".join([f"seed {seed}", *history.steps])
    assert Counter(history.query.values) == Counter(history.written.keys()), story
    last: dict[tuple[str, int], int] = {}
    for row in history.query.rows:
        where = (row["topic"], row["partition"])
        assert row["offset"] > last.get(where, -1), story
        last[where] = row["offset"]


@pytest.mark.parametrize("seed", range(1000, 1000 + HISTORIES))
def test_with_loss_nothing_is_read_twice_and_what_is_missing_is_named(seed: int, tmp_path: Path) -> None:
    """B051, B055, G12, T10, T11, T12, T13, T41: with deletes, recreations, retention, unclean elections."""
    history = History(seed, tmp_path / "losses.db")
    history.run()
    story = "\n".join([f"seed {seed}", *history.steps])
    read = Counter(history.query.values)
    assert [value for value, times in read.items() if times > 1] == [], story
    assert set(history.in_log()) - set(read) == set(), story
    assert set(read) <= set(history.written), story
    # What was written and is neither read nor in the log is in the ledger, if the stream ever saw it. Offsets
    # that were cut off and reassigned are excluded: offsets do not show which of their rows was seen.
    given = Counter([*history.written.values(), *history.skipped])
    unread = (history.written[value] for value in history.written.keys() - read.keys() - history.cut)
    missing = {one for one in unread if given[one] == 1}
    seen = {(topic_id, each.partition): end for (each, topic_id), end in history.seen_ends.items()}
    first = history.query.first_starts()
    known = {one for one in missing if first.get(one[:2], 0) <= one[2] < seen.get(one[:2], 0)}
    losses = [each.loss for each in open_loss_ledger(tmp_path / "losses.db").read()]
    unnamed = {
        (topic_id, partition, offset)
        for topic_id, partition, offset in known
        if not any(
            (each.topic, each.partition) == (history.names[topic_id], partition)
            and each.start <= offset
            and (offset < each.until or not each.has_known_end)
            for each in losses
        )
    }
    assert unnamed == set(), story
    # Nothing that was read is called lost, apart from offsets that were read before they were cut off.
    kept = {one for value in read if given[one := history.written[value]] == 1}
    both = [
        each
        for each in losses
        if each.condition not in ("LOG_TRUNCATED", "PARTITION_OFFSET_CHANGED")
        and any((each.topic_id, each.partition, offset) in kept for offset in range(each.start, each.until))
    ]
    assert both == [], story
