"""Finds who blocks whom in a database: from pairs of sessions to those that hold up all others.

Rule: a session that is named waits for no other. Sessions queue: a request for a locked row waits behind
others that wait for it, too, and the session that holds the row may itself wait for another lock. The next
one in the queue is a victim, and ending it does not help. Nor does every lock on the same table block: which
locks are compatible comes from the server's own table, and is not guessed from their names.

>>> find_roots(7, [(7, 5), (5, 3), (9, 3)])
(3,)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockingSession:
    """A session that others wait for. What the database does not show to this user is empty or None.

    `doing` is what the server calls its state, `open_s` is how long its transaction has been open, and
    `ending` is the statement that ends the session. With `is_waiting`, it waits itself for a metadata lock
    (of LOCK TABLES or ALTER TABLE) whose holder the database does not show: it is a victim, and maybe the
    stream's own session. `tables` are those in which it holds locks, if the database shows them.
    """

    session: int
    user: str = ""
    program: str = ""
    host: str = ""
    doing: str = ""
    open_s: int | None = None
    statement: str = ""
    ending: str = ""
    is_waiting: bool = False
    tables: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return one phrase: `session 4711 (user ann, psql, from 10.0.0.7, idle in transaction, ...)`."""
        known = [
            f"user {self.user}" if self.user else "",
            self.program,
            f"from {self.host}" if self.host else "",
            self.doing,
            "" if self.open_s is None else f"its transaction open for {self.open_s} s",
            f"with locks on {', '.join(self.tables)}" if self.tables else "",
            f"its last statement: {self.statement}" if self.statement else "",
        ]
        told = ", ".join(each for each in known if each)
        return f"session {self.session} ({told or 'nothing else is known about it'})"


def find_lasting(
    first: Sequence[BlockingSession] | None, last: Sequence[BlockingSession] | None, apart_s: float
) -> tuple[BlockingSession, ...] | None:
    """Return the sessions with the same transaction open in both looks, the oldest first.

    Return None if the database does not show them. `apart_s` is the time between the looks. A transaction
    that has begun since is another one of the same session.

    >>> old, new = BlockingSession(7, open_s=70), BlockingSession(8, open_s=2)
    >>> [each.session for each in find_lasting([old, new], [new, old], 5)]
    [7]
    """
    if first is None or last is None:
        return None
    before = {each.session for each in first}
    lasting = [
        each
        for each in last
        if each.session in before and (each.open_s is None or each.open_s >= int(apart_s))
    ]
    return tuple(sorted(lasting, key=lambda each: -(each.open_s or 0)))


_ALL = (
    "INTENTION_EXCLUSIVE",
    "SHARED",
    "SHARED_HIGH_PRIO",
    "SHARED_READ",
    "SHARED_WRITE",
    "SHARED_WRITE_LOW_PRIO",
    "SHARED_UPGRADABLE",
    "SHARED_READ_ONLY",
    "SHARED_NO_WRITE",
    "SHARED_NO_READ_WRITE",
    "EXCLUSIVE",
)
_WRITES = frozenset({"SHARED_WRITE", "SHARED_WRITE_LOW_PRIO"})
_ALONE = frozenset({"SHARED_NO_READ_WRITE", "EXCLUSIVE"})
_NO_WRITES = frozenset({"SHARED_READ_ONLY", "SHARED_NO_WRITE"})
# Both mappings come from tables in MySQL's source (the strategies in sql/mdl.cc). The locks around a table
# (on a server, a database) have only three kinds, and those on a table never meet INTENTION_EXCLUSIVE, so one
# mapping for both is enough.
#: For each kind of lock, the granted kinds that it waits for.
_AFTER_GRANTED: Mapping[str, frozenset[str]] = {
    "INTENTION_EXCLUSIVE": frozenset({"SHARED", "EXCLUSIVE"}),
    "SHARED": frozenset({"INTENTION_EXCLUSIVE", "EXCLUSIVE"}),
    "SHARED_HIGH_PRIO": frozenset({"EXCLUSIVE"}),
    "SHARED_READ": _ALONE,
    "SHARED_WRITE": _ALONE | _NO_WRITES,
    "SHARED_WRITE_LOW_PRIO": _ALONE | _NO_WRITES,
    "SHARED_UPGRADABLE": _ALONE | {"SHARED_UPGRADABLE", "SHARED_NO_WRITE"},
    "SHARED_READ_ONLY": _ALONE | _WRITES,
    "SHARED_NO_WRITE": _ALONE | _WRITES | {"SHARED_UPGRADABLE", "SHARED_NO_WRITE"},
    "SHARED_NO_READ_WRITE": _ALONE | _WRITES | _NO_WRITES | {"SHARED_READ", "SHARED_UPGRADABLE"},
    "EXCLUSIVE": frozenset(_ALL),
}
#: For each kind of lock, the waiting kinds that are served first (unless max_write_lock_count is set and that
#: many were served).
_AFTER_PENDING: Mapping[str, frozenset[str]] = {
    "INTENTION_EXCLUSIVE": frozenset({"SHARED", "EXCLUSIVE"}),
    "SHARED": frozenset({"EXCLUSIVE"}),
    "SHARED_READ": _ALONE,
    "SHARED_WRITE": _ALONE | {"SHARED_NO_WRITE"},
    "SHARED_WRITE_LOW_PRIO": _ALONE | _NO_WRITES,
    "SHARED_UPGRADABLE": frozenset({"EXCLUSIVE"}),
    "SHARED_READ_ONLY": _ALONE | {"SHARED_WRITE"},
    "SHARED_NO_WRITE": frozenset({"EXCLUSIVE"}),
    "SHARED_NO_READ_WRITE": frozenset({"EXCLUSIVE"}),
}
_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class MetadataLock:
    """A session's lock on an object as a whole, or its wait for one."""

    session: int
    place: tuple[str, str, str]
    kind: str
    is_granted: bool


def pair_metadata_locks(locks: Iterable[MetadataLock]) -> list[tuple[int, int]]:
    """Return pairs of (waiting session, session it waits for).

    A session waits for those with a lock that excludes the one it wants, and behind waiting ones that are
    served first. Sessions with a compatible lock are left out, and so are kinds of lock that MySQL does not
    have: a session that is named here may be ended.

    >>> table = ("TABLE", "shop", "visits")
    >>> alter = MetadataLock(8, table, "EXCLUSIVE", False)
    >>> reader = MetadataLock(6, table, "SHARED_READ", True)
    >>> pair_metadata_locks([alter, reader, MetadataLock(7, table, "SHARED_WRITE", False)])
    [(8, 6), (7, 8)]
    """
    at: dict[tuple[str, str, str], list[MetadataLock]] = {}
    waiters: list[MetadataLock] = []
    for lock in locks:
        at.setdefault(lock.place, []).append(lock)
        if not lock.is_granted:
            waiters.append(lock)
    return [
        (waiter.session, other.session)
        for waiter in waiters
        for other in at[waiter.place]
        if waiter.session != other.session and _waits_for(waiter, other)
    ]


def _waits_for(waiter: MetadataLock, other: MetadataLock) -> bool:
    after = _AFTER_GRANTED if other.is_granted else _AFTER_PENDING
    return other.kind in after.get(waiter.kind, _NONE)


def find_roots(waiting: int, edges: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Return the sessions that `waiting` waits for in the end. Each edge is (waiting, waited for)."""
    blockers: dict[int, set[int]] = {}
    for waiter, blocker in edges:
        blockers.setdefault(waiter, set()).add(blocker)
    seen: set[int] = set()
    ahead = [waiting]
    while ahead:
        one = ahead.pop()
        if one not in seen:
            seen.add(one)
            ahead.extend(blockers.get(one, ()))
    return tuple(sorted(each for each in seen if each not in blockers and each != waiting))
