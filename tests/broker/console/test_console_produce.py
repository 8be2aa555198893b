"""`penstock produce` against a real broker: from files, pipes and a terminal."""

from __future__ import annotations

import os
import pty
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.console import Run, read_json
from tests.support.kafka.topic_filling import produce, read_back

#: Long enough for a busy machine; a test that gets what it waits for ends sooner.
PATIENT = ["--timeout-ms", "20000"]
COMMAND = [sys.executable, "-m", "penstock.cli", "produce"]


@pytest.fixture
def lines(tmp_path: Path) -> Any:
    def write(content: bytes) -> str:
        path = tmp_path / secrets.token_hex(4)
        path.write_bytes(content)
        return str(path)

    return write


def test_every_line_of_a_file_is_one_message(kafka: Any, penstock: Run, topic: Any, lines: Any) -> None:
    """A11: in order, without keys, byte for byte, including a last line without a newline."""
    name = topic()
    printed = penstock("produce", name, "--file", lines(b"one\n\n\xff\xfe\x1b[31m\nlast"))
    assert printed == "4 messages acknowledged: 4 in partition 0.\n"
    found = read_back(kafka.bootstrap, name, 4)
    assert [(each.key(), each.value()) for each in found] == [
        (None, b"one"),
        (None, b""),
        (None, b"\xff\xfe\x1b[31m"),
        (None, b"last"),
    ]
    assert (
        penstock("produce", name, "--file", lines(b""), "--set", "linger.ms=5")
        == "0 messages acknowledged.\n"
    )


@pytest.mark.parametrize(
    "how", [["--compression", "lz4"], ["--set", "compression.type=zstd"]], ids=["lz4", "zstd"]
)
def test_keys_headers_partition_and_compression(
    kafka: Any, penstock: Run, topic: Any, lines: Any, how: list[str]
) -> None:
    """B4: a key decides the partition; another client reads what was written."""
    name = topic(3)
    keyed = lines(b"item1=action1\nitem2=action1\nitem3=action1\n")
    printed = penstock("produce", name, "--file", keyed, "--key-separator", "=", "--header", "from=me", *how)
    assert printed == ("3 messages acknowledged: 1 in partition 0, 1 in partition 1, 1 in partition 2.\n")
    found = {each.key(): each for each in read_back(kafka.bootstrap, name, 3)}
    assert {key: each.partition() for key, each in found.items()} == {b"item1": 1, b"item2": 0, b"item3": 2}
    assert {each.value() for each in found.values()} == {b"action1"}
    assert found[b"item1"].headers() == [("from", b"me")]
    printed = penstock(
        "produce", name, "--file", lines(b"a\nb\n"), "--partition", "2", "--print", "--json-report"
    )
    places = [read_json(line) for line in printed.splitlines()]
    assert places[:2] == [{"partition": 2, "offset": 1}, {"partition": 2, "offset": 2}]
    assert places[2] == {"version": 1, "acknowledged": 2, "partitions": {"2": 2}}


def test_what_cannot_be_sent_is_said_with_what_was(
    penstock: Run, topic: Any, lines: Any, tmp_path: Path
) -> None:
    name = topic()
    refused = penstock("produce", name, "--file", lines(b"a:1\nb:2\nc\nd:4"), "--key-separator", ":", code=1)
    assert "Acknowledged before it ended: 2 messages." in refused
    assert "[KEY_SEPARATOR_MISSING] Line 3 " in refused
    for arguments, condition in (
        (["--partition", "7"], "PARTITION_OUT_OF_RANGE"),
        (["--key-separator", ""], "SEPARATOR_EMPTY"),
        (["--key-separator", r"\q"], "ESCAPE_UNKNOWN"),
        (["--key-separator", ":", "--json"], "OPTIONS_DISAGREE"),
        (["--headers", "h=1,"], "PAIR_EXPECTED"),
        (["--header", "h"], "PAIR_EXPECTED"),
        (["--set", "acks=1"], "OPTION_INVALID"),
        (["--set", "delivery.timeout.ms=soon"], "OPTION_INVALID"),
    ):
        assert f"[{condition}]" in penstock("produce", name, "--file", lines(b"x"), *arguments, code=1)
    for arguments, line, words in (
        (
            ["--partition", "7"],
            b"x",
            "Partition 7 is asked for; the topic has 0 to 0. Correct --partition, or",
        ),
        (["--json"], b'{"value": "x", "partition": 7}', "0. Correct `partition` of these lines, or"),
        (["--timestamp", "9999-12-31T00:00:00Z"], b"x", "Correct --timestamp (milliseconds since 1970)."),
        (["--json"], b'{"value": "x", "timestamp_ms": 1700000000000000}', "Correct `timestamp_ms` of these"),
    ):
        assert words in penstock("produce", name, "--file", lines(line), *arguments, code=1)
    assert "[FILE_UNREADABLE]" in penstock("produce", name, "--file", str(tmp_path / "none"), code=1)
    assert "[UNKNOWN_TOPIC]" in penstock("produce", f"{name}-not", "--file", lines(b"x"), code=1)


def test_a_tab_between_key_and_value_is_written_as_an_escape(
    kafka: Any, penstock: Run, topic: Any, lines: Any
) -> None:
    name = topic()
    given = ["--key-separator", r"\t", "--headers", "source=import,run=7", "--header", "more=a,b"]
    penstock(
        "produce", name, "--file", lines(b"k\tv\tw\n\t\n"), *given, "--timestamp", "2023-11-14T22:13:20Z"
    )
    found = read_back(kafka.bootstrap, name, 2)
    assert [(each.key(), each.value()) for each in found] == [(b"k", b"v\tw"), (b"", b"")]
    assert {each.timestamp()[1] for each in found} == {1_700_000_000_000}
    assert found[0].headers() == [("source", b"import"), ("run", b"7"), ("more", b"a,b")]
    refused = penstock("produce", name, "--file", lines(b"k v\n"), *given, code=1)
    assert r"[KEY_SEPARATOR_MISSING] Line 1 has no `\t`, so it has no key." in refused
    shown = penstock(
        "consume",
        name,
        "--offset",
        "earliest",
        "--max-messages",
        "2",
        "--print",
        "key",
        "--separator",
        r"\x7c",
    )
    assert shown == "k|v\tw\n|\n"


def test_what_was_consumed_as_json_is_produced_again_as_it_was(
    kafka: Any, penstock: Run, topic: Any, lines: Any
) -> None:
    """Null is not empty, bytes that are not text survive, and time, headers and partition are the same."""
    name, copy, other = topic(3), topic(3), topic()
    when = 1_700_000_000_123
    headers = [("h", b"1"), ("h", None), ("h", b""), ("\x1b", b"\xff")]
    produce(
        kafka.bootstrap, name, [b"a\nb\x00", None], key=b"k", timestamp_ms=when, headers=headers, partition=2
    )
    produce(kafka.bootstrap, name, [b"", b"\xff\xfe"], key=b"", timestamp_ms=when + 1, partition=1)
    produce(kafka.bootstrap, name, ["gr\u00fc\u00dfe \u2028 \U0001f600"], timestamp_ms=when + 2)
    how = ["--offset", "earliest", "--max-messages", "5", "--json", *PATIENT]
    consumed = penstock("consume", name, *how)
    told = read_json(penstock("produce", copy, "--file", lines(consumed.encode()), "--json"))
    assert told == {"version": 1, "acknowledged": 5, "partitions": {"0": 1, "1": 2, "2": 2}}
    assert penstock("consume", copy, *how).replace(copy, name) == consumed

    def flatten(each: Any) -> tuple[Any, ...]:
        return each.partition(), each.offset(), each.key(), each.value(), each.timestamp(), each.headers()

    before, after = (read_back(kafka.bootstrap, each, 5) for each in (name, copy))
    assert [*map(flatten, before)] == [*map(flatten, after)]
    said = ["--partition", "0", "--timestamp", "1970-01-01T00:00:05Z", "--header", "copied=yes"]
    penstock("produce", other, "--file", lines(consumed.encode()), "--json", *said)
    found = read_back(kafka.bootstrap, other, 5)
    assert {each.timestamp()[1] for each in found} == {5000}
    assert {each.headers()[-1] for each in found} == {("copied", b"yes")}


def test_lines_before_a_wrong_message_are_sent(kafka: Any, penstock: Run, topic: Any, lines: Any) -> None:
    name = topic()
    given = b'{"value": "one"}\n\n{"value": null, "key": "k"}\n{"valeu": "x"}\n{"value": "y"}\n'
    refused = penstock("produce", name, "--file", lines(given), "--json", code=1)
    assert "Acknowledged before it ended: 2 messages." in refused
    assert "[MESSAGE_INVALID] Line 4 is not a message: `valeu` is none of key, value, headers, " in refused
    assert [each.value() for each in read_back(kafka.bootstrap, name, 2)] == [b"one", None]


def test_a_pipe_is_sent_in_blocks_and_while_it_is_open(kafka: Any, topic: Any) -> None:
    name = topic()
    arguments = [*COMMAND, name, "--bootstrap-server", kafka.bootstrap]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as producer:
        assert producer.stdin is not None
        producer.stdin.write(b"first\nbegun")
        producer.stdin.flush()
        assert [each.value() for each in read_back(kafka.bootstrap, name, 1)] == [b"first"]
        producer.stdin.write(b" and ended\n" + b"x\n" * 100_000)
        producer.stdin.flush()
        out, _ = producer.communicate(timeout=60)
        assert out == b"100002 messages acknowledged: 100002 in partition 0.\n"
    assert read_back(kafka.bootstrap, name, 2)[1].value() == b"begun and ended"


def test_at_a_terminal_each_line_is_sent_when_enter_is_pressed(kafka: Any, topic: Any) -> None:
    """A11, B5: greetings typed without keys reach all three partitions, each at offset 0."""
    name = topic(3)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, name, "--print", "--bootstrap-server", kafka.bootstrap],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as producer:
        os.close(theirs)
        assert producer.stdout is not None
        places = []
        for greeting in (b"hello\n", b"hallo\n", b"salut\n"):
            os.write(ours, greeting)
            places.append(producer.stdout.readline())  # before the next line is typed
        os.write(ours, b"\x04")  # Ctrl-D
        assert producer.stdout.readline().startswith("3 messages acknowledged: ")
        assert producer.wait(30) == 0
    os.close(ours)
    assert sorted(places) == [f"partition: {number}, offset: 0\n" for number in range(3)]
    assert {each.key() for each in read_back(kafka.bootstrap, name, 3)} == {None}
