"""A real Kafka on this computer: one broker or three, without Docker, root or an installation.

Rule: a cluster used from Python belongs to its owner. It ends with the `with` block, with the interpreter,
and if the process is killed. Unless a folder is named, nothing of it stays on disk.

    with LocalKafka() as kafka:
        spark.read.format("penstock").option("kafka.bootstrap.servers", kafka.bootstrap)

Every node is both broker and controller. With three nodes, the cluster stays writable if one of them is lost.
"""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from penstock.cluster.downloads.jars import Progress
from penstock.cluster.kafka.broker_probe import create_topic
from penstock.cluster.kafka.broker_process import Broker
from penstock.cluster.kafka.broker_settings import OFFSETS_PARTITIONS, ClusterPlan, NodePlan
from penstock.cluster.kafka.kafka_distribution import fetch_kafka, format_node, new_id, read_cluster_id
from penstock.cluster.kafka.secure_listeners import SECURE_LISTENERS, SecureAccess, make_secure_access
from penstock.cluster.processes.free_ports import demand_free, find_free_ports
from penstock.cluster.processes.owned_folders import make_owned_folder
from penstock.cluster.processes.signals import hold_signals
from penstock.core.errors import ClusterError
from penstock.core.versions import check_versions

TEMP_PREFIX = "penstock-kafka-"
_PORT_ATTEMPTS = 3


class LocalKafka:
    """A cluster of `brokers` nodes with ids 1, 2, 3.

    `ports` are the client ports (by default free ones). `data_dir` keeps the data for the next run.
    `broker_settings` are added to every node's settings and win over ours. `secure` adds listeners with TLS
    and logins, which `.secure` describes. `advertise` maps a broker's place in `brokers` (0, 1, 2) to the
    address that it gives clients, such as a proxy's. `quick_start` makes Java compile less, which halves the
    CPU time of a start. Switch it off to measure throughput.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        ports: Sequence[int] | None = None,
        data_dir: Path | str | None = None,
        broker_settings: Mapping[str, object] | None = None,
        secure: bool = False,
        advertise: Mapping[int, tuple[str, int]] | None = None,
        heap_mb: int = 512,
        quick_start: bool = True,
        ready_timeout_s: float = 180.0,
        owned: bool = True,
        progress: Progress | None = None,
    ) -> None:
        if not owned and data_dir is None:
            raise ValueError("a cluster that outlives its starter needs a `data_dir` that does, too")
        if brokers < 1 or (ports is not None and len(ports) != brokers):
            raise ClusterError(
                "BAD_CLUSTER_SIZE",
                f"{brokers} brokers with {'free' if ports is None else len(ports)} ports cannot be started.",
                hint="Ask for one broker or more, and name a port for each or for none.",
            )
        if secure and data_dir is not None:
            raise ClusterError(
                "SECURE_NEEDS_OWN_FOLDER",
                "A secure cluster makes new keys and passwords each time and cannot be kept in a folder.",
                hint="Leave out data_dir.",
            )
        self._count = brokers
        self._asked_ports = None if ports is None else list(ports)
        self._asked_dir = None if data_dir is None else Path(data_dir)
        self._settings = {key: str(value) for key, value in (broker_settings or {}).items()}
        self._advertise = dict(advertise or {})
        self._is_secure = secure
        self._secure: SecureAccess | None = None
        self._heap_mb = heap_mb
        self._quick_start = quick_start
        self._ready_timeout_s = ready_timeout_s
        self._owned = owned
        self._progress = progress
        self._owner_pid = os.getpid()
        self._finalizer: weakref.finalize[..., LocalKafka] | None = None
        self._jars = Path()
        self._plan: ClusterPlan | None = None
        self.data_dir = Path()
        self.cluster_id = ""
        self.brokers: list[Broker] = []

    @property
    def bootstrap(self) -> str:
        """Return the brokers' addresses, in the form of a client's bootstrap setting."""
        return ",".join(broker.address for broker in self.brokers)

    @property
    def secure(self) -> SecureAccess:
        """Return the addresses, certificates and logins of a cluster started with `secure=True`."""
        if self._secure is None:
            raise ClusterError(
                "NOT_SECURE", "This cluster has no secure listeners.", hint="Use LocalKafka(secure=True)."
            )
        return self._secure

    @property
    def logs(self) -> str:
        return "\n".join(f"--- broker {broker.node_id}\n{broker.logs}" for broker in self.brokers)

    def __enter__(self) -> LocalKafka:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, *, wait: bool = True) -> None:
        """Start all brokers. With `wait`, wait until each of them has joined and answers."""
        if self.brokers:
            raise ClusterError(
                "ALREADY_STARTED", "This cluster has been started before.", hint="Make a new one."
            )
        if self._asked_ports is not None:
            demand_free(self._asked_ports)
        check_versions()
        self._jars = fetch_kafka(self._progress)
        with hold_signals():
            self.data_dir, owner_lock = self._make_data_dir()
            # The processes and folder of a forgotten object last until the interpreter ends at the latest.
            if self._owned:
                folder = None if owner_lock is None else self.data_dir
                owned = (self.brokers, folder, owner_lock, os.getpid())
                self._finalizer = weakref.finalize(self, _clear, *owned)
        try:
            if self._is_secure:
                self._secure = make_secure_access(self.data_dir / "secure")
            for attempt in range(1, _PORT_ATTEMPTS + 1):
                self._plan_brokers()
                try:
                    self._start_brokers(wait)
                    break
                except ClusterError as error:
                    # Another program may take the free port between its choice and the broker's bind.
                    if error.condition != "PORT_TAKEN" or self._asked_ports or attempt == _PORT_ATTEMPTS:
                        raise
                    _kill_all(self.brokers)
                    self.brokers.clear()
        except BaseException:
            _kill_all(self.brokers)
            self.close()
            raise

    def wait_until_ready(self) -> None:
        """Wait until every broker answers and lists all of them, within each broker's deadline."""
        for broker in self.brokers:
            broker.wait_until_ready({each.node_id for each in self.brokers})
        if self._count >= 3:
            # Kafka has no setting for the in-sync minimum of this one topic, so it is created here; otherwise
            # committed positions could be acknowledged by a single broker and lost with it.
            port = self.brokers[0].port
            create_topic(port, "__consumer_offsets", OFFSETS_PARTITIONS, 3, _OFFSETS_TOPIC)

    def is_ready(self) -> bool:
        return bool(self.brokers) and all(b.is_ready({o.node_id for o in self.brokers}) for b in self.brokers)

    def add_broker(self, node_id: int) -> Broker:
        """Start one more broker (not a controller) in its own folder on a free port, and return it."""
        assert self._plan is not None
        names = [name for name in self._listener_names() if name != "CONTROLLER"]
        folder = self.data_dir / f"node-{node_id}-{new_id()}"
        node = NodePlan(node_id, folder, dict(zip(names, find_free_ports(len(names)), strict=True)), False)
        format_node(node.data, self._jars, node_id=node_id, cluster_id=self.cluster_id)
        broker = self._make_broker(node)
        self.brokers.append(broker)
        try:
            broker.start()
        except ClusterError:
            broker.kill()
            self.brokers.remove(broker)
            raise
        return broker

    def close(self) -> None:
        """Stop all brokers, or kill them if the folder is temporary, since its data is not read again."""
        if os.getpid() != self._owner_pid:
            return  # a fork of the owner must not stop the owner's brokers
        if self._asked_dir is not None:
            _stop_all(self.brokers)
        if self._finalizer is not None:
            self._finalizer()

    # --- how it is laid out ---------------------------------------------------------------------------

    def _listener_names(self) -> list[str]:
        return ["CLIENT", "INTERNAL", "CONTROLLER", *(SECURE_LISTENERS if self._is_secure else ())]

    def _make_data_dir(self) -> tuple[Path, int | None]:
        if self._asked_dir is None:
            return make_owned_folder(TEMP_PREFIX)
        try:
            self._asked_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ClusterError(
                "DATA_DIR_NOT_WRITABLE",
                f"The folder {self._asked_dir} cannot be made: {error.strerror}.",
                hint="Name another folder.",
            ) from error
        return self._asked_dir.resolve(), None

    def _plan_brokers(self) -> None:
        names = self._listener_names()
        asked = self._asked_ports or []
        free = find_free_ports(len(names) * self._count, avoid=asked)
        nodes = []
        for index in range(self._count):
            ports = dict(zip(names, free[index * len(names) :], strict=False))
            if asked:
                ports["CLIENT"] = asked[index]
            folder = self.data_dir / f"node-{index + 1}"
            nodes.append(NodePlan(index + 1, folder, ports, advertise=self._advertise.get(index)))
        self._plan = ClusterPlan(
            voters={node.node_id: node.ports["CONTROLLER"] for node in nodes},
            brokers=self._count,
            listeners=SECURE_LISTENERS if self._secure else {},
            security=self._secure.broker_settings() if self._secure else {},
            broker_settings=self._settings,
        )
        if self._secure:
            self._secure.note_ports([node.ports for node in nodes])
        self.cluster_id = self._format(nodes)
        self.brokers.extend(self._make_broker(node) for node in nodes)

    def _format(self, nodes: Sequence[NodePlan]) -> str:
        known = {read_cluster_id(node.data) for node in nodes}
        there = len(list(self.data_dir.glob("node-[0-9]/data/meta.properties")))
        if there not in (0, len(nodes)) or len(known) != 1:
            raise ClusterError(
                "DATA_DIR_OF_OTHER_CLUSTER",
                f"{self.data_dir} holds a cluster of {there} broker(s), not of {len(nodes)}.",
                hint="Start it with as many brokers as before, or name an empty folder.",
            )
        cluster_id = known.pop() or new_id()
        if not there:
            scram = self._secure.scram_users() if self._secure else ()
            for node in nodes:
                format_node(node.data, self._jars, node_id=node.node_id, cluster_id=cluster_id, scram=scram)
        return cluster_id

    def _make_broker(self, node: NodePlan) -> Broker:
        assert self._plan is not None
        return Broker(
            node,
            self._plan,
            self._jars,
            heap_mb=self._heap_mb,
            quick_start=self._quick_start,
            owned=self._owned,
            ready_timeout_s=self._ready_timeout_s,
        )

    def _start_brokers(self, wait: bool) -> None:
        for broker in self.brokers:
            broker.start(wait=False)
        if wait:
            self.wait_until_ready()


_OFFSETS_TOPIC = {
    "min.insync.replicas": "2",
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "segment.bytes": "104857600",
}


def _stop_all(brokers: Collection[Broker]) -> None:
    """Stop the brokers in order. Wait long only for the first one: the other two of three have no quorum."""
    for place, broker in enumerate(brokers):
        broker.stop(timeout_s=30.0 if place == 0 else 5.0)


def _kill_all(brokers: Collection[Broker]) -> None:
    for broker in brokers:
        broker.kill()


def _clear(brokers: list[Broker], folder: Path | None, owner_lock: int | None, owner: int) -> None:
    if os.getpid() != owner:
        return
    _kill_all(brokers)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    if owner_lock is not None:
        os.close(owner_lock)
