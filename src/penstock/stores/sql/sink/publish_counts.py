"""Inserts staged rows into their table and counts each stage, inside the publishing transaction.

Rule: the counts are the database's own, stage by stage, in the publishing transaction. A staging table that a
restart has emptied, or that is half filled by another attempt, is noticed here.

    counts = insert_stages(session, target, [StagedRows(staging, 4), StagedRows(staging, 7)])
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.errors import SinkError
from penstock.stores.sql.connections.sql_names import quote
from penstock.stores.sql.connections.sql_sessions import Session
from penstock.stores.sql.sink.bulk_loading import load_rows, normalise_rows
from penstock.stores.sql.sink.publish_statements import RowSource, insert_rows
from penstock.stores.sql.sink.staging_tables import STAGE, HeldRows, StagedRows, declare_columns
from penstock.stores.sql.sink.target_tables import Target

_HELD = "penstock_held"


def insert_held(session: Session, target: Target, held: Sequence[HeldRows]) -> tuple[int, ...]:
    """Insert rows that the driver holds; return how many were stored of each. Rows that are only added go
    straight into the table, others through a temporary one."""
    counts = []
    for each in held:
        rows = normalise_rows(each.rows)
        if target.table.mode == "append":
            counts.append(_check_taken(target, load_rows(session, target.quoted, rows), rows.num_rows))
            continue
        name = quote(session.dialect, _HELD)
        kind, end = (
            ("TEMP TABLE", " ON COMMIT DROP") if session.dialect == "postgresql" else ("TEMPORARY TABLE", "")
        )
        session.execute(f"CREATE {kind} {name} ({declare_columns(target, rows.schema)}){end}")
        counts.append(load_rows(session, name, rows))
        insert_rows(session, target, RowSource(name, tuple(rows.column_names)))
        session.execute(f"DROP {'TEMPORARY ' if session.dialect == 'mysql' else ''}TABLE {name}")
    return tuple(counts)


def insert_stages(session: Session, target: Target, staged: Sequence[StagedRows]) -> tuple[int, ...]:
    """Insert rows that tasks have staged in one table; return how many each stage had."""
    (staging,) = {each.staging.table: each.staging for each in staged}.values()
    numbers = [each.number for each in staged]
    table, stage = quote(session.dialect, staging.table), quote(session.dialect, STAGE)
    which = f"{stage} IN ({', '.join(map(str, numbers))})"
    found = dict(session.execute(f"SELECT {stage}, COUNT(*) FROM {table} WHERE {which} GROUP BY {stage}"))
    changed = insert_rows(session, target, RowSource(table, tuple(staging.schema.names), which))
    if target.table.mode == "append":
        _check_taken(target, changed, sum(found.values()))
    return tuple(int(found.get(number, 0)) for number in numbers)


def _check_taken(target: Target, taken: int, given: int) -> int:
    if taken != given:
        raise SinkError(
            "ROWS_NOT_TAKEN",
            f"{target.name} has taken {taken} of {given} rows.",
            hint="A trigger or a rule there leaves rows out; nothing of the batch was kept.",
            facts={"table": target.name, "taken": taken},
        )
    return taken
