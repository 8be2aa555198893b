"""Starts a server process so that it ends with its owner, even if the owner is killed.

Rule: an owned server outlives its owner by less than a second, whatever ended the owner. `atexit` alone
misses SIGKILL. Linux's parent-death signal is sent when the *thread* that started the server ends, which
would kill a broker that a worker thread started. So the launcher forks a watchdog and then becomes the
server: the watchdog is the server's child, waits for the end of a pipe whose only writer is the owner, and
then kills its parent. The server keeps the process id that `Popen` knows, so signals reach it directly.

A server also inherits a locked file and holds the lock while it is alive (`is_locked`). So nobody has to
trust a process id, which may belong to another process by now.

Nothing here waits without a limit: a program that falls silent is killed (`follow_output`), and a wait for
another process's lock ends at a deadline (`wait_for_lock`), since that process may be suspended forever.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.core.errors import ClusterError

# It runs in a bare interpreter (-I -S: 15 ms). The arguments are the pipe's read end or -1, the signal that
# ends the server when its owner is gone, the user and group to become (or -1, -1), and the command. The
# watchdog keeps the owner's rights. It kills a server that ignores its signal for 5 s.
_LAUNCHER = """
import os, select, signal, sys
pipe, ending, user, group = map(int, sys.argv[1:5])
command = sys.argv[5:]
server = os.getpid()
if pipe >= 0 and os.fork() == 0:
    os.closerange(0, pipe)
    os.closerange(pipe + 1, 65536)
    while os.getppid() == server:
        if select.select([pipe], [], [], 0.5)[0] and not os.read(pipe, 1):
            if os.getppid() == server:
                os.kill(server, ending)
            for _ in range(100):
                if os.getppid() == server:
                    select.select([], [], [], 0.05)
            if os.getppid() == server:
                os.kill(server, signal.SIGKILL)
            break
    os._exit(0)
if pipe >= 0:
    os.close(pipe)
if user >= 0:
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)
os.execvp(command[0], command)
"""


@dataclass(frozen=True, slots=True)
class Identity:
    """The user and group that a server runs as if its owner is root."""

    user_id: int
    group_id: int


_LOCK_PAUSE_S = 0.05
_LOOK_EVERY_S = 1.0
_life_lines: set[int] = set()
_life_lines_lock = threading.Lock()


def _drop_life_lines() -> None:
    # A fork of the owner is not the owner, so it must not keep the owner's servers alive.
    for pipe in _life_lines:
        os.close(pipe)
    _life_lines.clear()


os.register_at_fork(after_in_child=_drop_life_lines)


def start_process(
    command: Sequence[str],
    *,
    output: Path,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    lock: int | None = None,
    owned: bool = True,
    ending: signal.Signals = signal.SIGKILL,
    identity: Identity | None = None,
) -> subprocess.Popen[bytes]:
    """Start `command` in its own session, append its output to `output`, and return the process.

    An `owned` server ends with this process; any other runs until it is stopped. `lock` is a file descriptor
    from `take_lock`, which the server inherits. `ending` is the signal that it gets when its owner is gone.
    `identity` is the user that it runs as instead of root.
    """
    with output.open("ab") as sink:
        return _launch(command, sink.fileno(), environment, folder, lock, owned, ending, identity)


def _launch(
    command: Sequence[str],
    output: int,
    environment: Mapping[str, str] | None,
    folder: Path | None,
    lock: int | None,
    owned: bool,
    ending: signal.Signals = signal.SIGKILL,
    identity: Identity | None = None,
) -> subprocess.Popen[bytes]:
    read_end, write_end = os.pipe() if owned else (-1, -1)
    become = (-1, -1) if identity is None else (identity.user_id, identity.group_id)
    try:
        # Its own session: Ctrl-C at the terminal goes to the owner, which then stops its servers in order.
        process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                "-c",
                _LAUNCHER,
                *map(str, (read_end, int(ending), *become)),
                *command,
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=None if environment is None else dict(environment),
            cwd=folder,
            pass_fds=[fd for fd in (read_end, lock) if fd is not None and fd >= 0],
            start_new_session=True,
        )
    except BaseException:
        if owned:
            os.close(write_end)
        raise
    finally:
        if owned:
            os.close(read_end)
    if owned:
        with _life_lines_lock:
            _life_lines.add(write_end)
        weakref.finalize(process, _close_life_line, write_end)
    return process


def _close_life_line(write_end: int) -> None:
    with _life_lines_lock:
        if write_end in _life_lines:
            _life_lines.remove(write_end)
            os.close(write_end)


class Running:
    """A program whose output is being read. It has `lines` as they come and `exit_code` once it has ended."""

    def __init__(
        self, process: subprocess.Popen[bytes], silence_s: float, total_s: float, look: Callable[[], None]
    ) -> None:
        self._process = process
        self._silence_s, self._total_s = silence_s, total_s
        self._look_at_it, self._looked_s = look, time.monotonic()
        self._deadline = time.monotonic() + total_s
        self.exit_code: int | None = None

    @property
    def lines(self) -> Iterator[str]:
        """Yield the output line by line. Any byte ends a silence: a long download prints only dots."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        rest = b""
        while piece := self._read(pipe):
            self._look()
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield line.decode("utf-8", "replace")
        if rest:
            yield rest.decode("utf-8", "replace")

    def _read(self, pipe: int) -> bytes:
        poller = select.poll()  # select.select takes no descriptor above 1023
        poller.register(pipe, select.POLLIN)
        silent_until = time.monotonic() + self._silence_s
        while (waits_s := min(silent_until, self._deadline) - time.monotonic()) > 0:
            if poller.poll(min(waits_s, _LOOK_EVERY_S) * 1000):
                return os.read(pipe, 65_536)
            self._look()
        if silent_until < self._deadline:
            raise TimeoutError(f"it said nothing for {self._silence_s:g} s")
        raise TimeoutError(f"it was not done after {self._total_s:g} s")

    def _look(self) -> None:
        if time.monotonic() - self._looked_s >= _LOOK_EVERY_S:
            self._look_at_it()
            self._looked_s = time.monotonic()

    def wait(self) -> None:
        try:
            self.exit_code = self._process.wait(max(0.0, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"it had not ended after {self._total_s:g} s") from None


@contextlib.contextmanager
def follow_output(
    command: Sequence[str], *, silence_s: float, total_s: float, look: Callable[[], None] = lambda: None
) -> Iterator[Running]:
    """Run a program to its end, and yield it for reading its output. Kill it if the reader leaves early.

    A TimeoutError ends it if it prints nothing for `silence_s` or is not done after `total_s`. `look` is
    called about once a second while it runs, whether it prints anything or not.
    """
    process = _launch(command, subprocess.PIPE, None, None, None, owned=True)
    running = Running(process, silence_s, total_s, look)
    with process:  # closes the pipe and waits
        try:
            yield running
            running.wait()
        except BaseException:
            process.kill()
            raise


def take_lock(path: Path, *, whose: str) -> int:
    """Lock `path` for a server that is about to start; return the descriptor. `whose` is for the error."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise ClusterError(
            "DATA_DIR_IN_USE",
            f"{whose} is in use by a running server.",
            hint="Stop that server first, or choose another folder.",
            facts={"folder": whose},
        ) from error
    return lock


def wait_for_lock(lock: int, patience_s: float) -> bool:
    """Lock an open file as soon as no other process holds it; return False after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOCK_PAUSE_S)
        else:
            return True


def is_locked(path: Path) -> bool:
    """Return whether a server that holds this lock is alive."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(lock)


def read_tail(path: Path, *, lines: int = 25, limit_bytes: int = 65_536, until: int | None = None) -> str:
    """Return the last lines of a log, or of its first `until` bytes; an empty text if there is no log yet."""
    try:
        with path.open("rb") as log:
            end = log.seek(0, os.SEEK_END) if until is None else until
            begin = log.seek(max(0, end - limit_bytes))
            text = log.read(end - begin).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
