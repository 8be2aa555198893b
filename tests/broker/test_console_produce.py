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

from tests.console import Run, make_console, read_json
from tests.filling import read_back

COMMAND = [sys.executable, "-m", "penstock.cli", "produce"]


@pytest.fixture
def penstock(kafka: Any, capsys: pytest.CaptureFixture[str]) -> Run:
    return make_console(capsys, kafka.bootstrap)


@pytest.fixture
def lines(tmp_path: Path) -> Any:
    def write(content: bytes) -> str:
        path = tmp_path / secrets.token_hex(4)
        path.write_bytes(content)
        return str(path)

    return write


def test_every_line_of_a_file_is_one_message(kafka: Any, penstock: Run, topic: Any, lines: Any) -> None:
    """A11: in order, without keys, byte for byte, the last one without a newline too."""
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
    printed = penstock("produce", name, "--file", lines(b"a\nb\n"), "--partition", "2", "--print", "--json")
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
        (["--header", "h"], "PAIR_EXPECTED"),
        (["--set", "acks=1"], "OPTION_INVALID"),
        (["--set", "delivery.timeout.ms=soon"], "OPTION_INVALID"),
    ):
        assert f"[{condition}]" in penstock("produce", name, "--file", lines(b"x"), *arguments, code=1)
    assert "[FILE_UNREADABLE]" in penstock("produce", name, "--file", str(tmp_path / "none"), code=1)
    assert "[UNKNOWN_TOPIC]" in penstock("produce", f"{name}-not", "--file", lines(b"x"), code=1)


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
