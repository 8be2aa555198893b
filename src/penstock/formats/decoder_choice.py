"""Builds the decoders of typed columns from their options, when the query starts.

Rules: this module alone decides which options of a column belong together. It also fixes the schema of a
column, whether given or the newest of a subject, so a query keeps the same columns until it ends. Only this
module asks the registry for a subject. What workers get is complete.

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

from penstock.core.errors import OptionError
from penstock.core.options.option_table import conflicting_option, invalid, missing_option
from penstock.core.options.typed_column_options import FormatTable
from penstock.core.typed_columns import ColumnDecoder
from penstock.formats.avro.avro_decoder import AvroDecoder
from penstock.formats.json.json_decoder import JsonDecoder
from penstock.formats.json.json_schema import JsonSchemaDecoder
from penstock.formats.option_files import read_option_bytes
from penstock.formats.registry.registry_options import read_registry_options
from penstock.formats.registry.schema_registry import RegisteredSchema, RegistrySettings, find_latest
from penstock.formats.text.string_decoder import StringDecoder

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
    registry = read_registry_options(table, os.environ if environ is None else environ)
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
        raise conflicting_option(
            "schemaRegistry.url", "it has no effect without `valueFormat` or `keyFormat`"
        )
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
            raise missing_option(f"{name}Format", f"`{key}` is set")
        return
    if len(named) > 1:
        raise conflicting_option(named[1], f"`{named[0]}` is set too, and a column has one schema")
    if kind == "string":
        if named:
            raise conflicting_option(named[0], "text has no schema")
        return
    if not named:
        raise missing_option(f"{name}Schema", f"`{name}Format` is `{kind}`")
    if column.subject is not None and kind == "json":
        raise conflicting_option(
            f"{name}Subject", "the format `json` takes its schema as DDL; `jsonschema` has subjects"
        )
    if column.subject is not None and registry is None:
        raise missing_option("schemaRegistry.url", f"`{name}Subject` is set")
    if column.message is not None and kind != "protobuf":
        raise conflicting_option(f"{name}Message", f"the format `{kind}` has no messages")
    if kind == "protobuf" and column.message is None and column.subject is None:
        raise missing_option(f"{name}Message", f"`{name}Format` is `protobuf`")


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
    text = found.text if found is not None else _read_schema(column).decode("utf-8-sig", "replace")
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
    return read_option_bytes(f"{column.name}SchemaFile", column.schema_file)
