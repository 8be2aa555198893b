"""Why a stream does not move: each cause is named, and an outer one takes precedence over an inner one."""

from __future__ import annotations

import argparse
from dataclasses import replace

import pytest

from penstock.cli.commands import why
from penstock.cli.commands.why import EXIT_CODES
from penstock.core.diagnosis.lock_waits import BlockingSession, find_lasting, find_roots
from penstock.core.diagnosis.manual_moves import HandMove
from penstock.core.diagnosis.standstill import Facts, Hold, Isolation, PartitionNow, WriterNow, explain
from penstock.core.errors import OffsetStoreError
from penstock.core.model import TopicPartition
from penstock.core.outages import CONDITIONS

ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)
NOW_MS = 100_000
WAITS = {ONE: PartitionNow(5, 0, 9, 9), TWO: PartitionNow(3, 0, 3, 3)}
ANN, BOB = WriterNow(1, "ann", 40_000), WriterNow(2, "bob", 90_000)
STILL = Facts("s", WAITS, moved=False, watched_s=5)


@pytest.mark.parametrize(
    ("facts", "condition", "words"),
    [
        (Facts("s", unreachable="refused"), "BROKERS_UNREACHABLE", "refused"),
        (Facts("s", WAITS, gone=(ONE,)), "TOPIC_GONE", "t-0"),
        (Facts("s", WAITS, recreated=("t",)), "TOPIC_RECREATED", "adopt"),
        (Facts("s", {ONE: PartitionNow(5), TWO: WAITS[TWO]}), "NO_LEADER", "t-0 has no leader"),
        (Facts("s", {ONE: PartitionNow(5, 0, 4, 4)}), "POSITION_BEYOND_END", "stands at 5"),
        (Facts("s", {ONE: PartitionNow(5, 7, 9, 9)}), "POSITION_AGED_OUT", "2 offsets have aged out"),
        (
            Facts("s", {TWO: PartitionNow(3, 0, 3, 3, 60_000)}),
            "NO_DATA",
            "the newest of the last records is 40 s old",
        ),
        (Facts("s", {TWO: PartitionNow(0, 0, 0, 0)}), "NO_DATA", "all there is."),
        (
            Facts("s", {ONE: PartitionNow(3, 0, 3, 9, hold=Hold(3, 77, 90_000))}),
            "OPEN_TRANSACTION",
            "An open transaction (producer 77, silent for 10 s) hides 6 offsets of t-0 from 3 on.",
        ),
        (Facts("s", {ONE: PartitionNow(3, 0, 3, 9)}), "OPEN_TRANSACTION", "An open transaction hides"),
        (Facts("s", WAITS), "DATA_WAITS", "4 offsets"),
        (replace(STILL, moved=True), "IT_MOVES", "4 offsets"),
        (replace(STILL, writer_before=ANN, writer=BOB), "WRITER_FENCED", "bob took the stream over from ann"),
        (
            replace(STILL, writer_before=replace(ANN, is_locked=True), writer=replace(ANN, is_locked=True)),
            "LOCK_WAIT",
            "for 5 s a transaction has held",
        ),
        (
            replace(STILL, writer_before=ANN, writer=replace(ANN, is_locked=True)),  # a publish in progress
            "STANDS_STILL",
            "Its writer has been ann for 60 s; any other",
        ),
        (replace(STILL, throttle_ms=300), "QUOTA", "300 ms"),
        (STILL, "STANDS_STILL", "Only its own log can tell"),
        (STILL, "STANDS_STILL", "What its batches write to was not looked at"),
    ],
)
def test_the_first_cause_that_holds_is_named(facts: Facts, condition: str, words: str) -> None:
    answer = explain(facts, now_ms=NOW_MS)
    assert answer.condition == condition
    assert words in str(answer)


def test_an_outer_cause_hides_an_inner_one() -> None:
    """While the topic is another one, nothing can be said about the position in it."""
    partitions = {ONE: PartitionNow(50, 0, 9, 9), TWO: PartitionNow(1)}
    facts = Facts("s", partitions, "no answer", (ONE,), ("t",))
    seen = []
    for calmer in (
        {},
        {"unreachable": ""},
        {"gone": ()},
        {"recreated": ()},
        {"partitions": {ONE: partitions[ONE]}},
    ):
        facts = replace(facts, **calmer)
        seen.append(explain(facts, now_ms=NOW_MS).condition)
    assert seen == [
        "BROKERS_UNREACHABLE",
        "TOPIC_GONE",
        "TOPIC_RECREATED",
        "NO_LEADER",
        "POSITION_BEYOND_END",
    ]


HELD = PartitionNow(3, 0, 3, 9, hold=Hold(3, 77, 90_000, "orders", 50_000, 60_000))


def test_one_transaction_is_told_once_with_all_partitions_and_when_the_brokers_end_it() -> None:
    facts = Facts("s", {ONE: HELD, TWO: replace(HELD, position=4)}, moved=False, watched_s=5)
    answer = explain(facts, now_ms=NOW_MS)
    assert answer.what == (
        "The open transaction of orders (producer 77, begun 50 s ago, silent for 10 s) hides 6 offsets "
        "of t-0 from 3 on and 5 offsets of t-1 from 4 on."
    )
    assert answer.hint.count("Its producer must commit or abort") == 1
    assert "abort it in about 10 s (its transaction.timeout.ms is 60000)" in answer.hint
    assert "has 11 offsets to read, and for 5 s nothing was stored" in answer.hint


def test_a_transaction_that_no_coordinator_shows_is_not_promised_to_end() -> None:
    answer = explain(Facts("s", {ONE: replace(HELD, hold=Hold(3, 77, 90_000))}), now_ms=NOW_MS)
    assert "no timeout ends it" in answer.hint
    assert "--topic t --partition 0 --start-offset 3" in answer.hint


@pytest.mark.parametrize(
    ("isolation", "moved", "condition", "state"),
    [
        (None, None, "OPEN_TRANSACTION", "unknown"),
        (None, False, "OPEN_TRANSACTION", "stuck"),
        (None, True, "IT_MOVES", "moving"),
        ("read_committed", None, "OPEN_TRANSACTION", "unknown"),  # it may end at once
        ("read_committed", False, "OPEN_TRANSACTION", "stuck"),
        ("read_committed", True, "IT_MOVES", "moving"),
        ("read_uncommitted", None, "DATA_WAITS", "unknown"),
        ("read_uncommitted", False, "STANDS_STILL", "stuck"),
        ("read_uncommitted", True, "IT_MOVES", "moving"),
    ],
)
def test_what_an_open_transaction_means_depends_on_how_the_stream_reads(
    isolation: Isolation | None, moved: bool | None, condition: str, state: str
) -> None:
    answer = explain(Facts("s", {ONE: HELD}, moved=moved, isolation=isolation), now_ms=NOW_MS)
    assert (answer.condition, answer.state) == (condition, state)
    is_open = condition == "OPEN_TRANSACTION"
    assert ("read_uncommitted" in answer.hint) == (is_open and isolation is None)


def test_partitions_that_are_held_are_named_beside_another_cause_as_well() -> None:
    facts = Facts("s", {ONE: HELD, TWO: PartitionNow(1, 0, 3, 3)}, moved=False, watched_s=5)
    answer = explain(facts, now_ms=NOW_MS)
    assert answer.condition == "STANDS_STILL"
    assert answer.what.startswith(
        "2 offsets wait for a stream that reads committed rows only (8 with isolation.level=read_uncommitted)"
    )
    for isolation, told in (("read_committed", "2 offsets wait, "), ("read_uncommitted", "8 offsets wait, ")):
        known = replace(facts, isolation=isolation)
        assert explain(known, now_ms=NOW_MS).what.startswith(told)
    assert "hides 6 offsets of t-0 from 3 on, if the stream reads committed rows only." in answer.what


def test_the_session_at_the_head_of_the_queue_is_named() -> None:
    """Session 7 is ours. It waits behind the stream's own, 5, which waits for 3; 8 and 9 are others'."""
    assert find_roots(7, [(7, 5), (7, 9), (9, 5), (5, 3), (8, 2)]) == (3,)
    assert find_roots(7, [(7, 5), (5, 7)]) == ()  # two that wait for each other: the database resolves that
    assert find_roots(7, []) == ()
    session = BlockingSession(3, "ann", "psql", "10.0.0.7", "idle in transaction", 12, "DELETE", "END 3")
    held = replace(ANN, is_locked=True)
    facts = replace(STILL, writer_before=held, writer=replace(held, blockers=(session,)))
    answer = explain(facts, now_ms=NOW_MS)
    assert answer.condition == "LOCK_WAIT"
    assert (
        "session 3 (user ann, psql, from 10.0.0.7, idle in transaction, its transaction open" in answer.what
    )
    assert "END 3" in answer.hint


def test_whoever_waits_for_a_metadata_lock_is_not_ended() -> None:
    victim = BlockingSession(
        7, "ann", doing="Waiting for table metadata lock", ending="KILL 7", is_waiting=True
    )
    held = replace(ANN, is_locked=True)
    facts = replace(STILL, writer_before=held, writer=replace(held, blockers=(victim,)))
    answer = explain(facts, now_ms=NOW_MS)
    assert answer.condition == "LOCK_WAIT"
    assert "session 7 (user ann, Waiting for table metadata lock), which waits itself" in answer.what
    assert "KILL 7" not in answer.hint


def test_every_answer_has_a_state_and_every_state_an_exit_code_of_its_own() -> None:
    assert EXIT_CODES["moving"] == EXIT_CODES["idle"] == 0  # nothing is wrong
    codes = [code for state, code in EXIT_CODES.items() if state != "idle"]
    assert len(set(codes)) == len(codes)
    assert 2 not in codes  # wrong usage, as with every command
    assert why.__doc__ is not None
    assert all(f"{code} " in why.__doc__.partition("Exit code:")[2] for code in codes)


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        *((each, 3) for each in sorted(CONDITIONS)),
        ("DATABASE_REFUSED", 4),
        ("LEDGER_NEWER", 4),
        ("DATABASE_BUSY", 4),
    ],
)
def test_whatever_a_stream_would_wait_for_is_unreachable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], condition: str, code: int
) -> None:
    """That includes a database that is a standby for a while."""

    def look(_arguments: argparse.Namespace) -> None:
        raise OffsetStoreError(condition, "Not now.", hint="Wait.")

    monkeypatch.setattr(why, "_look", look)
    assert why.run(argparse.Namespace()) == code
    assert ("why cannot read them, either" in capsys.readouterr().err) == (condition == "DATABASE_BUSY")


def test_who_holds_a_file_is_not_looked_for_among_the_sessions_of_a_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for place, told in (("own.db", False), ("postgresql://ann@db/stats", True)):

        def look(_arguments: argparse.Namespace, place: str = place) -> None:
            raise OffsetStoreError("DATABASE_BUSY", "Not now.", hint="Wait.", facts={"place": place})

        monkeypatch.setattr(why, "_look", look)
        assert why.run(argparse.Namespace()) == 4
        assert ("PROCESSLIST" in capsys.readouterr().err) == told
    held = replace(ANN, is_locked=True, file="own.db")
    answer = explain(replace(STILL, writer_before=held, writer=held), now_ms=NOW_MS)
    assert answer.condition == "LOCK_WAIT"
    assert "`fuser -v own.db`" in answer.hint
    assert "pg_stat" not in str(answer)
    assert "user" not in str(answer).replace("fuser", "")


FENCING = HandMove("ann@desk", "rewind", 1_000, fences=True)
TAKEN_BY_ANN = replace(BOB, owner="ann@desk")


def test_a_stream_that_an_operator_has_moved_has_no_writer_and_waits_for_a_program() -> None:
    """A program that ran before ends at its next batch, whenever that is; the operator is not a program."""
    facts = replace(STILL, hand=FENCING, writer_before=TAKEN_BY_ANN, writer=TAKEN_BY_ANN)
    answer = explain(facts, now_ms=NOW_MS)
    assert (answer.condition, answer.state) == ("MOVED_BY_HAND", "stuck")
    assert answer.what == (
        "4 offsets wait. ann@desk moved the stream by hand (`rewind` at 1970-01-01 00:00:01 UTC), and no "
        "program has taken it since."
    )
    assert "ends with WRITER_FENCED at its next batch" in answer.hint
    assert "Its writer" not in str(answer)
    while_we_looked = explain(replace(facts, writer_before=ANN), now_ms=NOW_MS)
    assert while_we_looked.condition == "MOVED_BY_HAND"  # not two programs
    held = replace(TAKEN_BY_ANN, is_locked=True)
    starts = explain(replace(facts, writer_before=held, writer=held), now_ms=NOW_MS)
    assert starts.condition == "LOCK_WAIT"  # a program that starts waits for it
    assert explain(replace(facts, throttle_ms=9), now_ms=NOW_MS).condition == "MOVED_BY_HAND"


LEFT = replace(FENCING, fences=False)


@pytest.mark.parametrize(
    ("facts", "condition"),
    [
        (Facts("s", {ONE: PartitionNow(3, 0, 3, 9)}), "OPEN_TRANSACTION"),
        (Facts("s", WAITS), "DATA_WAITS"),
        (STILL, "STANDS_STILL"),
    ],
)
def test_a_move_by_hand_is_named_beside_whatever_else_holds(facts: Facts, condition: str) -> None:
    """Where nothing is fenced, a program may be running that does not know about the move."""
    answer = explain(replace(facts, hand=LEFT), now_ms=NOW_MS)
    assert answer.condition == condition
    assert "ann@desk moved the stream by hand" in answer.what
    assert "Whether a program runs, and since when, cannot be seen from here." in answer.hint
    assert "If one was started before the move" in answer.hint
    assert "started later has begun there, and the move is not what holds it up" in answer.hint


@pytest.mark.parametrize("others", [{}, {TWO: PartitionNow(0, 0, 10, 10)}], ids=["idle", "unread"])
def test_a_move_that_fences_nobody_is_not_told_for_ever_where_nothing_waits(
    others: dict[TopicPartition, PartitionNow],
) -> None:
    """For a `skip --to-end` made months ago, on a topic that nobody writes to, there is nothing to do."""
    facts = Facts("s", {ONE: PartitionNow(3, 0, 3, 3, 60_000)}, others=others)
    answer = explain(replace(facts, hand=LEFT), now_ms=NOW_MS)
    assert "by hand" not in str(answer)
    assert "start it again" not in str(answer)
    assert "has read all there is" not in answer.what  # it was put there
    fenced = explain(replace(facts, hand=FENCING), now_ms=NOW_MS)
    assert "no program has taken it since" in fenced.what  # that is known, and there is something to do
    assert "Start the stream" in fenced.hint


def test_who_took_a_stream_is_not_called_its_writer_where_moves_by_hand_are_hidden() -> None:
    facts = replace(STILL, writer_before=TAKEN_BY_ANN, writer=TAKEN_BY_ANN, is_hand_known=False)
    answer = explain(facts, now_ms=NOW_MS)
    assert answer.condition == "STANDS_STILL"
    assert "ann@desk has had it for 10 s, and any earlier writer is fenced: a program, or a" in answer.what
    assert "Its writer" not in answer.what


def test_clocks_that_differ_tell_of_no_time_below_zero() -> None:
    """Brokers, databases and this program each have their own clock."""
    early = 10_000
    ahead = Facts("s", {ONE: HELD})
    assert "begun 0 s ago, silent for 0 s" in explain(ahead, now_ms=early).what
    assert "abort it in about 0 s" in explain(ahead, now_ms=200_000).hint
    written = {ONE: PartitionNow(3, 0, 3, 3, 60_000), TWO: PartitionNow(3, 0, 3, 3, 40_000)}
    assert "the newest of the last records is 0 s old" in explain(Facts("s", written), now_ms=early).what
    youngest = explain(Facts("s", written), now_ms=NOW_MS).what
    assert "the newest of the last records is 40 s old" in youngest
    still = replace(STILL, writer_before=ANN, writer=ANN)
    assert "Its writer has been ann for 0 s" in explain(still, now_ms=early).what


def test_what_is_known_of_the_readers_is_not_put_as_a_question() -> None:
    both = {ONE: HELD, TWO: PartitionNow(2, 0, 3, 3)}
    sure = explain(Facts("s", both, moved=False, watched_s=5, isolation="read_committed"), now_ms=NOW_MS)
    assert "hides 6 offsets of t-0 from 3 on." in sure.what
    assert sure.what.startswith("1 offset waits, and")
    free = explain(Facts("s", both, moved=False, watched_s=5, isolation="read_uncommitted"), now_ms=NOW_MS)
    assert free.what.startswith("7 offsets wait, and")
    assert "hides" not in free.what


NEW = {TWO: PartitionNow(0, 0, 10, 10), TopicPartition("t", 2): PartitionNow(0, 0, 0, 0)}


@pytest.mark.parametrize(
    ("facts", "condition", "state"),
    [
        (Facts("s", {ONE: PartitionNow(3, 0, 3, 3)}, others=NEW), "PARTITIONS_UNREAD", "unknown"),
        (
            Facts("s", {ONE: PartitionNow(3, 0, 3, 3)}, others=NEW, moved=False),
            "PARTITIONS_UNREAD",
            "unknown",
        ),
        (
            Facts("s", {ONE: PartitionNow(3, 0, 3, 3)}, others=NEW, hand=FENCING),
            "PARTITIONS_UNREAD",
            "unknown",
        ),
        (Facts("s", {ONE: HELD}, others=NEW), "OPEN_TRANSACTION", "unknown"),
        (Facts("s", {ONE: WAITS[ONE]}, others=NEW), "DATA_WAITS", "unknown"),
        (Facts("s", {ONE: WAITS[ONE]}, others=NEW, moved=False), "STANDS_STILL", "stuck"),
        (Facts("s", {ONE: WAITS[ONE]}, others=NEW, moved=True), "IT_MOVES", "moving"),
    ],
)
def test_partitions_without_a_position_are_named_beside_whatever_else_holds(
    facts: Facts, condition: str, state: str
) -> None:
    answer = explain(facts, now_ms=NOW_MS)
    assert (answer.condition, answer.state) == (condition, state)
    assert "it has no position of t-1 (10 offsets)." in answer.what  # t-2 is empty, so not named
    assert "all there is" not in answer.what
    assert "one that assigns partitions does not read them" in answer.hint
    assert ("moved the stream by hand" in answer.what) == (facts.hand is not None)


def test_of_a_new_partition_without_a_leader_nobody_says_that_it_is_empty() -> None:
    facts = Facts("s", {ONE: PartitionNow(3, 0, 3, 3)}, others={TWO: PartitionNow(0)})
    answer = explain(facts, now_ms=NOW_MS)
    assert answer.condition == "PARTITIONS_UNREAD"
    assert "t-1 (no leader)" in answer.what


def test_a_row_that_is_free_again_is_no_lock() -> None:
    freed = replace(STILL, writer_before=replace(ANN, is_locked=True), writer=ANN)
    assert explain(freed, now_ms=NOW_MS).condition == "STANDS_STILL"


@pytest.mark.parametrize(
    ("sessions", "is_locked", "words"),
    [
        ((), False, "no session was seen to keep a transaction open"),
        ((), False, "row in the ledger, which was free in both looks"),
        ((), True, "held in one of two looks"),
        (None, False, "whether other sessions hold locks the database does not tell"),
        (
            (BlockingSession(7, "eve", open_s=70, ending="KILL 7"),),
            False,
            "session 7 (user eve, its transaction",
        ),
        ((BlockingSession(7, "eve", open_s=70, ending="KILL 7"),), False, "or end it: KILL 7."),
        ((BlockingSession(7, tables=("sums", "days")),), False, "with locks on sums, days"),
    ],
)
def test_a_stream_that_stands_still_is_told_what_was_looked_at_and_who_may_hold_it(
    sessions: tuple[BlockingSession, ...] | None, is_locked: bool, words: str
) -> None:
    """Between two waits for a lock it waits for nobody, so it cannot be said that nothing holds it."""
    before = replace(ANN, is_locked=is_locked)
    answer = explain(replace(STILL, writer_before=before, writer=ANN, open_sessions=sessions), now_ms=NOW_MS)
    assert (answer.condition, answer.state) == ("STANDS_STILL", "stuck")
    assert words in str(answer)
    assert "Nothing outside" not in str(answer)
    assert ("no session was seen" in str(answer)) == (sessions == ())


def test_who_has_a_transaction_open_in_both_looks_has_had_it_all_the_while() -> None:
    def sessions(*known: tuple[int, int | None]) -> list[BlockingSession]:
        return [BlockingSession(session, open_s=open_s) for session, open_s in known]

    first = sessions((1, 3), (2, 90), (3, None), (4, 50), (6, 0))
    last = sessions((1, 8), (2, 95), (3, None), (5, 60), (6, 4))
    found = find_lasting(first, last, 5.0)
    assert found is not None
    assert [each.session for each in found] == [2, 1, 3]  # session 6 has begun another one meanwhile
    assert find_lasting(None, last, 5.0) is None
    assert find_lasting(first, None, 5.0) is None


def test_of_very_many_the_first_are_named_and_the_rest_counted() -> None:
    many = [TopicPartition("t", number) for number in range(25)]
    gone = explain(Facts("s", gone=tuple(many)), now_ms=NOW_MS).what
    assert gone.startswith("t-0, t-1, t-2 and 22 more are not there any more.")
    hidden = explain(Facts("s", dict.fromkeys(many, HELD)), now_ms=NOW_MS).what
    assert "of t-19 from 3 on and 5 more (--json has them all)" in hidden
    assert "t-20" not in hidden
    sessions = tuple(BlockingSession(number, ending=f"END {number}.") for number in range(25))
    held = replace(ANN, is_locked=True, blockers=sessions)
    locked = explain(replace(STILL, writer_before=held, writer=held), now_ms=NOW_MS)
    assert "session 19 " in locked.what
    assert "session 20 " not in locked.what
    assert "END 20." not in locked.hint


def test_what_is_said_of_several_is_said_in_the_plural() -> None:
    both = (ONE, TWO)
    gone = explain(Facts("s", gone=both), now_ms=NOW_MS)
    assert gone.what == "t-0 and t-1 are not there any more."
    assert "They were deleted, or this user may not see them." in gone.hint
    assert explain(Facts("s", gone=(ONE,)), now_ms=NOW_MS).what == "t-0 is not there any more."
    leaderless = explain(Facts("s", dict.fromkeys(both, PartitionNow(5))), now_ms=NOW_MS).what
    assert leaderless == "t-0 and t-1 have no leader, so nobody can read them."
    anew = explain(Facts("s", WAITS, recreated=("t", "u")), now_ms=NOW_MS).what
    assert anew.startswith("Other topics have the names t and u now; their ids are not the ones")
    victims = tuple(BlockingSession(number, is_waiting=True) for number in (7, 8))
    held = replace(ANN, is_locked=True, blockers=victims)
    locked = explain(replace(STILL, writer_before=held, writer=held), now_ms=NOW_MS)
    assert "about it), which wait themselves: for a metadata lock" in locked.what
    kept = explain(replace(STILL, open_sessions=victims), now_ms=NOW_MS)
    assert "All the while transactions with locks were open in the database: session 7" in kept.what


def test_nothing_is_said_to_be_free_that_was_not_looked_at() -> None:
    """Locks in a store are visible only in a server's store; the quota is the one of this command."""
    store = explain(STILL, now_ms=NOW_MS).hint
    assert "not looked at, nor locks in its offset store" in store
    served = explain(replace(STILL, open_sessions=()), now_ms=NOW_MS).hint
    assert "in the database of its offsets, no session was seen to keep a transaction open" in served
    assert "locks in its offset store" not in served
    assert "Nothing outside" not in store
    assert "lock was" not in store
    assert "a quota of its own user or client id" in store
    assert "What its batches write to was not looked at" in store
    sink = explain(replace(STILL, writer_before=ANN, writer=ANN), now_ms=NOW_MS).hint
    assert "the stream's row in the ledger, which was free in both looks" in sink
    assert "whether other sessions hold locks the database does not tell" in sink
