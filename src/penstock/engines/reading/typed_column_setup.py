"""Prepares the typed columns that a read's options ask for, so that workers can use them.

Rule: the frame's schema is fixed at `load()`. Spark makes the reader later and in another process, when a
subject may have a newer schema. The reader is then refused rather than given other columns.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from penstock.core.errors import OptionError
from penstock.core.options.typed_column_options import FormatTable
from penstock.core.typed_columns import DEAD_LETTER, TypedColumns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from penstock.core.client.client_settings import ClientSettings


def make_typed(formats: FormatTable, columns: tuple[str, ...]) -> TypedColumns | None:
    """Return the typed columns, or None if the options ask for none. Ask the registry if they name one."""
    if not formats.typed_columns and formats.registry_url is None:
        return None
    from penstock.formats.decoder_choice import build_decoders

    return TypedColumns(
        decoders=build_decoders(formats, environ=os.environ),
        output=columns,
        on_error=formats.on_decode_error,
        quota=formats.quota,
        dead_letter_topic=formats.dead_letter_topic,
    )


def refuse_changed_schema(typed: TypedColumns | None, schema: StructType) -> None:
    """Refuse to start if a subject got a new version after `load()`."""
    if typed is None:
        return
    loaded = {each.name: each.dataType.simpleString() for each in schema}
    for name, (before, now) in _find_changes(typed, loaded).items():
        raise OptionError(
            "SCHEMA_CHANGED",
            f"The schema of `{name}` was {before} when the frame was loaded and is {now} now.",
            hint="Load the frame again.",
            facts={"column": name, "loaded": before, "now": now},
        )


def refuse_missing_letter_box(typed: TypedColumns | None, client: ClientSettings) -> None:
    """Refuse to start if the dead-letter topic does not exist, instead of failing at the first bad value."""
    if typed is None or typed.on_error != DEAD_LETTER or typed.dead_letter_topic is None:
        return
    from penstock.kafka.reading.kafka_log_view import KafkaLogView

    topic = typed.dead_letter_topic
    with closing(KafkaLogView(client)) as view:
        if topic in view.describe([topic]):
            return
    raise OptionError(
        "DEAD_LETTER_TOPIC_MISSING",
        f"`deadLetterTopic` is {topic}, but the brokers know no such topic.",
        hint="Create it (it is not created automatically), or correct the name.",
        facts={"topic": topic},
    )


def _find_changes(typed: TypedColumns, loaded: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    now = {name: typed.spark_type(name).replace("`", "") for name in typed.decoders if name in loaded}
    return {name: (loaded[name], kind) for name, kind in now.items() if kind.lower() != loaded[name].lower()}
