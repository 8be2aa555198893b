"""Throws damaged values at the format decoders and compares them with other people's parsers.

Every input comes from (seed, number), so any finding can be repeated alone with `--only`. A damaged value
stands between two whole ones or behind them. The bytes of the last value end at a protected page, and so does
all memory that is written. The witnesses are Python's json for JSON, Google's parser for Protobuf, and
fastavro for Avro (which is asked only about values we call good, because it also reads some that are not). A
finding is a crash, an exception, another value, another verdict, a damaged neighbour, or a second without an
answer.

    python -m tests.proof.fuzz_formats --inputs 1000000 --seed 7
"""

from __future__ import annotations

import argparse
import faulthandler
import io
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.message import DecodeError as ProtobufError
from google.protobuf.unknown_fields import UnknownFieldSet

from penstock.formats.avro import avro_columns
from penstock.formats.avro.avro_decoder import AvroDecoder
from penstock.formats.columns.column_layout import Workspace
from penstock.formats.json import json_columns
from penstock.formats.json.json_decoder import parse_schema
from penstock.formats.protobuf import protobuf_columns
from penstock.formats.protobuf.protobuf_decoder import ProtobufDecoder
from penstock.formats.protobuf.protobuf_schema import load_message
from penstock.kernels.byte_columns import ByteColumn
from tests.support.guard_page import GuardedMemory, guarded_array
from tests.support.proto_all_types import ALL, expect_row

SLOW_S = 1.0
JSON_SCHEMA = (
    "i bigint, d double, s string, b boolean, l array<string>, o struct<x:int,y:array<double>>, "
    "m map<string,bigint>"
)
AVRO_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "i", "type": "long"},
        {"name": "s", "type": ["null", "string"]},
        {"name": "d", "type": "double"},
        {"name": "l", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "m", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "f", "type": {"type": "fixed", "name": "F", "size": 3}},
        {"name": "u", "type": ["int", "string", "boolean"]},
    ],
}
_PARSED = fastavro.parse_schema(json.loads(json.dumps(AVRO_SCHEMA)))
_MESSAGE = message_factory.GetMessageClass(load_message(ALL, "t.All"))


# --- values -------------------------------------------------------------------------------------------


def _text(rng: random.Random) -> str:
    return "".join(rng.choice('ab"\\\n/é€😀\x7f{}[],: ') for _ in range(rng.randrange(12)))


def make_json(rng: random.Random) -> bytes:
    whole: dict[str, Any] = {
        "i": rng.choice((0, -1, 2**63 - 1, rng.randrange(1000), None)),
        "d": rng.choice((0.1, rng.random() * 10 ** rng.randrange(-30, 30), 5, None)),
        "s": _text(rng),
        "b": rng.choice((True, False, None)),
        "l": [rng.choice((None, _text(rng))) for _ in range(rng.randrange(4))],
        "o": {"x": rng.randrange(100), "y": [rng.random() for _ in range(rng.randrange(3))]},
        "m": {_text(rng): rng.randrange(100) for _ in range(rng.randrange(3))},
        "other": [{"deep": [_text(rng), 1e5]}],
    }
    kept = {name: whole[name] for name in rng.sample(sorted(whole), rng.randrange(1, len(whole)))}
    return json.dumps(kept, ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, None, 1))).encode()


def make_avro(rng: random.Random) -> bytes:
    out = io.BytesIO()
    datum = {
        "i": rng.randrange(-(2**40), 2**40),
        "s": rng.choice((None, _text(rng))),
        "d": rng.random(),
        "l": [rng.choice((None, _text(rng))) for _ in range(rng.randrange(4))],
        "m": {_text(rng): [rng.randrange(100)] * rng.randrange(3) for _ in range(rng.randrange(3))},
        "e": rng.choice("AB"),
        "f": rng.randbytes(3),
        "u": rng.choice((5, _text(rng), True)),
    }
    fastavro.schemaless_writer(out, _PARSED, datum)
    return out.getvalue()


def make_protobuf(rng: random.Random) -> bytes:
    message = _MESSAGE()
    for field in rng.sample(list(_MESSAGE.DESCRIPTOR.fields), rng.randrange(1, 10)):
        prefix, _, kind = field.name.partition("_")
        if kind == "message":
            target = getattr(message, field.name)
            if prefix == "r":
                target.add(x=rng.randrange(-5, 5), names=[_text(rng)])
            elif prefix != "m":
                target.x, target.names[:] = rng.randrange(-5, 5), [_text(rng)]
            continue
        value: Any = rng.randrange(2) if kind in ("bool", "enum") else rng.randrange(2**31)
        value = {"string": _text(rng), "bytes": rng.randbytes(5)}.get(kind, value)
        if prefix == "r":
            getattr(message, field.name).extend([value] * rng.randrange(4))
        elif prefix == "m":
            text = field.message_type.fields_by_name["key"].type == field.TYPE_STRING
            getattr(message, field.name)[_text(rng) if text else rng.randrange(9)] = value
        else:
            setattr(message, field.name, value)
    data: bytes = message.SerializeToString()
    return data


def damage(rng: random.Random, data: bytes, other: bytes) -> tuple[str, bytes]:
    kind = rng.choice(
        ("none", "cut", "flip", "set", "insert", "remove", "repeat", "splice", "huge", "longer")
    )
    at = rng.randrange(len(data) + 1)
    if kind == "cut":
        return kind, data[:at]
    if kind in ("flip", "set") and at < len(data):
        byte = (
            data[at] ^ (1 << rng.randrange(8)) if kind == "flip" else rng.choice(b'\x00\x7f\x80\xff"\\{}[],:')
        )
        return kind, data[:at] + bytes([byte]) + data[at + 1 :]
    if kind == "longer" and at < len(data):  # a length that points a little too far
        return kind, data[:at] + bytes([min(127, data[at] + rng.randrange(2, 60))]) + data[at + 1 :]
    if kind == "insert":
        return kind, data[:at] + rng.randbytes(rng.randrange(1, 4)) + data[at:]
    if kind == "remove":
        return kind, data[:at] + data[at + rng.randrange(1, 4) :]
    if kind == "repeat":
        return kind, data[:at] + data[max(0, at - rng.randrange(1, 20)) :]
    if kind == "splice":
        return kind, data[:at] + other[rng.randrange(len(other) + 1) :]
    if kind == "huge":
        return kind, data[:at] + rng.choice((b"\xff" * 9 + b"\x01", b"\xfe" + b"\xff" * 8 + b"\x01")) + data[
            at:
        ]
    return "none", data


# --- witnesses: what a value must be, and whether it must be bad -------------------------------------


def judge_json(data: bytes, found: Any, reason: str | None) -> str:
    """Check that Python reads the same, with bad fields null, and that exactly those have a reason."""
    twins = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        whole = dict(pairs)
        if len(whole) < len(pairs):
            twins.append(True)
        for name in whole:
            name.encode()  # fails for half of a surrogate pair, which is bad in a name but not in a value
        return whole

    try:
        value = json.loads(data.decode(), object_pairs_hook=collect)
        if not isinstance(value, dict):
            raise ValueError("no object")
    except (ValueError, RecursionError):
        return "bad" if found is None else "FINDING: good, but Python refuses it"
    if found is None:
        return "FINDING: bad, but Python reads it"
    expected = {name: _read_field(value.get(name), kind) for name, kind in _JSON_KINDS.items()}
    bad = _BAD in expected.values() or _BAD in (expected["o"] or {}).values()
    # A duplicate name: Python looks only at the last value, we (and Spark) at both.
    if bad != (reason is not None) and not (twins and reason is not None):
        return f"FINDING: the reason is {reason}"
    return "good" if _same(found, _without_bad(expected)) else f"FINDING: {found!r} is not {expected!r}"


_BAD = object()
_JSON_KINDS: dict[str, Any] = {
    "i": 63, "d": float, "s": str, "b": bool, "l": [str], "o": {"x": 31, "y": [float]}, "m": (63,),
}  # fmt: skip


def _read_field(value: Any, kind: Any) -> Any:
    """Return the value as a column of the kind holds it, or _BAD: lists and maps are bad as a whole."""
    if value is None:
        return None
    if isinstance(kind, dict):
        if not isinstance(value, dict):
            return _BAD
        return {name: _read_field(value.get(name), each) for name, each in kind.items()}
    if isinstance(kind, (list, tuple)):
        if not isinstance(value, list if isinstance(kind, list) else dict):
            return _BAD
        pairs = enumerate(value) if isinstance(value, list) else value.items()
        read = {key: _read_field(each, kind[0]) for key, each in pairs}
        if _BAD in read.values():
            return _BAD
        return list(read.values()) if isinstance(value, list) else read
    if isinstance(kind, int):
        return value if type(value) is int and -(1 << kind) <= value < 1 << kind else _BAD
    if kind is float:
        return _as_real(value)
    if kind is str and type(value) is str:
        return value if _is_whole_text(value) else _BAD
    return value if kind is str or type(value) is kind else _BAD


def _without_bad(expected: Any) -> Any:
    if isinstance(expected, dict):
        return {name: _without_bad(each) for name, each in expected.items()}
    return None if expected is _BAD else expected


def _is_whole_text(text: str) -> bool:
    return not any(0xD800 <= ord(each) < 0xE000 for each in text)


def _as_real(value: Any) -> Any:
    if type(value) is int:
        return float(value) if abs(value) < 10**308 else math.copysign(math.inf, value)
    special = {"NaN": math.nan, "Infinity": math.inf, "+Infinity": math.inf, "-Infinity": -math.inf}
    if isinstance(value, str):
        return {**special, "+INF": math.inf, "-INF": -math.inf}.get(value, _BAD)
    return value if type(value) is float else _BAD


def _same(found: Any, expected: Any) -> bool:
    """Return whether values are equal; a text for another kind is that value's JSON; NaN equals NaN."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return expected.keys() == found.keys() and all(_same(found[key], expected[key]) for key in expected)
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(map(_same, found, expected))
    if isinstance(found, str) and not isinstance(expected, str):
        return bool(json.loads(found) == expected)
    return found == expected or (found != found and expected != expected)


def judge_avro(data: bytes, found: Any, reason: str | None) -> str:
    if reason is not None:
        return "bad"
    stream = io.BytesIO(data)
    try:
        expected: Any = fastavro.schemaless_reader(stream, _PARSED, None)
    except Exception as error:  # noqa: BLE001  (whatever it raises, it does not read this)
        return f"FINDING: good, but fastavro says {type(error).__name__}"
    union = [None, None, None]
    union[{int: 0, str: 1, bool: 2}[type(expected["u"])]] = expected["u"]
    expected["u"] = {f"member{n}": each for n, each in enumerate(union)}
    if stream.tell() != len(data):
        return "FINDING: good, but bytes are left over"
    return "good" if _same(found, expected) else f"FINDING: {found!r} is not {expected!r}"


def judge_protobuf(data: bytes, found: Any, reason: str | None) -> str:
    try:
        message = _MESSAGE.FromString(data)
    except ProtobufError:
        return "bad" if reason is not None else "FINDING: good, but Google's parser refuses it"
    if reason is not None:
        return "FINDING: bad, but Google's parser reads it"
    expected = expect_row(message)
    # Google's Python parser sets a map's entry aside when it holds an unknown field; other parsers read it.
    aside = {each.field_number for each in UnknownFieldSet(message)}
    for field in message.DESCRIPTOR.fields:
        if field.name.startswith("m_") and field.number in aside:
            expected[field.name] = found[field.name]
    return "good" if _same(found, expected) else f"FINDING: {found!r} is not {expected!r}"


# --- the run ------------------------------------------------------------------------------------------

Judge = Callable[[bytes, Any, str | None], str]


class Decoders:
    """The decoders under test, over memory that ends at a protected page."""

    def __init__(self) -> None:
        Workspace.new_memory = staticmethod(guarded_array)
        self._memory = GuardedMemory(1 << 20)
        json_type = parse_schema(JSON_SCHEMA)
        self._json = json_columns._Documents(json_type)
        self._avro = avro_columns._Values(AvroDecoder(json.dumps(AVRO_SCHEMA)))
        self._protobuf = protobuf_columns._Messages(ProtobufDecoder(ALL, "t.All"))

    def decode(self, kind: str, values: list[bytes]) -> tuple[list[Any], list[str | None]]:
        data = self._memory.place(b"".join(values))
        ends = np.cumsum([0, *(len(each) for each in values)]).astype(np.int32)
        source = ByteColumn(data, ends, np.ones(len(values), np.uint8))
        if kind == "json":
            decoded = self._json.decode(source, 0, False)
        elif kind == "avro":
            decoded = self._avro.decode(source)
        else:
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
            decoded = self._protobuf.decode(pa.Array.from_buffers(pa.binary(), len(values), buffers))
        decoded.column.validate(full=True)
        errors = [None] * len(values) if decoded.errors is None else decoded.errors.to_pylist()
        return [_with_maps(each) for each in decoded.column.to_pylist()], errors


def _with_maps(value: Any) -> Any:
    """Return maps from lists of pairs; as in the witnesses, the last value of a key counts."""
    if isinstance(value, dict):
        return {key: _with_maps(each) for key, each in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(each, tuple) for each in value):
            return {key: _with_maps(each) for key, each in value}
        return [_with_maps(each) for each in value]
    return value


KINDS: dict[str, tuple[Callable[[random.Random], bytes], Judge]] = {
    "json": (make_json, judge_json),
    "avro": (make_avro, judge_avro),
    "protobuf": (make_protobuf, judge_protobuf),
}


def run(seed: int, inputs: int, only: int | None = None) -> dict[str, Any]:
    """Judge the inputs of one seed; return outcomes by format and mutation, and the findings."""
    decoders = Decoders()
    table: dict[str, Counter[str]] = {}
    findings: list[str] = []
    for kind in KINDS:  # compile before the clock starts
        decoders.decode(kind, [b""])
    for number in range(inputs) if only is None else [only]:
        rng = random.Random(f"{seed}/{number}")
        kind = rng.choice(tuple(KINDS))
        make, judge = KINDS[kind]
        whole = make(rng)
        mutation, damaged = damage(rng, whole, make(rng))
        began = time.process_time()
        # Between two whole values it must affect neither; as the last one it ends at the protected page.
        place = rng.choice((1, 2))
        values = [whole, whole, whole]
        values[place] = damaged
        rows, errors = decoders.decode(kind, values)
        slow = time.process_time() - began > SLOW_S
        found = _fix_empty(rows[place], rows[0])
        outcome = "FINDING: no answer within a second" if slow else judge(damaged, found, errors[place])
        for n in (0, 3 - place):
            neighbour = errors[n] or judge(whole, _fix_empty(rows[n], rows[0]), None)
            if neighbour != "good":
                outcome = f"FINDING: a neighbour is damaged ({neighbour})"
        if outcome.startswith("FINDING"):
            findings.append(f"seed {seed} input {number} ({kind}, {mutation}): {outcome} {damaged!r}")
            outcome = "FINDING"
        table.setdefault(f"{kind} {mutation}", Counter())[outcome] += 1
    return {
        "seed": seed, "inputs": inputs, "findings": findings,
        "table": {name: dict(counts) for name, counts in sorted(table.items())},
    }  # fmt: skip


def _fix_empty(row: Any, like: Any) -> Any:
    """Restore the kind of an empty map by its name, because in Python it is an empty list."""
    if isinstance(row, dict) and isinstance(like, dict):
        return {
            key: {} if value == [] and (key == "m" or key[:2] == "m_") else value
            for key, value in row.items()
        }
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="repeat one input of the seed")
    options = parser.parse_args()
    faulthandler.enable()
    report = run(options.seed, options.inputs, options.only)
    sys.stdout.write(json.dumps(report, indent=1 if options.only is not None else None) + "\n")
    return 1 if report["findings"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
