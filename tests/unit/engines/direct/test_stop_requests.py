"""Requests to stop a direct stream."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from penstock.engines.direct.stop_requests import StopSwitch, stop_on_signals
from tests.support.waiting import wait_until


def act_when_waiting(act: Callable[[], object]) -> None:
    """Call `act` in another thread as soon as this one is seen to wait at a switch."""
    waiter = threading.get_ident()

    def look() -> None:
        while sys._current_frames()[waiter].f_code is not StopSwitch.wait.__code__:
            time.sleep(0.001)
        act()

    threading.Thread(target=look, daemon=True).start()


def test_a_wait_ends_when_somebody_asks() -> None:
    with closing(StopSwitch()) as switch:
        assert not switch.wait(0.01)
        act_when_waiting(lambda: switch.set("stop()"))
        assert switch.wait(30)
        assert switch.reason == "stop()"
        switch.set("again")
        assert switch.reason == "stop()"


def test_to_ask_after_the_end_writes_into_nobodys_file(tmp_path: Path) -> None:
    """When a program calls `stop()` again, the pipe's file descriptors may belong to other files."""
    switch = StopSwitch()
    assert not switch.wait(0)
    switch.close()
    with (tmp_path / "one").open("wb"), (tmp_path / "two").open("wb"):
        switch.set("late")
    assert [(tmp_path / name).read_bytes() for name in ("one", "two")] == [b"", b""]
    assert switch.is_set


def test_a_switch_that_nobody_waited_at_holds_nothing_open() -> None:
    held = len(os.listdir("/proc/self/fd"))
    switches = [StopSwitch() for _ in range(20)]
    for switch in switches:
        switch.set("stop()")
    assert len(os.listdir("/proc/self/fd")) == held
    assert switches[0].wait(30)
    switches[0].close()


def test_a_signal_in_the_waiting_thread_ends_its_wait_and_handlers_come_back() -> None:
    """D30, I3: the main thread waits and receives the signal itself."""
    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)
        with closing(StopSwitch()) as switch, stop_on_signals(switch):
            act_when_waiting(partial(os.kill, os.getpid(), number))
            assert switch.wait(30)
            assert switch.reason == signal.Signals(number).name
        assert signal.getsignal(number) is before


def test_a_second_signal_does_what_it_did_before() -> None:
    """A hanging batch can be left by pressing Ctrl-C twice."""
    mine = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process ignores it
    try:
        with closing(StopSwitch()) as switch, stop_on_signals(switch):
            os.kill(os.getpid(), signal.SIGINT)
            assert switch.wait(30)
            with pytest.raises(KeyboardInterrupt):
                interrupt_again()
    finally:
        signal.signal(signal.SIGINT, mine)


def interrupt_again() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    wait_until(lambda: False, "the signal arrives", 30)


def test_in_another_thread_no_handler_is_set() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def run() -> None:
        with closing(StopSwitch()) as switch, stop_on_signals(switch):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_file_that_appears_asks_to_stop_and_is_taken_away(tmp_path: Path) -> None:
    marker = tmp_path / "stop"
    with closing(StopSwitch(marker)) as switch:
        assert not switch.is_set
        began = time.monotonic()
        act_when_waiting(marker.touch)
        assert switch.wait(30)
        assert time.monotonic() - began < 10
        assert switch.reason == f"the file {marker}"
        assert marker.exists()
    wait_until(lambda: not marker.exists(), "the file is gone, so the next run is not stopped by it")


def test_a_file_that_was_not_the_reason_stays(tmp_path: Path) -> None:
    marker = tmp_path / "stop"
    with closing(StopSwitch(marker)) as switch:
        switch.set("stop()")
        marker.touch()
    assert marker.exists()
