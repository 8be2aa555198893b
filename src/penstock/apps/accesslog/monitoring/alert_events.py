"""Turns alert rows into events that carry a readable sentence, and writes them to the log.

Rules: an alert has two events, `opened` and `closed`, whose ids depend only on the alert, so a receiver
recognises an event that comes twice. An event is written as one line, whatever texts it contains.

>>> row = {"alert_id": "4f", "kind": "rate_spike", "server": "www", "closed_at": None, "new_level": False}
>>> row |= {"opened_at": datetime(2026, 1, 2, tzinfo=UTC), "value": 90.0, "expected": 30.0, "peak": 90.0}
>>> print(write_line(list_events([row])[0]))
2026-01-02T00:00:00Z opened rate_spike server="www" id=4f-opened "www: 90 requests/s, usually 30"
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from penstock.core.loggers import get_logger

_LOG = get_logger("penstock.accesslog.alerts")


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """The opening or the closing of an alert."""

    event_id: str
    what: str  # opened or closed
    alert_id: str
    kind: str
    server: str
    opened_at: datetime
    closed_at: datetime | None
    value: float
    expected: float
    peak: float
    text: str

    @property
    def at(self) -> datetime:
        return self.closed_at or self.opened_at


def list_events(rows: Iterable[Mapping[str, Any]]) -> list[AlertEvent]:
    """Return the events of alert rows, ordered by time. A closed alert has both events."""
    events = []
    for row in rows:
        events.append(_make_event(row, "opened"))
        if row["closed_at"] is not None:
            events.append(_make_event(row, "closed"))
    return sorted(events, key=lambda each: (each.at, each.what == "closed", each.event_id))


def _make_event(row: Mapping[str, Any], what: str) -> AlertEvent:
    opened = what == "opened"
    return AlertEvent(
        event_id=f"{row['alert_id']}-{what}",
        what=what,
        alert_id=row["alert_id"],
        kind=row["kind"],
        server=row["server"],
        opened_at=_to_utc(row["opened_at"]),
        closed_at=None if opened else _to_utc(row["closed_at"]),
        value=row["value"],
        expected=row["expected"],
        peak=row["value"] if opened else row["peak"],
        text=describe(row, closed=not opened),
    )


def describe(row: Mapping[str, Any], *, closed: bool) -> str:
    """Return a sentence about an alert's opening, or with `closed` about its end."""
    name = "all servers" if row["server"] == "*" else row["server"] or "the server"
    if not closed:
        return (
            f"{name}: {_amount(row['kind'], row['value'])}, usually {_number(row['kind'], row['expected'])}"
        )
    lasted = _to_utc(row["closed_at"]) - _to_utc(row["opened_at"])
    over = "stays and is the new normal" if row["new_level"] else "is over"
    peak = _amount(row["kind"], row["peak"])
    return f"{name}: it {over} after {round(lasted.total_seconds())} s, furthest off: {peak}"


def _amount(kind: str, value: float) -> str:
    unit = {"error_jump": " errors", "latency_jump": " to answer"}.get(kind, " requests/s")
    return _number(kind, value) + unit


def _number(kind: str, value: float) -> str:
    if kind == "error_jump":
        return f"{value:.1%}"
    if kind == "latency_jump":
        return f"{value / 1000:,.0f} ms" if value < 10e6 else f"{value / 1e6:,.1f} s"
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.1f}"


def _to_utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def write_time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%SZ")


# --- log lines ---------------------------------------------------------------------------------------------


def write_line(event: AlertEvent) -> str:
    """Return an event as one line. Texts are quoted as in ASCII JSON, so no name can break or fake a line."""
    return (
        f"{write_time(event.at)} {event.what} {event.kind} server={json.dumps(event.server)}"
        f" id={event.event_id} {json.dumps(event.text)}"
    )


def log_events(events: Iterable[AlertEvent]) -> None:
    """Log one line for each event, a warning for each alert that has opened."""
    for event in events:
        _LOG.log(logging.WARNING if event.what == "opened" else logging.INFO, "%s", write_line(event))
