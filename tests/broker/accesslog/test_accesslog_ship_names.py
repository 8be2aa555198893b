"""Shippers with the same name on a real broker: which may take over from which, and which one is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.apps.accesslog.shipping import shipper
from penstock.apps.accesslog.shipping.log_follower import Piece
from penstock.apps.accesslog.shipping.shipped_positions import PositionTopic
from penstock.apps.accesslog.shipping.shipper import Shipper, ShipSettings
from penstock.cli import main
from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import SinkError
from tests.broker.accesslog.test_accesslog_ship import (
    append,
    numbers_in,
    order_for,
    ship_once,
    shipping,
)
from tests.conftest import MakeTopic
from tests.support.waiting import wait_until


class KilledShipper(Shipper):
    """A shipper that ends without signing off, like one that is killed when everything is shipped."""

    def _sign_off(self) -> None:
        pass


class HeldShipper(Shipper):
    """A shipper that announces itself only when the test allows it."""

    may_speak = threading.Event()

    def _send(self, pieces: list[Piece]) -> None:
        if not pieces:
            assert self.may_speak.wait(60)
        super()._send(pieces)


def ship_and_be_killed(settings: ClientSettings, order: ShipSettings) -> int:
    return KilledShipper(settings, order).run(threading.Event()).lines


def test_a_shipper_of_another_file_does_not_end_the_one_that_is_there(
    kafka: Any, topic: MakeTopic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As users do it: two commands, two files, one server, no names."""
    name, log, other = topic(1), tmp_path / "a.log", tmp_path / "b.log"
    append(log, 0)
    append(other, 10)
    command = ["accesslog", "ship", "--topic", name, "--server", "w", "--bootstrap-server", kafka.bootstrap]
    program = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", *command, str(log)], stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: numbers_in(kafka.bootstrap, name) == [0], "the first ships", timeout_s=120)
        assert main([*command, str(other), "--once"]) == 1
        told = capsys.readouterr().err
        assert f"[SHIPPER_IS_THERE] A shipper named w/{name} follows {log}, and was there" in told
        assert "Give this one a name of its own with --name" in told
        append(log, 1)
        wait_until(lambda: numbers_in(kafka.bootstrap, name) == [0, 1], "the first goes on", timeout_s=60)
        assert main([*command, str(other), "--once", "--name", "w-b"]) == 0
        append(log, 2)
        wait_until(lambda: numbers_in(kafka.bootstrap, name) == [0, 1, 10, 2], "both ship", timeout_s=60)
        program.send_signal(signal.SIGTERM)
        assert program.wait(120) == 0
    finally:
        program.kill()
        program.wait()


def test_files_may_be_shipped_one_after_the_other_under_one_name(
    kafka: Any, topic: MakeTopic, client: ClientSettings, tmp_path: Path
) -> None:
    """A shipper that has ended blocks nobody, and its position is not forgotten."""
    name, log, other = topic(1), tmp_path / "a.log", tmp_path / "b.log"
    append(log, 0)
    append(other, 10)
    assert [ship_once(client, order_for(each, name, once=True)) for each in (log, other, log)] == [1, 1, 0]
    assert numbers_in(kafka.bootstrap, name) == [0, 10]


def test_one_that_was_killed_is_in_the_way_of_other_files_for_a_while_and_never_of_its_own(
    kafka: Any, topic: MakeTopic, client: ClientSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart of the killed shipper follows the same files, or more of them, and may begin at once."""
    name, log, other = topic(1), tmp_path / "a.log", tmp_path / "b.log"
    append(log, 0)
    append(other, 10)
    mine, others = order_for(log, name, once=True), order_for(other, name, once=True)
    both = order_for(tmp_path / "?.log", name, once=True)
    assert ship_and_be_killed(client, mine) == 1
    for _ in range(2):
        with pytest.raises(SinkError, match="SHIPPER_IS_THERE"):
            ship_once(client, others)
    assert ship_and_be_killed(client, mine) == 0
    assert ship_and_be_killed(client, both) == 1
    with pytest.raises(SinkError, match="SHIPPER_IS_THERE"):
        ship_once(client, mine)
    monkeypatch.setattr(shipper, "_THERE_FOR_S", 0.0)
    assert ship_once(client, mine) == 0
    assert numbers_in(kafka.bootstrap, name) == [0, 10]


def test_one_that_is_replaced_hears_of_it_also_when_nothing_is_written(
    kafka: Any, topic: MakeTopic, client: ClientSettings, tmp_path: Path
) -> None:
    """It is held until the other one is done: fenced before the other's mark exists, it takes over again."""
    name, log, first = topic(1), tmp_path / "a.log", list[BaseException]()
    append(log, 0)
    stopping, settings = threading.Event(), order_for(log, name, heartbeat_s=0.1)

    def run() -> None:
        try:
            HeldShipper(client, settings).run(stopping)
        except SinkError as error:
            first.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: numbers_in(kafka.bootstrap, name) == [0], "the first ships")
        assert ship_once(client, order_for(log, name, once=True)) == 0
        HeldShipper.may_speak.set()
        wait_until(lambda: bool(first), "the first has heard of it", timeout_s=60)
    finally:
        HeldShipper.may_speak.set()
        stopping.set()
        thread.join(60)
    assert str(first[0]).startswith("[SHIPPER_REPLACED]")


def test_an_idle_shipper_says_that_it_is_there(
    kafka: Any, topic: MakeTopic, client: ClientSettings, tmp_path: Path
) -> None:
    name, log = topic(1), tmp_path / "a.log"
    append(log, 0)
    order = order_for(log, name, heartbeat_s=0.1)
    store = PositionTopic(client, order.positions_topic)
    with shipping(client, order):
        wait_until(lambda: numbers_in(kafka.bootstrap, name) == [0], "it ships")
        before = store.load(order.shipper)
        wait_until(lambda: store.load(order.shipper).step > before.step, "it writes its mark again")
        assert (before.patterns, before.is_over) == ((os.fspath(log),), False)
    assert store.load(order.shipper).is_over
