"""Which session waits for a lock on a whole table: MySQL's own conflict tables, and no innocent session."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from penstock.core.diagnosis.lock_waits import MetadataLock, find_roots, pair_metadata_locks

TABLE = ("TABLE", "shop", "visits")
READS = MetadataLock(6, TABLE, "SHARED_READ", True)
WRITES = MetadataLock(5, TABLE, "SHARED_WRITE", True)


def test_sessions_wait_for_who_has_locked_a_table_and_behind_who_wants_to() -> None:
    table, server = ("TABLE", "shop", "visits"), ("GLOBAL", "None", "None")
    locked = MetadataLock(6, table, "SHARED_NO_READ_WRITE", True)
    reads, writes = MetadataLock(5, table, "SHARED_READ", True), MetadataLock(7, table, "SHARED_WRITE", False)
    alters = MetadataLock(8, table, "EXCLUSIVE", False)
    elsewhere = MetadataLock(9, ("TABLE", "shop", "other"), "EXCLUSIVE", True)
    assert pair_metadata_locks([locked, writes, elsewhere]) == [(7, 6)]
    assert pair_metadata_locks([reads, writes, alters]) == [(7, 8), (8, 5)]
    assert pair_metadata_locks([reads, writes]) == []
    upgraded = [MetadataLock(8, table, "SHARED_UPGRADABLE", True), alters, reads]
    assert pair_metadata_locks(upgraded) == [(8, 5)]  # nobody waits for itself
    flushed = MetadataLock(6, server, "SHARED", True)
    starts = MetadataLock(7, server, "INTENTION_EXCLUSIVE", False)
    assert pair_metadata_locks([flushed, starts]) == [(7, 6)]
    assert pair_metadata_locks([replace(starts, session=5, is_granted=True), starts]) == []
    assert pair_metadata_locks([replace(alters, session=4), alters]) == []  # two that queue block no one


@pytest.mark.parametrize("kind", ["SHARED_READ_ONLY", "SHARED_NO_WRITE"])
def test_who_only_reads_does_not_stop_a_lock_that_lets_others_read(kind: str) -> None:
    """LOCK TABLES ... READ, and an ALTER TABLE that copies, wait for the writer, session 5.

    The reader, session 6, does not block them, and ending its session would help nobody.
    """
    edges = pair_metadata_locks([READS, WRITES, MetadataLock(8, TABLE, kind, False)])
    assert find_roots(8, edges) == (5,)


def test_a_writer_behind_an_alter_that_copies_waits_for_the_other_writer_in_the_end() -> None:
    copies, late = (
        MetadataLock(8, TABLE, "SHARED_NO_WRITE", False),
        replace(WRITES, session=7, is_granted=False),
    )
    assert find_roots(7, pair_metadata_locks([READS, WRITES, copies, late])) == (5,)


@pytest.mark.parametrize(
    ("wanted", "granted", "conflicts"),
    [
        ("SHARED_UPGRADABLE", "SHARED_UPGRADABLE", True),  # one ALTER TABLE at a time
        ("SHARED_UPGRADABLE", "SHARED_READ_ONLY", False),
        ("SHARED_WRITE", "SHARED_READ_ONLY", True),
        ("SHARED_WRITE_LOW_PRIO", "SHARED_NO_WRITE", True),
        ("SHARED_READ", "SHARED_NO_WRITE", False),
        ("SHARED_READ", "SHARED_NO_READ_WRITE", True),
        ("SHARED_HIGH_PRIO", "SHARED_NO_READ_WRITE", False),
        ("SHARED", "EXCLUSIVE", True),
        ("SHARED", "SHARED", False),
        ("SHARED", "INTENTION_EXCLUSIVE", True),  # FLUSH TABLES WITH READ LOCK, and writers
        ("INTENTION_EXCLUSIVE", "INTENTION_EXCLUSIVE", False),
        ("EXCLUSIVE", "SHARED_HIGH_PRIO", True),
        ("BACKUP_TRANS_DML", "BACKUP_TRANS_DML", False),  # not in the table, so nobody is accused
    ],
)
def test_which_locks_exclude_each_other(wanted: str, granted: str, conflicts: bool) -> None:
    for waiter, holder in ((wanted, granted), (granted, wanted)):
        locks = [MetadataLock(1, TABLE, waiter, False), MetadataLock(2, TABLE, holder, True)]
        assert pair_metadata_locks(locks) == ([(1, 2)] if conflicts else [])


@pytest.mark.parametrize(
    ("wanted", "pending", "waits"),
    [
        ("SHARED_READ", "EXCLUSIVE", True),
        ("SHARED_HIGH_PRIO", "EXCLUSIVE", False),  # SHOW, and information_schema, do not queue
        ("SHARED_READ", "SHARED_NO_WRITE", False),
        ("SHARED_WRITE", "SHARED_READ_ONLY", False),  # a writer has priority over LOCK TABLES ... READ
        ("SHARED_READ_ONLY", "SHARED_WRITE", True),
        ("SHARED_UPGRADABLE", "SHARED_UPGRADABLE", False),
        ("INTENTION_EXCLUSIVE", "SHARED", True),
        ("SHARED", "INTENTION_EXCLUSIVE", False),
    ],
)
def test_who_goes_first_of_two_that_queue(wanted: str, pending: str, waits: bool) -> None:
    locks = [MetadataLock(1, TABLE, wanted, False), MetadataLock(2, TABLE, pending, False)]
    assert ((1, 2) in pair_metadata_locks(locks)) == waits


def test_looking_costs_no_more_than_the_locks_there_are() -> None:
    """A server has thousands of locks, and usually nobody waits; it is asked ten times a second."""
    reads: Counter[str] = Counter()

    class Counted(MetadataLock):
        def __getattribute__(self, name: str) -> Any:
            reads[name] += 1
            return super().__getattribute__(name)

    many = 200
    for is_granted in (True, False):
        reads.clear()
        locks = [Counted(each, ("TABLE", "s", str(each)), "SHARED_READ", is_granted) for each in range(many)]
        assert pair_metadata_locks(locks) == []
        assert max(reads.values()) <= 5 * many, reads
