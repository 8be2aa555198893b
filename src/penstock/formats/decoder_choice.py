"""Builds the decoders of typed columns from their options, when the query starts.

Rules: this module alone decides which options belong together. It also fixes the schema of a column, whether
given or the newest of a subject, so a query keeps the same columns until it ends. Only this module reads
files, resolves references to secrets and asks the registry for a subject. What workers get is complete.

>>> from penstock.core.options.typed_column_options import FormatTable
>>> sorted(build_decoders(FormatTable(value_format="json", value_schema="id BIGINT")))
['valueData']
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.core.client.client_settings import Secret
from penstock.core.errors import OptionError
from penstock.core.options.option_table import invalid
from penstock.core.options.option_values import INT32_MAX
from penstock.core.options.secret_references import describe_os_error, resolve_reference
from penstock.core.options.typed_column_options import FormatTable
from penstock.core.typed_columns import FAIL, ColumnDecoder
from penstock.formats.avro.avro_decoder import AvroDecoder
from penstock.formats.json.json_decoder import JsonDecoder
from penstock.formats.json.json_schema import JsonSchemaDecoder
from penstock.formats.registry.schema_registry import (
    RegisteredSchema,
    RegistrySettings,
    find_latest,
    parse_urls,
)
from penstock.formats.text.string_decoder import StringDecoder

#: The least bound on unknown ids, even if fewer bad rows are allowed, so that the error names a bad row.
LEAST_UNKNOWN_IDS = 100
_KINDS = {"avro": "AVRO", "protobuf": "PROTOBUF", "jsonschema": "JSON"}


@dataclass(frozen=True, slots=True)
class _Column:
    """The parsed options of one column."""

    name: str  # key or value
    format: str
    strict: bool  # a bad field makes its whole value null
    schema: str | None
    schema_file: str | None
    subject: str | None
    message: str | None


def build_decoders(
    table: FormatTable, *, environ: Mapping[str, str] | None = None
) -> dict[str, ColumnDecoder]:
    """Return the decoder of each typed column asked for (`keyData`, `valueData`). May ask the registry."""
    registry = _read_registry(table, os.environ if environ is None else environ)
    decoders: dict[str, ColumnDecoder] = {}
    for name in ("key", "value"):
        kind, *others = (
            getattr(table, f"{name}_{part}")
            for part in ("format", "schema", "schema_file", "subject", "message")
        )
        column = _Column(name, kind or "", table.on_field_error == "nullValue", *others)
        _check_together(column, registry)
        if kind:
            decoders[f"{name}Data"] = _build(column, registry)
    if registry is not None and not decoders:
        raise _conflict("schemaRegistry.url", "it has no effect without `valueFormat` or `keyFormat`")
    return decoders


def _check_together(column: _Column, registry: RegistrySettings | None) -> None:
    name, kind = column.name, column.format
    given = {
        f"{name}Schema": column.schema,
        f"{name}SchemaFile": column.schema_file,
        f"{name}Subject": column.subject,
    }
    named = [key for key, text in given.items() if text is not None]
    if not kind:
        for key in (*named, *([f"{name}Message"] if column.message else ())):
            raise _missing(f"{name}Format", f"`{key}` is set")
        return
    if len(named) > 1:
        raise _conflict(named[1], f"`{named[0]}` is set too, and a column has one schema")
    if kind == "string":
        if named:
            raise _conflict(named[0], "text has no schema")
        return
    if not named:
        raise _missing(f"{name}Schema", f"`{name}Format` is `{kind}`")
    if column.subject is not None and kind == "json":
        raise _conflict(
            f"{name}Subject", "the format `json` takes its schema as DDL; `jsonschema` has subjects"
        )
    if column.subject is not None and registry is None:
        raise _missing("schemaRegistry.url", f"`{name}Subject` is set")
    if column.message is not None and kind != "protobuf":
        raise _conflict(f"{name}Message", f"the format `{kind}` has no messages")
    if kind == "protobuf" and column.message is None and column.subject is None:
        raise _missing(f"{name}Message", f"`{name}Format` is `protobuf`")


def _build(column: _Column, registry: RegistrySettings | None) -> ColumnDecoder:
    if column.format == "string":
        return StringDecoder()
    found: RegisteredSchema | None = None
    if column.subject is not None and registry is not None:
        found = find_latest(registry, column.subject, serialized=column.format == "protobuf")
        if found.kind != _KINDS[column.format]:
            raise OptionError(
                "SCHEMA_INCOMPATIBLE",
                f"Subject `{column.subject}` holds a schema of {found.kind}, not {_KINDS[column.format]}.",
                hint=f"Set {column.name}Format to what the subject holds.",
                facts={"subject": column.subject, "kind": found.kind},
            )
    if column.format == "protobuf":
        return _build_protobuf(column, found, registry)
    text = found.text if found is not None else _read_schema(column).decode("utf-8", "replace")
    if column.format == "json":
        return JsonDecoder(text, column.strict)
    if column.format == "jsonschema":
        return JsonSchemaDecoder(text, framed=registry is not None, strict=column.strict)
    return AvroDecoder(text, tuple(each for _, each in found.references) if found else (), registry)


def _build_protobuf(
    column: _Column, found: RegisteredSchema | None, registry: RegistrySettings | None
) -> ColumnDecoder:
    from penstock.formats.protobuf.protobuf_decoder import ProtobufDecoder
    from penstock.formats.protobuf.protobuf_schema import first_message, join_files

    if found is not None:
        files = join_files([*(text for _, text in found.references), found.text])
        return ProtobufDecoder(files, column.message or first_message(found.text), registry)
    data = _read_schema(column)
    if column.schema is not None:
        try:
            data = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            key = f"{column.name}Schema"
            raise invalid(key, column.schema[:40], "a FileDescriptorSet in base64") from None
    return ProtobufDecoder(data, column.message or "", registry)


def _read_schema(column: _Column) -> bytes:
    if column.schema_file is None:
        return (column.schema or "").encode()
    return _read_option_file(f"{column.name}SchemaFile", column.schema_file)


def _read_registry(table: FormatTable, environ: Mapping[str, str]) -> RegistrySettings | None:
    secrets = {
        "username": table.registry_username,
        "password": table.registry_password,
        "token": table.registry_token,
    }
    if table.registry_url is None:
        for name, text in {**secrets, "caFile": table.registry_ca_file}.items():
            if text is not None:
                raise _missing("schemaRegistry.url", f"`schemaRegistry.{name}` is set")
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
        raise _missing(f"schemaRegistry.{absent}", "the other half of the login is set")
    if "token" in plain and "password" in plain:
        raise _conflict("schemaRegistry.token", "a name and a password are set too")
    ca = table.registry_ca_file
    return RegistrySettings(
        urls,
        Secret(f"{plain['username']}:{plain['password']}") if "username" in plain else None,
        Secret(plain["token"]) if "token" in plain else None,
        None if ca is None else _read_option_file("schemaRegistry.caFile", ca).decode("ascii", "replace"),
        table.registry_timeout_ms,
        max_unknown_ids=_bound_unknown_ids(table),
    )


def _bound_unknown_ids(table: FormatTable) -> int:
    """Return how many ids of a batch may be unknown: as many as the bad values that any task tolerates."""
    if table.on_decode_error == FAIL:
        return LEAST_UNKNOWN_IDS
    return INT32_MAX if table.quota is None else max(LEAST_UNKNOWN_IDS, table.quota.floor)


def _read_option_file(key: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise OptionError(
            "FILE_UNREADABLE",
            f"Option `{key}` names the file {path}, which cannot be read: {describe_os_error(error)}.",
            hint="Check the path and its permissions on the machine where the query is started.",
            facts={"option": key, "path": path},
        ) from error


def _missing(key: str, because: str) -> OptionError:
    return OptionError(
        "OPTION_MISSING", f"Option `{key}` is not set, but {because}.", hint="Set it.", facts={"option": key}
    )


def _conflict(key: str, why: str) -> OptionError:
    return OptionError(
        "OPTION_CONFLICT",
        f"Option `{key}` cannot be used here: {why}.",
        hint="Leave one of them out.",
        facts={"option": key},
    )
