"""What an audit reports (findings, checks that passed, notes), and the facts that it judges.

Rule: every finding names its evidence, and what could not be checked is reported as plainly as what was.

>>> Notebook(checked=["orders-0: 3 noted ranges abut."]).report().checked
('orders-0: 3 noted ranges abut.',)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.core.model import OffsetRange, TopicPartition
from penstock.core.offsets.offset_store_contract import Change
from penstock.core.sinks.offset_digests import Digests, HeldOffsets

#: The kinds of evidence for a finding.
LEDGER = "the ledger"
MESSAGES = "row counts in the tasks' messages"
PROVENANCE = "provenance columns"
DIGEST = "digests written at commit"
REREAD = "a second reading of the log"
#: What every report ends with.
LEDGER_ALONE = (
    "Ranges that abut prove little: the ledger accepts no others. Evidence for the rows is in provenance "
    "columns, digests and a second reading of the log (--re-read)."
)

#: Losses after which a log has the same offsets again, for other records.
LOGS_ANEW: Mapping[str, str] = {
    "TOPIC_RECREATED": "the topic was recreated",
    "LOG_TRUNCATED": "the log was cut off by an unclean election",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault that an audit found. The `subject` is a stream, a table or a partition."""

    condition: str
    subject: str
    what: str
    evidence: str
    generation: int | None = None

    def __str__(self) -> str:
        which = "" if self.generation is None else f" (generation {self.generation})"
        return f"[{self.condition}] {self.subject}{which}: {self.what} Evidence: {self.evidence}."


@dataclass(frozen=True, slots=True)
class Report:
    """The result of an audit: findings, checks that passed, notes, and what could not be checked."""

    findings: tuple[Finding, ...] = ()
    checked: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    def __add__(self, other: Report) -> Report:
        return Report(
            self.findings + other.findings,
            self.checked + other.checked,
            self.notes + other.notes,
            self.unchecked + other.unchecked,
        )


@dataclass(slots=True)
class Notebook:
    """A report under construction."""

    findings: list[Finding] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def report(self) -> Report:
        return Report(tuple(self.findings), tuple(self.checked), tuple(self.notes), tuple(self.unchecked))


# --- facts ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NotedBatch:
    """One publishing transaction (or `batches` merged ones): its rows, and the sum booked by table."""

    token: str
    generation: int
    rows: int
    booked: int
    batches: int = 1


@dataclass(frozen=True, slots=True)
class NotedRange:
    """Offsets `[start, until)` of a partition that a batch names as the origin of its rows."""

    token: str
    generation: int
    range: OffsetRange


@dataclass(frozen=True, slots=True)
class TableBook:
    """What the ledger holds about one table of a stream. `tokens` names the batches that put rows into it.

    Three fields are sets of generations. `emptied` began with the table empty, because a rewind had deleted
    all its rows. `allowed` began with a person's word that records read again may count twice. `deleted`
    began without the rows of what is read again, because a rewind had deleted them.
    """

    name: str
    mode: str
    tokens: frozenset[str]
    emptied: frozenset[int] = frozenset()
    keeps_provenance: bool = False
    allowed: frozenset[int] = frozenset()
    deleted: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What the ledger holds about one stream.

    `changes` are moves by hand, each of which opened a generation. `topic_ids` are those of the topics that
    it reads now, where known.
    """

    stream: str
    generation: int
    position: Mapping[TopicPartition, int]
    ranges: tuple[NotedRange, ...] = ()
    batches: tuple[NotedBatch, ...] = ()
    changes: tuple[Change, ...] = ()
    books: tuple[TableBook, ...] = ()
    topic_ids: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Spoiled:
    """Offsets whose rows differ from those that were published."""

    range: OffsetRange
    booked: int
    held: int


@dataclass(frozen=True, slots=True)
class TableFacts:
    """The books of one table, and what it holds. None means unknown or not applicable.

    `booked` rows and `digests` are sums over all `streams` that write it. `kept` is what it holds of each
    partition, `strays` is what lies outside all noted ranges, and `spoiled` is where digests differ, as far
    as checked.
    """

    name: str
    held: int | None
    booked: int | None = None
    mode: str = ""
    streams: tuple[str, ...] = ()
    kept: Mapping[TopicPartition, HeldOffsets] | None = None
    digests: Digests | None = None
    strays: Mapping[TopicPartition, HeldOffsets] = field(default_factory=dict)
    spoiled: tuple[Spoiled, ...] = ()


@dataclass(frozen=True, slots=True)
class Reread:
    """One partition's noted ranges compared with the log; what lies in `read` was compared offset by offset.

    `awaited` is what a rewound stream has not read again yet. `unread` counts its records that have no row;
    these are not among the `missing` ones. `of_other_log` is what was read of an earlier topic with the same
    name.
    """

    table: str
    partition: TopicPartition
    read: tuple[OffsetRange, ...] = ()
    aged_out: tuple[OffsetRange, ...] = ()
    beyond: tuple[OffsetRange, ...] = ()
    records: int = 0
    missing: int = 0
    first_missing: tuple[int, ...] = ()
    extra: int = 0
    first_extra: tuple[int, ...] = ()
    problem: str = ""
    awaited: tuple[OffsetRange, ...] = ()
    unread: int = 0
    of_other_log: tuple[OffsetRange, ...] = ()
