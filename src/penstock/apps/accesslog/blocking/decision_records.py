"""Reads decisions from the database, for operators who ask why a client is blocked.

Rule: everything in a decision that came from a log line is untrusted text. It is returned unchanged. The code
that shows it must escape it for the place where it is shown.

    for each in Database(place).run(lambda session: read_decisions(session, client="192.0.2.7")): ...
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.apps.accesslog.blocking.blocklist_formats import show_time
from penstock.apps.accesslog.blocking.blocklists import demand_decisions
from penstock.apps.accesslog.events.networks import parse_network
from penstock.apps.accesslog.events.subjects import find_client
from penstock.apps.accesslog.stream.table_names import DECISIONS
from penstock.stores.sql.connections.sql_sessions import Session

COLUMNS = (
    *("decision_id", "subject", "kind", "client", "decided_at", "rule", "class", "action", "score"),
    *("ban_seconds", "expires_at", "level", "server", "partition", "offset", "request_index", "evidence"),
)
#: Columns that hold times, in microseconds since 1970.
MOMENTS = ("decided_at", "expires_at")
_SCANNED_AT_ONCE = 100_000
_IDS_AT_ONCE = 500

Decision = dict[str, Any]


def read_decision(session: Session, decision_id: str) -> Decision | None:
    """Return one decision by its id."""
    demand_decisions(session)
    name, mark = session.grammar.name, session.grammar.mark
    rows = session.execute(f"{_select(session)} WHERE {name('decision_id')} = {mark}", [decision_id])
    return _read(rows[0]) if rows else None


def read_decisions(
    session: Session, *, client: str | None = None, since_us: int = 0, limit: int = 100
) -> list[Decision]:
    """Return the latest decisions, newest first.

    If `client` is an address or a network, they are those about clients and networks that overlap it.
    """
    demand_decisions(session)
    name, mark = session.grammar.name, session.grammar.mark
    where = f"WHERE {name('decided_at')} >= {mark}"
    order = f"ORDER BY {name('decided_at')} DESC, {name('decision_id')} LIMIT {mark}"
    values: list[object] = [since_us]
    wanted = parse_network(client) if client is not None else None
    if wanted is None:
        if client is not None:
            where += f" AND ({name('client')} = {mark} OR {name('subject')} = {mark})"
            values += [client, client]
        return [
            _read(row) for row in session.execute(f"{_select(session)} {where} {order}", [*values, limit])
        ]
    # Databases differ in how they compare networks, so the subjects are compared here. Only the rows that
    # match are then read in full.
    subjects = ", ".join(map(name, ("decision_id", "subject", "client")))
    pairs = session.execute(
        f"SELECT {subjects} FROM {name(DECISIONS)} {where} {order}", [*values, _SCANNED_AT_ONCE]
    )
    chosen = []
    for decision_id, *texts in pairs:
        networks = [parse_network(text or "") for text in texts]
        if any(each is not None and each.overlaps(wanted) for each in networks):
            chosen.append(decision_id)
    found: list[Decision] = []
    for at in range(0, min(len(chosen), limit), _IDS_AT_ONCE):
        ids = chosen[at : min(at + _IDS_AT_ONCE, limit)]
        which = f"WHERE {name('decision_id')} IN ({session.grammar.marks(len(ids))})"
        found += [_read(row) for row in session.execute(f"{_select(session)} {which}", ids)]
    place_of = {decision_id: number for number, decision_id in enumerate(chosen)}
    return sorted(found, key=lambda each: place_of[each["decision_id"]])


def relate(decision: Decision, asked: str) -> str:
    """Return how a decision relates to the client or network that was asked for.

    `itself` means that the decision is about exactly that client or network. `its network` means a wider one,
    and `inside it` means a part of the network that was asked for. `a neighbour` is another client of the
    same network: the clients were counted together, and only the neighbour is blocked.

    >>> decision = {"kind": "net", "subject": "192.0.2.0/24", "client": "192.0.2.9"}
    >>> [relate(decision, each) for each in ("192.0.2.9", "192.0.2.7", "192.0.2.0/24")]
    ['itself', 'a neighbour', 'inside it']
    """
    wanted = parse_network(asked)
    about = parse_network(str(decision["client"] or decision["subject"] or ""))
    if wanted is None or about is None or about in (wanted, find_client(wanted)):
        return "itself"
    if about.contains(wanted):
        return "its network"
    return "inside it" if wanted.contains(about) else "a neighbour"


def read_unsent(session: Session, sent: str, *, topic: str, limit: int) -> list[Decision]:
    """Return decisions that the table `sent` does not list for this topic, oldest first."""
    demand_decisions(session)
    name, mark = session.grammar.name, session.grammar.mark
    decision_id, table = name("decision_id"), name(DECISIONS)
    rows = session.execute(
        f"{_select(session)} WHERE NOT EXISTS (SELECT 1 FROM {sent} WHERE {sent}.topic = {mark} "
        f"AND {sent}.decision_id = {table}.{decision_id}) "
        f"ORDER BY {name('decided_at')}, {decision_id} LIMIT {mark}",
        [topic, limit],
    )
    return [_read(row) for row in rows]


def make_decisions(rows: pa.Table) -> list[Decision]:
    """Return the rows of a table of decisions as decisions."""
    return [_read(tuple(row.values())) for row in rows.select(list(COLUMNS)).to_pylist()]


def show_moments(decision: Decision) -> Decision:
    """Return the decision with its times as ISO text, and in microseconds under names that end in `_us`.

    >>> show_moments({"decided_at": 1_700_000_000_250_000, "expires_at": None})
    {'decided_at': '2023-11-14T22:13:20Z', 'decided_at_us': 1700000000250000, 'expires_at': None, \
'expires_at_us': None}
    """
    shown: Decision = {}
    for name, value in decision.items():
        if name in MOMENTS:
            shown |= {name: None if value is None else show_time(value), f"{name}_us": value}
        else:
            shown[name] = value
    return shown


def describe_line(line: Any) -> str:
    """Return a line of evidence in words. The text is untrusted: escape it where you show it.

    >>> describe_line({"offset": 7, "request": "", "agent": "curl/8.0"})
    'agent: curl/8.0'
    """
    if not isinstance(line, dict):
        return str(line)
    request, agent = str(line.get("request") or ""), str(line.get("agent") or "")
    known = [*([request] if request else []), *([f"agent: {agent}"] if agent else [])]
    return "  ".join(known) or "(only the place of this line is kept)"


def _select(session: Session) -> str:
    name = session.grammar.name
    return f"SELECT {', '.join(map(name, COLUMNS))} FROM {name(DECISIONS)}"


def _read(row: Sequence[Any]) -> Decision:
    decision = dict(zip(COLUMNS, row, strict=True))
    decision["evidence"] = _read_evidence(decision["evidence"])
    return decision


def _read_evidence(text: Any) -> list[Any]:
    """Return the lines that caused a decision; evidence that is not JSON is returned as one text."""
    if not text:
        return []
    try:
        lines = json.loads(text)
    except (ValueError, RecursionError):
        return [str(text)]
    return lines if isinstance(lines, list) else [lines]
