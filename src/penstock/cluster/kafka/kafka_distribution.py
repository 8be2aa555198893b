"""Defines which Kafka is run and where its jars come from, and formats a new node's folder.

Rule: every jar must have the SHA-512 recorded beside this file. A changed jar stops the start. The list is
made with `sha512sum *.jar` in a fetched folder when the version below is raised.

Formatting runs Kafka's own storage tool once and keeps the result. The tool writes the feature levels of this
Kafka version, which are the same for every node, and starting a JVM costs more than a second. Only a cluster
with SCRAM users is formatted each time, because their credentials are part of it.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from penstock.cluster.downloads.jars import Coordinate, Progress, cache_folder, fetch_jars
from penstock.cluster.downloads.java import find_java
from penstock.core.errors import ClusterError

KAFKA_VERSION = "4.3.0"
_COORDINATES = (
    Coordinate("org.apache.kafka", "kafka_2.13", KAFKA_VERSION, transitive=True),
    # Without a binding Kafka's log is empty. It is fetched alone, because its test dependencies are huge.
    Coordinate("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
)
_JARS = 46
_FORMAT_TIMEOUT_S = 120.0
# The storage tool needs a whole server configuration, but only the roles affect what it writes.
_FORMAT_SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:1
listeners=CONTROLLER://127.0.0.1:1,PLAINTEXT://127.0.0.1:2
controller.listener.names=CONTROLLER
log.dirs={folder}
"""


def fetch_kafka(progress: Progress | None = None) -> Path:
    """Return the folder with the broker's jars."""
    listing = resources.files("penstock.cluster.kafka").joinpath(f"kafka-{KAFKA_VERSION}.sha512").read_text()
    digests = {name: digest for digest, name in (line.split() for line in listing.splitlines())}
    return fetch_jars("kafka", _COORDINATES, progress, expected_jars=_JARS, sha512=digests)


def new_id() -> str:
    """Return a random id in Kafka's spelling. It never begins with a dash, which tools read as an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


def format_node(data: Path, jars: Path, *, node_id: int, cluster_id: str, scram: Sequence[str] = ()) -> None:
    """Turn `data` into a new node's folder. `scram` are users in the storage tool's notation."""
    data.mkdir(mode=0o700, parents=True)
    checkpoint = data / "bootstrap.checkpoint"
    if scram:
        _run_storage_tool(jars, checkpoint, scram)
    else:
        kept = cache_folder() / "formats" / f"kafka-{KAFKA_VERSION}.checkpoint"
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            _run_storage_tool(jars, kept, ())
        shutil.copyfile(kept, checkpoint)
    (data / "meta.properties").write_text(
        f"version=1\nnode.id={node_id}\ncluster.id={cluster_id}\ndirectory.id={new_id()}\n"
    )


def read_cluster_id(data: Path) -> str | None:
    """Return the cluster id of a formatted folder; None if the folder was never formatted."""
    try:
        lines = (data / "meta.properties").read_text().splitlines()
    except FileNotFoundError:
        return None
    return dict(line.split("=", 1) for line in lines if "=" in line).get("cluster.id")


def _run_storage_tool(jars: Path, target: Path, scram: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-format-") as scratch:
        folder = Path(scratch) / "data"
        settings = Path(scratch) / "format.properties"
        settings.write_text(_FORMAT_SETTINGS.format(folder=folder))
        command = [str(find_java()), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{jars}/*"]
        command += ["kafka.tools.StorageTool", "format", "-t", new_id(), "-c", str(settings)]
        for user in scram:
            command += ["--add-scram", user]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_FORMAT_TIMEOUT_S, check=False, cwd=scratch
        )
        if done.returncode != 0:
            raise ClusterError(
                "FORMAT_FAILED",
                f"Kafka's storage tool ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}",
                hint="Check the disk and the Java in use.",
            )
        # Rename into place: another process may be formatting at the same time.
        beside = target.with_name(f"{target.name}.{os.getpid()}")
        shutil.copyfile(folder / "bootstrap.checkpoint", beside)
        beside.rename(target)
