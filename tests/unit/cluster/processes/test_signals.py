"""Held signals act after the block, whichever thread the system delivers them to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

_MAKE_FOLDER = """
import os, select, signal, sys, tempfile, threading, weakref
from penstock.cluster.processes.owned_folders import make_owned_folder
from penstock.cluster.processes.signals import hold_signals

number = signal.Signals(int(sys.argv[1]))
signal.signal(number, lambda *_: sys.exit(128 + number))
hears, told = os.pipe()
os.set_blocking(told, False)
signal.set_wakeup_fd(told)
threading.Thread(target=threading.Event().wait, daemon=True).start()
make = tempfile.mkdtemp


def make_and_get_a_signal(**options):
    folder = make(**options)
    os.kill(os.getpid(), number)
    assert select.select([hears], [], [], 60)[0], "no thread got the signal"
    return folder


tempfile.mkdtemp = make_and_get_a_signal
try:
    with hold_signals():
        folder, lock = make_owned_folder("penstock-test-")
        print("the block went to its end")
finally:
    os.close(lock)
    print(folder)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_another_thread_gets_waits_until_the_folder_has_an_owner(
    tmp_path: Path, number: signal.Signals
) -> None:
    """The system delivers a blocked signal to any thread without a block, such as a numeric library's."""
    done = subprocess.run(
        [sys.executable, "-c", _MAKE_FOLDER, str(int(number))],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 128 + number, done.stderr
    assert done.stderr == ""
    [folder] = tmp_path.iterdir()
    assert done.stdout.splitlines() == ["the block went to its end", str(folder)]
    assert (folder / "owner.lock").exists()


_FAIL = """
import signal, sys
from penstock.cluster.processes.signals import hold_signals

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
signal.signal(signal.SIGINT, signal.SIG_IGN)
try:
    with hold_signals():
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        signal.raise_signal(signal.SIGTERM)
        raise ValueError("it failed")
except SystemExit as ending:
    assert isinstance(ending.__context__, ValueError)
    raise
"""


def test_a_held_signal_acts_also_if_the_block_fails_and_an_ignored_one_stays_ignored() -> None:
    done = subprocess.run([sys.executable, "-c", _FAIL], capture_output=True, text=True, timeout=120)
    assert done.returncode == 143, done.stderr


_IN_THREAD = """
import signal, sys, threading
from penstock.cluster.processes.signals import hold_signals

before = signal.getsignal(signal.SIGTERM)
held = []


def hold():
    with hold_signals():
        held.append(signal.getsignal(signal.SIGTERM))


thread = threading.Thread(target=hold)
thread.start()
thread.join()
assert held == [before]
"""


def test_in_another_thread_nothing_needs_to_be_held() -> None:
    """Python runs handlers in the main thread only, so no exception can occur there."""
    done = subprocess.run([sys.executable, "-c", _IN_THREAD], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
