"""Programs that run in separate processes in order to be killed, and the orders they are given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from penstock.cluster.processes.python_launcher import make_launcher
from tests.crash.gates import FOLDER_VARIABLE

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Order:
    """What a program is to do. It travels as one line of JSON."""

    def write(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def read(cls, line: str) -> Self:
        return cls(**json.loads(line))

    @classmethod
    def read_argument(cls) -> Self:
        """Return the order from the file that the command line names."""
        return cls.read(Path(sys.argv[1]).read_text())


def start_program(module: str, order: Order, folder: Path) -> subprocess.Popen[bytes]:
    """Start a program that carries out its order and ends; its gates are in `folder`."""
    path = folder / "order.json"
    path.write_text(order.write())
    return subprocess.Popen(
        [sys.executable, "-m", module, str(path)],
        env={**os.environ, FOLDER_VARIABLE: str(folder / "gates")},
    )


def make_environment(mark: str, gates: Path) -> dict[str, str]:
    """Return the environment for a Spark driver that can be found again by its mark, a `NAME=VALUE`."""
    name, _, value = mark.partition("=")
    return {
        **os.environ,
        name: value,
        FOLDER_VARIABLE: str(gates),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        "PYSPARK_PYTHON": make_launcher(),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def find_marked(mark: str) -> dict[int, str]:
    """Return the living processes that inherited a variable: id to command line."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                found[int(folder.name)] = command
        except OSError:
            continue  # ended meanwhile
    return found
