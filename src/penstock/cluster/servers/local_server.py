"""A server process that ends with its owner: the common part of PostgreSQL, MariaDB and ZooKeeper.

Rule: it listens on the loopback address only, behind a password made for this run. Its folder is removed and
no process remains, even if the owner is killed. Databases never run as root: PostgreSQL refuses to, so if the
owner is root both run as an existing user without rights. That user can enter neither root's cache nor a
private folder, so the program is linked into the server's own folder, which lets other users pass through.
(ZooKeeper has no password and runs as its owner, as Kafka does.)

    with LocalPostgres() as server:
        psycopg.connect(server.url)
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import weakref
from pathlib import Path
from types import TracebackType
from typing import ClassVar, TypeVar

from penstock.cluster.downloads.jars import Progress
from penstock.cluster.processes.endings import end_server, wait_until
from penstock.cluster.processes.free_ports import LOOPBACK, demand_free, find_free_ports
from penstock.cluster.processes.owned_folders import make_owned_folder
from penstock.cluster.processes.owned_process import Identity, is_locked, read_tail, start_process, take_lock
from penstock.cluster.processes.signals import hold_signals
from penstock.core.errors import ClusterError
from penstock.core.redaction import is_secret_name

USER = "penstock"
PREPARE_TIMEOUT_S = 120.0
_PORT_ATTEMPTS = 3
#: Settings of other installations that a server would pick up from the environment.
_FOREIGN_SETTINGS = ("PG", "MYSQL", "MARIADB", "LC_", "LANG", "UMASK")

Server = TypeVar("Server", bound="LocalDatabase")


class LocalDatabase:
    """A server with one user, `penstock`, who may do everything. Use `LocalPostgres` or `LocalMariaDB`.

    `port` is a free one by default. `stop`, `kill` and another `start` keep the data and the port, and
    `close` removes everything. A server that is not `owned` keeps running after `release`.
    """

    kind: ClassVar[str]
    scheme: ClassVar[str]
    database: ClassVar[str]
    #: The signal that ends the server cleanly, and the one that ends it at once and leaves nothing behind.
    polite: ClassVar[signal.Signals]
    at_once: ClassVar[signal.Signals]
    #: True if the server may run as root and needs no separate user.
    runs_as_owner: ClassVar[bool] = False

    def __init__(
        self,
        *,
        port: int | None = None,
        ready_timeout_s: float = 120.0,
        progress: Progress | None = None,
        owned: bool = True,
    ) -> None:
        self._asked_port = port
        self._owned = owned
        self._ready_timeout_s = ready_timeout_s
        self._progress = progress
        self._owner_pid = os.getpid()
        self._password = secrets.token_urlsafe(18)
        self._identity: Identity | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[..., LocalDatabase] | None = None
        self._living: list[tuple[subprocess.Popen[bytes], Path]] = []
        self.port = 0
        self.folder = Path()
        self.program = Path()

    # --- what each kind of server defines ---------------------------------------------------------------

    def fetch(self) -> Path:
        """Return the folder with the unpacked program."""
        raise TypeError("use LocalPostgres or LocalMariaDB")

    def prepare(self, password: str) -> None:  # noqa: ARG002
        """Fill the empty data folder."""
        raise TypeError("use LocalPostgres or LocalMariaDB")

    def command(self) -> list[str]:
        """Return the command to run on `self.port`."""
        raise TypeError("use LocalPostgres or LocalMariaDB")

    def is_ready(self) -> bool:
        """Return whether the server would accept a login now."""
        raise TypeError("use LocalPostgres or LocalMariaDB")

    # --- life -------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Return the address for clients, with user and password."""
        return f"{self.scheme}://{USER}:{self._password}@{LOOPBACK}:{self.port}/{self.database}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def logs(self) -> str:
        return read_tail(self.folder / "server.log")

    @property
    def is_alive(self) -> bool:
        """Return whether the server or any process that it has started is running."""
        if self._process is not None:
            self._process.poll()
        return is_locked(self.folder / "server.lock")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({LOOPBACK}:{self.port})"

    def __enter__(self: Server) -> Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the server, or restart it on its data and port, and wait until it accepts logins."""
        if self._finalizer is not None:
            self._launch()
            return
        if self._asked_port is not None:
            demand_free([self._asked_port])
        self._identity = None if self.runs_as_owner else choose_identity()
        self.program = self.fetch()
        with hold_signals():
            self.folder, owner_lock = make_owned_folder(f"penstock-{self.scheme}-")
            self._finalizer = weakref.finalize(
                self, _clear, self._living, self.at_once, self.folder, owner_lock, self._owner_pid
            )
        try:
            self._lay_out()
            self.prepare(self._password)
            for attempt in range(1, _PORT_ATTEMPTS + 1):
                self.port = self._asked_port or find_free_ports(1)[0]
                try:
                    self._launch()
                    break
                except ClusterError as error:
                    # Another program may take the free port between its choice and the server's bind.
                    if error.condition != "PORT_TAKEN" or self._asked_port or attempt == _PORT_ATTEMPTS:
                        raise
        except BaseException:
            self.close()
            raise

    def stop(self, timeout_s: float = 30.0) -> None:
        """Ask the server to shut down cleanly; after the deadline, kill it. A second call does nothing."""
        if self._process is not None:
            end_server(self.kind, self._process, self.folder / "server.lock", (self.polite, timeout_s))
            self._forget_process()

    def kill(self) -> None:
        """End the server as a power cut would; what it had written stays. A second call does nothing."""
        if self._process is not None:
            end_server(self.kind, self._process, self.folder / "server.lock")
            self._forget_process()

    def close(self) -> None:
        """End the server and remove its folder. A second call does nothing."""
        if self._finalizer is not None and os.getpid() == self._owner_pid:
            self._finalizer()
            self._process = None

    def release(self) -> None:
        """Let the server outlive this process. Any process that knows its folder can then end it."""
        if self._owned:
            raise ValueError("an owned server ends with its owner")
        if self._finalizer is not None:
            self._finalizer.detach()

    def run_to_its_end(self, command: list[str], input_file: Path | None = None) -> None:
        """Run one of the program's tools as the server's user. An error contains the tool's output."""
        identity = self._identity
        with open(input_file or os.devnull, "rb") as source:
            try:
                done = subprocess.run(
                    command,
                    stdin=source,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=make_environment(),
                    cwd=self.folder,
                    timeout=PREPARE_TIMEOUT_S,
                    check=False,
                    user=None if identity is None else identity.user_id,
                    group=None if identity is None else identity.group_id,
                    extra_groups=None if identity is None else [],
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise self._not_prepared(command, str(error)) from error
        if done.returncode != 0:
            said = done.stdout.decode("utf-8", "replace")[-1500:]
            raise self._not_prepared(command, f"exit code {done.returncode}: {said}")

    def give_to_server(self, path: Path) -> None:
        """Give a file or folder to the server's user, closed to all other users."""
        path.chmod(0o700 if path.is_dir() else 0o600)
        if self._identity is not None:
            os.chown(path, self._identity.user_id, self._identity.group_id)

    # --- how it is done ---------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        if self._identity is not None:
            self._open_way_in()
        self.data.mkdir()
        self.give_to_server(self.data)

    def _open_way_in(self) -> None:
        """Let the server's user reach its folder, and the program inside it."""
        closed = [parent for parent in self.folder.parents if not parent.stat().st_mode & 0o001]
        if closed:
            raise ClusterError(
                "FOLDER_NOT_REACHABLE",
                f"{self.kind} does not run as root, and its user cannot enter {closed[0]}.",
                hint="Set TMPDIR to a folder that all users may enter, or do not start it as root.",
                facts={"folder": str(closed[0])},
            )
        self.folder.chmod(0o711)
        linked = self.folder / "program"
        shutil.copytree(self.program, linked, symlinks=True, copy_function=_link_or_copy)
        self.program = linked

    def _launch(self) -> None:
        lock = take_lock(self.folder / "server.lock", whose=str(self.folder))
        log = self.folder / "server.log"
        log.unlink(missing_ok=True)  # so that an error shows this start's log only
        log.touch(0o600)  # the log may quote statements, and other users may pass through this folder
        try:
            self._process = start_process(
                self.command(),
                output=log,
                environment=make_environment(),
                folder=self.folder,
                lock=lock,
                owned=self._owned,
                ending=self.at_once,
                identity=self._identity,
            )
        finally:
            os.close(lock)  # the server has its own copy now
        self._living[:] = [(self._process, self.folder)]
        wait_until(lambda: self.is_ready() or not self.is_alive, self._ready_timeout_s)
        if not self.is_alive:
            raise self._did_not_start(f"ended with exit code {self._process.wait()} before it was ready")
        if not self.is_ready():
            error = self._did_not_start(f"was not ready after {self._ready_timeout_s:g} s")
            self.kill()
            raise error

    def _did_not_start(self, how: str) -> ClusterError:
        if "Address already in use" in self.logs:
            condition, hint = "PORT_TAKEN", "Stop the program on that port or choose another port."
        else:
            condition, hint = (
                "DATABASE_DID_NOT_START",
                "The last lines say why; correct that and start again.",
            )
        what = f"{self.kind} on port {self.port} {how}. The end of its log:\n{self.logs}\n"
        return ClusterError(condition, what, hint=hint, facts={"kind": self.kind, "port": self.port})

    def _not_prepared(self, command: list[str], why: str) -> ClusterError:
        return ClusterError(
            "DATABASE_NOT_PREPARED",
            f"The data folder of {self.kind} could not be made: {Path(command[0]).name} ended with {why}.",
            hint="Check the free space and the permissions of the temporary folder.",
            facts={"kind": self.kind, "folder": str(self.folder)},
        )

    def _forget_process(self) -> None:
        self._process = None
        self._living.clear()


def choose_identity() -> Identity | None:
    """Return the user to run a server as; None if this process is not root, so that its own user will do."""
    if os.geteuid() != 0:
        return None
    for name in ("nobody", "daemon"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Identity(entry.pw_uid, entry.pw_gid)
    raise ClusterError(
        "NO_UNPRIVILEGED_USER",
        "A database server does not run as root, and this computer has neither `nobody` nor `daemon`.",
        hint="Start it as a user other than root.",
    )


def make_environment() -> dict[str, str]:
    """Return this process's environment without settings of other installations and without secrets."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_FOREIGN_SETTINGS) and not is_secret_name(name)
    }
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


def _link_or_copy(source: str, target: str) -> str:
    """Link a file, which takes no time or space, or copy it to another disk; return the target."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def _clear(
    living: list[tuple[subprocess.Popen[bytes], Path]],
    at_once: signal.Signals,
    folder: Path,
    owner_lock: int,
    owner: int,
) -> None:
    if os.getpid() != owner:
        return  # a fork of the owner must not stop the owner's server
    for process, place in living:
        end_server(f"The server in {place}", process, place / "server.lock", (at_once, 10.0))
    living.clear()
    shutil.rmtree(folder, ignore_errors=True)
    os.close(owner_lock)
