"""The options of typed columns: the formats of key and value, and where their schemas come from.

Rule: the table says what each text may be. `formats.decoder_choice`, which also asks the registry, decides
which options belong together; `formats.registry.registry_options` does so for the registry's own. Secrets
have names that Spark, too, hides in its plans and pages (`...password`, `...token`).

>>> FormatTable().registry_timeout_ms
10000
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

from penstock.core.errors import OptionError
from penstock.core.options.option_table import option, refuse_stranded
from penstock.core.options.option_values import (
    INT32_MAX,
    parse_integer,
    parse_integer_from,
    parse_text,
    parse_word,
)
from penstock.core.planning.partition_selection import Selection, selects_topic
from penstock.core.typed_columns import Quota

_WRONG = "OPTION_INVALID"
FORMATS = ("string", "json", "avro", "protobuf", "jsonschema")
#: The default quota of bad values in a task: a share of what it reads, and a floor.
USUAL_SHARE = Fraction(1, 10)
USUAL_FLOOR = 10_000
#: A quota that nothing exceeds: all values may be bad.
OFF = Fraction(1)
_TYPED: Mapping[str, tuple[str, ...]] = {"valueFormat": (), "keyFormat": ()}
_REGISTERED: Mapping[str, tuple[str, ...]] = {"schemaRegistry.url": ()}
_LENIENT: Mapping[str, tuple[str, ...]] = {"onDecodeError": ("null", "deadLetter")}
_REGISTRY = {"schemaRegistry.url": "http://registry:8081"}
_SHARE = re.compile(r"([0-9]+(?:[.][0-9]+)?) ?%")


def parse_quota(text: str) -> Fraction | int:
    """Return a share such as `10%` as a fraction, a plain number as it is, and a share of 1 for `off`."""
    text = text.strip()
    found = _SHARE.fullmatch(text)
    if found is not None and (share := Fraction(found[1]) / 100) <= 1:
        return share
    if text.lower() == "off":
        return OFF
    try:
        return parse_integer(text, least=0, most=INT32_MAX)
    except ValueError:
        raise ValueError("a share such as `10%`, a number of values of 0 or more, or `off`") from None


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
        only_with={f"{column}Format": ()},
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
    return option(
        f"schemaRegistry.{name}",
        parse,
        doc,
        accepts=examples,
        rejects=(("", _WRONG),),
        needs={"valueFormat": "string", **({} if name == "url" else _REGISTRY)},
        only_with=_TYPED if name == "url" else _REGISTERED,
    )


@dataclass(frozen=True)
class FormatTable:
    """The option table of typed columns. A field without a value was not set."""

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
        "What happens to a value that cannot be decoded: it fails the query; it becomes null, with the "
        "reason in `decodeError`; or it becomes null and also goes to `deadLetterTopic` with its origin.",
        default="fail",
        accepts=("fail", "NULL"),
        rejects=(("skip", _WRONG), ("", _WRONG)),
        needs={"valueFormat": "string"},
        only_with=_TYPED,
    )
    on_field_error: str | None = option(
        "onFieldError",
        parse_word("nullField", "nullValue"),
        "What becomes null if a field of a JSON value does not have its type and `onDecodeError` does not "
        "fail: that field alone, as with `from_json`, or the whole value. `decodeError` names the field.",
        default_doc="`nullField`",
        accepts=("nullValue", "nullField"),
        rejects=(("", _WRONG), ("strict", _WRONG)),
        needs={"valueFormat": "json", "valueSchema": "id BIGINT", "onDecodeError": "null"},
        only_with=_LENIENT,
    )
    dead_letter_topic: str | None = option(
        "deadLetterTopic",
        parse_text,
        "The topic for `onDecodeError` = `deadLetter`; it must exist, and is best compacted.",
        accepts=("orders-dead",),
        rejects=(("", _WRONG),),
        needs={"valueFormat": "string", "onDecodeError": "deadLetter"},
        only_with={"onDecodeError": ("deadLetter",)},
    )
    decode_error_quota: Fraction | int | None = option(  # noqa: RUF009 (a fraction cannot be changed)
        "decodeErrorQuota",
        parse_quota,
        "How many such values one task tolerates before the query fails anyway: a share of the records it "
        "reads (`10%`), a number, or `off`. A share is judged when the task has read all, or as soon as it "
        "can no longer be kept.",
        default_doc="`10%`",
        accepts=("10%", "0.5%", "500", "0", "0%", "off"),
        rejects=(("-1", _WRONG), ("many", _WRONG), ("101%", _WRONG), ("-5%", _WRONG), ("0.1", _WRONG)),
        needs={"valueFormat": "string", "onDecodeError": "null"},
        only_with=_LENIENT,
    )
    decode_error_floor: int | None = option(
        "decodeErrorFloor",
        parse_integer_from(0),
        "With a share as `decodeErrorQuota`: a task tolerates this many such values in any case, so that a "
        "few of them do not fail a small task. A task that exceeds the share because of it logs a warning.",
        default_doc=f"`{USUAL_FLOOR}`; with `0%`, `0`",
        accepts=("0", "100"),
        rejects=(("-1", _WRONG), ("1%", _WRONG)),
        needs={"valueFormat": "string", "onDecodeError": "null"},
        only_with=_LENIENT,
    )
    registry_timeout_ms: int = option(
        "schemaRegistry.timeoutMs",
        parse_integer_from(1, 600_000),
        "How long one request to the registry may take.",
        default=10_000,
        accepts=("3000",),
        rejects=(("0", _WRONG), ("soon", _WRONG)),
        needs={"valueFormat": "string", **_REGISTRY},
        only_with=_REGISTERED,
    )

    @property
    def quota(self) -> Quota | None:
        """Return how many bad values a task tolerates, or None for any number."""
        given = USUAL_SHARE if self.decode_error_quota is None else self.decode_error_quota
        if isinstance(given, int):
            return Quota(given)
        usual = USUAL_FLOOR if given else 0  # `0%` allows none, as `0` does
        floor = usual if self.decode_error_floor is None else self.decode_error_floor
        return None if given == OFF else Quota(floor, given)

    @property
    def typed_columns(self) -> tuple[str, ...]:
        """Return the columns that these options add to Kafka's."""
        formats = {"keyData": self.key_format, "valueData": self.value_format}
        typed = tuple(name for name, kind in formats.items() if kind is not None)
        return (*typed, "decodeError") if typed and self.on_decode_error != "fail" else typed


def pick_formats(table: FormatTable, texts: Mapping[str, str], selection: Selection) -> FormatTable:
    """Return only the format options of a bigger table, with their combinations checked.

    `texts` holds the options as given. `selection` is what is read; dead letters must not go there.
    """
    refuse_stranded(FormatTable, table, texts)
    picked = FormatTable(**{each.name: getattr(table, each.name) for each in fields(FormatTable)})
    if picked.on_decode_error == "deadLetter" and picked.dead_letter_topic is None:
        raise OptionError(
            "OPTION_MISSING",
            "`onDecodeError` is `deadLetter`, but `deadLetterTopic` is not set.",
            hint="Name the topic for such records; it must exist.",
            facts={"option": "deadLetterTopic"},
        )
    if picked.dead_letter_topic is not None and selects_topic(selection, picked.dead_letter_topic):
        raise OptionError(
            "OPTION_CONFLICT",
            f"`deadLetterTopic` is {picked.dead_letter_topic}, which this query also reads: each dead letter "
            "would be read again and become another one, without end.",
            hint="Name a topic for dead letters that the query does not read, or make the pattern narrower.",
            facts={"option": "deadLetterTopic", "topic": picked.dead_letter_topic},
        )
    quota = picked.decode_error_quota
    if picked.decode_error_floor is not None and (isinstance(quota, int) or quota == OFF):
        raise OptionError(
            "OPTION_CONFLICT",
            "`decodeErrorFloor` belongs to a share, but `decodeErrorQuota` is a number or `off`.",
            hint="Leave out `decodeErrorFloor`, or make `decodeErrorQuota` a share such as `10%`.",
            facts={"option": "decodeErrorFloor"},
        )
    formats = {picked.value_format, picked.key_format}
    if picked.on_field_error is not None and not {"json", "jsonschema"} & formats:
        raise OptionError(
            "OPTION_MISSING",
            "`onFieldError` is set, but neither `valueFormat` nor `keyFormat` is `json` or `jsonschema`.",
            hint="Leave out `onFieldError`: in the other formats a value is good or bad as a whole.",
            facts={"option": "onFieldError"},
        )
    return picked
