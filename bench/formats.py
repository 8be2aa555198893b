"""Measures typed columns alone, on one core, without a network: rows and bytes a second for each format.

Values are about 100 bytes with six fields. Rates count the bytes of the values. Processor time is measured,
not wall time, because the machine may be busy.

    python -m bench.formats --records 400000
"""

from __future__ import annotations

import argparse
import io
import json

import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2, message_factory

from bench.records import sample
from bench.sampling import describe_machine
from penstock.core.typed_columns import ColumnDecoder
from penstock.formats.avro.avro_decoder import AvroDecoder
from penstock.formats.json.json_decoder import JsonDecoder
from penstock.formats.protobuf.protobuf_decoder import ProtobufDecoder
from penstock.formats.protobuf.protobuf_schema import load_message
from penstock.formats.text.string_decoder import StringDecoder

BATCH_ROWS = 40_000  # about what the reader cuts at 4 MiB
AVRO = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "price", "type": "double"},
        {"name": "ok", "type": "boolean"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "note", "type": "string"},
    ],
}


def make_rows(records: int) -> list[dict[str, object]]:
    return [
        {
            "id": n,
            "name": f"user-{n % 1000}",
            "price": n / 8,
            "ok": n % 3 == 0,
            "tags": ["a", "bc"][: n % 3],
            "note": "x" * 24,
        }
        for n in range(records)
    ]


def make_descriptors() -> bytes:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", package="bench", syntax="proto3")
    message = file.message_type.add(name="Event")
    types = (kinds.TYPE_INT64, kinds.TYPE_STRING, kinds.TYPE_DOUBLE, kinds.TYPE_BOOL, kinds.TYPE_STRING)
    names = ("id", "name", "price", "ok", "tags", "note")
    for number, (name, kind) in enumerate(zip(names, (*types, kinds.TYPE_STRING), strict=True), 1):
        label = kinds.LABEL_REPEATED if name == "tags" else kinds.LABEL_OPTIONAL
        message.field.add(name=name, number=number, type=kind, label=label)
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def make_cases(records: int) -> dict[str, tuple[ColumnDecoder, list[bytes]]]:
    rows = make_rows(records)
    documents = [json.dumps(row, separators=(",", ":")).encode() for row in rows]
    parsed = fastavro.parse_schema(json.loads(json.dumps(AVRO)))
    avro = []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, row)
        avro.append(out.getvalue())
    descriptors = make_descriptors()
    message = message_factory.GetMessageClass(load_message(descriptors, "bench.Event"))
    ddl = "id BIGINT, name STRING, price DOUBLE, ok BOOLEAN, tags ARRAY<STRING>, note STRING"
    return {
        "string": (StringDecoder(), documents),
        "json": (JsonDecoder(ddl), documents),
        "json, two fields": (JsonDecoder("id BIGINT, price DOUBLE"), documents),
        "json, all bad": (JsonDecoder("id STRING, note INT"), documents),
        "avro": (AvroDecoder(json.dumps(AVRO)), avro),
        "protobuf": (
            ProtobufDecoder(descriptors, "bench.Event"),
            [message(**row).SerializeToString() for row in rows],
        ),
    }


def measure(name: str, decoder: ColumnDecoder, values: list[bytes]) -> None:
    column = pa.array(values, pa.binary())

    def decode() -> None:
        for at in range(0, len(column), BATCH_ROWS):
            decoder.decode(column[at : at + BATCH_ROWS])

    samples = sample(decode)
    size = sum(map(len, values))
    rate, speed = len(values) / samples.median / 1e6, size / samples.median / 1e6
    raw = " ".join(f"{1000 * each:.1f}" for each in samples.seconds)
    print(f"{name:18} {size / len(values):5.0f} B {rate:7.2f} M rows/s {speed:7.0f} MB/s   ({raw} ms)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=400_000)
    options = parser.parse_args()
    for name, value in describe_machine(["pyarrow", "numba", "numpy", "protobuf"]).items():
        print(f"{name}: {value}")
    for name, (decoder, values) in make_cases(options.records).items():
        measure(name, decoder, values)


if __name__ == "__main__":
    main()
