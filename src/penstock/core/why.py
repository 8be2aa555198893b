"""Why does a stream not move? Facts in, one answer out: the first cause that holds.

Rule: causes are asked from the outside in (brokers, topic, leader, position, data), because an inner one
cannot be judged while an outer one holds; and what cannot be seen from outside the program is said to be so,
not guessed.

>>> explain(Facts("visits", unreachable="No broker answers."), now_ms=0).condition
'BROKERS_UNREACHABLE'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.core.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Hold:
    """An open transaction that hides what comes after `first_offset`; when its producer last wrote."""

    first_offset: int
    producer_id: int
    written_ms: int


@dataclass(frozen=True, slots=True)
class PartitionNow:
    """One partition beside the stream's position. `end` is what the stream can see, `log_end` all there is.

    None: there is no leader to ask.
    """

    position: int
    earliest: int | None = None
    end: int | None = None
    log_end: int | None = None
    last_written_ms: int | None = None
    hold: Hold | None = None

    @property
    def lag(self) -> int:
        return max(0, (self.end or 0) - self.position)


@dataclass(frozen=True, slots=True)
class WriterNow:
    """The sink's writer row: who may publish, since when, and whether another transaction holds the row."""

    epoch: int
    owner: str
    taken_ms: int
    is_locked: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """What was seen. `moved`: None when it was looked at once; `watched_s`: the time between looks."""

    stream: str
    partitions: Mapping[TopicPartition, PartitionNow] = field(default_factory=dict)
    unreachable: str = ""
    gone: tuple[TopicPartition, ...] = ()
    recreated: tuple[str, ...] = ()
    moved: bool | None = None
    watched_s: float = 0
    writer: WriterNow | None = None
    writer_before: WriterNow | None = None
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """The cause, in one or two sentences, and what to do."""

    condition: str
    what: str
    hint: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (f"[{self.condition}]", self.what, self.hint) if part)


def explain(facts: Facts, *, now_ms: int) -> Answer:
    """The first cause that holds."""
    return (
        _look_at_cluster(facts)
        or _look_at_positions(facts)
        or _look_at_data(facts, now_ms)
        or _look_at_program(facts, now_ms)
    )


def _look_at_cluster(facts: Facts) -> Answer | None:
    if facts.unreachable:
        return Answer(
            "BROKERS_UNREACHABLE",
            f"The brokers do not answer: {facts.unreachable}",
            "Check the address and the network, and that the brokers run.",
        )
    if facts.gone:
        return Answer(
            "TOPIC_GONE",
            f"{_list(facts.gone)} is not there any more.",
            "It was deleted, or this user may not see it. Make it again, or start the stream without it.",
        )
    if facts.recreated:
        return Answer(
            "TOPIC_RECREATED",
            f"Another topic has the name {', '.join(facts.recreated)} now; its id is not the one the stream "
            "has read.",
            "`penstock offsets rewind` reads the new topic from its beginning. `adopt` keeps the offsets: "
            "right only if it holds the same records at the same offsets (a restore, a mirror).",
        )
    leaderless = [each for each, now in sorted(facts.partitions.items()) if now.end is None]
    if leaderless:
        return Answer(
            "NO_LEADER",
            f"{_list(leaderless)} has no leader, so nobody can read it.",
            "Start the brokers that hold its replicas; `penstock topics describe` names them.",
        )
    return None


def _look_at_positions(facts: Facts) -> Answer | None:
    for each, now in sorted(facts.partitions.items()):
        assert now.earliest is not None
        assert now.log_end is not None
        if now.position > now.log_end:
            return Answer(
                "POSITION_BEYOND_END",
                f"{each}: the stream stands at {now.position}, and the log ends at {now.log_end}.",
                "Records were cut off (unclean election), or the position is of another topic. Look at what "
                "was written, then `penstock offsets rewind`.",
            )
        if now.position < now.earliest:
            return Answer(
                "POSITION_AGED_OUT",
                f"{each}: the stream stands at {now.position}, and the log begins at {now.earliest}: "
                f"{now.earliest - now.position} offsets have aged out.",
                "Start it with failOnDataLoss=false to step over them, or `penstock offsets skip`.",
            )
    return None


def _look_at_data(facts: Facts, now_ms: int) -> Answer | None:
    if any(now.lag for now in facts.partitions.values()):
        return None
    held = [
        (each, now) for each, now in sorted(facts.partitions.items()) if (now.log_end or 0) > (now.end or 0)
    ]
    for each, now in held:
        hidden = (now.log_end or 0) - (now.end or 0)
        by = "an open transaction"
        if now.hold is not None:
            silent_s = max(0, now_ms - now.hold.written_ms) // 1000
            by = f"the open transaction of producer {now.hold.producer_id}, silent for {silent_s} s,"
        return Answer(
            "OPEN_TRANSACTION",
            f"{each}: {by} hides {hidden} offsets from {now.end} on.",
            "Its producer must commit or abort; the broker aborts it after transaction.timeout.ms.",
        )
    times = [now.last_written_ms for now in facts.partitions.values() if now.last_written_ms is not None]
    since = f"; the last record is {max(0, now_ms - max(times)) // 1000} s old" if times else ""
    return Answer(
        "NO_DATA", f"{facts.stream} has read all there is{since}.", "It moves when somebody writes."
    )


def _look_at_program(facts: Facts, now_ms: int) -> Answer:
    lag = sum(now.lag for now in facts.partitions.values())
    if facts.moved is None:
        return Answer(
            "DATA_WAITS",
            f"{lag} offsets wait to be read.",
            "Whether the stream moves was not looked at; say --watch 30s.",
        )
    if facts.moved:
        return Answer("IT_MOVES", f"It does move; {lag} offsets wait.", "If that grows, look at its limits.")
    before, writer = facts.writer_before, facts.writer
    if before is not None and writer is not None:
        if writer.epoch != before.epoch:
            return Answer(
                "WRITER_FENCED",
                f"{lag} offsets wait, and while we looked {writer.owner} took the stream over from "
                f"{before.owner}: two programs run it and fence each other.",
                "Run one at a time.",
            )
        if writer.is_locked and before.is_locked:
            return Answer(
                "LOCK_WAIT",
                f"{lag} offsets wait, and for {facts.watched_s:g} s another transaction has held the "
                "stream's row in the sink's ledger.",
                "If that is no long batch, find the session in the database that was left open, and end it.",
            )
    if facts.throttle_ms:
        return Answer(
            "QUOTA",
            f"{lag} offsets wait, and the brokers hold answers back for {facts.throttle_ms} ms: a quota.",
            "Raise the quota of this user or client id, or read less.",
        )
    owner = ""
    if writer is not None:
        since_s = max(0, now_ms - writer.taken_ms) // 1000
        owner = f" Its writer is {writer.owner} since {since_s} s; any other one is fenced."
    return Answer(
        "STANDS_STILL",
        f"{lag} offsets wait, and for {facts.watched_s:g} s nothing was stored.{owner}",
        "Nothing outside the program holds it: it does not run, its batch takes longer than that (--watch), "
        "or a limit of its own (rate, maxOffsetsPerTrigger) is very low. Only its own log can tell which.",
    )


def _list(partitions: tuple[TopicPartition, ...] | list[TopicPartition]) -> str:
    shown = ", ".join(str(each) for each in partitions[:3])
    return shown + (f" and {len(partitions) - 3} more" if len(partitions) > 3 else "")
