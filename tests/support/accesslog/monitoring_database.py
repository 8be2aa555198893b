"""A database with monitoring results, as a pipeline leaves them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.apps.accesslog.monitoring.load_counting import Merged, merge
from penstock.apps.accesslog.stream.pipeline_tables import TABLES, create_tables
from penstock.apps.accesslog.stream.table_names import COUNTS, DECISIONS
from penstock.core.options.storage_addresses import parse_place
from penstock.stores.sql.connections.sql_sessions import Database
from penstock.stores.sql.sink.bulk_loading import load_rows
from tests.support.accesslog.accesslog_lines import Line, observe_lines

START = 1_700_000_000 // 60 * 60


def fill(place: str, merged: Merged, decisions: list[dict[str, Any]], counts: list[dict[str, Any]]) -> None:
    create_tables(place)
    schemas = {table.name: schema for table, schema in TABLES.items()}
    rows = {
        "accesslog_seconds": merged.seconds,
        "accesslog_minutes": merged.minutes,
        "accesslog_tops": merged.tops,
        "accesslog_alerts": merged.alerts,
        DECISIONS: pa.Table.from_pylist(decisions, schema=schemas[DECISIONS]),
        COUNTS: pa.Table.from_pylist(counts, schema=schemas[COUNTS]),
    }

    def load(session: Any) -> None:
        for name, table in rows.items():
            load_rows(session, session.grammar.name(name), table)

    Database(parse_place(place)).run(load, writes=True)


def make_results(place: str) -> int:
    """Write the results of some minutes of two servers and return how many lines there were."""
    lines = [
        Line(
            (START + second) * 1_000_000 + at,
            server="ab"[at % 2],
            client=f"192.0.2.{at}",
            target=f"/<script>{at}</script>?x",
            status=503 if at == 3 else 200,
            latency_us=1000 * at,
        )
        for second in range(0, 1500)
        for at in range(8 if second < 1200 else 80)
    ]
    merged = merge([observe_lines(lines)])
    decision = {
        **{"decision_id": "d1", "subject": "192.0.2.3", "kind": "client", "client": "192.0.2.3"},
        **{"decided_at": (START + 30) * 1_000_000, "rule": "sqli.x", "class": "sql_injection"},
        **{"action": "block", "score": 10.0, "ban_seconds": 600, "expires_at": (START + 630) * 1_000_000},
        **{"level": 1, "server": "a", "partition": 0, "offset": 4, "request_index": 2, "evidence": "[]"},
    }
    counts = {
        "topic": "t",
        "partition": 0,
        "lines": len(lines) + 2,
        "parsed": len(lines),
        "dead": 2,
        "late": 0,
    }
    fill(place, merged, [decision], [counts])
    return len(lines)
