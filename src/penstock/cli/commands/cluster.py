"""Run a real Kafka on this computer, in the background: it keeps running when the terminal closes.

penstock cluster up                 one broker on port 9092
penstock cluster up --brokers 3     three brokers on ports 9092, 9093, 9094
penstock cluster up --with postgres,mariadb,zookeeper
penstock cluster status
penstock cluster logs --follow
penstock cluster down
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from penstock.cli.shared.terminal import SafeProgressBar, complain, escape, say
from penstock.cluster.kafka.broker_probe import is_broker_ready
from penstock.cluster.kafka.companion_servers import KINDS, Companion
from penstock.cluster.kafka.detached_cluster import (
    DetachedBroker,
    DetachedCluster,
    bring_down,
    bring_up,
    find,
    find_all,
    find_stopped,
)
from penstock.cluster.processes.owned_process import read_tail
from penstock.cluster.processes.signals import unwinding_on_signals
from penstock.core.errors import ClusterError

DEFAULT_NAME = "default"
DEFAULT_PORT = 9092
JSON_VERSION = 1
_FOLLOW_POLL_S = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="up|down|status|logs", required=True)
    up = verbs.add_parser("up", help="start it and wait until every broker answers")
    up.add_argument("--brokers", type=int, default=1, help="how many brokers (default 1)")
    up.add_argument("--port", type=int, default=None, help=f"first broker's port (default {DEFAULT_PORT})")
    up.add_argument("--data-dir", type=Path, default=None, help="keep the data here")
    up.add_argument("--heap-mb", type=int, default=1024, help="memory of each broker in MiB (default 1024)")
    up.add_argument(
        "--with",
        dest="servers",
        default="",
        metavar="SERVERS",
        help=f"start these beside it, comma-separated: {', '.join(KINDS)}; `down` ends them, data included",
    )
    down = verbs.add_parser("down", help="stop it; its data stays")
    down.add_argument("--delete-data", action="store_true", help="remove the data too (not a --data-dir)")
    status = verbs.add_parser("status", help="show brokers, processes, ports, and whether they are ready")
    logs = verbs.add_parser("logs", help="show the end of the brokers' logs, also after `down`")
    logs.add_argument("--lines", type=int, default=30, help="how many lines of each (default 30)")
    logs.add_argument("--broker", type=int, default=None, help="only this broker's log")
    logs.add_argument("--follow", action="store_true", help="go on as the logs grow, until Ctrl-C")
    for verb in (up, down, status):
        verb.add_argument("--json", action="store_true", help="for programs: one JSON object")
    for verb in (up, down, status, logs):
        verb.add_argument(
            "--name", default=DEFAULT_NAME, help=f"which cluster; without it, the one called `{DEFAULT_NAME}`"
        )


def run(arguments: argparse.Namespace) -> int:
    verb = {"up": _up, "down": _down, "status": _status, "logs": _logs}[arguments.verb]
    return verb(arguments)


def _name_fetch(servers: str) -> str:
    return "Fetching servers" if servers else "Fetching Kafka"


def _up(arguments: argparse.Namespace) -> int:
    known = find(arguments.name)
    if arguments.port is None and known is not None and len(known.brokers) == arguments.brokers:
        ports = [broker.port for broker in known.brokers]  # its ports, or those it had until it died
    else:
        first = DEFAULT_PORT if arguments.port is None else arguments.port
        ports = list(range(first, first + arguments.brokers))
    # A broker that is not recorded when this ends would run on, and `down` would not know of it.
    with unwinding_on_signals(), SafeProgressBar(_name_fetch(arguments.servers)) as bar:
        cluster, started = bring_up(
            arguments.name,
            brokers=arguments.brokers,
            ports=ports,
            data_dir=arguments.data_dir,
            heap_mb=arguments.heap_mb,
            servers=[kind.strip() for kind in arguments.servers.split(",") if kind.strip()],
            progress=bar,
        )
    if arguments.json:
        _say_json(arguments.name, cluster)
        return 0
    say(f"Cluster {cluster.name} is {'up' if started else 'already up'}: {cluster.bootstrap}")
    for server in cluster.servers:
        say(f"{server.kind}: {server.url}")
    return 0


def _down(arguments: argparse.Namespace) -> int:
    stopped = bring_down(arguments.name, delete_data=arguments.delete_data)
    if arguments.json:
        _say_json(arguments.name, None)
        return 0
    deleted = " Its data is deleted (what stands in a --data-dir is kept)." if arguments.delete_data else ""
    say(f"Cluster {arguments.name} {'is down' if stopped else 'was not running'}.{deleted}")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    cluster = find(arguments.name)
    if arguments.json:
        _say_json(arguments.name, cluster)
        return 0
    if cluster is None:
        say(f"Cluster {arguments.name} is down.")
        others = [other.name for other in find_all()]
        if others:
            say(f"Known clusters: {', '.join(map(escape, others))}")
        return 0
    ready = cluster.is_ready
    say(f"Cluster {cluster.name}: {'ready' if ready else 'not ready'}, {cluster.bootstrap}")
    say(f"Data: {escape(cluster.data_dir)}")
    say("broker  process  port   state")
    for broker in cluster.brokers:
        say(f"{broker.node_id:<7} {broker.pid:<8} {broker.port:<6} {_state(cluster, broker)}")
    for server in cluster.servers:
        say(f"{server.kind}, process {server.pid}: {_server_state(server)}, {server.url}")
    return 0


def _state(cluster: DetachedCluster, broker: DetachedBroker) -> str:
    if not broker.is_alive:
        return "stopped"
    return "ready" if is_broker_ready(broker.port, cluster.ids) else "running, not ready"


def _server_state(server: Companion) -> str:
    if not server.is_alive:
        return "stopped"
    return "ready" if server.is_ready else "running, not ready"


def _say_json(name: str, cluster: DetachedCluster | None) -> None:
    content: dict[str, object] = {"version": JSON_VERSION, "cluster": name, "is_up": cluster is not None}
    if cluster is not None:
        content |= {
            "is_ready": cluster.is_ready,
            "bootstrap": cluster.bootstrap,
            "data_dir": cluster.data_dir,
            "brokers": [
                {"id": each.node_id, "pid": each.pid, "port": each.port, "state": _state(cluster, each)}
                for each in cluster.brokers
            ],
            "servers": [
                {"kind": each.kind, "pid": each.pid, "port": each.port, "url": each.url}
                | {"state": _server_state(each)}
                for each in cluster.servers
            ],
        }
    say(json.dumps(content, indent=1))


def _logs(arguments: argparse.Namespace) -> int:
    cluster = find(arguments.name)
    is_up = cluster is not None
    cluster = cluster or find_stopped(arguments.name)
    if cluster is None:
        raise ClusterError(
            "CLUSTER_NOT_UP",
            f"Cluster {arguments.name} is not up and was never brought down, so its logs are not known.",
            hint=_hint_at_others(f"Start it with `penstock cluster up{_write_name(arguments.name)}`"),
        )
    chosen = [b for b in cluster.brokers if arguments.broker in (None, b.node_id)]
    if not chosen:
        raise ClusterError(
            "NO_SUCH_BROKER",
            f"Cluster {arguments.name} has no broker {arguments.broker}.",
            hint=f"It has {', '.join(str(b.node_id) for b in cluster.brokers)}.",
        )
    if not is_up:
        _tell_that_it_is_down(cluster, chosen)
    # Following begins exactly at the end of the tail: a line written in between must not be lost.
    places = {broker.log: broker.log.stat().st_size if broker.log.exists() else 0 for broker in chosen}
    for broker in chosen:
        for line in read_tail(broker.log, lines=arguments.lines, until=places[broker.log]).splitlines():
            say(f"{broker.node_id}| {escape(line)}")
    if arguments.follow and is_up:
        _follow(chosen, places)
    return 0


def _tell_that_it_is_down(cluster: DetachedCluster, brokers: list[DetachedBroker]) -> None:
    """Say that these are the last lines of a cluster that is down, or fail because its logs are gone."""
    if not any(broker.log.exists() for broker in brokers):
        raise ClusterError(
            "LOGS_REMOVED",
            f"Cluster {cluster.name} is down, and its logs were removed with its data ({cluster.data_dir}).",
            hint=f"Start it again with `penstock cluster up{_write_name(cluster.name)}`. Without "
            f"--delete-data, `penstock cluster down{_write_name(cluster.name)}` keeps them.",
            facts={"cluster": cluster.name, "data_dir": cluster.data_dir},
        )
    complain(f"Cluster {cluster.name} is down. These are its last lines; the logs are in {cluster.data_dir}.")


def _write_name(name: str) -> str:
    """Return the arguments with which a verb selects the cluster of this name."""
    return "" if name == DEFAULT_NAME else f" --name {name}"


def _hint_at_others(otherwise: str) -> str:
    others = [other.name for other in find_all()]
    return f"{otherwise}, or say --name: {', '.join(others)}." if others else f"{otherwise}."


def _follow(brokers: list[DetachedBroker], places: dict[Path, int]) -> None:
    while True:
        for broker in brokers:
            size = broker.log.stat().st_size if broker.log.exists() else 0
            if size < places[broker.log]:
                places[broker.log] = 0  # the log was rolled over, or started again
            if size > places[broker.log]:
                with broker.log.open("rb") as log:
                    log.seek(places[broker.log])
                    fresh = log.read(size - places[broker.log])
                whole, newline, _ = fresh.rpartition(b"\n")  # the rest of a half-written line comes later
                places[broker.log] += len(whole + newline)
                for line in whole.decode("utf-8", "replace").splitlines():
                    say(f"{broker.node_id}| {escape(line)}")
        time.sleep(_FOLLOW_POLL_S)
