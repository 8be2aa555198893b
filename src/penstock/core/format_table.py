"""The options of typed columns: which format key and value have, and where their schemas come from.

Rule: the table says what each text may be; which of them belong together is decided in `formats.options`,
which also asks the registry. Secrets have names that Spark hides in its plans and pages as well
(`...password`, `...token`).

>>> FormatTable().registry_timeout_ms
10000
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from penstock.core.errors import OptionError
from penstock.core.options import option
from penstock.core.values import parse_integer_from, parse_text, parse_word

_WRONG = "OPTION_INVALID"
FORMATS = ("string", "json", "avro", "protobuf", "jsonschema")


def _format_option(column: str) -> Any:
    return option(
        f"{column}Format",
        parse_word(*FORMATS),
        f"How the {column} is written. Its typed column is `{column}Data`.",
        accepts=FORMATS,
        rejects=(("", _WRONG), ("xml", _WRONG)),
        needs={f"{column}Schema": "id BIGINT"},
    )


def _text_option(column: str, name: str, doc: str, *examples: str) -> Any:
    return option(
        f"{column}{name}",
        parse_text,
        doc,
        accepts=examples,
        rejects=(("", _WRONG),),
        needs={f"{column}Format": "avro"},
    )


def _schema_option(column: str) -> Any:
    return _text_option(
        column,
        "Schema",
        "The schema of the typed column: Spark DDL for `json`, the schema for `avro` and `jsonschema`, "
        "a FileDescriptorSet in base64 for `protobuf`.",
        '{"type":"record","name":"R","fields":[{"name":"id","type":"long"}]}',
    )


def _file_option(column: str) -> Any:
    doc = "The same from a file, which is read where the query is started; for `protobuf` what protoc wrote."
    return _text_option(column, "SchemaFile", doc, "orders.avsc")


def _subject_option(column: str) -> Any:
    doc = "The registry's subject whose newest schema, when the query starts, is the column's schema."
    return _text_option(column, "Subject", doc, "orders-value")


def _message_option(column: str) -> Any:
    doc = "The full name of the message, for `protobuf`; with a subject, its file's first one by default."
    return _text_option(column, "Message", doc, "shop.Order")


def _registry_option(name: str, parse: Callable[[str], Any], doc: str, *examples: str) -> Any:
    return option(f"schemaRegistry.{name}", parse, doc, accepts=examples, rejects=(("", _WRONG),))


@dataclass(frozen=True)
class FormatTable:
    """The table. A field without a value was not set."""

    value_format: str | None = _format_option("value")
    value_schema: str | None = _schema_option("value")
    value_schema_file: str | None = _file_option("value")
    value_subject: str | None = _subject_option("value")
    value_message: str | None = _message_option("value")
    key_format: str | None = _format_option("key")
    key_schema: str | None = _schema_option("key")
    key_schema_file: str | None = _file_option("key")
    key_subject: str | None = _subject_option("key")
    key_message: str | None = _message_option("key")
    registry_url: str | None = _registry_option(
        "url",
        parse_text,
        "Addresses of a schema registry, separated by commas. With it, values begin with a schema's id.",
        "http://registry:8081",
        "https://a:8081,https://b:8081",
    )
    registry_username: str | None = _registry_option("username", parse_text, "The name to log in with.", "me")
    registry_password: str | None = _registry_option(
        "password", parse_text, "Its password, or a reference to one.", "${env:REGISTRY_PASSWORD}"
    )
    registry_token: str | None = _registry_option(
        "token", parse_text, "A bearer token, or a reference to one.", "${file:/run/secrets/registry}"
    )
    registry_ca_file: str | None = _registry_option(
        "caFile", parse_text, "A PEM file with the authorities to trust; by default the system's.", "ca.pem"
    )
    on_decode_error: str = option(
        "onDecodeError",
        parse_word("fail", "null", "deadLetter"),
        "What a value that cannot be decoded does: fail the query; become null, with the reason in "
        "`decodeError`; or that, and go to `deadLetterTopic` with where it came from.",
        default="fail",
        accepts=("fail", "NULL"),
        rejects=(("skip", _WRONG), ("", _WRONG)),
        needs={"valueFormat": "string"},
    )
    dead_letter_topic: str | None = option(
        "deadLetterTopic",
        parse_text,
        "The topic for `onDecodeError` = `deadLetter`; it must exist, and is best compacted.",
        accepts=("orders-dead",),
        rejects=(("", _WRONG),),
        needs={"valueFormat": "string", "onDecodeError": "deadLetter"},
    )
    decode_error_quota: int = option(
        "decodeErrorQuota",
        parse_integer_from(0),
        "How many such values one task bears before the query fails all the same.",
        default=10_000,
        accepts=("0", "500"),
        rejects=(("-1", _WRONG), ("many", _WRONG)),
        needs={"valueFormat": "string", "onDecodeError": "null"},
    )
    registry_timeout_ms: int = option(
        "schemaRegistry.timeoutMs",
        parse_integer_from(1, 600_000),
        "How long one question to the registry may take.",
        default=10_000,
        accepts=("3000",),
        rejects=(("0", _WRONG), ("soon", _WRONG)),
    )

    @property
    def typed_columns(self) -> tuple[str, ...]:
        """The columns that these options add to Kafka's."""
        formats = {"keyData": self.key_format, "valueData": self.value_format}
        typed = tuple(name for name, kind in formats.items() if kind is not None)
        return (*typed, "decodeError") if typed and self.on_decode_error != "fail" else typed


def pick_formats(table: FormatTable) -> FormatTable:
    """Only these options of a bigger table; what belongs together is checked."""
    picked = FormatTable(**{each.name: getattr(table, each.name) for each in fields(FormatTable)})
    if picked.on_decode_error != "fail" and not picked.typed_columns:
        raise _not_without("onDecodeError", "valueFormat` or `keyFormat")
    if picked.on_decode_error == "deadLetter" and picked.dead_letter_topic is None:
        raise _not_without("onDecodeError", "deadLetterTopic")
    if picked.on_decode_error != "deadLetter" and picked.dead_letter_topic is not None:
        raise _not_without("deadLetterTopic", "onDecodeError` = `deadLetter")
    return picked


def _not_without(key: str, other: str) -> OptionError:
    return OptionError(
        "OPTION_MISSING", f"`{key}` is set without `{other}`.", hint="Set both.", facts={"option": other}
    )
