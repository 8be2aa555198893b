"""Sends decisions to a Kafka topic, for programs that act on them: each at least once, with its id as key.

Rule: the database is the source of truth, and the topic follows it. After the brokers have acknowledged
decisions, this is noted in the same database. If the process is killed in between, the same decisions are
sent again with the same keys. So a reader that keeps the last record of each key, or a compacted topic, has
each decision once.

Why not a cursor: decisions become visible in the order of their commits, which none of their columns records.
A time or an offset as a cursor would miss a decision that was committed late.

    DecisionsTopic(place, settings, "decisions").send()      # after each commit that had decisions
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from functools import partial

import pyarrow as pa

from penstock.apps.accesslog.blocking.decision_records import Decision, make_decisions, read_unsent
from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import OptionError
from penstock.core.options.storage_addresses import GivenPlace, as_place
from penstock.kafka.reading.kafka_log_view import KafkaLogView
from penstock.kafka.writing.plain_producer import Writer
from penstock.stores.sql.connections.sql_sessions import Database, Session
from penstock.stores.sql.connections.versioned_tables import TableSet, ensure_tables

SENT = "accesslog_decisions_sent"
JSON_VERSION = 1
AT_ONCE = 1000


class DecisionsTopic:
    """Sends unsent decisions, and waits up to `patience_ms` for brokers that are down. For one thread."""

    def __init__(
        self,
        place: GivenPlace,
        settings: ClientSettings,
        topic: str,
        *,
        patience_ms: int = 120_000,
    ) -> None:
        place = as_place(place)
        self.topic = topic
        self._database = Database(place)
        self._settings = replace(
            settings, default_api_timeout_ms=min(settings.default_api_timeout_ms, patience_ms)
        )
        self._writer = Writer(self._settings, delivery_timeout_ms=patience_ms)
        self._database.run(lambda session: ensure_tables(session, _TABLES), writes=True)

    def demand_topic(self) -> None:
        """Raise an error if the topic is missing, now and not at the first decision."""
        with closing(KafkaLogView(self._settings)) as view:
            if self.topic in view.describe([self.topic]):
                return
        raise OptionError(
            "DECISIONS_TOPIC_MISSING",
            f"The topic {self.topic} for decisions does not exist.",
            hint="Create it (it is not created automatically), or correct the name.",
            facts={"topic": self.topic},
        )

    def send(self) -> int:
        """Send all unsent decisions and return how many, after the brokers have acknowledged them."""
        sent = 0
        while True:
            found = self._database.run(
                lambda session: read_unsent(session, SENT, topic=self.topic, limit=AT_ONCE)
            )
            if not found:
                return sent
            self._send(found)
            sent += len(found)

    def send_these(self, rows: pa.Table) -> int:
        """Send these decisions of a commit and return how many; the table is not searched for them."""
        decisions = make_decisions(rows)
        for at in range(0, len(decisions), AT_ONCE):
            self._send(decisions[at : at + AT_ONCE])
        return len(decisions)

    def _send(self, decisions: list[Decision]) -> None:
        self._writer.write(self.topic, make_records(decisions))
        ids = [str(each["decision_id"]) for each in decisions]
        self._database.run(partial(self._note, ids), writes=True)

    def _note(self, ids: list[str], session: Session) -> None:
        statement = session.grammar.insert_missing(SENT, ("topic", "decision_id"))
        session.execute_many(statement, [(self.topic, each) for each in ids])

    def close(self) -> None:
        self._writer.close()


def make_records(decisions: list[Decision]) -> pa.RecordBatch:
    """Return the records for the topic: the id is the key, the decision as ASCII JSON is the value."""
    return pa.record_batch(
        {
            "key": pa.array([str(each["decision_id"]).encode() for each in decisions], pa.binary()),
            "value": pa.array(
                [json.dumps({"version": JSON_VERSION, **each}).encode("ascii") for each in decisions],
                pa.binary(),
            ),
        }
    )


def _make_tables(session: Session) -> None:
    text = session.grammar.key_text
    session.execute(
        f"CREATE TABLE IF NOT EXISTS {SENT} (topic {text} NOT NULL, decision_id {text} NOT NULL, "
        f"PRIMARY KEY (topic, decision_id)){session.grammar.table_end}"
    )


_TABLES = TableSet("accesslog topic", 1, _make_tables, "notes on sent decisions", "DECISIONS_SENT_TOO_NEW")
