"""`penstock consume` against a real broker: as a member of a group, and without one."""

from __future__ import annotations

import json
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.cli import main
from tests.console import Run, make_console, read_json, read_lines
from tests.filling import commit_offsets, delete_before, produce, wait_until

COMMAND = [sys.executable, "-m", "penstock.cli", "consume"]
#: For a busy machine; a test that gets what it waits for ends sooner.
PATIENT = ["--timeout-ms", "20000"]
QUICK = ["--timeout-ms", "300"]


@pytest.fixture
def penstock(kafka: Any, capsys: pytest.CaptureFixture[str]) -> Run:
    return make_console(capsys, kafka.bootstrap)


@contextmanager
def consuming(bootstrap: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command as a process of its own, until it has told what it reads."""
    process = subprocess.Popen(
        [*COMMAND, *arguments, "--bootstrap-server", bootstrap],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_reading(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    told = process.stderr.readline()
    assert told.startswith("Reading "), told + process.stderr.read()
    return told


def test_a_fresh_consumer_shows_only_what_comes_after_it(kafka: Any, penstock: Run, topic: Any) -> None:
    """A14, A15, A16: it starts at the log's end, under a generated name, and commits nothing."""
    name = topic(3)
    produce(kafka.bootstrap, name, [b"before"], partition=1)
    with consuming(kafka.bootstrap, name) as process:
        told = wait_for_reading(process)
        assert told.startswith(f"Reading {name}-0, {name}-1, {name}-2 (group console-consumer-")
        group = told.rpartition("group ")[2].rstrip(")\n")
        assert group.removeprefix("console-consumer-").isdigit()
        assert [group, "Stable"] in read_lines(penstock("groups", "list"))
        (described,) = read_json(penstock("groups", "describe", group, "--json"))["groups"]
        assert [each["current_offset"] for each in described["partitions"]] == [None] * 3
        assert [each["log_end_offset"] for each in described["partitions"]] == [0, 1, 0]
        produce(kafka.bootstrap, name, [b"after \x1b[2J"], partition=1)
        assert process.stdout is not None
        assert process.stdout.readline() == "after \\x1b[2J\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr is not None
        assert process.stderr.read() == "1 message shown.\n"
    assert penstock("groups", "describe", group) == f"Group: {group}  State: Empty  Members: 0\n"
    printed = penstock("consume", name, "--from-beginning", "--max-messages", "2", *PATIENT)
    assert printed.splitlines() == ["before", "after \\x1b[2J"]


def test_a_named_group_goes_on_where_it_stopped(kafka: Any, penstock: Run, topic: Any) -> None:
    """A16, C3, I27: what was shown is committed, no more; the next start repeats and misses nothing."""
    name, group = topic(), f"t2-{secrets.token_hex(4)}"
    produce(kafka.bootstrap, name, [b"%d" % number for number in range(10)])
    how = [name, "--group", group, "--from-beginning", "--max-messages", "4", *PATIENT]
    assert penstock("consume", *how).splitlines() == ["0", "1", "2", "3"]
    (described,) = read_json(penstock("groups", "describe", group, "--json"))["groups"]
    assert [(each["current_offset"], each["lag"]) for each in described["partitions"]] == [(4, 6)]
    assert penstock("consume", *how).splitlines() == ["4", "5", "6", "7"]
    with consuming(kafka.bootstrap, name, "--group", group) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["8\n", "9\n"]
        wait_until(
            lambda: "  10" in penstock("groups", "describe", group), "the last ones are committed as well"
        )
        process.send_signal(signal.SIGTERM)  # leaves the group as Ctrl-C does
        assert process.wait(30) == 128 + signal.SIGTERM
    (described,) = read_json(penstock("groups", "describe", group, "--json"))["groups"]
    assert (described["state"], described["partitions"][0]["lag"]) == ("Empty", 0)


def test_a_group_whose_position_has_aged_out_is_told_what_is_gone(kafka: Any, topic: Any) -> None:
    """It goes on with what is left, not at the end of the log; also when that happens while it reads."""
    name, group = topic(2), f"t2-{secrets.token_hex(4)}"
    for partition in (0, 1):
        produce(kafka.bootstrap, name, [f"{partition}{number}" for number in range(6)], partition=partition)
    commit_offsets(kafka.bootstrap, group, name, 1, 9)
    delete_before(kafka.bootstrap, name, 4)
    how = [name, "--group", group, "--print", "offset", "--separator", " "]
    with consuming(kafka.bootstrap, *how) as process:
        told = wait_for_reading(process)
        assert process.stdout is not None
        assert process.stderr is not None
        assert f"{name}-0, {name}-1" in told
        news = sorted(process.stderr.readline() for _ in range(2))
        assert news[0].startswith(f"{name}-0: 3 offsets are gone, 1 to 3: ")
        assert news[0].endswith("Going on at 4.\n")
        assert news[1].startswith(f"{name}-1: group {group} stood at 9, and the log ends at 6: ")
        assert [process.stdout.readline() for _ in range(2)] == ["4 04\n", "5 05\n"]
        produce(kafka.bootstrap, name, ["16"], partition=1)
        assert process.stdout.readline() == "6 16\n"
        process.send_signal(signal.SIGSTOP)
        for number in range(6, 12):  # one by one: the first may be the answer to a question asked before
            produce(kafka.bootstrap, name, [f"0{number}"])
        delete_before(kafka.bootstrap, name, 10)
        process.send_signal(signal.SIGCONT)
        gone = re.match(rf"{name}-0: ([0-9]) offsets are gone, ([67]) to 9: ", process.stderr.readline())
        assert gone is not None
        first = int(gone[2])
        assert int(gone[1]) == 10 - first
        shown = [*range(6, first), 10, 11]
        assert [process.stdout.readline() for _ in shown] == [f"{number} 0{number}\n" for number in shown]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def test_a_pattern_takes_whole_names_and_topics_that_come_later(kafka: Any, topic: Any) -> None:
    """A17: neither a longer name nor one of Kafka's own."""
    stem = f"visits{secrets.token_hex(4)}"
    first = topic(name=stem)
    other = topic(name=f"x{stem}")
    pattern = f"{stem}.*|__consumer_offsets"
    with consuming(kafka.bootstrap, "--pattern", pattern, "--from-beginning") as process:
        assert wait_for_reading(process).startswith(f"Reading {first}-0 (group")
        later = topic(name=stem)
        assert process.stderr is not None
        while later not in (told := process.stderr.readline()):
            assert told.startswith("Reading "), told
        assert other not in told
        assert "__consumer_offsets" not in told
        produce(kafka.bootstrap, other, [b"not this"])
        produce(kafka.bootstrap, later, [b"this"])
        assert process.stdout is not None
        assert process.stdout.readline() == "this\n"


def test_assigned_partitions_are_read_from_an_offset_or_a_time(kafka: Any, penstock: Run, topic: Any) -> None:
    """A14, B19: without a group; a position that is not in the log is an error, not another position."""
    name = topic(2, retention_ms=-1)
    for number in range(6):
        produce(kafka.bootstrap, name, [b"%d" % number], partition=1, timestamp_ms=1_700_000_000_000 + number)
    one = [name, "--partition", "1", *QUICK]
    for start, expected in (
        (["--offset", "4"], "4 5"),
        (["--offset", "earliest", "--max-messages", "2"], "0 1"),
        (["--from-beginning"], "0 1 2 3 4 5"),
        (["--last", "2"], "4 5"),
        (["--last", "100"], "0 1 2 3 4 5"),
        (["--from-time", "1700000000003"], "3 4 5"),
        (["--from-time", "2023-11-14T22:13:20.005Z"], "5"),
        (["--from-time", "1m"], ""),
        (["--offset", "latest"], ""),
        ([], ""),
    ):
        assert penstock("consume", *one, *start).split() == expected.split()
    both = penstock("consume", name, "--last", "3", *QUICK).split()
    assert both == ["3", "4", "5"]
    delete_before(kafka.bootstrap, name, 3, partition=1)
    assert "[OFFSET_OUTSIDE_LOG]" in penstock("consume", *one, "--offset", "1", code=1)
    assert "[OFFSET_OUTSIDE_LOG]" in penstock("consume", *one, "--offset", "7", code=1)
    assert "[NOTHING_TO_READ]" in penstock("consume", name, "--partition", "5", code=1)
    nothing = ["--pattern", "no-such-topic-.*", "--offset", "earliest"]
    assert "[NOTHING_TO_READ]" in penstock("consume", *nothing, code=1)
    with consuming(kafka.bootstrap, name, "--partition", "1", "--offset", "latest") as process:
        assert wait_for_reading(process) == f"Reading {name}-1 from 6\n"
        produce(kafka.bootstrap, name, [b"elsewhere"], partition=0)
        produce(kafka.bootstrap, name, [b"followed"], partition=1)
        assert process.stdout is not None
        assert process.stdout.readline() == "followed\n"


@pytest.mark.parametrize("how", [["--offset", "earliest"], ["--from-beginning"]], ids=["assigned", "member"])
def test_all_of_a_message_can_be_shown(kafka: Any, penstock: Run, topic: Any, how: list[str]) -> None:
    name = topic(retention_ms=-1)
    headers = [("h", b"1"), ("h", None), ("\x1b", b"\xff")]
    when = 1_700_000_000_123
    produce(kafka.bootstrap, name, [b"a\nb"], key=b"k\x07", timestamp_ms=when, headers=headers)
    produce(kafka.bootstrap, name, [None, b"\xff"], timestamp_ms=when)
    how = [name, *how, "--max-messages", "3", *PATIENT]
    columns = "topic,partition,offset,timestamp,key,headers"
    time = "2023-11-14T22:13:20.123Z"
    assert penstock("consume", *how, "--print", columns, "--separator", "|").splitlines() == [
        f"{name}|0|0|{time}|k\\x07|h=1,h=null,\\x1b=\\xff|a\\x0ab",
        f"{name}|0|1|{time}|null||null",
        f"{name}|0|2|{time}|null||\\xff",
    ]
    told = [json.loads(line) for line in penstock("consume", *how, "--json").splitlines()]
    place = {"topic": name, "partition": 0, "timestamp_ms": when}
    assert told[0] == {
        **place,
        "offset": 0,
        "key": "k\x07",
        "value": "a\nb",
        "headers": [["h", "1"], ["h", None], ["\x1b", {"base64": "/w=="}]],
    }
    assert [each["value"] for each in told[1:]] == [None, {"base64": "/w=="}]


def test_raw_values_are_written_byte_for_byte(
    kafka: Any, topic: Any, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    name = topic()
    produce(kafka.bootstrap, name, [b"\x1b[31m\xff", b"end"])
    how = ["--offset", "earliest", "--raw", "--max-messages", "2", "--bootstrap-server", kafka.bootstrap]
    assert main(["consume", name, *how]) == 0
    assert capsysbinary.readouterr().out == b"\x1b[31m\xff\nend\n"


def test_what_the_group_client_refuses_is_an_error_of_ours(penstock: Run, topic: Any) -> None:
    patience = ["--set", "request.timeout.ms=100", "--set", "fetch.max.wait.ms=200"]
    refused = penstock("consume", topic(), *patience, code=1)
    assert "[GROUP_MEMBER_FAILED] As a member of group console-consumer-" in refused
    assert "fetch_max_wait_ms" in refused


def test_a_topic_that_does_not_exist_is_an_error(penstock: Run) -> None:
    for how in ([], ["--offset", "earliest"]):
        assert "[UNKNOWN_TOPIC]" in penstock("consume", "no-such-topic", *how, code=1)
