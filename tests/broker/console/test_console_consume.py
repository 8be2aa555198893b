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
from pathlib import Path
from typing import Any

import numba
import pytest
from confluent_kafka import Consumer

from penstock.cli import main
from penstock.kafka.records import record_warmup
from penstock.kernels import compilation_lock
from tests.support.console import Run, read_json, read_lines
from tests.support.kafka.topic_filling import commit_offsets, delete_before, produce
from tests.support.waiting import wait_until

COMMAND = [sys.executable, "-m", "penstock.cli", "consume"]
#: Long enough for a busy machine; a test that gets what it waits for ends sooner.
PATIENT = ["--timeout-ms", "20000"]
QUICK = ["--timeout-ms", "300"]


@contextmanager
def consuming(bootstrap: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command as a separate process and wait until it has said what it reads."""
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


def hear(process: subprocess.Popen[str], about: str) -> str:
    """Return the next line of stderr, without its time and its subject."""
    assert process.stderr is not None
    told = process.stderr.readline()
    while told.startswith("Compiling kernels"):  # the first time on this computer
        told = process.stderr.readline()
    return cut_date(told, about)


def cut_date(told: str, about: str) -> str:
    dated = re.match(rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}T[0-9:]{{8}}Z {re.escape(about)}: ", told)
    assert dated is not None, told
    return told[dated.end() :]


def wait_for_reading(process: subprocess.Popen[str], about: str) -> str:
    told = hear(process, about)
    assert told.startswith("Reading "), told
    return told


def test_a_fresh_consumer_shows_only_what_comes_after_it(kafka: Any, penstock: Run, topic: Any) -> None:
    """A14, A15, A16: it starts at the end of the log, with a generated group name, and commits nothing."""
    name = topic(3)
    produce(kafka.bootstrap, name, [b"before"], partition=1)
    with consuming(kafka.bootstrap, name) as process:
        told = wait_for_reading(process, name)
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
        assert cut_date(process.stderr.read(), name) == "1 message shown.\n"
    assert penstock("groups", "describe", group) == f"Group: {group}  State: Empty  Members: 0\n"
    printed = penstock("consume", name, "--from-beginning", "--max-messages", "2", *PATIENT)
    assert printed.splitlines() == ["before", "after \\x1b[2J"]


def test_a_named_group_goes_on_where_it_stopped(kafka: Any, penstock: Run, topic: Any) -> None:
    """A16, C3, I27: only what was shown is committed; the next start repeats nothing and misses nothing."""
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
    """It continues with what is left, not at the end of the log, even when this happens while it reads."""
    name, group = topic(2), f"t2-{secrets.token_hex(4)}"
    for partition in (0, 1):
        produce(kafka.bootstrap, name, [f"{partition}{number}" for number in range(6)], partition=partition)
    commit_offsets(kafka.bootstrap, group, name, 1, 9)
    delete_before(kafka.bootstrap, name, 4)
    how = [name, "--group", group, "--print", "offset", "--separator", " "]
    with consuming(kafka.bootstrap, *how) as process:
        told = wait_for_reading(process, group)
        assert process.stdout is not None
        assert process.stderr is not None
        assert f"{name}-0, {name}-1" in told
        news = sorted(hear(process, group) for _ in range(2))
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
        gone = re.match(rf"{name}-0: ([0-9]) offsets are gone, ([67]) to 9: ", hear(process, group))
        assert gone is not None
        first = int(gone[2])
        assert int(gone[1]) == 10 - first
        shown = [*range(6, first), 10, 11]
        assert [process.stdout.readline() for _ in shown] == [f"{number} 0{number}\n" for number in shown]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def test_a_pattern_takes_whole_names_and_topics_that_come_later(kafka: Any, topic: Any) -> None:
    """A17: it takes neither longer names nor Kafka's own topics."""
    stem = f"visits{secrets.token_hex(4)}"
    first = topic(name=stem)
    other = topic(name=f"x{stem}")
    pattern = f"{stem}.*|__consumer_offsets"
    produce(kafka.bootstrap, first, [b"early"])
    with consuming(kafka.bootstrap, "--pattern", pattern, "--from-beginning") as process:
        assert wait_for_reading(process, pattern).startswith(f"Reading {first}-0 (group")
        assert process.stdout is not None
        assert process.stdout.readline() == "early\n"
        later = topic(name=stem)
        assert process.stderr is not None
        while later not in (told := hear(process, pattern)):
            assert told.startswith("Reading "), told
        assert other not in told
        assert "__consumer_offsets" not in told
        produce(kafka.bootstrap, other, [b"not this"])
        produce(kafka.bootstrap, later, [b"this"])
        assert process.stdout.readline() == "this\n"  # and not `early` again, although nothing is committed


def test_assigned_partitions_are_read_from_an_offset_or_a_time(kafka: Any, penstock: Run, topic: Any) -> None:
    """A14, B19: without a group, a position outside the log is an error; no other is used instead."""
    name = topic(2)
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
        assert wait_for_reading(process, name) == f"Reading {name}-1 from 6\n"
        produce(kafka.bootstrap, name, [b"elsewhere"], partition=0)
        produce(kafka.bootstrap, name, [b"followed"], partition=1)
        assert process.stdout is not None
        assert process.stdout.readline() == "followed\n"


@pytest.mark.parametrize("how", [["--offset", "earliest"], ["--from-beginning"]], ids=["assigned", "member"])
def test_all_of_a_message_can_be_shown(kafka: Any, penstock: Run, topic: Any, how: list[str]) -> None:
    name = topic()
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


@pytest.mark.parametrize(
    "how", [["--group", "g"], [], ["--offset", "earliest"]], ids=["group", "no group", "assigned"]
)
def test_every_compression_is_read_in_every_mode(
    kafka: Any, penstock: Run, topic: Any, tmp_path: Path, how: list[str]
) -> None:
    """Snappy has two framings: Java's, which we write, and the bare one of librdkafka."""
    name = topic()
    expected = []
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        expected.append(f"{codec} " * 50)
        line = tmp_path / codec
        line.write_text(expected[-1])
        penstock("produce", name, "--file", str(line), "--compression", codec)
        expected.append(f"other {codec} " * 50)
        produce(kafka.bootstrap, name, [expected[-1]], **{"compression.type": codec})
    how = [f"{name}-{each}" if each == "g" else each for each in how]
    how += [] if "--offset" in how else ["--from-beginning"]
    shown = penstock("consume", name, *how, "--max-messages", str(len(expected)), *PATIENT)
    assert shown.splitlines() == expected


def test_what_the_access_log_shipper_has_written_is_consumed(
    penstock: Run, topic: Any, tmp_path: Path
) -> None:
    """Its topic has the default settings: compressed with lz4, written in transactions."""
    name, group, log = topic(), f"g-{secrets.token_hex(4)}", tmp_path / "access.log"
    lines = [f'10.0.0.{n} - - [01/Feb/2026:10:00:00 +0000] "GET /{n} HTTP/1.1" 200 5' for n in range(9)]
    log.write_text("".join(f"{line}\n" for line in lines))
    positions = ["--positions-topic", f"{name}-positions"]
    penstock("accesslog", "ship", str(log), "--topic", name, "--server", "web1", "--once", *positions)
    committed = ["--set", "isolation.level=read_committed"]
    how = ["--group", group, "--from-beginning", "--timeout-ms", "1000", *committed]
    assert penstock("consume", name, *how).splitlines() == lines
    (described,) = read_json(penstock("groups", "describe", group, "--json"))["groups"]
    assert [each["lag"] for each in described["partitions"]] == [0]  # the marker behind them is passed, too
    assert penstock("consume", name, *how) == ""


def test_raw_values_are_written_byte_for_byte(
    kafka: Any, topic: Any, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    name = topic()
    produce(kafka.bootstrap, name, [b"\x1b[31m\xff", b"end"])
    how = ["--offset", "earliest", "--raw", "--max-messages", "2", "--bootstrap-server", kafka.bootstrap]
    assert main(["consume", name, *how]) == 0
    assert capsysbinary.readouterr().out == b"\x1b[31m\xff\nend\n"


def test_a_group_that_shares_in_another_way_is_an_error_with_advice(
    kafka: Any, penstock: Run, topic: Any
) -> None:
    """The coordinator refuses a member that has no assignment strategy in common with the others."""
    name, group = topic(), f"g-{secrets.token_hex(4)}"
    how = {"group.id": group, "partition.assignment.strategy": "cooperative-sticky"}
    other = Consumer({"bootstrap.servers": kafka.bootstrap, **how})
    try:
        other.subscribe([name])
        wait_until(lambda: other.poll(0.1) or other.assignment(), "the other consumer has joined")
        refused = penstock("consume", name, "--group", group, code=1)
    finally:
        other.close()
    assert f"[GROUP_MEMBER_FAILED] As a member of group {group}: INCONSISTENT_GROUP_PROTOCOL, " in refused
    assert "Name another group, or stop them." in refused


def test_a_member_takes_a_long_timeout(kafka: Any, penstock: Run, topic: Any) -> None:
    """The group client refuses a timeout that is longer than it keeps idle connections."""
    name = topic()
    produce(kafka.bootstrap, name, [b"x"])
    how = ["--set", "request.timeout.ms=900000", "--from-beginning", "--max-messages", "1"]
    assert penstock("consume", name, *how, *PATIENT) == "x\n"


def test_a_topic_that_does_not_exist_is_an_error(penstock: Run) -> None:
    for how in ([], ["--offset", "earliest"]):
        assert "[UNKNOWN_TOPIC]" in penstock("consume", "no-such-topic", *how, code=1)


@pytest.mark.parametrize("command", ["consume", "groups", "topics"])
def test_a_command_that_decodes_tells_of_the_first_compilation(
    command: str,
    kafka: Any,
    topic: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A minute of silence looks like a command that hangs."""

    @numba.njit  # type: ignore[untyped-decorator]
    def stand_in(number: int) -> int:  # in place of kernels that this process has already compiled
        return number + 1

    monkeypatch.setattr(record_warmup, "_done", False)
    monkeypatch.setattr(compilation_lock, "_cache_place", lambda: tmp_path)
    monkeypatch.setattr(record_warmup, "_decode_nothing", lambda: stand_in(1))
    name = topic(1)
    produce(kafka.bootstrap, name, [b"value"])
    commit_offsets(kafka.bootstrap, f"group-{name}", name, 1)
    arguments = {
        "consume": [name, "--offset", "earliest", "--max-messages", "1", *PATIENT],
        "groups": ["offsets", "--group", f"group-{name}"],
        "topics": ["widen", name, "--partitions", "2"],
    }[command]
    assert main([command, *arguments, "--bootstrap-server", kafka.bootstrap]) == 0
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "Compiling kernels, once on this computer ..."
    assert any(line.startswith("Compiling kernels, once on this computer: done in") for line in told)
