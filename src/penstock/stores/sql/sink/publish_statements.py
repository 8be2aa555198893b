"""The statements that move staged rows into their table, in one place for all modes and dialects.

Rule: each mode is one INSERT ... SELECT (and for a state table one DELETE before it), and sees all stages of
the batch at once: two tasks may have rows with the same key, and which one is used must not depend on which
task was slower. With provenance columns, the last row by (topic, partition, offset) is used. Without them,
two rows with one key are an error, unless they are only added up. The database itself counts the rows of each
stage in the publishing transaction, so a staging table that a restart has emptied, or that another attempt
has half filled, is noticed here.

    counts = insert_stages(session, target, [StagedRows(staging, 4), StagedRows(staging, 7)])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.core.errors import SinkError
from penstock.stores.sql.connections.sql_names import quote, quote_all
from penstock.stores.sql.connections.sql_sessions import Session
from penstock.stores.sql.sink.bulk_loading import load_rows, normalise_rows
from penstock.stores.sql.sink.sql_sink import DELETED, PROVENANCE
from penstock.stores.sql.sink.staging_tables import STAGE, HeldRows, StagedRows, declare_columns
from penstock.stores.sql.sink.target_tables import Target

_RANK = "penstock_rank"
_HELD = "penstock_held"


@dataclass(frozen=True, slots=True)
class RowSource:
    """Where rows come from: a quoted table, which target columns it has, and which of its rows are used."""

    table: str
    columns: tuple[str, ...]
    which: str = "1 = 1"


def insert_rows(session: Session, target: Target, staged: RowSource) -> int:
    """Insert rows as the table's mode says; return how many rows that changed, as this database counts."""
    if target.table.mode == "append":
        return session.change(
            f"INSERT INTO {target.quoted} ({_list(session, staged.columns)}) "
            f"SELECT {_select(session, target, staged.columns)} FROM {staged.table} WHERE {staged.which}"
        )
    _refuse_duplicates(session, target, staged)
    columns = tuple(each for each in staged.columns if each != DELETED)
    picked = _pick(session, target, staged)
    if DELETED in staged.columns:
        session.change(_delete(session, target, picked))
        picked = (
            f"SELECT * FROM ({picked}) kept WHERE NOT COALESCE({_name(session, DELETED)}, {_no(session)})"
        )
    return session.change(
        f"INSERT INTO {target.quoted}{_alias(session)} ({_list(session, columns)}) "
        f"SELECT {_select(session, target, columns)} FROM ({picked}) picked WHERE 1 = 1 "
        + _on_conflict(session, target, columns)
    )


def insert_held(session: Session, target: Target, held: Sequence[HeldRows]) -> tuple[int, ...]:
    """Insert rows that the driver holds; return how many of each were stored. Rows of an `append` table go
    straight into it, others through a temporary table."""
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
            f"{target.name} took {taken} of {given} rows.",
            hint="A trigger or a rule there drops rows; nothing of the batch was kept.",
            facts={"table": target.name, "taken": taken},
        )
    return taken


# --- which rows count -------------------------------------------------------------------------------------


def _pick(session: Session, target: Target, staged: RowSource) -> str:
    """Return a query that picks one row for each key."""
    table, key = target.table, _list(session, target.table.key)
    source = f"FROM {staged.table} WHERE {staged.which}"
    others = _others(target, staged)
    if table.mode == "merge" and not others:
        sums = ", ".join(f"{_sum(session, each)} AS {_name(session, each)}" for each in table.add)
        return f"SELECT {key}, {sums} {source} GROUP BY {key}"
    if not _has_provenance(staged):
        return f"SELECT {_list(session, staged.columns)} {source}"
    shown = [
        f"{_sum(session, each)} OVER (PARTITION BY {key}) AS {_name(session, each)}"
        if each in table.add
        else _name(session, each)
        for each in staged.columns
    ]
    latest = ", ".join(f"{_name(session, each)} DESC" for each in PROVENANCE)
    rank = f"ROW_NUMBER() OVER (PARTITION BY {key} ORDER BY {latest}) AS {_RANK}"
    ranked = f"SELECT {', '.join(shown)}, {rank} {source}"
    return f"SELECT {_list(session, staged.columns)} FROM ({ranked}) ranked WHERE {_RANK} = 1"


def _sum(session: Session, column: str) -> str:
    return f"SUM({_name(session, column)})"


def _others(target: Target, staged: RowSource) -> list[str]:
    known = {*target.table.key, *target.table.add}
    return [each for each in staged.columns if each not in known]


def _has_provenance(staged: RowSource) -> bool:
    return set(PROVENANCE) <= set(staged.columns)


def _refuse_duplicates(session: Session, target: Target, staged: RowSource) -> None:
    adds_only = target.table.mode == "merge" and not _others(target, staged)
    if adds_only or _has_provenance(staged):
        return
    key = _list(session, target.table.key)
    found = session.execute(
        f"SELECT {key}, COUNT(*) FROM {staged.table} WHERE {staged.which} "
        f"GROUP BY {key} HAVING COUNT(*) > 1 LIMIT 1"
    )
    if found:
        *values, times = found[0]
        shown = ", ".join(
            f"{name} {str(value)[:80]!r}" for name, value in zip(target.table.key, values, strict=True)
        )
        raise SinkError(
            "DUPLICATE_KEY",
            f"The batch has {times} rows for one key of {target.name}: {shown}. Which one counts?",
            hint="Reduce the results to one row for each key, or keep provenance (the last one counts then).",
            facts={"table": target.name, "times": times},
        )


# --- words ------------------------------------------------------------------------------------------------


def _on_conflict(session: Session, target: Target, columns: Sequence[str]) -> str:
    key = [_name(session, each) for each in target.table.key]
    settings = [_set(session, target, each) for each in columns if each not in target.table.key]
    grammar = session.grammar
    return grammar.upsert(key, settings) if settings else grammar.keep(target.quoted, key)


def _set(session: Session, target: Target, column: str) -> str:
    name = _name(session, column)
    is_mysql = session.dialect == "mysql"
    new = session.grammar.new(name)
    old = f"{target.quoted}.{name}" if is_mysql else f"old_row.{name}"
    if column in target.table.add:
        new = f"COALESCE({old}, 0) + COALESCE({new}, 0)"
    return f"{f'{target.quoted}.{name}' if is_mysql else name} = {new}"


def _delete(session: Session, target: Target, picked: str) -> str:
    """Return the statement that deletes the rows whose picked staged row marks them as deleted."""
    same = " AND ".join(
        f"going.{_name(session, each)} = {target.quoted}.{_name(session, each)}" for each in target.table.key
    )
    going = f"({picked}) going"
    is_gone = f"going.{_name(session, DELETED)}"
    if session.dialect == "mysql":
        return f"DELETE {target.quoted} FROM {target.quoted} JOIN {going} ON {same} WHERE {is_gone}"
    return f"DELETE FROM {target.quoted} WHERE EXISTS (SELECT 1 FROM {going} WHERE {same} AND {is_gone})"


def _select(session: Session, target: Target, columns: Sequence[str]) -> str:
    """Return the select list of these columns. PostgreSQL needs a cast from text to json, uuid and enums."""
    shown = []
    for each in columns:
        name, column = _name(session, each), target.column(each)
        cast = session.dialect == "postgresql" and column.kind == "other"
        shown.append(f"CAST({name} AS {column.declared})" if cast else name)
    return ", ".join(shown)


def _alias(session: Session) -> str:
    return "" if session.dialect == "mysql" else " AS old_row"


def _no(session: Session) -> str:
    return "FALSE" if session.dialect == "postgresql" else "0"


def _name(session: Session, column: str) -> str:
    return quote(session.dialect, column)


def _list(session: Session, columns: Sequence[str]) -> str:
    return quote_all(session.dialect, list(columns))
