"""A real ZooKeeper on this computer, from the jars that come with PySpark. Nothing is fetched.

Rule: it is one server on the loopback address, for trying things out. It does not wait for the disk
(`forceSync` is off), so what was written survives a killed server, but not a power cut. It has no users and
no password: every user of a shared computer can read and write here.

    with LocalZooKeeper() as server:
        ZooKeeperOffsetStore(server.address, prefix="/penstock")
"""

from __future__ import annotations

import signal
import socket
from pathlib import Path

from penstock.cluster.downloads.java import find_java, find_spark_home
from penstock.cluster.processes.free_ports import LOOPBACK
from penstock.cluster.servers.local_server import LocalDatabase

_ASK_TIMEOUT_S = 2.0
_LOG4J = """status = error
appenders = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss.SSS} %-5p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


class LocalZooKeeper(LocalDatabase):
    """A ZooKeeper server. `.address` is `host:port`, and `.url` the same with a scheme."""

    kind = "ZooKeeper"
    scheme = "zookeeper"
    database = ""
    polite = signal.SIGTERM
    at_once = signal.SIGKILL
    runs_as_owner = True

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def url(self) -> str:
        """Return the address for clients. An offset store needs a folder appended to it."""
        return f"zookeeper://{self.address}"

    def fetch(self) -> Path:
        return find_spark_home() / "jars"

    def prepare(self, password: str) -> None:  # noqa: ARG002
        (self.folder / "log4j2.properties").write_text(_LOG4J)

    def command(self) -> list[str]:
        settings = {
            "dataDir": self.data,
            "clientPort": self.port,
            "clientPortAddress": LOOPBACK,
            "tickTime": 500,  # sessions may be as short as two ticks; tests wait for them to end
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
        }
        file = self.folder / "zoo.cfg"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return [
            str(find_java()),
            *("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
            *("-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=1024"),
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
            *("-cp", f"{self.program}/*", "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(file)),
        ]

    def is_ready(self) -> bool:
        """Return whether the server reports its mode. While starting it says that it serves no requests."""
        try:
            with socket.create_connection((LOOPBACK, self.port), _ASK_TIMEOUT_S) as connection:
                connection.sendall(b"srvr")
                answer = b""
                while piece := connection.recv(4096):
                    answer += piece
        except OSError:
            return False
        return b"Mode: " in answer
