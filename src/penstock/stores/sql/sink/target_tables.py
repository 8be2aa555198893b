"""The tables that results go into, as the database's catalog describes them when a sink is opened.

Rule: a sink is refused when it is opened, not at its first batch. A missing table, a table that cannot roll
back (MyISAM, foreign tables, views), or a key that no unique index enforces could leave half a batch, or
store it twice.

    target = find_target(session, Table("visits", mode="upsert", key=("day",)))
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from penstock.core.errors import SinkError
from penstock.core.options.storage_addresses import Dialect
from penstock.stores.sql.connections.sql_names import check_name, quote, quote_table
from penstock.stores.sql.connections.sql_sessions import Session
from penstock.stores.sql.sink.sql_column_types import Column, Kind, explain_misfit
from penstock.stores.sql.sink.sql_sink import DELETED, Table

_POSTGRESQL_KINDS: Mapping[str, tuple[Kind, int]] = {
    "bool": ("boolean", 8),
    "int2": ("integer", 16),
    "int4": ("integer", 32),
    "int8": ("integer", 64),
    "float4": ("float", 32),
    "float8": ("float", 64),
    "numeric": ("decimal", 64),
    "text": ("text", 64),
    "varchar": ("text", 64),
    "bpchar": ("text", 64),
    "bytea": ("binary", 64),
    "date": ("date", 64),
    "timestamp": ("timestamp", 64),
    "timestamptz": ("timestamp", 64),
}
_MYSQL_KINDS: Mapping[str, tuple[Kind, int]] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint"), ("integer", 64)),
    "float": ("float", 32),
    "double": ("float", 64),
    "decimal": ("decimal", 64),
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"), ("text", 64)),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), ("binary", 64)),
    "date": ("date", 64),
    **dict.fromkeys(("datetime", "timestamp"), ("timestamp", 64)),
}
_SQLITE_KINDS: tuple[tuple[str, Kind], ...] = (
    ("INT", "integer"),
    ("CHAR|CLOB|TEXT", "text"),
    ("BLOB", "binary"),
    ("REAL|FLOA|DOUB", "float"),
    ("BOOL", "boolean"),
    ("DATETIME|TIMESTAMP", "timestamp"),
    ("DATE", "date"),
    ("^$", "other"),
)


@dataclass(frozen=True, slots=True)
class Target:
    """A table with what the catalog knows about it."""

    table: Table
    dialect: Dialect
    columns: tuple[Column, ...]

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def quoted(self) -> str:
        return quote_table(self.dialect, self.table.name)

    def column(self, name: str) -> Column:
        return next(each for each in self.columns if each.name == name)

    def check_schema(self, schema: pa.Schema) -> None:
        """Refuse results that do not fit, naming every reason."""
        known = {each.name: each for each in self.columns}
        wrong = [
            f"the table has no column {each}"
            for each in schema.names
            if each not in known and each != DELETED
        ]
        if DELETED in schema.names and self.table.mode != "state":
            wrong.append(f"{DELETED} is for state tables only")
        if DELETED in schema.names and not pa.types.is_boolean(schema.field(DELETED).type):
            wrong.append(f"{DELETED} is not boolean")
        if len(set(schema.names)) < len(schema.names):
            wrong.append("the results have a column twice")
        for each in schema:
            check_name(each.name, "A column")
            misfit = explain_misfit(self.dialect, each.type, known[each.name]) if each.name in known else None
            if misfit:
                wrong.append(f"{each.name} is {each.type} in the results, and in the table {misfit}")
        needed = [each.name for each in self.columns if not each.may_be_null and not each.has_default]
        needed += [*self.table.key, *self.table.add, *self.table.provenance_columns]
        wrong += [
            f"the results have no column {each}" for each in dict.fromkeys(needed) if each not in schema.names
        ]
        if wrong:
            raise SinkError(
                "RESULTS_DO_NOT_FIT",
                f"The results cannot go into {self.table.name}: {'; '.join(wrong)}.",
                hint="Select and cast the columns of the results to those of the table, or change the table.",
                facts={"table": self.table.name, "wrong": wrong},
            )


def find_target(session: Session, table: Table) -> Target:
    """Return the table in the database; raise if it is missing or cannot keep a sink's promises."""
    columns = _FINDERS[session.dialect](session, table)
    target = Target(table, session.dialect, tuple(columns))
    known = {each.name for each in columns}
    missing = [each for each in (*table.key, *table.add, *table.provenance_columns) if each not in known]
    if missing:
        raise SinkError(
            "COLUMN_NOT_FOUND",
            f"The table {table.name} has no column {', '.join(missing)}.",
            hint="Name columns that it has, or add them to the table.",
            facts={"table": table.name, "missing": missing},
        )
    if table.key:
        _check_key(session, target)
    return target


def _not_found(table: Table) -> SinkError:
    return SinkError(
        "TABLE_NOT_FOUND",
        f"There is no table {table.name}.",
        hint="Create it first (`create_tables`); a sink never creates your tables on its own.",
        facts={"table": table.name},
    )


def _not_transactional(table: Table, what: str) -> SinkError:
    return SinkError(
        "TABLE_NOT_TRANSACTIONAL",
        f"{table.name} is {what}: what was written there would stay when a batch is rolled back.",
        hint="Use an ordinary table; in MySQL and MariaDB `ALTER TABLE ... ENGINE=InnoDB`.",
        facts={"table": table.name, "kind": what},
    )


# --- each database's catalog ------------------------------------------------------------------------------


def _find_postgresql(session: Session, table: Table) -> list[Column]:
    place = session.execute(
        "SELECT oid, relkind, relpersistence FROM pg_class WHERE oid = to_regclass(%s)",
        [quote_table("postgresql", table.name)],
    )
    if not place:
        raise _not_found(table)
    oid, relkind, persistence = place[0]
    if relkind not in ("r", "p"):
        raise _not_transactional(table, "a view or a foreign table")
    if persistence == "u":
        raise _not_transactional(table, "an unlogged table, which a crash empties")
    rows = session.execute(
        "SELECT a.attname, t.typname, format_type(a.atttypid, a.atttypmod), a.atttypmod, a.attnotnull, "
        "a.atthasdef OR a.attidentity <> '' FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
        "WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' "
        "ORDER BY a.attnum",
        [oid],
    )
    columns = []
    for name, kind, declared, modifier, required, has_default in rows:
        found, bits = _POSTGRESQL_KINDS.get(kind, ("other", 64))
        scale = None
        if found == "decimal" and modifier >= 4:
            scale = (modifier - 4) & 0x7FF
        elif found == "timestamp" and modifier >= 0:
            scale = modifier
        columns.append(Column(name, found, declared, not required, has_default, None, scale, bits))
    return columns


def _find_mysql(session: Session, table: Table) -> list[Column]:
    schema, _, name = table.name.rpartition(".")
    here = [schema, name] if schema else [name]
    which = "table_schema = %s" if schema else "table_schema = DATABASE()"
    engine = session.execute(
        "SELECT t.engine, t.table_type, e.transactions FROM information_schema.tables t "
        "LEFT JOIN information_schema.engines e ON e.engine = t.engine "
        f"WHERE t.{which} AND t.table_name = %s",
        here,
    )
    if not engine:
        raise _not_found(table)
    if engine[0][2] != "YES":
        raise _not_transactional(table, f"a {engine[0][0] or engine[0][1]} table")
    rows = session.execute(
        "SELECT column_name, data_type, column_type, is_nullable, column_default, numeric_precision, "
        "numeric_scale, datetime_precision, character_set_name, collation_name, extra "
        f"FROM information_schema.columns WHERE {which} AND table_name = %s ORDER BY ordinal_position",
        here,
    )
    columns = []
    for name, kind, declared, nullable, default, digits, scale, seconds, charset, collation, extra in rows:
        if "GENERATED" in extra.upper() and "DEFAULT_GENERATED" not in extra.upper():
            continue
        found, bits = _MYSQL_KINDS.get(kind.lower(), ("other", 64))
        columns.append(
            Column(
                name,
                found,
                declared,
                nullable == "YES",
                default is not None or "auto_increment" in extra,
                digits,
                seconds if found == "timestamp" else scale if found == "decimal" else None,
                bits,
                f"CHARACTER SET {charset} COLLATE {collation}" if charset else "",
            )
        )
    return columns


def _find_sqlite(session: Session, table: Table) -> list[Column]:
    schema, _, name = table.name.rpartition(".")
    if schema not in ("", "main"):
        raise _not_found(table)
    found = session.execute("SELECT type, sql FROM main.sqlite_master WHERE name = ? COLLATE NOCASE", [name])
    if not found:
        raise _not_found(table)
    kind, sql = found[0]
    if kind != "table" or re.match(r"\s*CREATE\s+VIRTUAL", sql, re.IGNORECASE):
        raise _not_transactional(table, "a view or a virtual table")
    rows = session.execute(f"PRAGMA main.table_info({quote('sqlite', name)})")
    columns = []
    for _, column, declared, required, default, key in rows:
        kinds = (each for words, each in _SQLITE_KINDS if re.search(words, declared.upper()))
        found_kind: Kind = next(kinds, "decimal")
        is_row_number = bool(key) and declared.upper() == "INTEGER"
        may_be_null = not (required or key)
        columns.append(
            Column(column, found_kind, declared, may_be_null, default is not None or is_row_number)
        )
    return columns


_FINDERS = {"postgresql": _find_postgresql, "mysql": _find_mysql, "sqlite": _find_sqlite}


# --- keys -------------------------------------------------------------------------------------------------


def _check_key(session: Session, target: Target) -> None:
    key, table = set(target.table.key), target.table
    indexes = list(_UNIQUE[session.dialect](session, table))
    if key not in indexes:
        raise SinkError(
            "KEY_NOT_UNIQUE",
            f"Nothing in the database keeps ({', '.join(table.key)}) of {table.name} unique.",
            hint="Make exactly these columns its primary key, or a unique index without a condition.",
            facts={"table": table.name, "key": list(table.key)},
        )
    others = [each for each in indexes if each != key]
    if others and session.dialect == "mysql":
        # ON DUPLICATE KEY UPDATE uses any unique key, and would change a row with another key.
        raise SinkError(
            "KEY_NOT_ALONE",
            f"{table.name} has a unique index besides that of its key: ({', '.join(sorted(others[0]))}).",
            hint="MySQL cannot be told by which key to replace a row; drop the other index or use `append`.",
            facts={"table": table.name, "other": sorted(others[0])},
        )
    empty = [name for name in table.key if target.column(name).may_be_null]
    if empty:
        raise SinkError(
            "KEY_MAY_BE_NULL",
            f"The key of {table.name} may be null in {', '.join(empty)}, and no null equals another.",
            hint="Make the columns NOT NULL.",
            facts={"table": table.name, "columns": empty},
        )


def _unique_postgresql(session: Session, table: Table) -> Iterable[set[str]]:
    rows = session.execute(
        "SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid "
        "AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]) WHERE i.indrelid = to_regclass(%s) "
        "AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indimmediate "
        "GROUP BY i.indexrelid",
        [quote_table("postgresql", table.name)],
    )
    return [set(each[0]) for each in rows]


def _unique_mysql(session: Session, table: Table) -> Iterable[set[str]]:
    schema, _, name = table.name.rpartition(".")
    which = "table_schema = %s" if schema else "table_schema = DATABASE()"
    rows = session.execute(
        "SELECT index_name, column_name, sub_part FROM information_schema.statistics "
        f"WHERE {which} AND table_name = %s AND non_unique = 0",
        [schema, name] if schema else [name],
    )
    indexes: dict[str, set[str]] = {}
    for index, column, part in rows:
        # An index on a column's prefix makes only the prefix unique.
        indexes.setdefault(index, set()).add(column if part is None else f"{column}({part})")
    return indexes.values()


def _unique_sqlite(session: Session, table: Table) -> Iterable[set[str]]:
    name = quote("sqlite", table.name.rpartition(".")[2])
    keys = {each[1] for each in session.execute(f"PRAGMA main.table_info({name})") if each[5]}
    found = [keys] if keys else []
    for _, index, is_unique, _, is_partial in session.execute(f"PRAGMA main.index_list({name})"):
        if is_unique and not is_partial:
            columns = session.execute(f"PRAGMA main.index_info({quote('sqlite', index)})")
            found.append({each[2] for each in columns})
    return found


_UNIQUE = {"postgresql": _unique_postgresql, "mysql": _unique_mysql, "sqlite": _unique_sqlite}
