"""Values arrive as they were given, or are refused with a reason."""

from __future__ import annotations

import math
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.errors import OptionError, PenstockError, SinkError
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.stores.sql import SqlSink, Table, create_tables
from tests.sql.databases import OwnDatabase

BEGIN, END = (StreamPosition({TopicPartition("t", 0): each}) for each in (0, 9))
STAMP = pa.timestamp("us", tz="UTC")
MOMENT = datetime(2024, 2, 29, 23, 59, 59, 123456, tzinfo=UTC)

#: Each type with values that are easy to get wrong.
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, False, None]),
    "tiny": (pa.int8(), [-128, 127, None]),
    "small": (pa.int16(), [-(2**15), 2**15 - 1, None]),
    "whole": (pa.int32(), [-(2**31), 2**31 - 1, None]),
    "long": (pa.int64(), [-(2**63), 2**63 - 1, None]),
    "ratio": (pa.float64(), [1.1e-300, -1.7976931348623157e308, None]),
    "amount": (pa.decimal128(20, 4), [Decimal("-1234567890123456.7891"), Decimal("0.1000"), None]),
    "text": (pa.string(), ["", 'a "quote", a comma\nand \\N \t\r\n ü 🚰 NULL', None]),
    "word": (pa.large_string(), ["NULL", "\\", None]),
    "raw": (pa.binary(), [b"", bytes(range(256)), None]),
    "day": (pa.date32(), [date(1970, 1, 1), date(9999, 12, 31), None]),
    "moment": (STAMP, [MOMENT, datetime(1970, 1, 1, tzinfo=UTC), None]),
    "local": (pa.timestamp("us"), [MOMENT.replace(tzinfo=None), datetime(2038, 1, 20), None]),
    "name": (pa.dictionary(pa.int8(), pa.string()), ["x", "x", None]),
}


def make_rows() -> pa.Table:
    return pa.table({name: pa.array(values, kind) for name, (kind, values) in VALUES.items()})


def read_back(dialect: str, name: str, value: Any) -> Any:
    """Return what the driver returned, as Python has it."""
    kind = VALUES[name][0]
    if value is None:
        return None
    if pa.types.is_boolean(kind):
        return bool(value)
    if pa.types.is_binary(kind):
        return bytes(value)
    if dialect != "sqlite":
        is_moment = pa.types.is_timestamp(kind) and kind.tz
        return value.replace(tzinfo=UTC) if is_moment and value.tzinfo is None else value
    if pa.types.is_decimal(kind):
        return Decimal(value)
    if pa.types.is_date(kind):
        return date.fromisoformat(value)
    if pa.types.is_timestamp(kind):
        return datetime.fromisoformat(value).replace(tzinfo=UTC if kind.tz else None)
    return value


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_every_type_comes_back_as_it_was_given(own_database: OwnDatabase, mode: str) -> None:
    key = pa.array([1, 2, 3], pa.int32())
    rows = make_rows().append_column("id", key)
    table = Table("kinds", mode=mode, key="id" if mode == "upsert" else ())  # type: ignore[arg-type]
    sink = SqlSink(own_database.url, table)
    create_tables(sink, {"kinds": rows.schema})
    with closing(sink.open("s")) as writer:
        writer.write(rows.slice(1), BEGIN, END)  # a slice: columns do not start with their buffers
        writer.write(rows.slice(0, 1), END, StreamPosition({TopicPartition("t", 0): 10}))
    names = list(VALUES)
    quote = "`" if sink.place.dialect == "mysql" else '"'
    listed = ", ".join(f"{quote}{name}{quote}" for name in names)
    found = own_database.run(f"SELECT {listed} FROM kinds ORDER BY id")
    for number, row in enumerate(found):
        for name, value in zip(names, row, strict=True):
            assert read_back(sink.place.dialect, name, value) == VALUES[name][1][number], name
    assert len(found) == 3


def test_numbers_that_are_none_are_kept_or_refused(own_database: OwnDatabase) -> None:
    """NaN and infinity: PostgreSQL has both, SQLite makes a null of NaN, MySQL has neither."""
    sink = SqlSink(own_database.url, Table("floats"))
    create_tables(sink, {"floats": pa.schema([("x", pa.float64())])})
    every = [math.nan, math.inf, -math.inf]
    refused = {"sqlite": 1, "mysql": 3, "postgresql": 0}[sink.place.dialect]
    strange, kept = every[:refused], every[refused:]
    with closing(sink.open("s")) as writer:
        for value in strange:
            with pytest.raises(SinkError, match=r"\[NUMBER_NOT_STORABLE\] The column x"):
                writer.write(pa.table({"x": [1.0, value]}), BEGIN, END)
        writer.write(pa.table({"x": pa.array(kept, pa.float64())}), BEGIN, END)
    found = [value for (value,) in own_database.run("SELECT x FROM floats")]
    assert sorted(map(str, found)) == sorted(map(str, kept))


@pytest.mark.parametrize(
    ("declared", "values", "why"),
    [
        ("page TEXT", {"page": pa.array([1])}, "page is int64 in the results, and in the table it"),
        ("page TEXT", {"pages": pa.array(["a"])}, "the table has no column pages"),
        ("page VARCHAR(9) NOT NULL, x INTEGER", {"x": pa.array([1])}, "the results have no column page"),
        ("page TEXT", {"page": pa.array([["a"]])}, "lists, structs and maps"),
        ("page TEXT", {"page": pa.array(["a"]), "penstock_deleted": pa.array([True])}, "state tables only"),
        ("at_ DATE", {"at_": pa.array([MOMENT], STAMP)}, "it"),
        ("x INTEGER", {"x": pa.array([1.5])}, "it"),
    ],
)
def test_results_that_do_not_fit_are_refused_with_the_reason(
    own_database: OwnDatabase, declared: str, values: dict[str, Any], why: str
) -> None:
    own_database.run(f"CREATE TABLE mine ({declared})")
    with closing(SqlSink(own_database.url, Table("mine")).open("s")) as writer:
        with pytest.raises(SinkError, match="RESULTS_DO_NOT_FIT") as caught:
            writer.write(pa.table(values), BEGIN, END)
        assert why in str(caught.value)
        assert writer.position is None


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("DECIMAL(10, 2)", pa.array([Decimal("1.234")], pa.decimal128(10, 3))),
        ("DATETIME(0)|TIMESTAMP(0)", pa.array([MOMENT], STAMP)),
        ("FLOAT|REAL", pa.array([0.1], pa.float64())),
    ],
)
def test_a_server_that_would_round_is_not_given_the_value(
    server_database: OwnDatabase, declared: str, value: pa.Array
) -> None:
    words = declared.split("|")
    server_database.run(
        f"CREATE TABLE mine (x {words[-1] if 'postgres' in server_database.url else words[0]})"
    )
    with (
        closing(SqlSink(server_database.url, Table("mine")).open("s")) as writer,
        pytest.raises(SinkError, match="RESULTS_DO_NOT_FIT"),
    ):
        writer.write(pa.table({"x": value}), BEGIN, END)


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("VARCHAR(3)", pa.array(["abcd"])),
        ("SMALLINT", pa.array([70_000])),
        ("INTEGER NOT NULL", pa.array([None], pa.int32())),
    ],
)
def test_a_value_that_a_server_refuses_fails_the_batch_and_keeps_nothing(
    server_database: OwnDatabase, declared: str, value: pa.Array, mode: str
) -> None:
    """When loading a file, MySQL would otherwise only warn and shorten the value."""
    server_database.run(f"CREATE TABLE mine (id INTEGER PRIMARY KEY, x {declared})")
    table = Table("mine", mode=mode, key="id" if mode == "upsert" else ())  # type: ignore[arg-type]
    with closing(SqlSink(server_database.url, table).open("s")) as writer:
        with pytest.raises(PenstockError, match=r"PUBLISH_FAILED|ROWS_REFUSED") as caught:
            writer.write(pa.table({"id": pa.array([1], pa.int32()), "x": value}), BEGIN, END)
        assert not caught.value.retriable
    assert server_database.run("SELECT COUNT(*) FROM mine") == [(0,)]


def test_text_becomes_what_only_the_server_knows(server_database: OwnDatabase) -> None:
    own = "JSON, u UUID"
    server_database.run(f"CREATE TABLE mine (id INTEGER PRIMARY KEY, j {own})")
    row = {"id": pa.array([1], pa.int32()), "j": ['{"a": 1}'], "u": ["6f9619ff-8b86-d011-b42d-00c04fc964ff"]}
    with closing(SqlSink(server_database.url, Table("mine", mode="upsert", key="id")).open("s")) as writer:
        writer.write(pa.table(row), BEGIN, END)
    assert str(server_database.run("SELECT u FROM mine")[0][0]) == row["u"][0]


HOSTILE = [
    'x"; DROP TABLE victim; --',
    "x`; DROP TABLE victim; --",
    "x'); DROP TABLE victim; --",
    "select",
    "a b",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_never_read_as_sql(own_database: OwnDatabase, name: str) -> None:
    own_database.run("CREATE TABLE victim (x INTEGER)")
    table = Table(name, mode="merge", key=f"k{name}", add=f"n{name}")
    sink = SqlSink(own_database.url, table)
    schema = pa.schema([(f"k{name}", pa.string()), (f"n{name}", pa.int64())])
    create_tables(sink, {name: schema})
    with closing(sink.open(name)) as writer:
        for number in range(2):
            rows = pa.table({f"k{name}": ["'; DROP TABLE victim; --"], f"n{name}": [2]}, schema)
            writer.write(rows, *(StreamPosition({TopicPartition(name, 0): number + more}) for more in (0, 1)))
    assert own_database.run("SELECT COUNT(*) FROM victim") == [(0,)]


@pytest.mark.parametrize("name", ["", " x", "a\0b", "a\nb", "x" * 64, "50%", "a.b.c", ".a", "ü" * 32])
def test_names_that_no_database_could_keep_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match="NAME_INVALID"):
        Table(name)


def test_a_table_in_a_schema_of_its_own_is_found(server_database: OwnDatabase) -> None:
    schema = "s_" + server_database.url.rpartition("/")[2]
    server_database.run(f"CREATE SCHEMA {schema}")
    try:
        sink = SqlSink(server_database.url, Table(f"{schema}.visits", mode="upsert", key="page"))
        create_tables(sink, {f"{schema}.visits": pa.schema([("page", pa.string()), ("n", pa.int64())])})
        with closing(sink.open("s")) as writer:
            writer.write(pa.table({"page": ["a"], "n": [1]}), BEGIN, END)
        assert server_database.run(f"SELECT page, n FROM {schema}.visits") == [("a", 1)]
    finally:
        server_database.run(f"DROP SCHEMA {schema}{' CASCADE' if 'postgres' in server_database.url else ''}")
