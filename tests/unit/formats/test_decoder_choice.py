"""From option texts to decoders: what belongs together, what is refused, and what the registry is asked."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from penstock.core.errors import OptionError
from penstock.core.options.option_table import option_specs, read_surface
from penstock.core.options.typed_column_options import FormatTable
from penstock.core.typed_columns import ColumnDecoder
from penstock.formats.decoder_choice import build_decoders
from penstock.formats.json.json_schema import JsonSchemaDecoder
from penstock.testing.registry import RegistryServer
from tests.support.registry_memory import forget_schemas

AVRO = '{"type":"record","name":"R","fields":[{"name":"id","type":"long"}]}'
SCHEMA = '{"type":"object","properties":{"id":{"type":"integer"}}}'


def proto_file() -> descriptor_pb2.FileDescriptorProto:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="o.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    return file


DESCRIPTORS = descriptor_pb2.FileDescriptorSet(file=[proto_file()]).SerializeToString()


def build(**options: str) -> dict[str, ColumnDecoder]:
    texts = {key.replace("registry_", "schemaRegistry."): text for key, text in options.items()}
    return build_decoders(read_surface(FormatTable, texts), environ={"WORD": "hunter2"})


def types(**options: str) -> dict[str, str]:
    return {name: each.spark_type for name, each in build(**options).items()}


def test_every_example_in_the_table_is_what_the_table_says() -> None:
    for spec in option_specs(FormatTable).values():
        for text in spec.accepts:
            read_surface(FormatTable, {spec.key: text})
        for text, condition in spec.rejects:
            with pytest.raises(OptionError) as caught:
                read_surface(FormatTable, {spec.key: text})
            assert caught.value.condition == condition


@pytest.mark.parametrize(("kind", "schema"), [("json", "id BIGINT, n INT"), ("jsonschema", SCHEMA)])
def test_what_a_bad_field_makes_null_is_an_option(kind: str, schema: str) -> None:
    def read(**options: str) -> object:
        decoder = build(valueFormat=kind, valueSchema=schema, onDecodeError="null", **options)["valueData"]
        decoded = decoder.decode(pa.array([b'{"id":"x","n":1}'], pa.binary()))
        assert decoded.errors is not None
        assert decoded.errors.to_pylist() == ["field `id` is not bigint"]
        return decoded.column[0].as_py()

    kept = {"id": None, "n": 1} if kind == "json" else {"id": None}
    assert read() == read(onFieldError="nullfield") == kept
    assert read(onFieldError="nullValue") is None


def test_each_format_is_built_from_a_given_schema(tmp_path: Path) -> None:
    column = "struct<id:bigint>"
    assert types() == {}
    assert types(valueFormat="string", keyFormat="STRING") == {"keyData": "string", "valueData": "string"}
    assert types(valueFormat="json", valueSchema="id BIGINT") == {"valueData": column}
    assert types(keyFormat="avro", keySchema=AVRO) == {"keyData": column}
    assert types(valueFormat="jsonschema", valueSchema=SCHEMA) == {"valueData": column}
    text = base64.b64encode(DESCRIPTORS).decode()
    assert types(valueFormat="protobuf", valueSchema=text, valueMessage="shop.Order") == {"valueData": column}
    (tmp_path / "set.bin").write_bytes(DESCRIPTORS)
    (tmp_path / "r.avsc").write_text(AVRO)
    assert types(
        valueFormat="protobuf",
        valueSchemaFile=str(tmp_path / "set.bin"),
        valueMessage="shop.Order",
        keyFormat="avro",
        keySchemaFile=str(tmp_path / "r.avsc"),
    ) == {"keyData": column, "valueData": column}


def test_a_schema_that_cannot_be_read_or_used_is_told_in_words(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"which cannot be read: no such file or directory\."):
        build(valueFormat="avro", valueSchemaFile=str(tmp_path / "none.avsc"))
    (tmp_path / "set.bin").write_bytes(b"nonsense")
    with pytest.raises(
        OptionError, match=r"The Protobuf descriptors cannot be used \(Error parsing message"
    ) as it:
        build(valueFormat="protobuf", valueSchemaFile=str(tmp_path / "set.bin"), valueMessage="shop.Order")
    assert "DecodeError" not in str(it.value)


def test_a_subject_gives_its_newest_schema_and_values_are_framed() -> None:
    forget_schemas()
    with RegistryServer(basic_auth="me:hunter2") as registry:
        avro = registry.register("a", AVRO)
        proto = registry.register(
            "p", base64.b64encode(proto_file().SerializeToString()).decode(), "PROTOBUF"
        )
        schema = registry.register("j", SCHEMA, "JSON")
        login = {
            "registry_url": registry.url, "registry_username": "me", "registry_password": "${env:WORD}",
        }  # fmt: skip
        payloads = {
            ("avro", "a"): b"\0" + avro.to_bytes(4, "big") + b"\x0a",
            ("protobuf", "p"): b"\0" + proto.to_bytes(4, "big") + b"\0\x08\x05",
            ("jsonschema", "j"): b"\0" + schema.to_bytes(4, "big") + b'{"id":5}',
        }
        for (kind, subject), value in payloads.items():
            decoder = build(valueFormat=kind, valueSubject=subject, **login)["valueData"]
            assert "hunter2" not in repr(decoder)
            decoded = pickle.loads(pickle.dumps(decoder)).decode(pa.array([value, b"\1" + value[1:], None]))
            assert decoded.column.to_pylist() == [{"id": 5}, None, None]
            assert decoded.errors.to_pylist()[1].startswith("the value does not begin with a schema id")
        with pytest.raises(OptionError, match="SCHEMA_INCOMPATIBLE"):
            build(valueFormat="avro", valueSubject="j", **login)
        with pytest.raises(OptionError, match="SCHEMA_NOT_FOUND"):
            build(valueFormat="avro", valueSubject="other", **login)


@pytest.mark.parametrize(
    ("options", "condition", "names"),
    [
        ({"valueSchema": "id INT"}, "OPTION_MISSING", "valueFormat"),
        ({"keyMessage": "m"}, "OPTION_MISSING", "keyFormat"),
        ({"valueFormat": "json"}, "OPTION_MISSING", "valueSchema"),
        ({"valueFormat": "string", "valueSchema": "id INT"}, "OPTION_CONFLICT", "valueSchema"),
        ({"valueFormat": "json", "valueSchema": "a INT", "valueSchemaFile": "f"}, "OPTION_CONFLICT",
         "valueSchemaFile"),
        ({"valueFormat": "json", "valueSubject": "s", "registry_url": "http://r"}, "OPTION_CONFLICT",
         "valueSubject"),
        ({"valueFormat": "avro", "valueSubject": "s"}, "OPTION_MISSING", "schemaRegistry.url"),
        ({"valueFormat": "avro", "valueSchema": AVRO, "valueMessage": "m"}, "OPTION_CONFLICT",
         "valueMessage"),
        ({"valueFormat": "protobuf", "valueSchema": "AA=="}, "OPTION_MISSING", "valueMessage"),
        ({"valueFormat": "protobuf", "valueSchema": "???", "valueMessage": "m"}, "OPTION_INVALID",
         "valueSchema"),
        ({"valueFormat": "avro", "valueSchemaFile": "not-there"}, "FILE_UNREADABLE", "valueSchemaFile"),
        ({"valueFormat": "json", "valueSchema": "id WHAT"}, "FORMAT_UNSUPPORTED", "what"),
        ({"registry_url": "http://r"}, "OPTION_CONFLICT", "schemaRegistry.url"),
        ({"registry_url": "r:8081"}, "OPTION_INVALID", "schemaRegistry.url"),
        ({"registry_password": "hunter2"}, "OPTION_MISSING", "schemaRegistry.url"),
        ({"registry_url": "http://r", "registry_username": "me"}, "OPTION_MISSING",
         "schemaRegistry.password"),
        ({"registry_url": "http://r", "registry_username": "m", "registry_password": "hunter2",
          "registry_token": "hunter2"}, "OPTION_CONFLICT", "schemaRegistry.token"),
        ({"registry_url": "http://r", "registry_token": "${env:GONE}"}, "REFERENCE_MISSING", "GONE"),
        ({"registry_url": "https://r", "registry_caFile": "not-there"}, "FILE_UNREADABLE", "caFile"),
    ],
)  # fmt: skip
def test_options_that_do_not_belong_together_are_refused_by_name(
    options: dict[str, str], condition: str, names: str
) -> None:
    with pytest.raises(OptionError) as caught:
        build(**options)
    assert caught.value.condition == condition
    assert names in str(caught.value)
    assert "hunter2" not in str(caught.value)


# --- the columns of a JSON Schema ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("property_schema", "column"),
    [
        ({"type": "integer"}, "bigint"),
        ({"type": "number"}, "double"),
        ({"type": ["null", "boolean"]}, "boolean"),
        ({"type": "string", "format": "date-time"}, "string"),
        ({"type": ["string", "integer"]}, "string"),
        ({}, "string"),
        (True, "string"),
        ({"enum": ["a", "b"]}, "string"),
        ({"type": "array", "items": {"type": "integer"}}, "array<bigint>"),
        ({"type": "array"}, "array<string>"),
        ({"type": "object"}, "string"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "map<string,double>"),
        ({"properties": {"x y": {"type": "string"}}}, "struct<`x y`:string>"),
        ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, "bigint"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "string"),
        ({"$ref": "#/$defs/a~1b"}, "struct<z:bigint>"),
    ],
)
def test_a_json_schema_makes_its_columns(property_schema: object, column: str) -> None:
    root = {
        "type": "object",
        "properties": {"v": property_schema},
        "$defs": {"a/b": {"type": "object", "properties": {"z": {"type": "integer"}}}},
    }
    assert JsonSchemaDecoder(json.dumps(root)).spark_type == f"struct<v:{column}>"


@pytest.mark.parametrize(
    ("schema", "condition"),
    [
        ("{", "SCHEMA_INVALID"),
        ('"x"', "SCHEMA_INVALID"),
        ('{"type":"integer"}', "SCHEMA_INVALID"),
        ('{"properties":{"a":{"$ref":"#/no"}}}', "SCHEMA_INVALID"),
        ('{"properties":{"a":{"$ref":"other.json"}}}', "SCHEMA_INVALID"),
        ('{"$ref":"#"}', "SCHEMA_INVALID"),
        ('{"properties":{"a":{"$ref":"#/properties/a"}}}', "FORMAT_UNSUPPORTED"),
        ('{"$defs":{"t":{"properties":{"next":{"$ref":"#/$defs/t"}}}},"$ref":"#/$defs/t"}',
         "FORMAT_UNSUPPORTED"),
    ],
)  # fmt: skip
def test_a_json_schema_without_columns_is_refused(schema: str, condition: str) -> None:
    with pytest.raises(OptionError) as caught:
        JsonSchemaDecoder(schema)
    assert caught.value.condition == condition
