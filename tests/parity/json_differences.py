"""Where typed JSON columns differ from Spark's `from_json` on purpose, with examples that are run.

Rule: a difference that is not in this table is a bug. The second part of docs/reference/differences.md is
written from it; tests/spark/columns/test_formats_from_json.py reads every example with both, and random
documents.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Stands for the date on which an example is run.
TODAY = "today"


@dataclass(frozen=True)
class JsonExample:
    """A document read as `v <kind>, z INT`, and both rows as Spark shows them; None is a null value."""

    kind: str
    document: bytes
    theirs: str | None
    ours: str | None


@dataclass(frozen=True)
class JsonDifference:
    """One row of the page, which shows the first example."""

    what: str
    theirs: str
    ours: str
    why: str
    examples: tuple[JsonExample, ...]


def _example(kind: str, document: str | bytes, theirs: str | None, ours: str | None) -> JsonExample:
    data = document if isinstance(document, bytes) else document.encode()
    return JsonExample(kind, data, theirs, ours)


JSON_DIFFERENCES = (
    JsonDifference(
        "A value that is not JSON",
        "a struct whose fields are all null",
        "null, with the reason in `decodeError`; the fields read from it are null all the same",
        "`valueData IS NULL` finds it.",
        (
            _example("INT", '{"v":1,"z":', "{null, null}", None),
            _example("INT", "null", "{null, null}", None),
            _example("INT", '[{"v":1}]', "{null, null}", None),
        ),
    ),
    JsonDifference(
        "An empty value",
        "null, and not called bad",
        "null, with the reason",
        "It is no JSON either.",
        (_example("INT", "", None, None),),
    ),
    JsonDifference(
        "Something behind the document",
        "is not looked at: a second document is lost",
        "the value is bad as a whole",
        "Two documents in one value are a mistake of the producer that would go unnoticed.",
        (
            _example("INT", '{"v":1,"z":7}{"v":2}', "{1, 7}", None),
            _example("INT", '{"v":1,"z":7}]', "{1, 7}", None),
        ),
    ),
    JsonDifference(
        "A document that is cut off inside an object or an array",
        "the fields before it are kept",
        "the value is bad as a whole, as both have it for one that is cut off elsewhere",
        "What is missing may be any field.",
        (_example("STRUCT<a:INT>", '{"z":7,"v":{"a":', "{null, 7}", None),),
    ),
    JsonDifference(
        "Names and texts in single quotes",
        "are read",
        "the value is bad as a whole",
        "It is not JSON, and other consumers of the topic cannot read it.",
        (_example("INT", "{'v':1,'z':7}", "{1, 7}", None),),
    ),
    JsonDifference(
        "Bytes that are not UTF-8",
        "are replaced",
        "the value is bad as a whole",
        "A name or a text that was changed on the way matches nothing.",
        (_example("STRING", b'{"v":"a\xff","z":7}', "{a�, 7}", None),),
    ),
    JsonDifference(
        "Half of a surrogate pair, as left by cutting a text in two",
        "becomes `?`",
        "the field is null; in a name the value is bad as a whole",
        "The text is not what was sent.",
        (
            _example("STRING", '{"v":"a\\ud83d","z":7}', "{a?, 7}", "{null, 7}"),
            _example("MAP<STRING,INT>", '{"v":{"\\ud83d":1},"z":7}', "{{? -> 1}, 7}", None),
        ),
    ),
    JsonDifference(
        "A name twice, the second value bad",
        "the first value stays",
        "the field is null",
        "The last one counts, and it cannot be read.",
        (_example("INT", '{"v":1,"v":"x","z":7}', "{1, 7}", "{null, 7}"),),
    ),
    JsonDifference(
        "128 to 255 as `TINYINT`",
        "become negative",
        "the field is null: too large",
        "They are not -128 to -1.",
        (
            _example("TINYINT", '{"v":200,"z":7}', "{-56, 7}", "{null, 7}"),
            _example("TINYINT", '{"v":128,"z":7}', "{-128, 7}", "{null, 7}"),
        ),
    ),
    JsonDifference(
        "A number as `TIMESTAMP` that is too large for seconds, such as epoch microseconds",
        "wraps around to some other time",
        "the field is null: too large. (Milliseconds are taken for seconds by both: see "
        "[typed values](../guides/typed-values.md#times-from-numbers).)",
        "The time is not what was sent.",
        (
            _example(
                "TIMESTAMP",
                '{"v":1700000000000000,"z":7}',
                "{+93852-12-06 03:25:21.251328, 7}",
                "{null, 7}",
            ),
        ),
    ),
    JsonDifference(
        "Digits without dashes as `DATE`",
        "up to three and more than seven are days since 1970",
        "the field is null",
        "20240102 is not a day of the year 57385.",
        (
            _example("DATE", '{"v":"20240102","z":7}', "{+57385-07-08, 7}", "{null, 7}"),
            _example("DATE", '{"v":"7","z":7}', "{1970-01-08, 7}", "{null, 7}"),
            _example("DATE", '{"v":"2024-01-02GMT","z":7}', "{2024-01-02, 7}", "{null, 7}"),
        ),
    ),
    JsonDifference(
        "A time zone by the name of a region or a short id: `Europe/Paris`, `PST`",
        "is read",
        "the field is null; offsets, `Z`, `UTC`, `GMT` and `GMT+1` are read",
        "Workers decode without a table of zones. Read the field as `STRING` and cast it.",
        (
            _example(
                "TIMESTAMP",
                '{"v":"2024-01-02T03:04:05 Europe/Paris","z":7}',
                "{2024-01-02 02:04:05, 7}",
                "{null, 7}",
            ),
            _example(
                "TIMESTAMP", '{"v":"2024-01-02T03:04:05 PST","z":7}', "{2024-01-02 11:04:05, 7}", "{null, 7}"
            ),
        ),
    ),
    JsonDifference(
        "A time with a zone and without seconds",
        "the field is null",
        "is read",
        "ISO 8601 has it.",
        (_example("TIMESTAMP", '{"v":"2024-01-02T03:04Z","z":7}', "{null, 7}", "{2024-01-02 03:04:00, 7}"),),
    ),
    JsonDifference(
        "A time without a date as `TIMESTAMP`",
        "is that time of the day on which the query runs",
        "the field is null",
        "Read tomorrow, the same record would say something else.",
        (
            _example("TIMESTAMP", '{"v":"T03:04:05","z":7}', f"{{{TODAY} 03:04:05, 7}}", "{null, 7}"),
            _example("TIMESTAMP", '{"v":"03:04:05","z":7}', f"{{{TODAY} 03:04:05, 7}}", "{null, 7}"),
        ),
    ),
    JsonDifference(
        "Numbers, objects and arrays as `STRING`",
        "are written anew: without blanks, escapes resolved, `1.50` as `1.5`, `-0` as `0`",
        "the producer's own text",
        "A number of 30 digits keeps them all.",
        (
            _example("STRING", '{"v":1.50,"z":7}', "{1.5, 7}", "{1.50, 7}"),
            _example("STRING", '{"v":{"a" : [1, 2]},"z":7}', '{{"a":[1,2]}, 7}', '{{"a" : [1, 2]}, 7}'),
            _example("STRING", '{"v":{"a":"\\u00e9"},"z":7}', '{{"a":"é"}, 7}', '{{"a":"\\u00e9"}, 7}'),
            _example("STRING", '{"v":NaN,"z":7}', '{"NaN", 7}', "{NaN, 7}"),
        ),
    ),
    JsonDifference(
        "A text that is no base64 as `BINARY`",
        "may cost the fields behind it too",
        "that field is null",
        "The others are good.",
        (_example("BINARY", '{"v":"a","z":7}', "{null, null}", "{null, 7}"),),
    ),
    JsonDifference(
        "A decimal in digits other than 0 to 9, in quotes",
        "is read",
        "the field is null",
        "Cast it, if you have such.",
        (_example("DECIMAL(10,2)", '{"v":"٣","z":7}', "{3.00, 7}", "{null, 7}"),),
    ),
    JsonDifference(
        "A number of more than 1,000 digits",
        "the value is bad as a whole",
        "is read, if its column can hold it",
        "It is JSON.",
        (_example("DOUBLE", '{"v":0.' + "1" * 1200 + ',"z":7}', "{null, null}", "{0.1111111111111111, 7}"),),
    ),
)

EXAMPLES = tuple(example for each in JSON_DIFFERENCES for example in each.examples)


def write_part() -> list[str]:
    """Return the lines of the page."""
    lines = [
        "",
        "# Where typed JSON columns differ from `from_json`",
        "",
        "`valueFormat` = `json` with `onDecodeError` = `null`, beside `from_json` of Spark 4.3 in its",
        "default mode (`PERMISSIVE`, with partial results). What is not listed here is the same: which",
        "fields are null, and what the others hold. Every row is proven by reading its examples with both,",
        "the rest by random documents ([the test](../../tests/spark/columns/test_formats_from_json.py)).",
        "Times without a zone are UTC here and in the session's time zone there. Options of `from_json`",
        "(`timestampFormat`, `mode` and so on) have no counterpart except",
        "[`onDecodeError` and `onFieldError`](../guides/typed-values.md#bad-values).",
        "",
        "| What | For example | `from_json` | Penstock | Why |",
        "|---|---|---|---|---|",
    ]
    for each in JSON_DIFFERENCES:
        example = each.examples[0]
        document = example.document.decode("utf-8", "replace")
        shown = "(no bytes)" if not document else f"`{document}`" if len(document) < 60 else "`{...}`"
        if example.kind != "INT":
            shown = f"{shown} as `{example.kind}`" if len(document) < 60 else f"as `{example.kind}`"
        cells = (each.what, shown, each.theirs, each.ours, each.why)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines
