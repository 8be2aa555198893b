"""A steady load: records written at a rate, by a separate process that steals no time from a driver.

    with SteadyLoad(bootstrap, "t", partitions=4, rate=1000, tick_s=0.1) as load:
        load.set_rate(10_000)

Rule: the load is a rate, not a number of writes. A tick that comes late writes what is due by then, so a busy
machine does not lower the load that both sides are measured under. Records carry the time of their writing.
The process lives as long as its standard input is open, and that closes when the owner dies, however it dies.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa

from bench.topics import settings_of
from penstock.kafka.writing.plain_producer import Writer

REPOSITORY = Path(__file__).resolve().parent.parent
_STOP_TIMEOUT_S = 30.0
_VALUE = b"x" * 100


class SteadyLoad:
    """The writing process, as its owner sees it."""

    def __init__(self, bootstrap: str, topic: str, *, partitions: int, rate: float, tick_s: float) -> None:
        self._arguments = [bootstrap, topic, str(partitions), str(tick_s)]
        self._rate = rate

    def __enter__(self) -> SteadyLoad:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.stream_load", *self._arguments],
            stdin=subprocess.PIPE,
            cwd=REPOSITORY,
            text=True,
        )
        self.set_rate(self._rate)
        return self

    def set_rate(self, rate: float) -> None:
        """Write this many records a second from now on; 0 pauses."""
        assert self._process.stdin is not None
        print(rate, file=self._process.stdin, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if code and error is None:
            raise RuntimeError(f"The writer of the load ended with {code}; its error is above.")


class Due:
    """The number of records that are due, and their partitions, which take turns."""

    def __init__(self, partitions: int) -> None:
        self._partitions, self._turn = partitions, 0
        self._rate, self._since_s, self._now_s, self._given = 0.0, 0.0, 0.0, 0

    def set_rate(self, rate: float) -> None:
        """Use this many records a second, from the time that was last asked about."""
        self._rate, self._since_s, self._given = rate, self._now_s, 0

    def take(self, now_s: float) -> list[int]:
        """Return the partitions of the records that have become due since the last call."""
        self._now_s = now_s
        # A tiny part is added because 0.1 s at 40 records/s are 4 records, not the 3.9999 of floats.
        due = int((now_s - self._since_s) * self._rate + 1e-6) - self._given
        self._given += due
        first, self._turn = self._turn, (self._turn + due) % self._partitions
        return [(first + each) % self._partitions for each in range(due)]


def write_steadily(bootstrap: str, topic: str, partitions: int, tick_s: float) -> None:
    """Write until standard input ends. Each of its lines is a new rate."""
    due, ended, lock = Due(partitions), threading.Event(), threading.Lock()

    def follow() -> None:
        for line in sys.stdin:
            with lock:
                due.set_rate(float(line))
        ended.set()

    threading.Thread(target=follow, daemon=True).start()
    value = pa.array([_VALUE], pa.binary())
    with Writer(settings_of(bootstrap)) as writer:
        began, tick = time.monotonic(), 0
        while not ended.wait(max(0.0, began + (tick + 1) * tick_s - time.monotonic())):
            tick = int((time.monotonic() - began) / tick_s)  # several at once when the last write took long
            with lock:
                chosen = due.take(tick * tick_s)
            if chosen:
                values = value.take(pa.array(np.zeros(len(chosen), np.int64)))
                writer.write(topic, pa.table({"value": values, "partition": pa.array(chosen, pa.int32())}))


if __name__ == "__main__":
    write_steadily(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
