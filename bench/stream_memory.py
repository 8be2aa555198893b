"""Samples the resident memory of a Spark application's processes, by role, from /proc while a block runs.

with MemoryWatch() as memory:
    memory.begin("calm"); ...
memory.peaks["reader"]["calm"]    # MiB, the largest single process of that kind
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

Peaks = dict[str, float]
_INTERVAL_S = 0.25


class MemoryWatch:
    """The peaks of this process, of the driver's JVM, of a stream's reader and of the Python workers."""

    def __enter__(self) -> MemoryWatch:
        self.peaks: dict[str, Peaks] = {}
        self._part: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def begin(self, part: str) -> None:
        """Begin a part of the time, which gets its own peaks; nothing is recorded before the first one."""
        self._part = part

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            part = self._part
            if part is None:
                continue
            for role, mib in list_processes(os.getpid()):
                peaks = self.peaks.setdefault(role, {})
                peaks[part] = max(peaks.get(part, 0.0), mib)


def list_processes(owner: int) -> Iterator[tuple[str, float]]:
    """Yield the role of each process under `owner`, and its resident MiB; leave out those without a role."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue  # it ended while we looked
    for pid in parents:
        if not _is_under(pid, owner, parents):
            continue
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        role = "driver Python" if pid == owner else _name_role(command)
        resident = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")]
        if role is not None and resident:
            yield role, int(resident[0]) / 1024


def _is_under(pid: int, owner: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != owner:
        pid = parents[pid]
    return pid == owner


def _name_role(command: str) -> str | None:
    if "python_streaming_source_runner" in command:
        return "reader"
    if "pyspark.daemon" in command:
        return "Python workers"
    if "org.apache.spark.deploy.SparkSubmit" in command:
        return "driver JVM"
    return None
