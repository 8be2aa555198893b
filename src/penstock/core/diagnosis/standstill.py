"""Explains why a stream does not move: from facts to one answer, the first cause that holds.

Rule: causes are asked from the outside in (brokers, topic, leader, position, data), because an inner one
cannot be judged while an outer one holds. What cannot be seen from outside the program is reported as
unknown, not guessed. Whether a stream reads only committed rows is one of these unknowns: unless an option
says so, both ends of each partition count, and an answer that depends on it says for which readers it holds.

>>> explain(Facts("visits", unreachable="No broker answers."), now_ms=0).condition
'BROKERS_UNREACHABLE'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from penstock.core.diagnosis.lock_waits import BlockingSession
from penstock.core.diagnosis.manual_moves import HandMove
from penstock.core.model import TopicPartition
from penstock.core.prose import choose, count, join

#: The result of a diagnosis; each has an exit code of `penstock why`. `idle` means that nothing waits.
State: TypeAlias = Literal["moving", "idle", "stuck", "unreachable", "unknown"]
Isolation: TypeAlias = Literal["read_committed", "read_uncommitted"]
ISOLATIONS: tuple[Isolation, ...] = ("read_committed", "read_uncommitted")
#: The most partitions, and the most sessions, that one sentence lists.
_NAMED = 20
_NOBODY_HOLDS = "no session was seen to keep a transaction open that holds locks on rows"


@dataclass(frozen=True, slots=True)
class Hold:
    """The oldest open transaction of a partition.

    It hides what comes after `first_offset` from readers of committed rows. `written_ms` is when its producer
    last wrote there.

    The rest is what its coordinator knows. None means that no coordinator has it or shows it to this user.
    """

    first_offset: int
    producer_id: int
    written_ms: int
    transactional_id: str | None = None
    begun_ms: int | None = None
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionNow:
    """One partition, and the stream's position in it.

    `stable_end` is the end for a reader of committed rows, and `log_end` is the end of the log. None means
    that there is no leader to ask. `last_written_ms` is the greatest time of a record in the last record
    batch; it is also None if that batch holds no records.
    """

    position: int
    earliest: int | None = None
    stable_end: int | None = None
    log_end: int | None = None
    last_written_ms: int | None = None
    hold: Hold | None = None

    def find_lag(self, isolation: Isolation) -> int:
        """Return how many offsets a stream with this isolation has still to read."""
        end = self.stable_end if isolation == "read_committed" else self.log_end
        return max(0, (end or 0) - self.position)

    @property
    def hidden(self) -> int:
        """Return how many offsets after the position a reader of committed rows does not see yet."""
        return self.find_lag("read_uncommitted") - self.find_lag("read_committed")


@dataclass(frozen=True, slots=True)
class WriterNow:
    """The sink's writer row: its owner, since when, and whether another transaction locks the row.

    `blockers` are the sessions that hold up all others, if the database shows them; sessions that only wait
    for them are left out. `file` is that of an SQLite sink, which has processes and no sessions.
    """

    epoch: int
    owner: str
    taken_ms: int
    is_locked: bool = False
    blockers: tuple[BlockingSession, ...] = ()
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that a diagnosis needs.

    `isolation` is None if it is unknown how the stream reads. `moved` is None if the stream was looked at
    only once; `watched_s` is the time between the looks. `hand` is None unless a move by hand was the last
    change, and `is_hand_known` is False if this user may not see such moves. `others` are the partitions of
    the stream's topics that it has no position in, as if it were at their beginning. `open_sessions` are
    other sessions that kept a transaction with locks open at the sink all the time, or None if they were not
    looked at or are not shown.
    """

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
    isolation: Isolation | None = None
    hand: HandMove | None = None
    is_hand_known: bool = True
    others: Mapping[TopicPartition, PartitionNow] = field(default_factory=dict)
    open_sessions: tuple[BlockingSession, ...] | None = None

    def find_lag(self, isolation: Isolation) -> int:
        return sum(now.find_lag(isolation) for now in self.partitions.values())

    @property
    def lag(self) -> int:
        """Return how many offsets the stream can read now, whatever its isolation."""
        return self.find_lag(self.isolation or "read_committed")

    @property
    def unread(self) -> dict[TopicPartition, PartitionNow]:
        """Return the partitions without a position that hold records, or may hold some."""
        some = sorted(self.others.items())
        return {each: now for each, now in some if now.log_end is None or now.find_lag("read_uncommitted")}

    @property
    def held(self) -> dict[TopicPartition, PartitionNow]:
        """Return the partitions in which an open transaction hides, or may hide, records from this stream."""
        if self.isolation == "read_uncommitted":
            return {}
        return {each: now for each, now in sorted(self.partitions.items()) if now.hidden}


@dataclass(frozen=True, slots=True)
class StandstillCause:
    """A cause in one or two sentences, what to do, and the resulting state."""

    condition: str
    what: str
    hint: str = ""
    state: State = "stuck"

    def __str__(self) -> str:
        return " ".join(part for part in (f"[{self.condition}]", self.what, self.hint) if part)


def explain(facts: Facts, *, now_ms: int) -> StandstillCause:
    """Return the first cause that holds."""
    return (
        _look_at_cluster(facts)
        or _look_at_positions(facts)
        or _add_unread(_look_at_data(facts, now_ms) or _look_at_program(facts, now_ms), facts)
    )


def _look_at_cluster(facts: Facts) -> StandstillCause | None:
    if facts.unreachable:
        return StandstillCause(
            "BROKERS_UNREACHABLE",
            f"The brokers do not answer: {facts.unreachable}",
            "Check the address and the network, and that the brokers run.",
            "unreachable",
        )
    if facts.gone:
        return StandstillCause(
            "TOPIC_GONE",
            f"{_list(facts.gone)} {choose(facts.gone, 'is', 'are')} not there any more.",
            choose(
                facts.gone,
                "It was deleted, or this user may not see it. Recreate it, or start the stream without it.",
                "They were deleted, or this user may not see them. Recreate them, or start the stream "
                "without them.",
            ),
        )
    if facts.recreated:
        return StandstillCause(
            "TOPIC_RECREATED",
            choose(
                facts.recreated,
                f"Another topic has the name {_list(facts.recreated)} now; its id is not the one",
                f"Other topics have the names {_list(facts.recreated)} now; their ids are not the ones",
            )
            + " the stream has read.",
            "`penstock offsets rewind --to-start` reads a new topic from its beginning. `adopt` keeps the "
            "offsets: right only if it holds the same records at the same offsets (a restore, a mirror).",
        )
    leaderless = [each for each, now in sorted(facts.partitions.items()) if now.log_end is None]
    if leaderless:
        return StandstillCause(
            "NO_LEADER",
            f"{_list(leaderless)} {choose(leaderless, 'has', 'have')} no leader, so nobody can read "
            f"{choose(leaderless, 'it', 'them')}.",
            f"Start the brokers that hold {choose(leaderless, 'its', 'their')} replicas; `penstock topics "
            "describe` names them.",
        )
    return None


def _look_at_positions(facts: Facts) -> StandstillCause | None:
    for each, now in sorted(facts.partitions.items()):
        assert now.earliest is not None
        assert now.log_end is not None
        if now.position > now.log_end:
            return StandstillCause(
                "POSITION_BEYOND_END",
                f"{each}: the stream stands at {now.position}, and the log ends at {now.log_end}.",
                "Records were cut off (unclean election), or the position is of another topic. Look at what "
                "was written, then `penstock offsets rewind`.",
            )
        if now.position < now.earliest:
            return StandstillCause(
                "POSITION_AGED_OUT",
                f"{each}: the stream stands at {now.position}, and the log begins at {now.earliest}: "
                f"{now.earliest - now.position} offsets have aged out.",
                "Start it with failOnDataLoss=false to step over them, or `penstock offsets skip`.",
            )
    return None


def _look_at_data(facts: Facts, now_ms: int) -> StandstillCause | None:
    if facts.lag or facts.moved:
        return None
    if facts.held:
        return _tell_transactions(facts, now_ms)
    times = [now.last_written_ms for now in facts.partitions.values() if now.last_written_ms is not None]
    since = (
        f"; the newest of the last records is {max(0, now_ms - max(times)) // 1000} s old" if times else ""
    )
    # A move that fences no program may be old, and while nothing waits there is nothing to do about it.
    hand = facts.hand if facts.hand is not None and facts.hand.fences else None
    if facts.unread:
        what = f"Nothing waits in the partitions that {facts.stream} has a position of{since}."
        return _add_hand(StandstillCause("PARTITIONS_UNREAD", what, "", "unknown"), hand)
    if hand is not None:
        return StandstillCause("NO_DATA", f"Nothing waits{since}. {hand.describe()}", hand.advice, "idle")
    # A stream that was put here by hand has not read what lies before.
    done = f"{facts.stream} has read all there is" if facts.hand is None else "Nothing waits"
    return StandstillCause("NO_DATA", f"{done}{since}.", "It moves when somebody writes.", "idle")


def _add_unread(answer: StandstillCause, facts: Facts) -> StandstillCause:
    """Return the answer with the partitions that have no position, such as those added to a topic."""
    if not facts.unread:
        return answer
    sizes = {each: count(now.find_lag("read_uncommitted"), "offset") for each, now in facts.unread.items()}
    named = [
        f"{each} ({'no leader' if now.log_end is None else sizes[each]})"
        for each, now in facts.unread.items()
    ]
    seen = "" if facts.moved is not False else f" For {facts.watched_s:g} s it did not begin with them."
    return replace(
        answer,
        what=f"{answer.what} Of the same topics it has no position of {_enumerate(named)}.{seen}",
        hint=f"{answer.hint} A stream that subscribes to the topic finds them at its next look, or when it "
        "is started; one that assigns partitions does not read them. Which of them this one is cannot be "
        "seen from here.".lstrip(),
    )


def _tell_transactions(facts: Facts, now_ms: int) -> StandstillCause:
    """Return the answer for a stream that has read all that readers of committed rows can see.

    A stream that was not seen to stand still may go on as soon as a transaction ends, perhaps at once.
    """
    hint = " ".join(dict.fromkeys(_advise(each, now.hold, now_ms) for each, now in facts.held.items()))
    if facts.isolation is None:
        waiting = facts.find_lag("read_uncommitted")
        seen = (
            "whether it reads them was not checked (--watch 30s)"
            if facts.moved is None
            else f"for {facts.watched_s:g} s nothing was stored"
        )
        hint += (
            " All this holds if the stream reads committed rows only. One with "
            f"isolation.level=read_uncommitted has {count(waiting, 'offset')} to read, and {seen}; "
            "give --isolation for one answer."
        )
    state: State = "unknown" if facts.moved is None else "stuck"
    answer = StandstillCause("OPEN_TRANSACTION", f"{_describe_held(facts, now_ms)}.", hint, state)
    return _add_hand(answer, facts.hand)


def _add_hand(answer: StandstillCause, hand: HandMove | None) -> StandstillCause:
    if hand is None:
        return answer
    return replace(answer, what=f"{answer.what} {hand.describe()}", hint=f"{hand.advice} {answer.hint}")


def _describe_held(facts: Facts, now_ms: int) -> str:
    """Return a description of each open transaction with all partitions of the stream that it holds back."""
    by_whom: dict[str, list[str]] = {}
    for each, now in facts.held.items():
        hidden = f"{count(now.hidden, 'offset')} of {each} from {max(now.stable_end or 0, now.position)} on"
        by_whom.setdefault(_describe_hold(now.hold, now_ms), []).append(hidden)
    return "; ".join(f"{whose} hides {_enumerate(hidden)}" for whose, hidden in by_whom.items())


def _describe_hold(hold: Hold | None, now_ms: int) -> str:
    if hold is None:
        return "An open transaction"
    silent_s = max(0, now_ms - hold.written_ms) // 1000
    known = [f"producer {hold.producer_id}", f"silent for {silent_s} s"]
    if hold.begun_ms is not None:
        known.insert(1, f"begun {max(0, now_ms - hold.begun_ms) // 1000} s ago")
    whose = "An open transaction"
    if hold.transactional_id is not None:
        whose = f"The open transaction of {hold.transactional_id}"
    return f"{whose} ({', '.join(known)})"


def _advise(partition: TopicPartition, hold: Hold | None, now_ms: int) -> str:
    if hold is None:
        return "Its producer must commit or abort; the brokers abort it after its transaction.timeout.ms."
    if hold.begun_ms is not None and hold.timeout_ms is not None:
        left_s = max(0, hold.begun_ms + hold.timeout_ms - now_ms) // 1000
        return (
            f"Its producer must commit or abort; the brokers abort it in about {left_s} s "
            f"(its transaction.timeout.ms is {hold.timeout_ms})."
        )
    return (
        f"No coordinator shows the transaction of producer {hold.producer_id}: this user may not see it "
        "(the right to describe transactional ids), or it hangs, and then no timeout ends it, but "
        f"`kafka-transactions.sh abort --topic {partition.topic} --partition {partition.partition} "
        f"--start-offset {hold.first_offset}` does."
    )


def _look_at_program(facts: Facts, now_ms: int) -> StandstillCause:
    answer = _judge_program(facts, now_ms)
    if not facts.held:
        return answer
    readers = "" if facts.isolation else ", if the stream reads committed rows only"
    return replace(answer, what=f"{answer.what} {_describe_held(facts, now_ms)}{readers}.")


def _judge_program(facts: Facts, now_ms: int) -> StandstillCause:
    waiting = _tell_waiting(facts)
    hand = facts.hand
    if facts.moved is None:
        unwatched = "Whether the stream moves was not checked; give --watch 30s."
        return _add_hand(StandstillCause("DATA_WAITS", f"{waiting} to be read.", unwatched, "unknown"), hand)
    if facts.moved:
        return StandstillCause(
            "IT_MOVES", f"It does move; {waiting}.", "If that grows, look at its limits.", "moving"
        )
    before, writer = facts.writer_before, facts.writer
    if before is not None and writer is not None:
        if writer.epoch != before.epoch and hand is None:
            return StandstillCause(
                "WRITER_FENCED",
                f"{waiting}, and while we looked {writer.owner} took the stream over from "
                f"{before.owner}: two programs run it and fence each other.",
                "Run one at a time.",
            )
        if writer.is_locked and before.is_locked:
            return _tell_lock(waiting, facts, writer)
    if hand is not None and hand.fences:
        return StandstillCause("MOVED_BY_HAND", f"{waiting}. {hand.describe()}", hand.advice)
    if facts.throttle_ms:
        return StandstillCause(
            "QUOTA",
            f"{waiting}, and the brokers hold answers back for {facts.throttle_ms} ms: a quota.",
            "Raise the quota of this user or client id, or read less.",
        )
    return _add_hand(_tell_still(waiting, facts, now_ms), hand)


def _tell_still(waiting: str, facts: Facts, now_ms: int) -> StandstillCause:
    """Return the answer if no cause was found, with what may hold up the stream.

    A lock is seen to hold it up only while the stream waits for it, not between two attempts.
    """
    known = [f"{waiting}, and for {facts.watched_s:g} s nothing was stored."]
    if facts.writer is not None:
        since_s = max(0, now_ms - facts.writer.taken_ms) // 1000
        known.append(_tell_writer(facts.writer.owner, since_s, facts.is_hand_known))
    sessions = facts.open_sessions or ()
    advice = []
    if sessions:
        named = "; ".join(each.describe() for each in sessions[:_NAMED])
        ends = " or ".join(each.ending for each in sessions[:_NAMED])
        kept = choose(sessions, "a transaction with locks was", "transactions with locks were")
        known.append(f"All the while {kept} open in the database: {named}.")
        advice.append(
            "The stream may need what is locked there: that would be seen only while it waits for it, and "
            "between two attempts it does not. If it is neither a task of the stream's own nor other work, "
            f"commit or roll back there, or end it: {ends}."
        )
    advice.append(
        f"What was looked at from outside and does not hold it: {_list_innocent(facts)}. It may not run, it "
        "may have started just now, its batch may take longer than that (--watch), it may pause between two "
        "attempts, a limit of its own (rate, maxOffsetsPerTrigger) may be very low, or brokers may throttle "
        "it by a quota of its own user or client id, which cannot be seen from here. Only its own log can "
        "tell which."
    )
    return StandstillCause("STANDS_STILL", " ".join(known), " ".join(advice))


def _list_innocent(facts: Facts) -> str:
    """Return what was checked, and what was not checked or not shown."""
    always = "brokers, topics and positions"
    if facts.writer is None or facts.writer_before is None:
        if facts.open_sessions is None:
            return f"{always}. What its batches write to was not looked at, nor locks in its offset store"
        free = "" if facts.open_sessions else f"; in the database of its offsets, {_NOBODY_HOLDS}"
        return f"{always}{free}. What its batches write to was not looked at"
    if facts.writer.is_locked or facts.writer_before.is_locked:
        last = "; the stream's row in the ledger was held in one of two looks, as by a publish at work"
    else:
        last = ", and the stream's row in the ledger, which was free in both looks"
    if facts.open_sessions is None:
        last += "; whether other sessions hold locks the database does not tell"
    elif not facts.open_sessions:
        last += f"; {_NOBODY_HOLDS}"
    return always + last


def _tell_waiting(facts: Facts) -> str:
    """Return how much is waiting to be read, with both figures if the isolation is unknown and matters."""
    every = facts.find_lag("read_uncommitted")
    told = f"{count(facts.lag, 'offset')} {'waits' if facts.lag == 1 else 'wait'}"
    if facts.isolation is None and every != facts.lag:
        told += (
            f" for a stream that reads committed rows only ({every} with isolation.level=read_uncommitted)"
        )
    return told


def _tell_writer(owner: str, since_s: int, is_hand_known: bool) -> str:
    if is_hand_known:
        return f"Its writer has been {owner} for {since_s} s; any other one is fenced."
    return (
        f"{owner} has had it for {since_s} s, and any earlier writer is fenced: a program, or a person who "
        "moved the stream by hand. This user may not see which (the table of changes)."
    )


def _tell_lock(waiting: str, facts: Facts, writer: WriterNow) -> StandstillCause:
    if writer.file is not None:
        return StandstillCause(
            "LOCK_WAIT",
            f"{waiting}, and for {facts.watched_s:g} s a process has held the file of the sink locked: it is "
            "in a transaction that writes.",
            f"If that is not a long batch, `fuser -v {writer.file}` names the processes that have it open. "
            "Commit or roll back in the one that was left in a transaction, or end it.",
        )
    if not writer.blockers:
        return StandstillCause(
            "LOCK_WAIT",
            f"{waiting}, and for {facts.watched_s:g} s a transaction has held the stream's row in the "
            "sink's ledger. The database did not say whose it is.",
            "If that is not a long batch, let an administrator look for the session that was left open "
            "(pg_stat_activity, SHOW PROCESSLIST), and end it.",
        )
    waiting_too = [each for each in writer.blockers if each.is_waiting]
    if waiting_too:
        return _tell_metadata_lock(waiting, facts, waiting_too)
    named = "; ".join(each.describe() for each in writer.blockers[:_NAMED])
    ends = " and ".join(each.ending for each in writer.blockers[:_NAMED])
    return StandstillCause(
        "LOCK_WAIT",
        f"{waiting}, and for {facts.watched_s:g} s publishing has waited for {named}.",
        f"If that is not a long batch of the stream's own, commit or roll back there, or end it: {ends}.",
    )


def _tell_metadata_lock(waiting: str, facts: Facts, victims: list[BlockingSession]) -> StandstillCause:
    named = "; ".join(each.describe() for each in victims[:_NAMED])
    return StandstillCause(
        "LOCK_WAIT",
        f"{waiting}, and for {facts.watched_s:g} s publishing has waited for {named}, which "
        f"{choose(victims, 'waits itself', 'wait themselves')}: for a metadata lock, of a session with LOCK "
        "TABLES, ALTER TABLE or an open transaction on a table that the stream fills. The database does not "
        "say whose it is.",
        "Ending the session that waits, which may be the stream's own, does not help. Look for the other "
        "one: SHOW FULL PROCESSLIST (one that sleeps, or alters a table) and information_schema.innodb_trx "
        "(the oldest trx_started). MariaDB names it after INSTALL SONAME 'metadata_lock_info' in "
        "information_schema.metadata_lock_info, or if it is started with performance_schema=ON.",
    )


def _enumerate(parts: list[str]) -> str:
    """Return `a`, `a and b`, or `a, b and c`; of very many parts, only the first ones."""
    if len(parts) > _NAMED:
        parts = [*parts[:_NAMED], f"{len(parts) - _NAMED} more (--json has them all)"]
    return join(parts)


def _list(names: Sequence[object]) -> str:
    some = [str(each) for each in names[:3]] + ([f"{len(names) - 3} more"] if len(names) > 3 else [])
    return join(some)
