"""The item programs in `examples/` run as programs, on a real broker, and do what their pages say."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from penstock.core.client.java_settings import parse_client
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.kafka.groups.group_overview import describe_group
from penstock.stores.offsets.file_store import FileOffsetStore
from tests.support.kafka.topic_filling import commit_offsets, produce, read_back
from tests.support.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
PARTITION_OF = {"item1": 1, "item2": 0, "item3": 2}
RECORD = re.compile(r"(?P<key>\S+) (?P<value>\S+) (?P<partition>\d+) (?P<offset>\d+)")
TIMEOUT_S = 60.0


class Program:
    """One running example; its lines are collected as they arrive."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / name), *arguments], stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._collect)
        self._reader.start()

    def _collect(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.lines.append(line.rstrip("\n"))

    @property
    def records(self) -> list[tuple[str, str, int, int]]:
        found = map(RECORD.fullmatch, list(self.lines))
        return [(m["key"], m["value"], int(m["partition"]), int(m["offset"])) for m in found if m]

    def wait(self) -> int:
        code = self.process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        return code

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()


Start = Callable[..., Program]


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[Program] = []

    def begin(name: str, *arguments: str) -> Program:
        running.append(Program(name, *arguments))
        return running[-1]

    yield begin
    for each in running:
        each.process.kill()
        each.wait()


@pytest.fixture
def settings(kafka: Any) -> Any:
    return parse_client({"bootstrap.servers": kafka.bootstrap}, read_file=str).settings


def send_rounds(start: Start, bootstrap: str, name: str, rounds: int) -> None:
    program = start(
        "item_producer.py", "--bootstrap-server", bootstrap, "--topic", name, "--rounds", str(rounds)
    )
    assert program.wait() == 0


def test_the_producer_prints_where_each_action_went(kafka: Any, topic: Any, start: Start) -> None:
    """B1, B2, B3, B4, B6, B8: action by action, item by item, each acknowledged; per item 1,2,3,1,2,3."""
    name = topic(3)
    arguments = ["--bootstrap-server", f"{kafka.bootstrap},{kafka.bootstrap}", "--topic", name]
    program = start("item_producer.py", *arguments, "--rounds", "2")
    assert program.wait() == 0
    assert program.lines == [
        *(
            f"{item} action{action} partition: {partition}, offset: {turn * 3 + action - 1}"
            for turn in range(2)
            for action in (1, 2, 3)
            for item, partition in PARTITION_OF.items()
        ),
        "closed",
    ]
    stored = read_back(kafka.bootstrap, name, 18)
    for item, partition in PARTITION_OF.items():
        mine = [each for each in stored if each.partition() == partition]
        assert [each.key() for each in mine] == [item.encode()] * 6
        assert [each.value() for each in mine] == [b"action1", b"action2", b"action3"] * 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_producer_closes_when_it_is_told_to_stop(
    kafka: Any, topic: Any, start: Start, number: int
) -> None:
    """B3: it runs until then without end; a pause between rounds does not delay the stop."""
    arguments = ["--bootstrap-server", kafka.bootstrap, "--topic", topic(3), "--pause", "600"]
    program = start("item_producer.py", *arguments)
    wait_until(lambda: len(program.lines) == 9, "one round is sent", TIMEOUT_S)
    assert program.stop(number) == 0
    assert program.lines[9:] == ["closed"]


def test_members_share_the_partitions_and_a_successor_goes_on(
    kafka: Any, topic: Any, start: Start, settings: Any, tmp_path: Path
) -> None:
    """B9, B10, B12, B13, B14, B18, I27: one to four members on three partitions; each record once.

    A new group begins at the end of the log, and commits as it goes, for those who monitor it.
    """
    name, group = topic(3), f"t2-{secrets.token_hex(4)}"
    topic(1, name=name)  # its name merely begins with the pattern
    for partition in range(3):
        produce(kafka.bootstrap, name, [b"before"], partition=partition, key=b"item")
    arguments = ["--bootstrap-server", kafka.bootstrap, "--group", group, "--pattern", name]
    arguments += ["--offsets", str(tmp_path), "--store-every", "600"]  # only what is stored on revoke helps
    members: list[Program] = []

    def shared_by(count: int) -> Callable[[], bool]:
        def settled() -> bool:
            found = describe_group(settings, group)
            owned = [each.partitions for each in found.members if each.partitions]
            alone = sorted(each for some in owned for each in some) == [
                TopicPartition(name, number) for number in range(3)
            ]
            busy = min(count, 3)
            told = [each for each in members if each.process.poll() is None and assigned_to(each)]
            return (
                found.state == "Stable"
                and len(found.members) == count
                and alone
                and len(owned) == busy
                and len(told) == busy
            )

        return settled

    def seen() -> Counter[tuple[int, int]]:
        return Counter((partition, offset) for each in members for *_, partition, offset in each.records)

    def all_until(until: int) -> Counter[tuple[int, int]]:
        return Counter((partition, offset) for partition in range(3) for offset in range(1, until))

    members.append(start("item_consumer.py", *arguments))
    wait_until(lambda: kept(tmp_path, group, name) == [1, 1, 1], "it begins at the end of the log", TIMEOUT_S)
    for count in (1, 2, 3, 4):
        while len(members) < count:
            members.append(start("item_consumer.py", *arguments))
        wait_until(shared_by(count), f"{count} members share the partitions", TIMEOUT_S)
        send_rounds(start, kafka.bootstrap, name, 1)
        wait_until(
            lambda count=count: seen() == all_until(1 + 3 * count), "every record is printed once", TIMEOUT_S
        )
    assert members[0].stop(signal.SIGTERM) == 0
    assert members[1].stop(signal.SIGINT) == 0
    for gone in members[:2]:
        assert gone.lines[-1] == "closed"
        assert "on_partitions_revoked" in gone.lines
    wait_until(shared_by(2), "two members are left", TIMEOUT_S)
    send_rounds(start, kafka.bootstrap, name, 1)
    wait_until(lambda: seen() == all_until(16), "nothing is printed twice", TIMEOUT_S)
    assert [each.stop() for each in members[2:]] == [0, 0]
    assert kept(tmp_path, group, name) == [16, 16, 16]
    assert [row.committed for row in describe_group(settings, group).rows] == [16, 16, 16]
    for each in members:
        check_printed(each, name)


def test_after_a_hard_kill_exactly_what_was_not_stored_is_printed_again(
    kafka: Any, topic: Any, start: Start, tmp_path: Path
) -> None:
    """B18: a successor continues from what was recorded, whatever the previous member has done since then."""
    name, group = topic(3), f"t2-{secrets.token_hex(4)}"
    arguments = ["--bootstrap-server", kafka.bootstrap, "--group", group, "--pattern", name]
    arguments += ["--offsets", str(tmp_path), "--reset", "earliest", "--session-timeout", "6"]
    arguments += ["--store-every", "600"]  # at its start and when partitions are given away, not in between

    def consume(until: int) -> Program:
        """Start a member and send one more round; return when everything up to `until` is printed."""
        program = start("item_consumer.py", *arguments)
        send_rounds(start, kafka.bootstrap, name, 1)
        last = {(partition, until - 1) for partition in range(3)}
        wait_until(lambda: last <= printed(program).keys(), f"offsets up to {until} are printed", TIMEOUT_S)
        return program

    def printed(program: Program) -> Counter[tuple[int, int]]:
        return Counter((partition, offset) for *_, partition, offset in program.records)

    def all_between(begins: list[int], until: int) -> Counter[tuple[int, int]]:
        return Counter(
            (partition, offset) for partition, begin in enumerate(begins) for offset in range(begin, until)
        )

    first = consume(3)
    assert first.stop() == 0
    assert kept(tmp_path, group, name) == [3, 3, 3]
    killed = consume(6)
    assert killed.stop(signal.SIGKILL) == -signal.SIGKILL
    stored = kept(tmp_path, group, name)
    successor = consume(9)
    assert printed(first) == all_between([0, 0, 0], 3)
    assert printed(killed) == all_between([3, 3, 3], 6)
    assert printed(successor) == all_between(stored, 9)
    repeated = printed(successor) & printed(killed)
    assert repeated == all_between(stored, 6), "all after what was stored"
    assert repeated, f"everything was stored before the kill: {stored}"
    assert successor.stop() == 0
    assert kept(tmp_path, group, name) == [9, 9, 9]


def assigned_to(program: Program) -> set[str]:
    """Return the partitions of the last assignment that a program printed."""
    lines = list(program.lines)
    last = max((at for at, line in enumerate(lines) if line == "on_partitions_assigned"), default=None)
    if last is None:
        return set()
    given = set()
    for line in lines[last + 1 :]:
        if not line.startswith("  ") or "goes on at" in line:
            break
        given.add(line.strip())
    return given


def check_printed(program: Program, name: str) -> None:
    """Check that counts precede their records, and that only assigned partitions are sought or printed."""
    given: set[str] = set()
    left = 0
    for line in program.lines:
        if counted := re.fullmatch("-{10}([0-9]+)-{10}", line):
            assert left == 0
            left = int(counted[1])
            assert left > 0
        elif line.startswith("on_partitions"):
            assert left == 0
            given = set()
        elif sought := re.fullmatch("  (\\S+) goes on at [0-9]+", line):
            assert sought[1] in given
        elif line.startswith("  "):
            given.add(line.strip())
        elif record := RECORD.fullmatch(line):
            left -= 1
            assert f"{name}-{record['partition']}" in given
            assert PARTITION_OF[record["key"]] == int(record["partition"])
        else:
            assert line == "closed"
    assert left == 0


def kept(folder: Path, group: str, name: str) -> list[int | None]:
    """Return what the folder has stored for the three partitions."""
    store = FileOffsetStore(folder)
    found = [store.load(f"{group}/{name}-{number}") for number in range(3)]
    return [
        None if each is None else each.offsets[TopicPartition(name, number)]
        for number, each in enumerate(found)
    ]


def processor_s(program: Program) -> float:
    """Return the processor time that a program has used so far."""
    after_name = Path(f"/proc/{program.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.usefixtures("settings")
def test_stored_offsets_count_at_the_start_and_at_no_other_moment(
    kafka: Any, topic: Any, start: Start, tmp_path: Path
) -> None:
    """B12, B15, B16, B17, B19, B20: sought before the first fetch, over what is committed; then forgotten.

    While it waits it uses almost no processor time.
    """
    name, group = topic(3), f"t2-{secrets.token_hex(4)}"
    produce(kafka.bootstrap, name, [b"%d" % number for number in range(30)], partition=1, key=b"item1")
    store = FileOffsetStore(tmp_path)
    position = StreamPosition({TopicPartition(name, 1): 22})
    store.save(f"{group}/{name}-1", position)
    commit_offsets(kafka.bootstrap, group, name, 0, 5, 0)
    arguments = ["--bootstrap-server", kafka.bootstrap, "--group", group, "--pattern", name]
    arguments += ["--offsets", str(tmp_path), "--reset", "earliest", "--store-every", "0"]
    program = start("item_consumer.py", *arguments)
    wait_until(lambda: len(program.records) == 8, "it goes on at 22", TIMEOUT_S)
    assert [offset for *_, offset in program.records] == list(range(22, 30))
    first = program.lines.index(f"  {name}-1 goes on at 22")
    assert (
        program.lines.index("on_partitions_assigned") < first < program.lines.index("-" * 10 + "8" + "-" * 10)
    )

    wait_until(lambda: kept(tmp_path, group, name) == [0, 30, 0], "positions are stored", TIMEOUT_S)
    for path in tmp_path.glob("*.json"):
        path.unlink()
    begun_s, used_s = time.monotonic(), processor_s(program)
    wait_until(lambda: time.monotonic() - begun_s > 1.5, "some time has passed")
    assert processor_s(program) - used_s < 0.5
    produce(kafka.bootstrap, name, [b"30"], partition=1, key=b"item1")
    wait_until(lambda: len(program.records) == 9, "it goes on from memory", TIMEOUT_S)
    assert program.records[-1] == ("item1", "30", 1, 30)
    assert program.stop() == 0

    # They are gone at the next start: the group's commits decide, and without any, the reset rule does.
    for path in tmp_path.glob("*.json"):
        path.unlink()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_consumer_groups([group])[group].result(timeout=30)
    again = start("item_consumer.py", *arguments)
    wait_until(lambda: len(again.records) == 31, "it begins anew", TIMEOUT_S)
    assert [offset for *_, offset in again.records] == list(range(31))
    assert again.stop() == 0
