"""Makes the text of a node's settings file from a plan of the cluster. It reads and writes no files.

Rule: everything listens on the loopback address only, and three listeners are kept apart. CLIENT is what
users connect to and may be advertised under another address (a proxy's). INTERNAL carries replication, and
CONTROLLER the quorum. With a single listener, cutting a proxy's connections would also separate the brokers
from each other, which would be another test.

With three brokers the internal topics have replication factor 3 and need 2 in-sync replicas, and new topics
get factor 3 by default. The minimum for ordinary topics stays 1, so that a topic with factor 2 can still be
written while one broker is down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.cluster.processes.free_ports import LOOPBACK

LARGEST_MESSAGE_BYTES = 100 * 1024 * 1024
OFFSETS_PARTITIONS = 50

LOG4J = """status = error
appenders = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log}
appender.file.filePattern = {log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %-5p %c{{1}}: %m%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 20MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
"""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node: its id, its ports by listener name, and the address that it advertises instead of its own."""

    node_id: int
    folder: Path
    ports: Mapping[str, int]
    is_controller: bool = True
    advertise: tuple[str, int] | None = None

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "broker.log"


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What all nodes share: the voters, extra listeners with their settings, and the user's settings."""

    voters: Mapping[int, int]  # node id to controller port
    brokers: int
    listeners: Mapping[str, str] = field(default_factory=dict)  # extra ones: name to security protocol
    security: Mapping[str, str] = field(default_factory=dict, repr=False)
    broker_settings: Mapping[str, str] = field(default_factory=dict)


def write_settings(node: NodePlan, cluster: ClusterPlan) -> str:
    """Return the text of server.properties. The user's settings win."""
    copies = min(3, cluster.brokers)
    names = ["CLIENT", "INTERNAL", *cluster.listeners]
    listening = [*names, "CONTROLLER"] if node.is_controller else names
    told = {name: (LOOPBACK, node.ports[name]) for name in names}
    if node.advertise is not None:
        told["CLIENT"] = node.advertise
    protocols = {"CLIENT": "PLAINTEXT", "INTERNAL": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
    protocols |= cluster.listeners
    settings: dict[str, object] = {
        "process.roles": "broker,controller" if node.is_controller else "broker",
        "node.id": node.node_id,
        "controller.quorum.voters": ",".join(f"{n}@{LOOPBACK}:{p}" for n, p in cluster.voters.items()),
        "listeners": ",".join(f"{name}://{LOOPBACK}:{node.ports[name]}" for name in listening),
        "advertised.listeners": ",".join(f"{name}://{host}:{port}" for name, (host, port) in told.items()),
        "listener.security.protocol.map": ",".join(f"{n}:{p}" for n, p in protocols.items()),
        "inter.broker.listener.name": "INTERNAL",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": node.data,
        "auto.create.topics.enable": "false",
        "default.replication.factor": copies,
        "min.insync.replicas": 1,
        "offsets.topic.num.partitions": OFFSETS_PARTITIONS,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": min(2, copies),
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": min(2, copies),
        "group.initial.rebalance.delay.ms": 0,
        "message.max.bytes": LARGEST_MESSAGE_BYTES,
        "replica.fetch.max.bytes": LARGEST_MESSAGE_BYTES,
        "replica.fetch.response.max.bytes": LARGEST_MESSAGE_BYTES,
        "socket.request.max.bytes": 2 * LARGEST_MESSAGE_BYTES,
        # A killed broker can return under its id only when its session has ended, by default after 9 s.
        "broker.session.timeout.ms": 6000,
        "broker.heartbeat.interval.ms": 1000,
        # A second broker with an id that is in use gives up after this time, not after a minute.
        "initial.broker.registration.timeout.ms": 20_000,
        "controlled.shutdown.enable": "true",
        # Each node is its own rack. A client that names a rack is sent to the replica there.
        "broker.rack": f"rack-{node.node_id}",
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        **cluster.security,
        **cluster.broker_settings,
    }
    return "".join(f"{key}={_escape(str(value))}\n" for key, value in settings.items())


def _escape(value: str) -> str:
    # In a properties file a backslash begins an escape and a line break ends the value.
    return value.replace("\\", "\\\\").replace("\r", "").replace("\n", "\\n")
