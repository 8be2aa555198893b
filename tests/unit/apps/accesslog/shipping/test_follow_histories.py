"""Random histories of log files: afterwards each line was read once, in the order of its log."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.apps.accesslog.shipping.log_follower import LogFollower
from penstock.apps.accesslog.shipping.shipped_positions import FilePosition
from tests.support.accesslog.accesslog_logs import Clock, all_closed, append, line_of, lines_in, pack

__all__ = ["all_closed"]

SERVER_STEPS = ("append", "append", "append", "begin", "rotate", "copytruncate", "pack", "empty")
FOLLOWER_STEPS = ("read", "read some", "fail", "restart", "wait", "restart without the folder")
#: How much of a copy or of a packed file exists when the follower looks.
SIZES = (0, 10, 30, 60, 400)


class Log:
    """One log, its server and its rotation."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name, self.path = folder, name, folder / name
        self.written: list[str] = []
        self.torn: set[str] = set()
        self.begun = ""
        self.path.touch()

    def next_line(self) -> str:
        return f"{line_of(len(self.written))} of {self.name}"

    def append(self) -> None:
        append(self.path, self.next_line()[len(self.begun) :])
        self.written.append(self.next_line())
        self.begun = ""

    def begin(self) -> None:
        if not self.begun:
            # Long enough to be recognized: a file of some forty bytes without a line could be any file.
            self.begun = self.next_line().removesuffix(self.name)
            append(self.path, self.begun, end="")

    def tear(self) -> None:
        """Give up the begun line, which nobody will ever finish."""
        if self.begun:
            self.written.append(self.begun)
            self.torn.add(self.begun)
            self.begun = ""

    def numbers(self) -> list[tuple[int, str]]:
        """Return rotated files, the oldest first, with the endings of their names."""
        names = [name.split(".")[2:] for name in os.listdir(self.folder) if name.startswith(f"{self.name}.")]
        return sorted(((int(number), "".join(f".{each}" for each in rest)) for number, *rest in names))[::-1]

    def rotated(self, number: int, rest: str = "") -> Path:
        return self.folder / f"{self.name}.{number}{rest}"

    def shift(self) -> None:
        for number, rest in self.numbers():
            self.rotated(number, rest).rename(self.rotated(number + 1, rest))


class History:
    """Two logs, and a follower whose positions are durable when it says so."""

    def __init__(self, folder: Path, suffix: str, *, history: bool) -> None:
        self.folder, self.history = folder / "logs", history
        self.folder.mkdir()
        self.logs = [Log(self.folder, "one.log"), Log(self.folder, "two.log")]
        self.patterns = [f"{log.path}{suffix}" for log in self.logs]
        self.clock = Clock()
        self.shipped: list[str] = []
        self.durable: tuple[FilePosition, ...] = ()
        self.follower = self.start()

    def start(self) -> LogFollower:
        return LogFollower(
            self.patterns,
            self.durable,
            clock=self.clock,
            history=self.history,
            chunk_bytes=200,
            longest_line=150,
        )

    def do(self, step: str, log: Log, size: int, restarts: bool) -> None:
        if step in ("copytruncate", "pack"):
            getattr(self, step)(log, size, restarts)
        elif step in ("rotate", "empty"):
            getattr(self, step)(log)
        elif step in SERVER_STEPS:
            getattr(log, step)()
        else:
            getattr(self, step.replace(" ", "_"))()

    def look(self, restarts: bool) -> None:
        if restarts:
            self.restart()
        self.read_some()

    # --- servers and rotation -----------------------------------------------------------------------------

    def rotate(self, log: Log) -> None:
        log.tear()
        log.shift()
        log.path.rename(log.rotated(1))
        log.path.touch()

    def copytruncate(self, log: Log, size: int, restarts: bool) -> None:
        if log.begun:
            log.append()
        if log.path.stat().st_size:
            # An empty or unknown file leaves nothing by which its copy could be recognized.
            self.read()
            log.append()
            log.shift()
            copy, found = log.rotated(1), log.path.stat()
            copy.write_bytes(log.path.read_bytes()[:size])
            self.look(restarts)
            copy.write_bytes(log.path.read_bytes())
            os.utime(copy, ns=(found.st_atime_ns, found.st_mtime_ns))
            os.truncate(log.path, 0)

    def empty(self, log: Log) -> None:
        """Empty the log after reading it, because nothing would show lines that were not read before."""
        if log.begun:
            log.append()
        self.read()
        os.truncate(log.path, 0)

    def pack(self, log: Log, size: int, restarts: bool) -> None:
        plain = [number for number, rest in log.numbers() if not rest]
        for number in plain[:1]:
            log.rotated(number, ".gz").write_bytes(gzip.compress(log.rotated(number).read_bytes())[:size])
            self.look(restarts)
            pack(log.rotated(number))

    # --- the follower -------------------------------------------------------------------------------------

    def read(self) -> None:
        while self.read_some():
            pass

    def read_some(self) -> bool:
        found = lines_in(self.follower.read(300))
        self.shipped += found
        self.durable = self.follower.positions()
        numbers = [each.number for each in self.durable]
        assert len(set(numbers)) == len(numbers)  # each has its own record
        return bool(found)

    def fail(self) -> None:
        """Read lines, do not send them, and restart."""
        self.follower.read(300)
        self.restart()

    def restart(self) -> None:
        self.follower.close()
        self.follower = self.start()

    def restart_without_the_folder(self) -> None:
        away = self.folder.rename(self.folder.with_name("away"))
        self.restart()
        self.read_some()
        self.restart()
        away.rename(self.folder)

    def wait(self) -> None:
        self.clock.now += 31

    def end(self) -> None:
        for log in self.logs:
            if log.begun:
                log.append()
        for _ in range(3):
            self.read()
            self.wait()
        self.read()
        self.follower.close()


STEPS = st.tuples(
    st.sampled_from((*SERVER_STEPS, *FOLLOWER_STEPS)),
    st.integers(0, 1),
    st.sampled_from(SIZES),
    st.booleans(),
)


def first_log(*steps: str, size: int = 0, restarts: bool = True) -> list[tuple[str, int, int, bool]]:
    return [(step, 0, size, restarts) for step in steps]


@given(st.sampled_from(["", "*"]), st.booleans(), st.lists(STEPS, max_size=40))
@example("", False, first_log("append", "read", "restart without the folder"))
@example("", False, first_log("append", "rotate", "restart without the folder"))
@example("*", False, first_log("append", "copytruncate"))
@example("", False, first_log("append", "read", "rotate", "pack", size=10, restarts=False))
def test_after_any_history_each_line_was_read_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    suffix: str,
    with_history: bool,
    steps: list[tuple[str, int, int, bool]],
) -> None:
    history = History(tmp_path_factory.mktemp("logs"), suffix, history=with_history)
    try:
        history.read_some()  # a shipper makes its first positions durable before it sends anything
        for step, which, size, restarts in steps:
            history.do(step, history.logs[which], size, restarts)
        history.end()
    finally:
        history.follower.close()
    assert sorted(history.shipped) == sorted(line for log in history.logs for line in log.written)
    for log in history.logs:
        whole = [line for line in log.written if line not in log.torn]  # the others come later
        assert [line for line in history.shipped if line in set(whole)] == whole
