"""The contents of a report as plain values, and how they are read from the tables of the pipeline.

Rule: reading is bounded, however long a stream has run: the load of up to two hours by seconds, or of a month
by minutes, and the latest decisions and alerts. Texts are returned unchanged; the code that shows them makes
them harmless. A report can also be made without a database: fill `ReportData` by hand.

>>> Load(0.0, 1.0, 5, 100, (0, 5, 0, 0, 0), 0).requests
5
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from penstock.apps.accesslog.blocking.blocklists import Ban, Gate, read_bans
from penstock.apps.accesslog.monitoring.minute_tables import ALL
from penstock.apps.accesslog.monitoring.top_lists import KINDS, SERVER_KIND
from penstock.apps.accesslog.stream import table_names as tables
from penstock.core.errors import OffsetStoreError
from penstock.core.options.storage_addresses import Place
from penstock.stores.sql.connections.sql_sessions import Database, Session

_STATUS = tuple(f"status_{group}xx" for group in range(1, 6))
_MOST_SECONDS_S = 2 * 3_600
_MOST_MINUTES = 31 * 24 * 60
_MOST_DECISIONS, _MOST_ALERTS, _MOST_TEXTS = 50_000, 500, 10


@dataclass(frozen=True, slots=True)
class Load:
    """What all servers did together in a stretch of time."""

    begin_s: float
    length_s: float
    requests: int
    bytes: int
    status: tuple[int, int, int, int, int]
    errors: int
    peak: int = 0  # requests in its busiest second; 0: not known


@dataclass(frozen=True, slots=True)
class MinuteSummary:
    """The facts that are known only for a minute as a whole."""

    begin_s: float
    clients: int
    p50_us: int | None = None
    p95_us: int | None = None
    p99_us: int | None = None


@dataclass(frozen=True, slots=True)
class TopText:
    text: str
    hits: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision of the defence; `request_index` 1 is the subject's first line.

    `client` is the client that it concerns, even if a network or a fingerprint was counted. If it is empty,
    that is the subject.
    """

    at_s: float
    subject: str
    kind: str
    rule: str
    of_class: str
    action: str
    score: float
    until_s: float | None
    request_index: int
    client: str = ""

    @property
    def who(self) -> str:
        return self.client or self.subject


@dataclass(frozen=True, slots=True)
class ReportedScore:
    """How well the defence did on one class of attackers, where the truth is known."""

    of_class: str
    attackers: int
    found: int
    requests_to_detect: float | None
    seconds_to_detect: float | None
    blocked_share: float | None


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was checked."""

    what: str
    is_good: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ReportData:
    """Everything a report shows. Empty parts are left out."""

    title: str = "Access logs"
    source: str = ""
    made_at: datetime | None = None
    load: Sequence[Load] = ()
    minutes: Sequence[MinuteSummary] = ()
    servers: Sequence[TopText] = ()
    tops: dict[str, Sequence[TopText]] = field(default_factory=dict)
    alerts: Sequence[dict[str, Any]] = ()
    decisions: Sequence[Decided] = ()
    scores: Sequence[ReportedScore] = ()
    blocked_now: int | None = None  # entries of the list at `made_at`
    bans: Sequence[Ban] | None = None  # these entries; None: not read
    benign_hit: int | None = None
    blocked_share: float | None = None
    checks: Sequence[Check] = ()


def find_period(data: ReportData) -> tuple[float, float] | None:
    """Return the time that a report covers: from the first second with a line to the last line or decision.

    Decisions are a little ahead of the load, which waits for the slowest server.
    """
    ends = [each.begin_s + each.length_s for each in data.load[-1:]]
    ends += [each.at_s + 1 for each in data.decisions[-1:]]
    begins = [each.begin_s for each in data.load[:1]] or [each.at_s for each in data.decisions[:1]]
    return (begins[0], max(ends)) if begins else None


def cut_to_period(data: ReportData) -> ReportData:
    """Return the same report without what lies outside its time."""
    period = find_period(data)
    if period is None:
        return data
    begin, end = period
    return replace(
        data,
        minutes=[each for each in data.minutes if begin < each.begin_s + 60 and each.begin_s < end],
        decisions=[each for each in data.decisions if each.at_s >= begin],
        alerts=[
            each
            for each in data.alerts
            if each["closed_at"] is None or each["closed_at"].timestamp() >= begin
        ],
    )


def read_report(place: Place, *, made_at: datetime, title: str = "Access logs") -> ReportData:
    """Return the contents of a report, read from all tables of a pipeline at one moment."""
    return Database(place).run(lambda session: _read(session, made_at, title))


def _read(session: Session, made_at: datetime, title: str) -> ReportData:
    if not session.has_table(tables.MINUTES):
        raise OffsetStoreError(
            "TABLES_NOT_FOUND",
            f"There are no tables of the access-log application at {session.place}.",
            hint="Give the database that `penstock accesslog run` writes to.",
        )
    minutes, load = _read_minutes(session)
    if load and load[-1].begin_s + 60 - load[0].begin_s <= _MOST_SECONDS_S:
        load = _read_seconds(session, load[0].begin_s)
    decisions = _read_decisions(session) if session.has_table(tables.DECISIONS) else []
    bans = _list_blocked(session, made_at) if session.has_table(tables.DECISIONS) else None
    return ReportData(
        title=title,
        source=str(session.place),
        made_at=made_at,
        load=load,
        minutes=minutes,
        servers=_read_texts(session, SERVER_KIND),
        tops={kind: _read_texts(session, kind) for kind in KINDS},
        alerts=_read_alerts(session) if session.has_table(tables.ALERTS) else [],
        decisions=decisions,
        blocked_now=None if bans is None else len(bans),
        bans=bans,
        checks=_check(session),
    )


def _select(session: Session, table: str, *columns: str) -> str:
    name = session.grammar.name
    return f"SELECT {', '.join(map(name, columns))} FROM {name(table)}"


def _read_minutes(session: Session) -> tuple[list[MinuteSummary], list[Load]]:
    name, mark = session.grammar.name, session.grammar.mark
    columns = ("requests", "bytes", *_STATUS, "errors", "rate_max", "unique_clients")
    latencies = ("latency_p50_us", "latency_p95_us", "latency_p99_us")
    query = _select(session, tables.MINUTES, "minute", *columns, *latencies)
    query += f" WHERE {name('server')} = {mark} ORDER BY {name('minute')} DESC LIMIT {mark}"
    minutes, load = [], []
    for moment, *numbers in reversed(session.execute(query, [ALL, _MOST_MINUTES])):
        begin = to_seconds(moment)
        requests, sent, first, second, third, fourth, fifth, errors, peak, clients = map(int, numbers[:10])
        minutes.append(
            MinuteSummary(begin, clients, *(None if each is None else int(each) for each in numbers[10:]))
        )
        status = (first, second, third, fourth, fifth)
        load.append(Load(begin, 60.0, requests, sent, status, errors, peak))
    return minutes, load


def _read_seconds(session: Session, since_s: float) -> list[Load]:
    name, mark = session.grammar.name, session.grammar.mark
    sums = ", ".join(f"SUM({name(each)})" for each in ("requests", "bytes", *_STATUS, "errors"))
    since = datetime.fromtimestamp(since_s, UTC).replace(tzinfo=None)
    # SQLite keeps times as texts that sort in the same order; PostgreSQL needs the zone.
    begin: object = since.isoformat(" ") if session.dialect == "sqlite" else since
    if session.dialect == "postgresql":
        begin = since.replace(tzinfo=UTC)
    query = f"SELECT {name('second')}, {sums} FROM {name(tables.SECONDS)} WHERE {name('second')} >= {mark}"
    query += f" GROUP BY {name('second')} ORDER BY {name('second')}"
    load = []
    for moment, *numbers in session.execute(query, [begin]):
        requests, sent, first, second, third, fourth, fifth, errors = map(int, numbers)
        status = (first, second, third, fourth, fifth)
        load.append(Load(to_seconds(moment), 1.0, requests, sent, status, errors, requests))
    return load


def _read_texts(session: Session, kind: str) -> list[TopText]:
    """Return the most frequent texts over all minutes; each minute counts only its own first ten."""
    name, mark = session.grammar.name, session.grammar.mark
    query = f"SELECT {name('text')}, SUM({name('hits')}), SUM({name('bytes')}) FROM {name(tables.TOPS)}"
    query += f" WHERE {name('server')} = {mark} AND {name('kind')} = {mark} GROUP BY {name('text')}"
    query += f" ORDER BY 2 DESC, 1 LIMIT {mark}"
    rows = session.execute(query, [ALL, kind, _MOST_TEXTS])
    return [TopText(str(text), int(hits), int(sent)) for text, hits, sent in rows]


def _read_alerts(session: Session) -> list[dict[str, Any]]:
    columns = (
        "alert_id",
        "kind",
        "server",
        "opened_at",
        "closed_at",
        "value",
        "expected",
        "peak",
        "new_level",
    )
    name, mark = session.grammar.name, session.grammar.mark
    order = f"{name('opened_at')} DESC, {name('alert_id')}"
    query = f"{_select(session, tables.ALERTS, *columns)} ORDER BY {order} LIMIT {mark}"
    alerts = [dict(zip(columns, row, strict=True)) for row in session.execute(query, [_MOST_ALERTS])]
    for each in alerts:
        for column in ("opened_at", "closed_at"):
            if each[column] is not None:
                each[column] = datetime.fromtimestamp(to_seconds(each[column]), UTC)
        each["new_level"] = bool(each["new_level"])
    return alerts[::-1]


def _read_decisions(session: Session) -> list[Decided]:
    columns = ("decided_at", "subject", "kind", "rule", "class", "action", "score", "expires_at")
    name, mark = session.grammar.name, session.grammar.mark
    query = _select(session, tables.DECISIONS, *columns, "request_index", "client")
    query += f" ORDER BY {name('decided_at')} DESC, {name('decision_id')} LIMIT {mark}"
    decisions = []
    for at, subject, kind, rule, of_class, action, score, until, index, client in session.execute(
        query, [_MOST_DECISIONS]
    ):
        ends = None if until is None else int(until) / 1e6
        about = (subject, kind, rule, of_class, action, float(score), ends, int(index), client or "")
        decisions.append(Decided(int(at) / 1e6, *about))
    return decisions[::-1]


def _list_blocked(session: Session, at: datetime) -> list[Ban]:
    """Return the entries of a blocklist at this time. Allow lists of other programs are unknown here."""
    gate = Gate.of(
        trust_crawlers=_read_setting(session, "trust_crawlers") != "false",
        block_private=_read_setting(session, "block_private") == "true",
    )
    return gate.apply(read_bans(session, now_us=round(at.timestamp() * 1e6)))


def _read_setting(session: Session, name: str) -> str | None:
    """Return what the pipeline has stored under this name; None if it has stored nothing."""
    if not session.has_table(tables.SETTINGS):
        return None
    column, mark = session.grammar.name("name"), session.grammar.mark
    rows = session.execute(f"{_select(session, tables.SETTINGS, 'value')} WHERE {column} = {mark}", [name])
    return str(rows[0][0]) if rows else None


def _check(session: Session) -> list[Check]:
    """Return whether every line is accounted for."""
    if not session.has_table(tables.COUNTS):
        return []
    name = session.grammar.name
    sums = ", ".join(f"COALESCE(SUM({name(each)}), 0)" for each in ("lines", "parsed", "dead"))
    lines, parsed, dead = map(int, session.execute(f"SELECT {sums} FROM {name(tables.COUNTS)}")[0])
    query = f"SELECT COALESCE(SUM({name('requests')}), 0) FROM {name(tables.SECONDS)}"
    counted = int(session.execute(query)[0][0])
    late = int(_read_setting(session, "too_late") or 0)
    return [
        Check(
            "Every line was parsed or kept as a dead letter",
            lines == parsed + dead,
            f"{lines:,} lines = {parsed:,} parsed + {dead:,} dead letters",
        ),
        Check(
            "Every parsed line is in its second or came too late for it",
            parsed == counted + late,
            f"{parsed:,} parsed = {counted:,} in their seconds + {late:,} that are in no table of the load",
        ),
    ]


def to_seconds(moment: datetime | str | int | float) -> float:
    """Return any database's time as seconds since 1970. A number is microseconds; without a zone, UTC."""
    if isinstance(moment, int | float):
        return moment / 1e6
    found = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
