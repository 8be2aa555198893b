"""Gates in a stream reader: a process stops at a named step and can be killed exactly there.

Rule: the library does not know about gates. A test's driver registers the source `gated`, whose reader is the
real one with a gate before and after each method. A gate that is not armed costs one look at a file. An armed
gate writes down which process stands at it, and waits to be killed. Why not kill after a fixed time: a kill
that hits no step proves nothing, and nobody would notice.

    arm(folder, Gate("round-1", "partitions", "before", call=2))
    pid = await_arrival(folder, "round-1")["pid"]
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from penstock.engines.source.data_source import PenstockDataSource
from penstock.engines.source.stream_reader import StreamReader
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import pyarrow as pa

#: Tells every process of a driver where the gates are.
FOLDER_VARIABLE = "PENSTOCK_CRASH_GATES"
#: What the planner's process does, in the order of Spark's calls; `read` runs in a task's process.
PLANNER_STEPS = ("initialOffset", "latestOffset", "reportLatestOffset", "commit", "partitions")
MOMENTS = ("before", "after")

_passed: Counter[str] = Counter()


@dataclass(frozen=True)
class Gate:
    """A step to stop at: the `call`-th arrival after the gate was armed stays there."""

    name: str
    step: str
    moment: str
    call: int = 1


def arm(folder: Path, gate: Gate) -> None:
    _write(folder / "armed.json", asdict(gate))


def await_arrival(folder: Path, name: str, timeout_s: float = 60.0) -> dict[str, Any]:
    """Wait until a process stands at this gate; return its id and its step."""
    reached = folder / f"reached-{name}.json"
    wait_until(reached.exists, f"a process stands at the gate {name}", timeout_s)
    found: dict[str, Any] = json.loads(reached.read_text())
    return found


def release(folder: Path, name: str) -> None:
    """Let the process at this gate continue."""
    (folder / f"release-{name}").touch()


def pass_gate(step: str, moment: str) -> None:
    """Return at once, unless the calling process under test is to be killed here."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    armed = folder / "armed.json"
    if not armed.exists():
        return
    gate = Gate(**json.loads(armed.read_text()))
    if (gate.step, gate.moment) != (step, moment):
        return
    _passed[gate.name] += 1
    if _passed[gate.name] < gate.call:
        return
    parent, mine = os.getppid(), folder / f"at-{gate.name}-{os.getpid()}.json"
    _write(mine, {"pid": os.getpid(), "step": step, "moment": moment, "call": _passed[gate.name]})
    try:
        os.link(mine, folder / f"reached-{gate.name}.json")
    except FileExistsError:
        return  # a process stood here before: a gate holds only one process
    # An orphan continues to its end, because whatever started it was killed and nothing may be left behind.
    while not (folder / f"release-{gate.name}").exists() and os.getppid() == parent:
        time.sleep(0.01)


def _write(path: Path, content: dict[str, Any]) -> None:
    """Write the whole file or nothing, because other processes look at it meanwhile."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(content))
    part.rename(path)


class GatedReader(StreamReader):
    """The real reader, with a gate before and after each method."""

    def initialOffset(self) -> dict[str, Any]:
        pass_gate("initialOffset", "before")
        found = super().initialOffset()
        pass_gate("initialOffset", "after")
        return found

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        pass_gate("latestOffset", "before")
        found = super().latestOffset(start, limit)
        pass_gate("latestOffset", "after")
        return found

    def reportLatestOffset(self) -> dict[str, Any] | None:
        pass_gate("reportLatestOffset", "before")
        found = super().reportLatestOffset()
        pass_gate("reportLatestOffset", "after")
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        pass_gate("partitions", "before")
        found = super().partitions(start, end)
        pass_gate("partitions", "after")
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        pass_gate("read", "before")
        for batch in super().read(partition):
            yield batch
            pass_gate("read", "after")  # Spark has these rows, but not yet the end of the task

    def commit(self, end: dict[str, Any]) -> None:
        pass_gate("commit", "before")
        super().commit(end)
        pass_gate("commit", "after")


class GatedSource(PenstockDataSource):
    """The source `gated`: the real one except for its reader."""

    @classmethod
    def name(cls) -> str:
        return "gated"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        reader = super().streamReader(schema)
        assert isinstance(reader, StreamReader)
        return GatedReader(reader.options)
