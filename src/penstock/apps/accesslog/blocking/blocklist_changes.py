"""The history of the blocklist: each change has a number, so an enforcer can ask for what is new to it.

Rule: the list and its changes are in the same database as the decisions, and one transaction updates both.
The changes, applied in order, give the list at every step. A ban that expires is also a change, although
nobody decided anything. So is a ban that was prolonged or undone.

Cursors only rise, even if the database is created again: the number of a step is the time in milliseconds, or
one more than the last number. A request with an unknown cursor (0, too old, from a database that is gone)
gets the whole list, and the answer says so.

    listed = advance(place, now_us=now_us)               # after each commit, and when somebody asks
    delta = listed.since(cursor, gate)                   # added, removed, cursor
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.apps.accesslog.blocking.blocklists import Ban, Gate, demand_decisions, read_bans
from penstock.apps.accesslog.events.networks import Network, parse_network
from penstock.core.options.storage_addresses import Place
from penstock.stores.sql.connections.sql_sessions import Database, Session
from penstock.stores.sql.connections.versioned_tables import TableSet, ensure_tables, read_version

LISTED = "accesslog_blocklist"
CHANGES = "accesslog_blocklist_changes"
CURSOR = "accesslog_blocklist_cursor"
#: How many changes are kept; an enforcer that was away for longer gets the whole list.
KEPT_CHANGES = 200_000

_LISTED_COLUMNS = ("network", "expires_at", "decision_id", "rule", "attack")
_CHANGE_COLUMNS = ("cursor_number", "network", "expires_at", "was_expires_at")


@dataclass(frozen=True, slots=True)
class Delta:
    """What an enforcer must do: add (or prolong) `added`, then remove `removed`.

    If `is_complete`, `added` replaces the whole list.
    """

    cursor: int
    added: tuple[Ban, ...]
    removed: tuple[Network, ...]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class Listed:
    """The blocklist at one moment, which `cursor` identifies. Made by `advance`."""

    place: Place
    cursor: int
    bans: tuple[Ban, ...]

    def since(self, cursor: int, gate: Gate) -> Delta:
        """Return what has changed since a cursor, or the whole list if that cursor is unknown."""
        if cursor == self.cursor:
            return Delta(self.cursor, (), (), False)
        now = gate.apply(self.bans)
        before = Database(self.place).run(
            lambda session: _rewind(session, self.bans, since=cursor, until=self.cursor)
        )
        if before is None:
            return Delta(self.cursor, tuple(now), (), True)
        old = {ban.network: ban.expires_at_us for ban in gate.apply(before)}
        kept = {ban.network for ban in now}
        return Delta(
            self.cursor,
            tuple(ban for ban in now if old.get(ban.network) != ban.expires_at_us),
            tuple(sorted(network for network in old if network not in kept)),
            False,
        )


def advance(place: Place, *, now_us: int, known: Listed | None = None) -> Listed:
    """Store all changes up to this moment and return the list. Any process may call it.

    `known` is an earlier result. While the stored list is still the same, it need not be read again.
    """
    database = Database(place)
    found = database.run(lambda session: _find_changes(session, now_us, known))
    if found is not None and found.is_listed:
        # The usual case: nothing is written, and no lock is taken.
        return Listed(place, found.cursor, found.bans)
    return database.run(lambda session: _advance(session, place, now_us, found), writes=True)


def read_next_end(listed: Listed) -> int | None:
    """Return when the next ban of the list expires; None if the list is empty."""
    return min((ban.expires_at_us for ban in listed.bans), default=None)


# --- one step ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Found:
    """The bans in force now, and the list as it is stored, with its cursor."""

    cursor: int
    bans: tuple[Ban, ...]
    listed: tuple[Ban, ...]

    @property
    def is_listed(self) -> bool:
        return self.cursor > 0 and self.bans == self.listed


def _find_changes(session: Session, now_us: int, known: Listed | None) -> _Found | None:
    """Return the bans in force now and the stored list; None if there are no tables yet."""
    if read_version(session, _TABLES) is None:
        demand_decisions(session)
        return None
    cursor, _ = _read_cursor(session, hold=False)
    bans = tuple(read_bans(session, now_us=now_us))
    if known is not None and known.cursor == cursor:
        return _Found(cursor, bans, known.bans)
    return _Found(cursor, bans, tuple(_read_listed(session)))


def _advance(session: Session, place: Place, now_us: int, found: _Found | None) -> Listed:
    ensure_tables(session, _TABLES)
    cursor, floor = _read_cursor(session, hold=True)
    if found is None or found.cursor != cursor:
        # Another process has changed the list since it was read.
        found = _Found(cursor, tuple(read_bans(session, now_us=now_us)), tuple(_read_listed(session)))
    if found.is_listed:
        return Listed(place, cursor, found.bans)
    listed, now = {*found.listed}, {*found.bans}
    old = {ban.network: ban for ban in listed - now}
    new = {ban.network: ban for ban in now - listed}
    changed = sorted(old.keys() | new.keys())
    cursor = max(cursor + 1, now_us // 1000)
    _write_step(session, cursor, floor or cursor - 1, changed, old, new)
    return Listed(place, cursor, found.bans)


def _write_step(
    session: Session,
    cursor: int,
    floor: int,
    changed: Sequence[Network],
    old: Mapping[Network, Ban],
    new: Mapping[Network, Ban],
) -> None:
    mark, insert = session.grammar.mark, session.grammar.insert
    session.execute_many(
        f"DELETE FROM {LISTED} WHERE network = {mark}", [(str(each),) for each in changed if each in old]
    )
    session.execute_many(
        insert(LISTED, _LISTED_COLUMNS),
        [(str(each), *new[each][1:]) for each in changed if each in new],
    )
    session.execute_many(
        insert(CHANGES, _CHANGE_COLUMNS),
        [(cursor, str(each), _end_of(new.get(each)), _end_of(old.get(each))) for each in changed],
    )
    [[kept]] = session.execute(f"SELECT COUNT(*) FROM {CHANGES}")
    if kept > KEPT_CHANGES:
        # Delete whole steps only: half of one would give a list that never existed.
        [[middle]] = session.execute(
            f"SELECT cursor_number FROM {CHANGES} ORDER BY cursor_number LIMIT 1 OFFSET {kept // 2}"
        )
        floor = max(floor, int(middle))
        session.execute(f"DELETE FROM {CHANGES} WHERE cursor_number <= {mark}", [floor])
    session.execute(f"UPDATE {CURSOR} SET cursor_number = {mark}, floor_number = {mark}", [cursor, floor])


def _end_of(ban: Ban | None) -> int:
    """Return when a ban ends; 0 if there is none, since no ban ends in 1970."""
    return ban.expires_at_us if ban is not None else 0


def _rewind(session: Session, bans: Sequence[Ban], *, since: int, until: int) -> list[Ban] | None:
    """Return the list as it was at a cursor; None if that cursor is unknown."""
    mark = session.grammar.mark
    _, floor = _read_cursor(session, hold=False)
    if not floor <= since <= until:
        return None
    rows = session.execute(
        f"SELECT network, was_expires_at FROM {CHANGES} WHERE cursor_number > {mark} "
        f"AND cursor_number <= {mark} ORDER BY cursor_number DESC",
        [since, until],
    )
    was = {_read_network(network): int(ends) for network, ends in rows}  # the oldest change counts
    kept = [ban for ban in bans if ban.network not in was]
    return kept + [Ban(network, ends, "", "", "") for network, ends in was.items() if ends]


# --- tables -----------------------------------------------------------------------------------------------


def _read_cursor(session: Session, *, hold: bool) -> tuple[int, int]:
    lock = " FOR UPDATE" if hold and session.dialect != "sqlite" else ""
    [[cursor, floor]] = session.execute(f"SELECT cursor_number, floor_number FROM {CURSOR}{lock}")
    return int(cursor), int(floor)


def _read_listed(session: Session) -> list[Ban]:
    rows = session.execute(f"SELECT {', '.join(_LISTED_COLUMNS)} FROM {LISTED}")
    return sorted(Ban(_read_network(network), int(ends), *words) for network, ends, *words in rows)


def _read_network(text: str) -> Network:
    network = parse_network(text)
    assert network is not None, "only networks are written there"
    return network


def _make_tables(session: Session) -> None:
    text, end = session.grammar.key_text, session.grammar.table_end
    for table, columns, key in (
        (
            LISTED,
            f"network {text} NOT NULL, expires_at BIGINT NOT NULL, decision_id TEXT NOT NULL, "
            "rule TEXT NOT NULL, attack TEXT NOT NULL",
            "network",
        ),
        (
            CHANGES,
            f"cursor_number BIGINT NOT NULL, network {text} NOT NULL, expires_at BIGINT NOT NULL, "
            "was_expires_at BIGINT NOT NULL",
            "cursor_number, network",
        ),
        (CURSOR, "id BIGINT NOT NULL, cursor_number BIGINT NOT NULL, floor_number BIGINT NOT NULL", "id"),
    ):
        session.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns}, PRIMARY KEY ({key})){end}")
    if not session.execute(f"SELECT id FROM {CURSOR}"):
        session.execute(f"INSERT INTO {CURSOR} (id, cursor_number, floor_number) VALUES (1, 0, 0)")


_TABLES = TableSet("accesslog blocklist", 1, _make_tables, "blocklist", "BLOCKLIST_TOO_NEW")
