"""Following partitions of a log in memory: which records are taken, the position, and lost records."""

from __future__ import annotations

import pytest

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import DataLossError
from penstock.core.model import TopicPartition
from penstock.kafka.console.topic_tailing import TopicTail
from penstock.testing.memory_log import MemoryLog

ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    log.create_topic("t", 2)
    return log


def fill(log: MemoryLog, partition: int, *values: bytes) -> None:
    for value in values:
        log.append("t", partition, value=value)


def follow(log: MemoryLog, starts: dict[TopicPartition, int], level: str = "read_uncommitted") -> TopicTail:
    settings = ClientSettings((("127.0.0.1", 1),), isolation_level=level)
    return TopicTail(log.view(level), log.reader(), settings, starts)


def take(follower: TopicTail, most: int = 100) -> list[bytes | None]:
    return [each.value for each in follower.take(most)]


def test_a_position_moves_with_each_record_that_is_taken(log: MemoryLog) -> None:
    """The commit covers exactly what was handed over, even in the middle of a batch."""
    fill(log, 0, b"a", b"b", b"c")
    fill(log, 1, b"x", b"y")
    follower = follow(log, {ONE: 0, TWO: 0})
    assert (take(follower, 2), dict(follower.positions)) == ([b"a", b"b"], {ONE: 2, TWO: 0})
    fill(log, 0, b"d")  # after the look, so the next look returns it
    assert (take(follower, 2), dict(follower.positions)) == ([b"c", b"x"], {ONE: 3, TWO: 1})
    assert (take(follower), dict(follower.positions)) == ([b"y"], {ONE: 3, TWO: 2})
    assert (take(follower), dict(follower.positions)) == ([b"d"], {ONE: 4, TWO: 2})
    assert take(follower) == []


def test_behind_the_last_record_its_markers_are_passed(log: MemoryLog) -> None:
    log.append("t", 0, value=b"kept", transaction="one")
    log.commit("one")
    log.append("t", 0, value=b"taken back", transaction="two")
    log.abort("two")
    follower = follow(log, {ONE: 0}, "read_committed")
    assert (take(follower), follower.positions[ONE]) == ([b"kept"], 4)


def test_an_open_transaction_before_a_position_is_no_loss(log: MemoryLog) -> None:
    """The end for committed readers then lies before this follower's position."""
    log.append("t", 0, value=b"open", transaction="one")
    fill(log, 0, b"a", b"b")
    follower = follow(log, {ONE: 2}, "read_committed")
    assert (take(follower), follower.positions[ONE]) == ([], 2)
    log.commit("one")
    assert take(follower) == [b"b"]


def test_what_was_placed_anew_or_dropped_is_no_longer_read_from_before(log: MemoryLog) -> None:
    fill(log, 0, b"a", b"b", b"c")
    fill(log, 1, b"x")
    follower = follow(log, {ONE: 0, TWO: 0})
    assert take(follower, 1) == [b"a"]
    follower.place({ONE: 2})
    follower.drop([TWO])
    assert (take(follower), dict(follower.positions)) == ([b"c"], {ONE: 3})


def test_records_before_a_loss_come_first(log: MemoryLog) -> None:
    fill(log, 0, b"a")
    fill(log, 1, b"x", b"y", b"z")
    follower = follow(log, {ONE: 0, TWO: 1})
    log.truncate_before("t", 1, 2)
    assert take(follower) == [b"a"]
    with pytest.raises(DataLossError) as lost:
        follower.take(10)
    assert (lost.value.condition, lost.value.facts["partition"]) == ("OFFSET_OUT_OF_RANGE", 1)
    assert lost.value.hint.startswith("Begin again in the log that is there now")  # not an option of a stream
    follower.place({TWO: 2})
    assert take(follower) == [b"z"]


def test_a_log_that_was_cut_back_and_written_anew_is_noticed(log: MemoryLog) -> None:
    """Its end is past the position again, so comparing numbers does not reveal it."""
    fill(log, 0, b"a", b"b", b"c")
    follower = follow(log, {ONE: 0})
    assert len(take(follower)) == 3
    log.move_leader("t", 0)
    assert take(follower) == []  # an election that loses nothing
    log.truncate_after("t", 0, 1)
    fill(log, 0, b"B", b"C", b"D")
    with pytest.raises(DataLossError) as lost:
        follower.take(10)
    assert (lost.value.condition, lost.value.facts["log_end"]) == ("LOG_TRUNCATED", 1)
    follower.place({ONE: 1})
    assert take(follower) == [b"B", b"C", b"D"]


def test_a_position_that_was_reached_under_an_older_leader_is_checked(log: MemoryLog) -> None:
    """A commit contains its epoch, so what happened to the log while nobody followed it is noticed too."""
    fill(log, 0, b"a", b"b")
    log.truncate_after("t", 0, 1)
    fill(log, 0, b"B", b"C")
    settings = ClientSettings((("127.0.0.1", 1),))
    follower = TopicTail(log.view(), log.reader(), settings, {})
    follower.place({ONE: 2}, {ONE: 0})
    with pytest.raises(DataLossError) as lost:
        follower.take(10)
    assert lost.value.condition == "LOG_TRUNCATED"


def test_a_topic_that_was_made_anew_is_noticed(log: MemoryLog) -> None:
    fill(log, 0, b"a")
    follower = follow(log, {ONE: 0})
    assert take(follower) == [b"a"]
    log.delete_topic("t")
    log.create_topic("t", 2)
    fill(log, 0, b"other")  # it ends where the old one was read to: a fetch would not show it
    with pytest.raises(DataLossError) as lost:
        follower.take(10)
    assert lost.value.condition == "TOPIC_RECREATED"
    follower.place({ONE: 0})
    assert take(follower) == [b"other"]
