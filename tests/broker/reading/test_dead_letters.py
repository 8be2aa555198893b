"""Dead letters that are too large for a broker, against a real broker."""

from __future__ import annotations

import random
from contextlib import closing
from typing import Any

from penstock.core.client.client_settings import ClientSettings
from penstock.core.model import At, RangeOrder, WorkOrder
from penstock.core.typed_columns import Quota, TypedColumns
from penstock.engines.reading.typed_rows import TypedRows
from penstock.formats.json.json_decoder import JsonDecoder
from penstock.kafka.reading.kafka_reader import KafkaReader
from tests.conftest import MakeTopic
from tests.support.kafka.topic_filling import alter_config, produce, read_back

LARGE = 20_000_000


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def convert(
    settings: ClientSettings, source: str, dead: str, start: int, until: int, rows: TypedRows
) -> None:
    order = WorkOrder((RangeOrder(source, 0, At(start), At(until)),), settings, make_typed(dead).fetched)
    assert sum(batch.num_rows for batch in rows.convert(KafkaReader().read(order))) == until - start


def make_typed(dead: str) -> TypedColumns:
    return TypedColumns(
        {"valueData": JsonDecoder("id BIGINT")},
        ("valueData", "decodeError"),
        "deadLetter",
        Quota(10_000),
        dead,
    )


def bury(kafka: Any, settings: ClientSettings, source: str, dead: str, count: int) -> list[Any]:
    """Decode the first records of a topic, all bad; return the letters as another client reads them."""
    with closing(TypedRows(make_typed(dead), settings)) as rows:
        convert(settings, source, dead, 0, count, rows)
    return read_back(kafka.bootstrap, dead, count)


def fill(kafka: Any, name: str, *values: bytes, **how: Any) -> None:
    more = {"compression.type": "zstd", "message.max.bytes": LARGE}
    produce(kafka.bootstrap, name, values, **how, **more)


def test_a_record_that_was_small_by_compression_is_a_letter_as_it_is(
    kafka: Any, topic: MakeTopic, settings: ClientSettings
) -> None:
    usual = 1_048_588
    source, dead = topic(max_message_bytes=usual), topic(name="dead", max_message_bytes=usual)
    value = b"no JSON " * 400_000
    fill(kafka, source, value)
    (letter,) = bury(kafka, settings, source, dead, 1)
    assert letter.value() == value
    assert not [name for name, _ in letter.headers() if name.startswith("penstock.cut")]


def test_a_record_above_the_limit_is_cut_and_says_how_long_it_was_and_where_it_is(
    kafka: Any, topic: MakeTopic, settings: ClientSettings
) -> None:
    source = topic(max_message_bytes=LARGE)
    dead = topic(name="dead", max_message_bytes=100_000)
    value = noise(100_000)
    fill(kafka, source, value, key=b"k", headers=[("trace", b"7")])
    (letter,) = bury(kafka, settings, source, dead, 1)
    headers = dict(letter.headers())
    assert value.startswith(letter.value())
    assert len(letter.value()) > 95_000
    assert headers["penstock.cut.value"] == b"100000"
    assert (headers["penstock.topic"], headers["penstock.offset"]) == (source.encode(), b"0")
    assert (headers["penstock.key"], headers["trace"]) == (b"k", b"7")


def test_keys_and_headers_above_the_limit_are_cut_too(
    kafka: Any, topic: MakeTopic, settings: ClientSettings
) -> None:
    source = topic(max_message_bytes=LARGE)
    dead = topic(name="dead", max_message_bytes=100_000)
    key, large = noise(200_000, 1), [("trace", b"7"), ("large", noise(200_000, 2))]
    fill(kafka, source, b"bad", key=key)
    fill(kafka, source, b"bad", key=b"k", headers=large)
    fill(kafka, source, noise(200_000), key=key, headers=large)
    by_key, by_headers, by_all = bury(kafka, settings, source, dead, 3)
    kept = dict(by_key.headers())
    assert (by_key.value(), kept["penstock.cut.key"]) == (b"bad", b"200000")
    assert key.startswith(kept["penstock.key"])
    kept = dict(by_headers.headers())
    assert (by_headers.value(), kept["penstock.key"], kept["penstock.cut.headers"]) == (b"bad", b"k", b"2")
    assert not {"trace", "large"} & set(kept)
    kept = dict(by_all.headers())
    cuts = {name: text for name, text in kept.items() if name.startswith("penstock.cut")}
    assert cuts == {
        "penstock.cut.value": b"200000", "penstock.cut.key": b"200000", "penstock.cut.headers": b"2",
    }  # fmt: skip
    assert [each.key() for each in (by_key, by_headers, by_all)] == [
        f"{source}/0/{n}".encode() for n in range(3)
    ]


def test_many_letters_are_spread_over_batches_that_the_topic_takes(
    kafka: Any, topic: MakeTopic, settings: ClientSettings
) -> None:
    source, dead = topic(), topic(name="dead", max_message_bytes=50_000)
    values = [noise(9_000, seed) for seed in range(60)]
    fill(kafka, source, *values)
    assert [letter.value() for letter in bury(kafka, settings, source, dead, 60)] == values


def test_a_topic_that_stores_uncompressed_or_lowers_its_limit_stops_nothing(
    kafka: Any, topic: MakeTopic, settings: ClientSettings
) -> None:
    source, dead = topic(), topic(name="dead", max_message_bytes=100_000, compression_type="uncompressed")
    fill(kafka, source, b"x" * 500_000, b"y" * 90_000)
    with closing(TypedRows(make_typed(dead), settings)) as rows:
        convert(settings, source, dead, 0, 1, rows)
        alter_config(kafka.bootstrap, dead, "max.message.bytes", "50000")
        convert(settings, source, dead, 1, 2, rows)
    first, second = read_back(kafka.bootstrap, dead, 2)
    assert dict(first.headers())["penstock.cut.value"] == b"500000"
    assert len(first.value()) > 90_000
    assert dict(second.headers())["penstock.cut.value"] == b"90000"
    assert 40_000 < len(second.value()) < 50_000
