"""The input of `penstock produce`: escapes, lines, and messages as JSON."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.messages.message_input import JsonLines, Message, MessageDefaults, TextLines, read_message
from penstock.cli.messages.message_lines import format_json
from penstock.cli.shared.escapes import read_escapes
from penstock.core.errors import OptionError
from penstock.kafka.console.topic_tailing import ConsumedRecord

octets = st.one_of(st.none(), st.binary(max_size=8), st.text(max_size=8).map(str.encode))


@given(
    key=octets,
    value=octets,
    headers=st.lists(st.tuples(st.text(max_size=4), octets), max_size=3).map(tuple),
    time_ms=st.integers(-1, 2**63 - 1),
    partition=st.integers(0, 2**31 - 1),
)
def test_what_consume_writes_as_json_is_read_as_it_was(
    key: bytes | None, value: bytes | None, headers: Any, time_ms: int, partition: int
) -> None:
    """Null is not empty, and no byte is changed."""
    written = format_json(ConsumedRecord("t", partition, 7, time_ms, key, value, headers))
    assert read_message(written.encode()) == Message(key, value, headers, time_ms, partition)


def test_only_the_value_must_be_there() -> None:
    assert read_message(b' {"value": ""} ') == Message(None, b"")
    assert read_message(b'{"value": null, "key": null, "headers": null}') == Message(None, None)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"hello", "it is not JSON at character 1"),
        (b'{"value": "a"', "it is not JSON"),
        (b'{"value": "\xff"}', "it is not text in UTF-8"),
        (b'["a"]', "it is not a JSON object"),
        (b"{}", "it has no `value`; write null"),
        (b'{"valeu": "a"}', "`valeu` is none of key, value, headers"),
        (b'{"value": "a", "value": "b"}', "`value` is given twice"),
        (b'{"value": 5}', "`value` is not a text, null, or bytes"),
        (b'{"value": {"a": 1}}', "`value` is not a text, null, or bytes"),
        (b'{"value": {"base64": "x"}}', "the base64 of `value` is damaged"),
        (b'{"value": {"base64": "!/w=="}}', "the base64 of `value` is damaged"),
        (b'{"value": "\\ud800"}', "`value` holds half of a character"),
        (b'{"value": "a", "headers": {"h": "1"}}', "`headers` is not a list of names and values"),
        (b'{"value": "a", "headers": [["h"]]}', "`headers` is not a list of names and values"),
        (b'{"value": "a", "headers": [["\\ud800", "x"]]}', "`headers` holds half of a character"),
        (b'{"value": "a", "headers": [["h", 1]]}', "`header h` is not a text"),
        (b'{"value": "a", "timestamp_ms": "noon"}', "`timestamp_ms` is not a whole number"),
        (b'{"value": "a", "timestamp_ms": 1.5}', "`timestamp_ms` is not a whole number"),
        (b'{"value": "a", "partition": -1}', "`partition` is not a whole number, 0 or greater"),
        (b'{"value": "a", "partition": true}', "`partition` is not a whole number"),
        (b"[" * 100_000, "it is nested too deeply"),
    ],
)
def test_a_wrong_message_is_refused_with_what_is_wrong(line: bytes, why: str) -> None:
    with pytest.raises(ValueError) as refused:
        read_message(line)
    assert why in str(refused.value)


def test_what_is_said_for_all_goes_before_what_a_line_says() -> None:
    form = JsonLines(MessageDefaults(partition=1, timestamp_ms=9, headers=(("all", b"x"),)))
    lines = pa.array([b'{"value": "a", "partition": 5, "timestamp_ms": 3, "headers": [["h", null]]}', b" "])
    records, wrong = form.read(lines)
    assert wrong is None
    assert records.drop_columns(["key"]).to_pylist() == [
        {
            "value": b"a",
            "headers": [{"key": "h", "value": None}, {"key": "all", "value": b"x"}],
            "timestamp": 9,
            "partition": 1,
        }
    ]
    _, wrong = form.read(pa.array([b'{"value": "b"}', b"x"]))
    assert wrong is not None
    assert wrong.facts == {"line": 4}  # blank lines count


def test_a_time_in_another_unit_is_sent_with_one_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """A copy keeps the original's time; -1 is Kafka's own value for a record without a time."""

    def send(*times: str, **fixed: int) -> str:
        lines = pa.array([f'{{"value": "a", "timestamp_ms": {time}}}'.encode() for time in times])
        records, wrong = JsonLines(MessageDefaults(**fixed)).read(lines)  # type: ignore[arg-type]
        assert wrong is None
        assert records.num_rows == len(times)
        return capsys.readouterr().err

    told = send("1700000000000", "1700000000", "10")
    assert "`timestamp_ms` of line 2 is 1700000000: as milliseconds since 1970 it is too small" in told
    assert told.count("Warning") == 1
    assert send("-1", "null", "1700000000000") == ""
    assert send("10", timestamp_ms=1_700_000_000_000) == ""  # the time is not sent


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\t", b"\t"),
        (r"\\t", rb"\t"),
        (r"a\x1fb", b"a\x1fb"),
        (r"\xFF", b"\xff"),
        (r"\0\n\r", b"\0\n\r"),
        ("\t", b"\t"),
        ("\u00fc", b"\xc3\xbc"),
        ("::", b"::"),
    ],
)
def test_an_escape_is_what_cannot_be_typed(text: str, expected: bytes) -> None:
    assert read_escapes("--key-separator", text) == expected


@pytest.mark.parametrize("text", ["\\", r"\q", r"\x1", r"\xgg", r"a\ "])
def test_a_backslash_that_begins_no_escape_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"\[ESCAPE_UNKNOWN\]"):
        read_escapes("--separator", text)


def test_a_separator_that_is_empty_is_refused() -> None:
    """It would be found at the beginning of every line, and every key would be empty."""
    with pytest.raises(OptionError, match=r"\[SEPARATOR_EMPTY\]"):
        read_escapes("--key-separator", "")


def test_what_is_said_for_all_holds_for_lines_of_text_and_a_line_without_a_key_ends_them() -> None:
    form = TextLines(MessageDefaults(2, 9, (("all", b"x"),)), b"\t", r"\t")
    records, wrong = form.read(pa.array([b"k\tv\tw", b"\t"], pa.large_binary()))
    assert wrong is None
    assert records["key"].to_pylist() == [b"k", b""]
    assert records["value"].to_pylist() == [b"v\tw", b""]
    assert records["timestamp"].to_pylist() == [9, 9]
    assert records["partition"].to_pylist() == [2, 2]
    assert records["headers"].to_pylist() == [[{"key": "all", "value": b"x"}]] * 2
    records, wrong = form.read(pa.array([b"a\t1", b"b", b"c\t3"], pa.large_binary()))
    assert records.num_rows == 1
    assert wrong is not None
    assert wrong.facts == {"line": 4}
    assert r"has no `\t`" in str(wrong)
