"""Checks and quotes the table and column names that a user gives, so that none is ever read as SQL.

Rule: no name can change the statement. Quoting alone ensures that. The names that are also refused (with
control characters or `%`, or too long for a server, which would cut them) could only be mistakes.

>>> quote("postgresql", 'visits"; DROP TABLE x; --')
'"visits""; DROP TABLE x; --"'
>>> quote_table("mysql", "stats.visits")
'`stats`.`visits`'
"""

from __future__ import annotations

from penstock.core.errors import OptionError
from penstock.core.options.storage_addresses import Dialect

#: PostgreSQL's limit; MySQL's is one more.
LONGEST_NAME_BYTES = 63


def check_name(name: str, what: str) -> str:
    """Return the name if all the databases can have it; refuse it otherwise."""
    fits = 0 < len(name.encode("utf-8", "replace")) <= LONGEST_NAME_BYTES
    if fits and name.isprintable() and name == name.strip() and "%" not in name:
        return name
    raise OptionError(
        "NAME_INVALID",
        f"{what} cannot be named {name[:100]!r}.",
        hint=f"Give it a name of 1 to {LONGEST_NAME_BYTES} bytes in UTF-8, printable, without % and without "
        "spaces at its ends.",
        facts={"name": name[:100]},
    )


def check_table_name(name: str) -> str:
    """Return the name if it is `table` or `schema.table` (in MySQL `database.table`); refuse it otherwise."""
    parts = name.split(".")
    if len(parts) > 2:
        raise OptionError(
            "NAME_INVALID",
            f"A table cannot be named {name[:100]!r}: it has {len(parts) - 1} dots.",
            hint="Write `table` or `schema.table`, without quotes.",
            facts={"name": name[:100]},
        )
    for part in parts:
        check_name(part, "A table")
    return name


def quote(dialect: Dialect, name: str) -> str:
    """Return one quoted word."""
    mark = "`" if dialect == "mysql" else '"'
    return f"{mark}{name.replace(mark, mark * 2)}{mark}"


def quote_table(dialect: Dialect, name: str) -> str:
    """Return a table's name, quoted, with its schema if it has one."""
    return ".".join(quote(dialect, part) for part in name.split("."))


def quote_all(dialect: Dialect, names: tuple[str, ...] | list[str]) -> str:
    """Return quoted words with commas between them."""
    return ", ".join(quote(dialect, name) for name in names)
