"""The shipper on a real broker: committed readers get each line of the files once, whatever goes wrong."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.apps.accesslog.shipping.shipped_positions import FilePosition, PositionTopic, ShipState
from penstock.apps.accesslog.shipping.shipper import Shipper, ShipSettings
from penstock.cli import main
from penstock.cluster import LocalKafka
from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import OffsetStoreError, OptionError, PenstockError
from penstock.kafka.metadata.topic_admin import create_partitions, create_topic
from penstock.kafka.records.codecs import NONE
from penstock.kafka.records.murmur2_kernel import partition_of_keys
from penstock.kafka.writing.transactional_producer import TransactionalWriter
from penstock.kernels.byte_columns import byte_column
from penstock.testing.proxy import FaultProxy
from tests.conftest import MakeTopic
from tests.support.kafka.client_settings import settings_of
from tests.support.kafka.librdkafka import read_partition
from tests.support.kafka.topic_filling import await_markers, open_transaction, produce, send
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka  # also for the tests that start a cluster of their own

PRODUCE, LIST_OFFSETS, END_TXN = 0, 2, 26
#: What a broker accepts by default; the test cluster accepts more.
DEFAULT_LIMIT = {"max.message.bytes": "1048588"}


def line_of(number: int) -> str:
    return f'10.0.0.{number % 7} - - [01/Feb/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 {number}'


def append(path: Path, *numbers: int) -> None:
    with path.open("a") as file:
        file.writelines(line_of(number) + "\n" for number in numbers)


def order_for(path: Path, topic: str, **changes: Any) -> ShipSettings:
    how = {"server": "web1", "poll_ms": 20, "positions_topic": f"{topic}-positions", **changes}
    return ShipSettings((str(path),), topic, **how)


def find_home(name: str, partitions: int) -> int:
    """Return the partition that a writer chooses for this key."""
    return int(partition_of_keys(byte_column(pa.array([name.encode()])), partitions)[0])


def ship_once(client: ClientSettings, order: ShipSettings) -> int:
    return Shipper(client, order).run(threading.Event()).lines


def numbers_in(bootstrap: str, topic: str, partitions: int = 1) -> list[int]:
    rows = [
        row
        for number in range(partitions)
        for row in read_partition(bootstrap, topic, number, committed=True)
    ]
    return [int((row.value or b"").split(b" ")[-1]) for row in rows]


@contextlib.contextmanager
def shipping(client: ClientSettings, order: ShipSettings) -> Iterator[list[BaseException]]:
    """Run a shipper in the background until the block ends; yield the errors it failed with."""
    stopping, failures = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            Shipper(client, order).run(stopping)
        except PenstockError as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield failures
    finally:
        stopping.set()
        thread.join(60)
    assert not thread.is_alive()


def test_a_file_is_shipped_once_with_keys_and_headers(
    kafka: Any, topic: MakeTopic, client: ClientSettings, tmp_path: Path
) -> None:
    name, log = topic(3), tmp_path / "access.log"
    append(log, *range(1000))
    order = order_for(log, name, once=True)
    assert ship_once(client, order) == 1000
    assert ship_once(client, order) == 0
    append(log, 1000, 1001)
    assert ship_once(client, order) == 2
    rows = [row for part in range(3) for row in read_partition(kafka.bootstrap, name, part, committed=True)]
    assert {row.headers for row in rows} == {(("server", b"web1"),)}
    assert all((row.value or b"").split(b" ")[0] == row.key for row in rows)
    by_client: dict[bytes | None, list[int]] = {}
    for row in rows:
        by_client.setdefault(row.key, []).append(int((row.value or b"").split(b" ")[-1]))
    assert all(numbers == sorted(numbers) for numbers in by_client.values())
    assert sorted(number for numbers in by_client.values() for number in numbers) == list(range(1002))


def test_it_follows_a_file_through_rotation_and_copytruncate(
    kafka: Any, topic: MakeTopic, client: ClientSettings, tmp_path: Path
) -> None:
    name, log = topic(1), tmp_path / "access.log"
    append(log, 0)
    with shipping(client, order_for(log, name)) as failures:
        wait_until(lambda: numbers_in(kafka.bootstrap, name) == [0], "the first line is there")
        log.rename(tmp_path / "access.log.1")
        append(log, 1)
        wait_until(lambda: numbers_in(kafka.bootstrap, name) == [0, 1], "the new file is read")
        append(log, 2)
        (tmp_path / "access.log.2").write_bytes(log.read_bytes())
        os.truncate(log, 0)
        append(log, 3, 4, 5)
        wait_until(lambda: numbers_in(kafka.bootstrap, name) == [0, 1, 2, 3, 4, 5], "nothing is lost")
        assert not failures


def test_from_the_end_holds_also_when_nothing_came_before_the_restart(
    kafka: Any, topic: MakeTopic, client: ClientSettings, tmp_path: Path
) -> None:
    name, log = topic(1), tmp_path / "access.log"
    append(log, 0, 1)
    order = order_for(log, name, once=True, from_end=True)
    assert ship_once(client, order) == 0
    append(log, 2)
    assert ship_once(client, order) == 1
    assert numbers_in(kafka.bootstrap, name) == [2]


@pytest.mark.parametrize("from_end", [False, True], ids=["from the beginning", "from the end"])
def test_partitions_that_are_added_to_the_positions_topic_change_nothing(
    kafka: Any, topic: MakeTopic, client: ClientSettings, tmp_path: Path, from_end: bool
) -> None:
    """The shipper's key then maps to another partition than the one that holds its position."""
    name, log = topic(1), tmp_path / "access.log"
    order = order_for(log, name, once=True, from_end=from_end)
    append(log, *range(5))
    ship_once(client, order)
    append(log, *range(5, 10))
    ship_once(client, order)
    shipped, partitions = list(range(5 if from_end else 0, 10)), 4
    for number in (10, 11, 12):
        assert numbers_in(kafka.bootstrap, name) == shipped
        place = find_home(order.shipper, partitions)
        partitions = next(
            count for count in range(partitions + 1, 99) if find_home(order.shipper, count) != place
        )
        create_partitions(client, order.positions_topic, partitions)
        append(log, number)
        shipped.append(number)
        assert ship_once(client, order) == 1
        assert ship_once(client, order) == 0
    assert numbers_in(kafka.bootstrap, name) == shipped


def test_a_second_shipper_of_the_same_name_takes_over_and_the_first_says_so(
    kafka: Any, topic: MakeTopic, client: ClientSettings, tmp_path: Path
) -> None:
    name, log = topic(1), tmp_path / "access.log"
    order = order_for(log, name)
    append(log, 0)
    with shipping(client, order) as first:
        wait_until(lambda: numbers_in(kafka.bootstrap, name) == [0], "the first ships")
        with shipping(client, order) as second:
            number = 1
            while not first:
                append(log, number)
                number += 1
                wait_until(lambda: len(numbers_in(kafka.bootstrap, name)) >= number or first, "it goes on")  # noqa: B023
            wait_until(lambda: numbers_in(kafka.bootstrap, name) == list(range(number)), "each line once")
            assert not second
    assert str(first[0]).startswith("[SHIPPER_REPLACED]")


def test_a_position_far_back_in_the_topic_is_found(
    kafka: Any, topic: MakeTopic, client: ClientSettings, tmp_path: Path
) -> None:
    """Other shippers may have written thousands of positions since."""
    name, log = topic(1), tmp_path / "access.log"
    positions = f"{name}-positions"
    create_topic(client, positions, partitions=1, configs={"cleanup.policy": "compact"})
    append(log, *range(5))
    assert ship_once(client, order_for(log, name, once=True)) == 5
    produce(kafka.bootstrap, positions, [b"{}"] * 9_000, key=b"other")
    append(log, 5)
    assert ship_once(client, order_for(log, name, once=True)) == 1
    assert numbers_in(kafka.bootstrap, name) == list(range(6))


def test_thousands_of_files_and_long_lines_fit_into_what_a_broker_takes_by_default(
    kafka: Any, topic: MakeTopic, client: ClientSettings, tmp_path: Path
) -> None:
    """Also remembered are 120 other logs with 50 files each: more than a megabyte, and incompressible."""
    name, log = f"{topic(1)}-default", tmp_path / "access.log"
    positions = f"{name}-positions"
    create_topic(client, name, partitions=1, configs=DEFAULT_LIMIT)
    create_topic(client, positions, partitions=1, configs={"cleanup.policy": "compact", **DEFAULT_LIMIT})
    others = tuple(
        FilePosition(
            f"/var/log/vhosts/www.customer-{number % 120}.example.org/access.log.{number}",
            *(2049, number, 10**8, "0123456789abcdef", 1024, "0123456789abcdef"),
            finished=True,
            number=number + 1,
        )
        for number in range(6000)
    )
    order = order_for(log, name, once=True, codec=NONE)
    store = PositionTopic(client, positions)
    assert store.load(order.shipper) == ShipState()
    with contextlib.closing(TransactionalWriter(client, "before")) as writer:
        writer.fence()
        with writer.transaction():
            writer.write(positions, store.make_records(order.shipper, ShipState(), ShipState(others, 7, "x")))
    log.write_bytes(b"10.0.0.1 " + random.Random(1).randbytes(1_200_000).replace(b"\n", b"x") + b"\n")
    append(log, 1, 2)
    assert ship_once(client, order) == 3
    assert ship_once(client, order) == 0
    rows = read_partition(kafka.bootstrap, name, 0, committed=True)
    assert [len(row.value or b"") for row in rows] == [1_000_000, len(line_of(1)), len(line_of(2))]
    kept = store.load(order.shipper)
    assert kept.lines == 10
    assert kept.files[:6000] == others
    assert [each.path for each in kept.files[6000:]] == [str(log)]


def test_only_positions_that_have_changed_are_written(
    kafka: Any, topic: MakeTopic, client: ClientSettings, tmp_path: Path
) -> None:
    name = topic(1)
    positions = f"{name}-positions"
    create_topic(client, positions, partitions=1, configs={"cleanup.policy": "compact"})
    for number in range(100):
        append(tmp_path / f"{number}.log", number)
    order = order_for(tmp_path / "*.log", name, once=True)
    assert ship_once(client, order) == 100
    before = len(read_partition(kafka.bootstrap, positions, 0, committed=True))
    append(tmp_path / "7.log", 100, 101)
    assert ship_once(client, order) == 2
    rows = read_partition(kafka.bootstrap, positions, 0, committed=True)[before:]
    # The marks of the new run, at its beginning and end, and the position of the file that has grown.
    assert len(rows) <= 5
    assert sum(b"7.log" in (row.value or b"") for row in rows) >= 1
    assert sorted(numbers_in(kafka.bootstrap, name)) == list(range(102))


def test_positions_that_are_dropped_are_forgotten(topic: MakeTopic, client: ClientSettings) -> None:
    store = PositionTopic(client, f"{topic(1)}-positions")
    store.prepare()
    files = tuple(FilePosition(f"/logs/{number}.log", 1, number, number=number) for number in range(1, 6))
    before = store.load("web1")
    with contextlib.closing(TransactionalWriter(client, "dropping")) as writer:
        writer.fence()
        for state in (ShipState(files, 1, "x"), ShipState(files[3:], 2, "x"), ShipState((), 3, "y")):
            with writer.transaction():
                writer.write(store.topic, store.make_records("web1", before, state))
            assert store.load("web1") == state
            before = state


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b'{"version":2,"life":"x","lines":1,"files":2}', "0 of 2 files are there"),
        (b'{"version":1,"life":"x","lines":1,"files":[]}', "version 1 is not known"),
        (b'{"version":2}', "it is damaged"),
        (b"\xff", "it is damaged"),
    ],
)
def test_positions_that_cannot_be_used_are_refused(
    kafka: Any, topic: MakeTopic, client: ClientSettings, tmp_path: Path, head: bytes, why: str
) -> None:
    name, log = topic(1), tmp_path / "access.log"
    positions = f"{name}-positions"
    create_topic(client, positions, partitions=1, configs={"cleanup.policy": "compact"})
    order = order_for(log, name, once=True)
    produce(kafka.bootstrap, positions, [head], key=order.shipper.encode())
    append(log, 0)
    with pytest.raises(OffsetStoreError, match=rf"^\[POSITION_UNREADABLE\].*{why}"):
        ship_once(client, order)


def test_lines_longer_than_the_topic_takes_are_refused_at_the_start(
    kafka: Any, topic: MakeTopic, client: ClientSettings, tmp_path: Path
) -> None:
    name, log = f"{topic(1)}-small", tmp_path / "access.log"
    create_topic(client, name, partitions=1, configs={"max.message.bytes": "100000"})
    log.write_bytes(random.Random(1).randbytes(300_000).replace(b"\n", b"x") + b"\n")
    append(log, *range(2000))
    with pytest.raises(OptionError, match=r"^\[LINE_LIMIT_TOO_LARGE\]") as refused:
        ship_once(client, order_for(log, name, once=True))
    most = int(str(refused.value).split("--max-line-bytes to ")[1].split(" ")[0])
    order = order_for(log, name, once=True, longest_line=most, codec=NONE)
    assert ship_once(client, order) == 2001
    rows = read_partition(kafka.bootstrap, name, 0, committed=True)
    assert len(rows[0].value or b"") == most
    assert len(rows) == 2001


def test_a_positions_topic_that_forgets_is_refused(topic: MakeTopic, client: ClientSettings) -> None:
    with pytest.raises(OffsetStoreError, match=r"^\[POSITIONS_TOPIC_NOT_COMPACTED\]"):
        PositionTopic(client, topic(1)).prepare()


def test_no_file_at_all_is_an_error_when_nothing_is_waited_for(
    topic: MakeTopic, client: ClientSettings, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=r"^\[NO_SUCH_FILE\]"):
        ship_once(client, order_for(tmp_path / "none.log", topic(1), once=True))


def test_another_shippers_open_transaction_does_not_hide_the_position(
    proxied_kafka: tuple[LocalKafka, FaultProxy], tmp_path: Path
) -> None:
    """Committed readers stop at the oldest open transaction; the position behind it must not be missed."""
    cluster, proxy = proxied_kafka
    name, log, client = "beside-another", tmp_path / "access.log", settings_of(proxy.bootstrap)
    positions = f"{name}-positions"
    create_topic(client, name, partitions=1)
    create_topic(client, positions, partitions=1, configs={"cleanup.policy": "compact"})
    other = open_transaction(cluster.bootstrap)
    send(other, positions, [b"{}"], key=b"other")
    assert other.flush(30) == 0
    append(log, 0, 1)
    asked = proxy.counts.requests[LIST_OFFSETS]
    with shipping(client, order_for(log, name)) as failures:
        # It cannot even begin, because its own position may lie behind that transaction.
        wait_until(lambda: proxy.counts.requests[LIST_OFFSETS] > asked + 20 or failures, "it waits")
        assert read_partition(cluster.bootstrap, name, 0, committed=False) == []
        other.commit_transaction(30)
        wait_until(lambda: numbers_in(cluster.bootstrap, name) == [0, 1], "it ships")
        assert not failures
    assert ship_once(client, order_for(log, name, once=True)) == 0


@pytest.mark.parametrize("fault", ["before EndTxn", "after EndTxn", "no answer to EndTxn", "after Produce"])
def test_a_cut_connection_makes_neither_loss_nor_duplicate(
    proxied_kafka: tuple[LocalKafka, FaultProxy], tmp_path: Path, fault: str
) -> None:
    cluster, proxy = proxied_kafka
    name, log = fault.replace(" ", "-").lower(), tmp_path / "access.log"
    client = settings_of(proxy.bootstrap, request_timeout_ms=1_000)
    create_topic(client, name, partitions=1)
    append(log, *range(10))
    with shipping(client, order_for(log, name)) as failures:
        wait_until(lambda: len(numbers_in(cluster.bootstrap, name)) == 10, "the first lines are there")
        for begin in range(10, 40, 10):
            if fault == "no answer to EndTxn":
                ended = proxy.counts.requests[END_TXN]
                proxy.hold_answers(api_keys=[END_TXN])
                append(log, *range(begin, begin + 10))
                wait_until(lambda: proxy.counts.requests[END_TXN] > ended + 1, "it asks again")  # noqa: B023
                proxy.cut()
                proxy.pass_on()
            elif fault == "before EndTxn":
                produced = proxy.counts.requests[PRODUCE]
                proxy.hold_answers(api_keys=[PRODUCE])
                append(log, *range(begin, begin + 10))
                wait_until(lambda: proxy.counts.requests[PRODUCE] > produced, "lines are under way")  # noqa: B023
                proxy.cut()
                proxy.pass_on()
            else:
                proxy.cut_before_answer(api_keys=[END_TXN if "EndTxn" in fault else PRODUCE])
                append(log, *range(begin, begin + 10))
            wait_until(lambda: len(numbers_in(cluster.bootstrap, name)) >= begin + 10, "they arrive", 60)  # noqa: B023
        assert not failures
    assert numbers_in(cluster.bootstrap, name) == list(range(40))


def test_a_transaction_that_took_too_long_is_taken_back_and_done_again(tmp_path: Path) -> None:
    """The refusal is the same as for a replaced shipper; the mark in the position shows the difference."""
    log = tmp_path / "access.log"
    soon = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}
    with (
        FaultProxy(kafka=True) as proxy,
        LocalKafka(advertise={0: proxy.address}, broker_settings=soon) as cluster,
    ):
        proxy.lead_to(("127.0.0.1", cluster.brokers[0].port))
        client = settings_of(proxy.bootstrap)
        create_topic(client, "lines", partitions=1)
        append(log, 0)
        with shipping(client, order_for(log, "lines", transaction_timeout_ms=1_000)) as failures:
            wait_until(lambda: numbers_in(cluster.bootstrap, "lines") == [0], "the first line is there")
            produced = proxy.counts.requests[PRODUCE]
            proxy.hold_answers(api_keys=[PRODUCE])
            append(log, 1)
            wait_until(lambda: proxy.counts.requests[PRODUCE] > produced, "its lines are under way")
            await_markers(cluster.bootstrap, "lines")
            proxy.pass_on()
            append(log, 2)
            wait_until(lambda: numbers_in(cluster.bootstrap, "lines") == [0, 1, 2], "each line once", 60)
            assert not failures


def test_it_waits_for_a_broker_that_is_away_and_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    with LocalKafka() as cluster:
        client = settings_of(cluster.bootstrap, request_timeout_ms=2_000, default_api_timeout_ms=4_000)
        create_topic(client, "lines", partitions=1)
        append(log, 0)
        with shipping(client, order_for(log, "lines")) as failures:
            wait_until(lambda: numbers_in(cluster.bootstrap, "lines") == [0], "the first line is there")
            cluster.brokers[0].kill()
            append(log, 1)
            cluster.brokers[0].start()
            cluster.wait_until_ready()
            append(log, 2)
            wait_until(lambda: numbers_in(cluster.bootstrap, "lines") == [0, 1, 2], "it goes on", 120)
            assert not failures


@pytest.mark.parametrize("is_idle", [True, False], ids=["idle", "with a line"])
def test_a_shipper_stops_soon_though_the_brokers_are_away(
    tmp_path: Path, is_idle: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot announce its end to the brokers; the next run finds the position all the same."""
    log = tmp_path / "access.log"
    stopping, has_sent = threading.Event(), threading.Event()
    with LocalKafka() as cluster:
        client = settings_of(cluster.bootstrap)
        create_topic(client, "lines", partitions=1)
        append(log, 0)
        shipper = Shipper(
            client, order_for(log, "lines", key="none", heartbeat_s=3_600.0), lambda shipped: has_sent.set()
        )
        thread = threading.Thread(target=shipper.run, args=[stopping], daemon=True)
        thread.start()
        assert has_sent.wait(180)  # kernels may be compiled first
        cluster.brokers[0].kill()
        if not is_idle:
            append(log, 1)
            wait_until(lambda: " no success" in caplog.text, "the line is waited for")
        stopping.set()
        thread.join(45)  # elsewhere the wait for a coordinator is 60 s
        assert not thread.is_alive()
        assert shipper.shipped.lines == 1
        assert "Ended without an answer; the next start ships what is left" in caplog.text


# --- the command ------------------------------------------------------------------------------------------


def command(bootstrap: str, topic: str, *more: str) -> list[str]:
    words = ["accesslog", "ship", *more, "--topic", topic, "--bootstrap-server", bootstrap]
    return [sys.executable, "-m", "penstock.cli", *words]


def test_the_command_ships_once_and_says_so_in_one_line(kafka: Any, topic: MakeTopic, tmp_path: Path) -> None:
    name, log = topic(1), tmp_path / "access.log"
    append(log, 0, 1, 2)
    ended = subprocess.run(
        command(kafka.bootstrap, name, str(log), "--once", "--server", "web1"),
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert ended.stdout.startswith(f"3 lines shipped to {name} in ")
    # On a new computer it says that it compiles, and nothing else.
    assert [line for line in ended.stderr.splitlines() if not line.startswith("Compiling kernels")] == []
    assert numbers_in(kafka.bootstrap, name) == [0, 1, 2]


def test_lines_with_a_virtual_host_in_front_are_keyed_by_their_client(
    kafka: Any, topic: MakeTopic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two hosts and forty clients: keyed by the first word, all lines land in two of four partitions."""
    name, log = topic(4), tmp_path / "access.log"
    line = '{} 203.0.113.{} [01/Feb/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 {}\n'
    hosts = ("shop.example", "blog.example")
    log.write_text("".join(line.format(hosts[n % 2], n % 40, n) for n in range(200)))
    words = ["accesslog", "ship", str(log), "--topic", name, "--once"]
    words += ["--bootstrap-server", kafka.bootstrap, "--positions-topic", f"{name}-positions"]
    assert main([*words, "--log-format", '%h %t "%r" %>s %b']) == 1
    assert "[NOTHING_PARSED]" in capsys.readouterr().err
    assert main([*words, "--log-format", '%v %h %t "%r" %>s %b']) == 0
    parts = [read_partition(kafka.bootstrap, name, part, committed=True) for part in range(4)]
    assert [int((row.value or b"").split(b" ")[-1]) for part in parts for row in part] != []
    assert all(row.key == (row.value or b"").split(b" ")[1] for part in parts for row in part)
    clients = [{row.key for row in part} for part in parts]
    assert all(clients)
    assert sum(map(len, clients)) == len(set.union(*clients)) == 40


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_after_its_transaction(
    kafka: Any, topic: MakeTopic, tmp_path: Path, number: signal.Signals
) -> None:
    name, log = topic(1), tmp_path / "access.log"
    append(log, 0, 1, 2)
    words = command(kafka.bootstrap, name, str(log), "--json")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        try:
            wait_until(lambda: len(numbers_in(kafka.bootstrap, name)) == 3, "it ships", 120)
            program.send_signal(number)
            said, complained = program.communicate(timeout=120)
        finally:
            program.kill()
    assert program.returncode == 0, complained
    assert json.loads(said)["lines"] == 3


def test_a_file_that_is_not_there_yet_is_told_and_shipped_when_it_comes(
    kafka: Any, topic: MakeTopic, tmp_path: Path
) -> None:
    name, log = topic(1), tmp_path / "access.log"
    words = command(kafka.bootstrap, name, str(log), str(tmp_path / "*.other"), "--server", "web1")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        try:
            assert program.stderr is not None
            told = [program.stderr.readline() for _ in range(3)]
            append(log, 0, 1, 2)
            wait_until(lambda: len(numbers_in(kafka.bootstrap, name)) == 3, "it ships", 120)
            program.send_signal(signal.SIGTERM)
            program.communicate(timeout=120)
        finally:
            program.kill()
    dated = [re.fullmatch(rf"[0-9-]{{10}}T[0-9:]{{8}}Z {name}: (.*)\n", line) for line in told]
    words = [found[1] for found in dated if found is not None]
    assert words == [
        f"Shipping to {name} as web1.",
        *(f"{each} is not there yet; waiting for it." for each in (log, tmp_path / "*.other")),
    ], told


def test_a_folder_is_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accesslog", "ship", str(tmp_path), "--topic", "lines"]) != 0
    assert "[FILE_IS_FOLDER]" in capsys.readouterr().err


def test_a_missing_topic_is_told(kafka: Any, tmp_path: Path) -> None:
    ended = subprocess.run(
        command(kafka.bootstrap, "there-is-none", str(tmp_path / "a.log")),
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stderr.startswith("[UNKNOWN_TOPIC]")
