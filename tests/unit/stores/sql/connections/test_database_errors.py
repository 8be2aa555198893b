"""The meaning of database errors, by their numbers or letters, as the drivers' own exceptions carry them."""

from __future__ import annotations

import struct

import psycopg
import pymysql
import pytest

from penstock.core.errors import OffsetStoreError
from penstock.core.options.storage_addresses import parse_place
from penstock.stores.sql.connections.database_errors import translate_errors

POSTGRESQL = {
    "25006": "DATABASE_READ_ONLY",
    "40001": "DATABASE_CONFLICT",
    "55P03": "DATABASE_BUSY",
    "57P01": "DATABASE_UNREACHABLE",
    "57P03": "DATABASE_UNREACHABLE",
    "53300": "DATABASE_UNREACHABLE",
    "08006": "DATABASE_UNREACHABLE",
    "28P01": "DATABASE_REFUSED",
    "42601": "DATABASE_FAILED",
}
MYSQL = {
    1290: "DATABASE_READ_ONLY",
    1792: "DATABASE_READ_ONLY",
    1836: "DATABASE_READ_ONLY",
    1213: "DATABASE_CONFLICT",
    1205: "DATABASE_BUSY",
    3572: "DATABASE_BUSY",
    1053: "DATABASE_UNREACHABLE",
    1047: "DATABASE_UNREACHABLE",
    2013: "DATABASE_UNREACHABLE",
    1045: "DATABASE_REFUSED",
    1064: "DATABASE_FAILED",
}
PASSES = {"DATABASE_READ_ONLY", "DATABASE_CONFLICT", "DATABASE_BUSY", "DATABASE_UNREACHABLE"}


def make_mysql_error(number: int) -> BaseException:
    """Return what PyMySQL makes of the packet in which a server reports an error."""
    packet = b"\xff" + struct.pack("<H", number) + b"#HY000what the server says"
    with pytest.raises(pymysql.err.MySQLError) as caught:
        pymysql.err.raise_mysql_exception(packet)
    return caught.value


@pytest.mark.parametrize(("code", "condition"), POSTGRESQL.items())
def test_postgresql_is_understood_by_its_letters(code: str, condition: str) -> None:
    check("postgresql://me@h/d", psycopg.errors.lookup(code)("what the server says"), condition)


@pytest.mark.parametrize(("number", "condition"), MYSQL.items())
def test_mysql_is_understood_by_its_numbers(number: int, condition: str) -> None:
    """3572 is MySQL 8's answer to NOWAIT; MariaDB answers as it does after a wait."""
    check("mysql://me@h/d", make_mysql_error(number), condition)


def check(url: str, error: BaseException, condition: str) -> None:
    with (
        pytest.raises(OffsetStoreError, match="what the server says") as caught,
        translate_errors(parse_place(url)),
    ):
        raise error
    assert (caught.value.condition, caught.value.retriable) == (condition, condition in PASSES)
