"""Random JSON documents for Spark's `from_json` and our decoder, each made from (seed, number) alone.

Rule: what the page of differences lists is left out here, one place per row of it (see the comments).
Everything else may turn up: values of the wrong type anywhere, numbers at and beyond their limits, texts in
place of numbers and times, missing fields, duplicate names, escapes, damaged documents.

    make_document(seed=7, number=3)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

SCHEMA = (
    "i8 TINYINT, i16 SMALLINT, i32 INT, i64 BIGINT, f FLOAT, d DOUBLE, n DECIMAL(12,3), w DECIMAL(38,10), "
    "b BOOLEAN, s STRING, raw BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, li ARRAY<INT>, "
    "ls ARRAY<STRING>, ll ARRAY<ARRAY<DOUBLE>>, l ARRAY<STRUCT<x:INT,y:ARRAY<BIGINT>,z:STRING>>, "
    "m MAP<STRING,DOUBLE>, ml MAP<STRING,ARRAY<INT>>, ms MAP<STRING,STRUCT<x:SMALLINT,t:TIMESTAMP>>, "
    "o STRUCT<a:STRING,b:STRUCT<c:BIGINT,d:DATE,e:ARRAY<DECIMAL(6,2)>>,i32:INT>, `odd name` INT"
)

_LIMITS = [
    bound + step for bits in (15, 31, 63) for bound in (2**bits, -(2**bits)) for step in (-2, -1, 0, 1)
]
_DAYS = (
    "2024-02-29", "2023-02-29", "2024-1-2", "2024", "2024-13-01", "0001-01-01", "+2024-01-02", "9999-12-31",
    "2024-01-02T03:04:05Z", " 2024-01-02 ", "2024-01-02 x", "2024-01-", "5881580-07-12", "-0044-03-15",
    "", "soon",
)  # fmt: skip
_TIMES = (
    "2024-01-02T03:04:05.678901Z", "2024-01-02 03:04:05", "2024-01-02T3:4", "2024-01-02 03", "2024-01-02",
    "2024-01-02T25:00:00", "2024-01-02T03:04:05+05:30", "2024-01-02T03:04:05 GMT+1", "2024-01-02T03:04:05UTC",
    "2024-01-02T03:04:05+1:0", "2024-01-02T03:04:05+01:02:03", "2024-01-02T03:04:05-19:00",
    " 2024-01-02T03:04:05Z\t",
    "1583-10-15T00:00:00.1234567Z", "294247-01-10T04:00:54.775807Z", "294247-01-10T04:00:54.775808Z",
    "", "now",
)  # fmt: skip
_DECIMALS = (
    "7", "+7", ".5", "7.", "1,234.5", "007.5", "-1e3", "1e-30", "1E+2", " 7", "x", "", "-", ".", "1e",
    "12345678.9995",
)  # fmt: skip
_REALS = ("NaN", "Infinity", "-Infinity", "+Infinity", "-INF", "+INF", "INF", "nan", "1.5", "")
_BINARY = ("AAEC/w==", "aGVsbG8=", "aGVs\nbG8=", "", " aGVsbG8= ")


def make_document(*, seed: int, number: int) -> bytes:
    """Return the document for a seed and number, always the same one."""
    random = Random(f"{seed} {number}")
    fields = random.sample(sorted(_FIELDS), random.randrange(len(_FIELDS) + 1))
    wild = random.random() < 0.7
    pairs = [
        (name, _make_value(random, _FIELDS[name]) if wild else _spell(random, _FIELDS[name](random, False)))
        for name in fields
    ]
    if random.random() < 0.3:
        pairs.append(("unknown", _make_anything(random, 3)))
    random.shuffle(pairs)
    if pairs and random.random() < 0.2:  # a bad second value is on the page, so this one is good
        name = random.choice(pairs)[0]
        if name in _FIELDS:
            pairs.append((name, _spell(random, _FIELDS[name](random, False))))
    text = _join(random, pairs)
    if random.random() < 0.05:  # not behind its end or inside a field: both are on the page
        text = random.choice(
            (text[:-1], text[:1], text.replace(":", " ", 1), "[" + text[1:], text[:-1] + ",}")
        )
    return text.encode()


def _join(random: Random, pairs: list[tuple[str, str]]) -> str:
    blank = random.choice(("", "", " ", "\n\t"))
    parts = [f"{_spell(random, name)}{blank}:{blank}{value}" for name, value in pairs]
    return "{" + blank + f"{blank},{blank}".join(parts) + blank + "}"


def _spell(random: Random, value: object) -> str:
    if isinstance(value, _Spelled):
        return value
    return json.dumps(value, ensure_ascii=random.random() < 0.5, separators=(",", ":"))


class _Spelled(str):
    """JSON in its exact spelling, where Python would write it differently."""


Make = Callable[[Random, bool], object]


def _make_value(random: Random, make: Make) -> str:
    """Return a value as JSON: one in ten is null, one in five of some other kind."""
    chance = random.random()
    if chance < 0.1:
        return "null"
    # A text that is not base64 may cost Spark the rest of the document; this is on the page.
    return (
        _make_anything(random, 2)
        if chance < 0.3 and make is not _make_raw
        else _spell(random, make(random, True))
    )


def _make_anything(random: Random, depth: int) -> str:
    """Return any JSON, spelled as Spark spells it, because respelling in a text column is on the page."""
    kind = random.randrange(9 if depth else 7)
    if kind == 7:
        return "[" + ",".join(_make_anything(random, depth - 1) for _ in range(random.randrange(4))) + "]"
    if kind == 8:
        names = random.sample(("x", "a", "i32", "b", "é", "s"), random.randrange(4))
        inner = (
            f"{json.dumps(name, ensure_ascii=False)}:{_make_anything(random, depth - 1)}" for name in names
        )
        return "{" + ",".join(inner) + "}"
    # Spark turns seconds whose microseconds do not fit 64 bits into some other time; this is on the page.
    whole = random.choice((0, 1, -5, 300, 32768, -(2**31) - 1, 2**63, -(2**63) - 1, 10**25))
    leaves = (
        "null",
        "true",
        "false",
        str(whole),
        "0.5",
        '"text"',
        random.choice(('""', '"1.5"', '"2024-01-02"')),
    )
    return leaves[kind]


def _make_whole(bits: int) -> Make:
    def make(random: Random, wild: bool) -> object:
        if bits == 8 or not wild:  # 128 to 255 as TINYINT are on the page
            return random.choice((0, -1, 100, 127, -128, *((-129, 256, 1000) if wild else ())))
        return random.choice((random.randrange(-1000, 1000), *_LIMITS, 10**30, 1.0, _Spelled("1e2"), "7"))

    return make


def _make_real(random: Random, wild: bool) -> object:
    if wild and random.random() < 0.3:
        bare = [_Spelled(text) for text in ("NaN", "Infinity", "-Infinity", "-0", "1e400", "-1e-400")]
        return random.choice((*_REALS, *bare))
    whole, power = random.randrange(-(10**17), 10**17), random.randrange(-60, 45)
    halves = (
        "1.00000017881393432617187499",
        "9007199791611905",
        "3.4028235677973366e38",
        "7.0064923216240853e-46",
    )
    return _Spelled(random.choice((f"{whole}e{power}", f"{whole / 10**9!r}", str(whole), *halves)))


def _make_decimal(random: Random, wild: bool) -> object:
    if wild and random.random() < 0.4:
        return random.choice(_DECIMALS)
    longest = 35 if wild else 2
    whole = random.randrange(-(10 ** random.randrange(1, longest)), 10 ** random.randrange(1, longest))
    return _Spelled(f"{whole}{random.choice(('', '.5', '.0005', '.12345678905', 'e-3', 'E2'))}")


def _make_text(random: Random, _wild: bool) -> object:
    return "".join(random.choice('ab"\\\n/é€😀\x7f{}[],: \x00') for _ in range(random.randrange(12)))


def _pick(texts: tuple[str, ...], *more: object) -> Make:
    good = texts[:1]
    return lambda random, wild: random.choice((*texts, *more) if wild else good)


def _list_of(make: Make) -> Make:
    def build(random: Random, wild: bool) -> object:
        made = [
            _make_value(random, make)
            if wild and random.random() < 0.2
            else _spell(random, make(random, False))
            for _ in range(random.randrange(5))
        ]
        return _Spelled("[" + ",".join(made) + "]")

    return build


def _map_of(make: Make) -> Make:
    def build(random: Random, wild: bool) -> object:
        names = random.sample(("k", "é", "", "odd name", '"', "i32"), random.randrange(4))
        names += names[:1] if random.random() < 0.2 else []
        made = [
            (
                name,
                _make_value(random, make)
                if wild and random.random() < 0.2
                else _spell(random, make(random, False)),
            )
            for name in names
        ]
        return _Spelled(_join(random, made))

    return build


def _struct_of(**fields: Make) -> Make:
    def build(random: Random, wild: bool) -> object:
        names = random.sample(sorted(fields), random.randrange(len(fields) + 1))
        made = [
            (name, _make_value(random, fields[name]) if wild else _spell(random, fields[name](random, False)))
            for name in names
        ]
        return _Spelled(_join(random, made))

    return build


_make_raw = _pick(_BINARY, 5, True, [])
_at = _pick(_TIMES, 1_700_000_000, 1_700_000_000_000, -1, 0.5)
_day = _pick(_DAYS, 19_000)
_FIELDS: dict[str, Make] = {
    "i8": _make_whole(8), "i16": _make_whole(16), "i32": _make_whole(32), "i64": _make_whole(64),
    "f": _make_real, "d": _make_real, "n": _make_decimal, "w": _make_decimal,
    "b": lambda random, wild: random.choice((True, False, *((1, "true", "") if wild else ()))),
    "s": _make_text, "raw": _make_raw, "day": _day, "at": _at,
    "local": _pick(
        ("2024-01-02T03:04:05", "2024-01-02", "2024-01-02T03:04:05Z", " 2024-01-02 03:04", "x"), 1_700_000_000
    ),
    "li": _list_of(_make_whole(32)), "ls": _list_of(_make_text), "ll": _list_of(_list_of(_make_real)),
    "l": _list_of(_struct_of(x=_make_whole(32), y=_list_of(_make_whole(64)), z=_make_text)),
    "m": _map_of(_make_real), "ml": _map_of(_list_of(_make_whole(32))),
    "ms": _map_of(_struct_of(x=_make_whole(16), t=_at)),
    "o": _struct_of(
        a=_make_text, b=_struct_of(c=_make_whole(64), d=_day, e=_list_of(_make_decimal)), i32=_make_whole(32)
    ),
    "odd name": _make_whole(32),
}  # fmt: skip
