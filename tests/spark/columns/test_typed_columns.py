"""Values as typed columns, decoded in the worker that fetches: good ones, bad ones, and where those go."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import DataFrame, SparkSession

from penstock.testing.registry import RegistryServer
from tests.conftest import MakeTopic

Load = Callable[..., DataFrame]

SCHEMA = "id BIGINT, name STRING, tags ARRAY<STRING>, at TIMESTAMP"
GOOD = [
    {"id": 1, "name": "one", "tags": ["a", "b"], "at": "2026-01-31T12:00:00Z"},
    {"id": 2, "name": None, "tags": [], "more": {"x": 1}},
]


def send(bootstrap: str, topic: str, values: list[bytes | None], **record: Any) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, value, **record)
    assert producer.flush(30) == 0


def documents(*rows: dict[str, Any]) -> list[bytes | None]:
    return [json.dumps(row).encode() for row in rows]


def receive(bootstrap: str, topic: str, count: int) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "dead", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return consumer.consume(count, timeout=30)
    finally:
        consumer.close()


def test_json_values_are_a_typed_column_beside_kafkas(load: Load, kafka: Any, topic: MakeTopic) -> None:
    """The values are those of `from_json`; a tombstone is null and not an error."""
    from pyspark.sql.functions import col, from_json

    name = topic(2)
    send(kafka.bootstrap, name, [*documents(*GOOD), None], partition=1)
    frame = load(name, valueFormat="json", valueSchema=SCHEMA)
    assert frame.columns[-1] == "valueData"
    rows = frame.orderBy("offset").collect()
    expected = (
        load(name)
        .select("offset", from_json(col("value").cast("string"), SCHEMA).alias("valueData"))
        .orderBy("offset")
        .collect()
    )
    assert [row.valueData for row in rows] == [row.valueData for row in expected]
    assert rows[0].valueData.tags == ["a", "b"]
    assert rows[2].valueData is None
    assert [bytes(row.value) for row in rows[:2]] == documents(*GOOD)


def test_columns_can_be_chosen_so_that_only_typed_ones_cross_to_spark(
    load: Load, kafka: Any, topic: MakeTopic
) -> None:
    name = topic()
    send(kafka.bootstrap, name, documents(*GOOD), key=b"k")
    frame = load(
        name, valueFormat="json", valueSchema=SCHEMA, keyFormat="string", columns="valueData,keyData,offset"
    )
    assert frame.columns == ["valueData", "keyData", "offset"]
    assert [(row.valueData.id, row.keyData, row.offset) for row in frame.orderBy("offset").collect()] == [
        (1, "k", 0),
        (2, "k", 1),
    ]


def test_a_bad_value_fails_the_query_with_its_place_and_reason(
    load: Load, kafka: Any, topic: MakeTopic
) -> None:
    """The error never quotes the value."""
    name = topic()
    send(kafka.bootstrap, name, [*documents(*GOOD), b'{"id": "s3cret"}'])
    with pytest.raises(Exception, match=rf"\[DECODE_FAILED\] {name}-0 offset 2: value: .*id") as caught:
        load(name, valueFormat="json", valueSchema=SCHEMA).collect()
    assert "s3cret" not in str(caught.value)
    assert "onDecodeError" in str(caught.value)


def test_a_bad_value_becomes_null_with_its_reason_beside_it(load: Load, kafka: Any, topic: MakeTopic) -> None:
    name = topic()
    send(kafka.bootstrap, name, [b"{", *documents(GOOD[0]), b"\xff"])
    frame = load(name, valueFormat="json", valueSchema=SCHEMA, onDecodeError="null")
    rows = frame.orderBy("offset").collect()
    assert [row.valueData is None for row in rows] == [True, False, True]
    assert [row.decodeError is None for row in rows] == [False, True, False]
    assert bytes(rows[0].value) == b"{"


def test_counts_and_sums_are_those_of_from_json_where_one_field_is_bad(
    load: Load, kafka: Any, topic: MakeTopic
) -> None:
    """Only that field is null and `decodeError` names it; `nullValue` makes the whole value null."""
    from pyspark.sql.functions import col, from_json

    name = topic()
    values = [*documents(*GOOD), b'{"id":"n/a","name":"kept"}', b'{"id":9,"at":"never","tags":[1,{}]}', b"{"]
    send(kafka.bootstrap, name, values)
    figures = [f"count(v.{field})" for field in ("id", "name", "tags", "at")] + ["sum(v.id)", "max(v.at)"]
    options = {"valueFormat": "json", "valueSchema": SCHEMA, "onDecodeError": "null"}
    frame = load(name, **options).withColumnRenamed("valueData", "v")
    expected = load(name).select(from_json(col("value").cast("string"), SCHEMA).alias("v"))
    assert frame.selectExpr(*figures).first() == expected.selectExpr(*figures).first()
    rows = frame.orderBy("offset").collect()
    assert [row.decodeError for row in rows[:4]] == [
        None,
        None,
        "value: field `id` is not bigint",
        "value: field `at` is not timestamp",
    ]
    assert (rows[2].v.id, rows[2].v.name, rows[3].v.id) == (None, "kept", 9)
    strict = load(name, **options, onFieldError="nullValue").orderBy("offset").collect()
    assert [row.valueData is None for row in strict] == [False, False, True, True, True]
    assert [row.decodeError for row in strict] == [row.decodeError for row in rows]


def test_a_dead_letter_topic_that_is_not_there_fails_at_the_start(load: Load, kafka: Any, topic: Any) -> None:
    """It does not wait for the first bad value, which may come weeks later."""
    name = topic()
    send(kafka.bootstrap, name, documents(GOOD[0]))
    options = {"onDecodeError": "deadLetter", "deadLetterTopic": "nowhere-at-all"}
    with pytest.raises(Exception, match=r"DEAD_LETTER_TOPIC_MISSING.*nowhere-at-all"):
        load(name, valueFormat="json", valueSchema=SCHEMA, **options).collect()


def test_bad_records_go_to_the_dead_letter_topic_with_where_they_came_from(
    spark: SparkSession, kafka: Any, topic: MakeTopic, tmp_path: Path
) -> None:
    """In a stream: original bytes, a key of topic, partition and offset, provenance, original headers.

    A record with one bad field becomes a letter and also a row with its other fields.
    """
    name, dead = topic(), topic(name="dead")
    send(kafka.bootstrap, name, documents(GOOD[0]))
    send(kafka.bootstrap, name, [b"bad one", b"bad two"], key=b"k", headers=[("trace", b"7"), ("none", None)])
    bad_field = b'{"id":7,"tags":"none"}'
    send(kafka.bootstrap, name, [b"bad three", bad_field])
    reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", kafka.bootstrap)
    reader = reader.option("subscribe", name).option("startingOffsets", "earliest")
    reader = reader.options(
        valueFormat="json", valueSchema=SCHEMA, onDecodeError="deadLetter", deadLetterTopic=dead
    )
    writer = reader.load().writeStream.format("memory").queryName("typed_dead_letters")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    try:
        query.awaitTermination(120)
    finally:
        query.stop()
    rows = spark.table("typed_dead_letters").orderBy("offset").collect()
    assert [row.decodeError is None for row in rows] == [True, False, False, False, False]
    assert (rows[4].valueData.id, rows[4].valueData.tags) == (7, None)
    letters = receive(kafka.bootstrap, dead, 4)
    assert [letter.value() for letter in letters] == [b"bad one", b"bad two", b"bad three", bad_field]
    assert [letter.key() for letter in letters] == [f"{name}/0/{offset}".encode() for offset in range(1, 5)]
    headers = letters[0].headers()
    kept = dict(headers)
    assert kept["penstock.topic"] == name.encode()
    assert (kept["penstock.partition"], kept["penstock.offset"]) == (b"0", b"1")
    assert kept["penstock.key"] == b"k"
    assert b"value: " in kept["penstock.error"]
    assert kept["penstock.timestamp"].endswith(b"Z")
    assert headers[-2:] == [("trace", b"7"), ("none", None)]
    assert "trace" not in dict(letters[2].headers())


def test_too_many_bad_values_stop_the_query(load: Load, kafka: Any, topic: MakeTopic) -> None:
    name = topic()
    send(kafka.bootstrap, name, [b"bad"] * 5)
    options = {"valueFormat": "json", "valueSchema": SCHEMA, "onDecodeError": "null"}
    assert load(name, **options, decodeErrorQuota="5").count() == 5
    with pytest.raises(
        Exception, match=r"\[DECODE_QUOTA_EXCEEDED\] .*, 5 could not be decoded; 4 are allowed"
    ):
        load(name, **options, decodeErrorQuota="4").collect()
    with pytest.raises(Exception, match=r"\[DECODE_QUOTA_EXCEEDED\] .*, 5 could not be decoded; 99.5 % are"):
        load(name, **options, decodeErrorQuota="99.5%", decodeErrorFloor="0").collect()


def test_a_subject_gives_the_frame_its_schema_and_writers_schemas_are_resolved_to_it(
    load: Load, kafka: Any, topic: MakeTopic
) -> None:
    """Two versions of a record in one topic are read into the columns of the newest one."""
    import io

    import fastavro

    def encode(schema: dict[str, Any], number: int, row: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
        return b"\0" + number.to_bytes(4, "big") + out.getvalue()

    old: dict[str, Any] = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
    new: dict[str, Any] = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string", "default": "none"}],
    }
    name = topic()
    with RegistryServer() as registry:
        first = registry.register(f"{name}-value", json.dumps(old), "AVRO")
        second = registry.register(f"{name}-value", json.dumps(new), "AVRO")
        send(
            kafka.bootstrap,
            name,
            [encode(old, first, {"id": 1}), encode(new, second, {"id": 2, "name": "x"})],
        )
        options = {"schemaRegistry__url": registry.url, "valueSubject": f"{name}-value"}
        frame = load(name, valueFormat="avro", **options)
        assert frame.schema["valueData"].dataType.simpleString() == "struct<id:bigint,name:string>"
        rows = frame.orderBy("offset").collect()
    assert [tuple(row.valueData) for row in rows] == [(1, "none"), (2, "x")]


@pytest.mark.parametrize(
    ("options", "condition"),
    [
        ({"onDecodeError": "null"}, "OPTION_MISSING"),
        ({"valueFormat": "string", "onDecodeError": "deadLetter"}, "OPTION_MISSING"),
        ({"valueFormat": "string", "deadLetterTopic": "d"}, "OPTION_MISSING"),
        ({"valueFormat": "json"}, "OPTION_MISSING"),
        (
            {"valueFormat": "json", "valueSchema": "id INT", "onFieldError": "nullValue"},
            r"OPTION_MISSING\] Option `onFieldError` is set, but does nothing without `onDecodeError`",
        ),
        (
            {"valueFormat": "string", "onDecodeError": "null", "onFieldError": "nullField"},
            r"OPTION_MISSING\] `onFieldError` is set, but neither `valueFormat` nor `keyFormat` is `json`",
        ),
        ({"valueFormat": "json", "valueSchema": "id NOSUCHTYPE"}, ""),
        ({"columns": "valueData"}, "COLUMN_UNKNOWN"),
    ],
)
def test_options_that_do_not_belong_together_fail_at_load(
    load: Load, topic: MakeTopic, options: dict[str, str], condition: str
) -> None:
    with pytest.raises(Exception, match=rf"\[{condition}"):
        load(topic(), **options)
