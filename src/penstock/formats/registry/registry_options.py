"""Reads the options of a schema registry: its addresses, its login, its certificates and its limits.

Rule: references to secrets are resolved here, where the query starts; workers get plain settings.

>>> from penstock.core.options.typed_column_options import FormatTable
>>> read_registry_options(FormatTable(registry_url="http://registry:8081"), {}).urls
('http://registry:8081',)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.core.client.client_settings import Secret
from penstock.core.options.option_table import conflicting_option, invalid, missing_option
from penstock.core.options.option_values import INT32_MAX
from penstock.core.options.secret_references import resolve_reference
from penstock.core.options.typed_column_options import FormatTable
from penstock.core.typed_columns import FAIL
from penstock.formats.option_files import read_option_bytes
from penstock.formats.registry.schema_registry import RegistrySettings, parse_urls

#: The least bound on unknown ids, even if fewer bad rows are allowed, so that the error names a bad row.
LEAST_UNKNOWN_IDS = 100


def read_registry_options(table: FormatTable, environ: Mapping[str, str]) -> RegistrySettings | None:
    """Return the registry that the options name, None without one."""
    secrets = {
        "username": table.registry_username,
        "password": table.registry_password,
        "token": table.registry_token,
    }
    if table.registry_url is None:
        for name, text in {**secrets, "caFile": table.registry_ca_file}.items():
            if text is not None:
                raise missing_option("schemaRegistry.url", f"`schemaRegistry.{name}` is set")
        return None
    try:
        urls = parse_urls(table.registry_url)
    except ValueError as error:
        raise invalid("schemaRegistry.url", table.registry_url, str(error)) from None

    def look_up(path: str) -> str:
        return Path(path).read_bytes().decode()

    plain = {
        name: resolve_reference(f"schemaRegistry.{name}", text, environ=environ, read_file=look_up).strip()
        for name, text in secrets.items()
        if text is not None
    }
    for name, text in plain.items():
        if not text.isprintable():  # it does not fit into a header, and the header's error would show it
            raise invalid(f"schemaRegistry.{name}", "", "one line of printable characters")
    if ("username" in plain) != ("password" in plain):
        absent = "password" if "username" in plain else "username"
        raise missing_option(f"schemaRegistry.{absent}", "the other half of the login is set")
    if "token" in plain and "password" in plain:
        raise conflicting_option("schemaRegistry.token", "a name and a password are set too")
    ca = table.registry_ca_file
    return RegistrySettings(
        urls,
        Secret(f"{plain['username']}:{plain['password']}") if "username" in plain else None,
        Secret(plain["token"]) if "token" in plain else None,
        None if ca is None else read_option_bytes("schemaRegistry.caFile", ca).decode("ascii", "replace"),
        table.registry_timeout_ms,
        max_unknown_ids=_bound_unknown_ids(table),
    )


def _bound_unknown_ids(table: FormatTable) -> int:
    """Return how many ids of a batch may be unknown: as many as the bad values that any task tolerates."""
    if table.on_decode_error == FAIL:
        return LEAST_UNKNOWN_IDS
    return INT32_MAX if table.quota is None else max(LEAST_UNKNOWN_IDS, table.quota.floor)
