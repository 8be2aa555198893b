"""Delivers alerts from the database to a webhook: each at least once, under ids that stay the same.

Rule: the database is the source of truth, and the webhook follows it. An alert that the receiver has accepted
is noted in the same database afterwards. If the process is killed in between, the same alert is sent again
with the same id. Alerts older than the first webhook are never sent. Sending does not wait for the receiver;
`check` says afterwards whether it answers.

    with closing(AlertSender(place, Webhook("https://hooks.example/x"))) as sender:
        sender.send()      # at the start, and after each batch
        sender.check()     # raises an error if the receiver accepts nothing
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from penstock.apps.accesslog.monitoring.alert_events import AlertEvent, list_events, log_events
from penstock.apps.accesslog.monitoring.alert_webhook import Webhook, WebhookSender
from penstock.apps.accesslog.monitoring.load_merging import ALERT_ROWS
from penstock.apps.accesslog.stream.table_names import ALERTS
from penstock.core.errors import PenstockError, SinkError
from penstock.core.options.storage_addresses import Place
from penstock.stores.sql.connections.sql_sessions import Database, Session
from penstock.stores.sql.connections.versioned_tables import TableSet, ensure_tables, read_version

TOLD = "accesslog_alerts_told"


class AlertSender:
    """Sends stored alerts to a webhook. Use it from one thread; the sending itself happens in another.

    At the end it waits up to `patience_s` for alerts that are on their way.
    """

    def __init__(self, place: Place, webhook: Webhook, *, patience_s: float = 5.0) -> None:
        self._database = Database(place)
        self._webhook = webhook
        self._patience_s = patience_s
        self._offered: set[str] = set()
        self._has_more = threading.Event()
        self._is_closed = self._has_left = False

        def prepare(session: Session) -> None:
            is_first = read_version(session, _TABLES) is None
            ensure_tables(session, _TABLES)
            if is_first:
                _note_sent(session, [each.event_id for each in _read_events(session)])

        self._database.run(prepare, writes=True)
        self._sender = WebhookSender(webhook, self._note_settled, self._offer_again)

    def send(self, *, has_new_alerts: bool = True) -> int:
        """Hand over the events not sent yet and return how many. If nothing is new or left, read nothing."""
        if not has_new_alerts and not self._has_more.is_set():
            return 0
        self._has_more.clear()
        try:
            untold = self._database.run(_read_untold)
        except PenstockError:
            self._has_more.set()
            raise
        events = [each for each in untold if each.event_id not in self._offered]
        taken = self._sender.offer(events)
        if taken < len(events):
            self._has_more.set()
        self._offered |= {each.event_id for each in events[:taken]}
        log_events(events[:taken])
        return taken

    def check(self) -> None:
        """Raise WEBHOOK_NOT_DELIVERED if the receiver did not accept what was last sent to it."""
        if self._sender.trouble is not None:
            raise self._make_error(f"does not accept alerts: {self._sender.trouble}")

    def finish(self) -> None:
        """Send what is left, and raise WEBHOOK_NOT_DELIVERED if it was not accepted. Call it last."""
        self.close()
        self.check()
        if self._has_left or self._has_more.is_set():
            raise self._make_error("has not accepted all alerts yet")

    def close(self) -> None:
        """Wait briefly for alerts that are on their way. The next sender sends the rest."""
        if not self._is_closed:
            self._is_closed = True
            self._has_left = not self._sender.close(self._patience_s)

    def _make_error(self, what: str) -> SinkError:
        return SinkError(
            "WEBHOOK_NOT_DELIVERED",
            f"The webhook {self._webhook} {what}.",
            hint="Check the receiver and the address. The alerts that it missed are sent once it answers.",
            retriable=True,
        )

    def _note_settled(self, event_id: str, delivered: bool) -> None:  # noqa: ARG002
        """Note that an alert was delivered, or permanently refused."""
        self._database.run(lambda session: _note_sent(session, [event_id]), writes=True)

    def _offer_again(self, event_id: str) -> None:
        """Note that an alert was not accepted, so that it is offered again."""
        self._offered.discard(event_id)
        self._has_more.set()


def _note_sent(session: Session, ids: Sequence[str]) -> None:
    mark = session.grammar.mark
    session.execute_many(f"DELETE FROM {TOLD} WHERE event_id = {mark}", [(each,) for each in ids])
    session.execute_many(session.grammar.insert(TOLD, ["event_id"]), [(each,) for each in ids])


def _read_untold(session: Session) -> list[AlertEvent]:
    told = {row[0] for row in session.execute(f"SELECT event_id FROM {TOLD}")}
    return [each for each in _read_events(session) if each.event_id not in told]


def _read_events(session: Session) -> list[AlertEvent]:
    name, columns = session.grammar.name, ALERT_ROWS.names
    rows = session.execute(f"SELECT {', '.join(map(name, columns))} FROM {name(ALERTS)}")
    return list_events(
        {column: _read(column, value) for column, value in zip(columns, row, strict=True)} for row in rows
    )


def _read(column: str, value: Any) -> Any:
    """Return a column's value; SQLite keeps moments as text."""
    return datetime.fromisoformat(value) if column.endswith("_at") and isinstance(value, str) else value


def _make_table(session: Session) -> None:
    text, end = session.grammar.key_text, session.grammar.table_end
    session.execute(
        f"CREATE TABLE IF NOT EXISTS {TOLD} (event_id {text} NOT NULL, PRIMARY KEY (event_id)){end}"
    )


_TABLES = TableSet("accesslog alerts told", 1, _make_table, "list of alerts already sent", "TOLD_TOO_NEW")
