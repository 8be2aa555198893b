"""A local cluster that keeps running when the program that started it ends. The command line starts these.

Rule: the state file says where a cluster is, and the locks that its brokers hold say whether it is alive. A
process id is never signalled just because a file says so, since after a reboot it may belong to any process.

    bring_up("default", brokers=3)
    find("default").is_ready
    bring_down("default")
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from penstock.cluster.downloads.jars import Progress
from penstock.cluster.kafka.broker_probe import is_broker_ready
from penstock.cluster.kafka.companion_servers import Companion, check_kinds, start_companion
from penstock.cluster.kafka.local_kafka import LocalKafka
from penstock.cluster.processes.endings import end_server
from penstock.cluster.processes.owned_process import is_locked, wait_for_lock
from penstock.core.errors import ClusterError
from penstock.stores.durable_files import replace_durably

#: Kafka's default: users who try things out expect that writing to a topic creates it.
QUICKSTART = {"auto.create.topics.enable": "true"}

#: Version 1 had no servers beside the brokers.
STATE_VERSION = 2
#: How long one `up` or `down` waits for another one of the same cluster.
TURN_PATIENCE_S = 300.0


@dataclass(frozen=True, slots=True)
class DetachedBroker:
    """One broker of a detached cluster."""

    node_id: int
    pid: int
    port: int
    folder: str

    @property
    def is_alive(self) -> bool:
        return is_locked(Path(self.folder) / "server.lock")

    @property
    def log(self) -> Path:
        return Path(self.folder) / "broker.log"

    def stop(self, patience_s: float) -> None:
        lock = Path(self.folder) / "server.lock"
        end_server(f"Broker {self.node_id}", self.pid, lock, (signal.SIGTERM, patience_s))


@dataclass(frozen=True, slots=True)
class DetachedCluster:
    """A cluster that the state folder has an entry for."""

    name: str
    data_dir: str
    brokers: tuple[DetachedBroker, ...]
    servers: tuple[Companion, ...] = ()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers)

    @property
    def ids(self) -> frozenset[int]:
        return frozenset(broker.node_id for broker in self.brokers)

    @property
    def is_alive(self) -> bool:
        return all(broker.is_alive for broker in self.brokers)

    @property
    def is_ready(self) -> bool:
        return all(broker.is_alive and is_broker_ready(broker.port, self.ids) for broker in self.brokers)


def state_folder() -> Path:
    """Return the folder that records detached clusters: `PENSTOCK_STATE`, else the user's state folder."""
    named = os.environ.get("PENSTOCK_STATE")
    if named:
        return Path(named)
    shared = os.environ.get("XDG_STATE_HOME")
    return (Path(shared) if shared else Path.home() / ".local" / "state") / "penstock"


def bring_up(
    name: str,
    *,
    brokers: int = 1,
    ports: Sequence[int] | None = None,
    data_dir: Path | None = None,
    heap_mb: int = 1024,
    servers: Sequence[str] = (),
    progress: Progress | None = None,
) -> tuple[DetachedCluster, bool]:
    """Start the cluster unless it is up, and wait until it is ready. Return it and whether it was started.

    `servers` are started beside it unless they are already running. If one of them fails to start, the others
    and the cluster stay up, and `bring_down` ends them.
    """
    check_kinds(servers)
    with _hold(name):
        known = find(name)
        if known is not None and known.is_alive:
            if len(known.brokers) != brokers or (ports and list(ports) != [b.port for b in known.brokers]):
                raise ClusterError(
                    "CLUSTER_UP_OTHERWISE",
                    f"Cluster {name} is up with {len(known.brokers)} broker(s) at {known.bootstrap}.",
                    hint="Use it as it is, bring it down first, or choose another name.",
                )
            return _add_servers(known, servers, progress), False
        if known is not None:
            _stop(known)  # stop what is left of it: one dead broker would delay the others' restart
        folder = data_dir or (Path(known.data_dir) if known is not None else _own_data(name))
        try:
            started = _start(name, brokers, ports, folder, heap_mb, progress)
        except ClusterError as error:
            plainer = name_port_holder(error, ports or ())
            if plainer is error:
                raise
            raise plainer from error
        return _add_servers(started, servers, progress), True


def _start(
    name: str,
    brokers: int,
    ports: Sequence[int] | None,
    folder: Path,
    heap_mb: int,
    progress: Progress | None,
) -> DetachedCluster:
    cluster = LocalKafka(
        brokers,
        ports=ports,
        data_dir=folder,
        broker_settings=QUICKSTART,
        heap_mb=heap_mb,
        owned=False,
        quick_start=False,
        progress=progress,
    )
    try:
        cluster.start()
        started = DetachedCluster(
            name,
            str(cluster.data_dir),
            tuple(DetachedBroker(b.node_id, b.pid or 0, b.port, str(b.node.folder)) for b in cluster.brokers),
        )
        _write(started)
    except BaseException:
        cluster.close()
        raise
    return started


def _add_servers(
    cluster: DetachedCluster, wanted: Sequence[str], progress: Progress | None
) -> DetachedCluster:
    """Start the missing servers, record each before the next one starts, and return the cluster with them."""
    for kind in dict.fromkeys(wanted):
        if any(each.kind == kind and each.is_alive for each in cluster.servers):
            continue
        rest = [each for each in cluster.servers if each.kind != kind]
        for dead in set(cluster.servers).difference(rest):
            dead.stop()  # removes its folder
        added = start_companion(kind, progress)
        cluster = replace(cluster, servers=(*rest, added))
        try:
            _write(cluster)
        except BaseException:
            added.stop()
            raise
    return cluster


def bring_down(name: str, *, delete_data: bool = False) -> bool:
    """Stop the cluster; return False if it was not running. `delete_data` deletes the data if it is ours."""
    with _hold(name):
        known = find(name)
        if known is not None:
            was_alive = any(b.is_alive for b in known.brokers) or any(s.is_alive for s in known.servers)
            _stop(known)
            _write(replace(known, servers=()))  # the servers are gone, and so are their passwords
            _state_file(name).rename(_stopped_file(name))
        else:
            was_alive = False
        if delete_data and _own_data(name).exists():
            shutil.rmtree(_own_data(name))
        return was_alive


def find(name: str) -> DetachedCluster | None:
    """Return what the state folder says about this cluster; None if it has no entry."""
    return _read(_state_file(name))


def find_stopped(name: str) -> DetachedCluster | None:
    """Return the cluster as it was when it was last brought down; None if it never was."""
    return _read(_stopped_file(name))


def _read(path: Path) -> DetachedCluster | None:
    try:
        state = json.loads(path.read_text())
        if state["version"] not in (1, STATE_VERSION):
            raise ValueError(f"version {state['version']}")
        brokers = tuple(DetachedBroker(**broker) for broker in state["brokers"])
        servers = tuple(Companion(**server) for server in state.get("servers", ()))
        return DetachedCluster(state["name"], state["data_dir"], brokers, servers)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            "STATE_UNREADABLE",
            f"The state file {path} cannot be read: {error}.",
            hint="Stop its brokers by hand if any are running, then remove the file.",
        ) from error


def find_all() -> list[DetachedCluster]:
    names = sorted(path.stem for path in (state_folder() / "clusters").glob("*.json"))
    return [cluster for cluster in map(find, names) if cluster is not None]


def name_port_holder(error: ClusterError, ports: Sequence[int]) -> ClusterError:
    """Return a plainer error if a cluster in the state folder has one of these ports, else the same error.

    "Another program" would make users who forgot their own cluster look for a strange program.
    """
    if error.condition != "PORT_TAKEN":
        return error
    for cluster in find_all():
        holding = [broker.port for broker in cluster.brokers if broker.is_alive]
        holding += [server.port for server in cluster.servers if server.is_alive]
        taken = sorted(set(holding).intersection(ports))
        if taken:
            return ClusterError(
                "PORT_TAKEN",
                f"127.0.0.1 port {', '.join(map(str, taken))} is taken by Penstock's own cluster "
                f"{cluster.name} (at {cluster.bootstrap}, data in {cluster.data_dir}).",
                hint=f"Stop it with `penstock cluster down --name {cluster.name}`, choose another port, "
                "or use it as it is.",
                facts={"ports": taken, "cluster": cluster.name, "data_dir": cluster.data_dir},
            )
    return error


def _stop(cluster: DetachedCluster) -> None:
    for server in cluster.servers:
        server.stop()
    # The first of three brokers can hand over its leadership. The last two have no quorum to do so.
    for place, broker in enumerate(cluster.brokers):
        broker.stop(30.0 if place == 0 else 5.0)


def _state_file(name: str) -> Path:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name):
        raise ClusterError(
            "BAD_CLUSTER_NAME",
            f"{name!r} is not a name for a cluster.",
            hint="Use letters, digits, dashes and underscores, at most 64.",
        )
    return state_folder() / "clusters" / f"{name}.json"


def _stopped_file(name: str) -> Path:
    return _state_file(name).with_suffix(".stopped")


def _own_data(name: str) -> Path:
    return state_folder() / "data" / name


def _write(cluster: DetachedCluster) -> None:
    path = _state_file(cluster.name)
    beside = path.with_suffix(f".{os.getpid()}.new")
    text = json.dumps({"version": STATE_VERSION, **asdict(cluster)}, indent=1)
    replace_durably(path, text, beside=beside, mode=0o600)  # it contains the servers' passwords


@contextlib.contextmanager
def _hold(name: str) -> Iterator[None]:
    """Allow one `up` or `down` at a time per cluster."""
    path = _state_file(name).with_suffix(".lock")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ClusterError(
            "STATE_NOT_WRITABLE",
            f"The state folder {path.parent} cannot be written: {error.strerror}.",
            hint="Set PENSTOCK_STATE to a folder you may write.",
        ) from error
    try:
        if not wait_for_lock(lock, TURN_PATIENCE_S):
            raise ClusterError(
                "CLUSTER_BUSY",
                f"Another process has been bringing cluster {name} up or down for more than "
                f"{TURN_PATIENCE_S:g} s.",
                hint=f"It may still be fetching: wait for it, or look at it (`fuser -v {path}` names it).",
                facts={"cluster": name, "waited_s": TURN_PATIENCE_S},
                retriable=True,
            )
        yield
    finally:
        os.close(lock)
