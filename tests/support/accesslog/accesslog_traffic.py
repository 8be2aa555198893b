"""A small access log for tests of the pipeline: seeded, with attackers, late lines and broken ones.

`make_traffic` returns lines by partition as a shipper would have sent them: each client's lines in one
partition, almost in order, from three web servers. `RULES` are the tests' own rules, so that results do not
change when somebody tunes the real ones. `decide_in_memory` returns the decisions to expect.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.apps.accesslog.defence.defence_settings import DefenceSettings
from penstock.apps.accesslog.detection.rule_set import RuleSet
from penstock.apps.accesslog.monitoring.load_counting import MonitorSettings
from penstock.apps.accesslog.parsing.line_parser import make_parser
from penstock.apps.accesslog.stream.line_stage import Tools
from penstock.apps.accesslog.stream.pipeline_settings import PipelineSettings
from penstock.apps.accesslog.stream.pipeline_warmup import warm_up
from tests.support.accesslog.fed_engine import FedEngine
from tests.support.kafka.topic_filling import send

START = 1_700_000_000
SERVERS = ("web-1", "web-2", "web-3")
RULES = """
- id: test.secret
  class: secret_file
  what: A file with secrets.
  look: [path]
  any: [/.env]
  block: true
  near: true
  hits: [GET /.env]
  misses: [GET /env]
- id: test.odd
  class: scanner
  what: Something odd that is only watched.
  look: [query]
  any: [odd=]
  block: true
  mode: simulate
  hits: ['GET /?odd=1']
  misses: ['GET /?even=2']
- id: test.missing
  class: probing
  what: Something that is not there.
  when: {status: [404]}
  hits: [{request: GET /x, status: 404}]
  misses: [GET /x]
- id: test.many-missing
  class: probing
  what: Many things that are not there.
  count: [test.missing]
  distinct: path
  limit: 6
  half_life: 30s
- id: test.flood
  class: flood
  what: Many requests.
  count: [any-request]
  limit: 60
  half_life: 10s
- id: test.near
  class: distributed_scan
  what: Neighbours that ask for secrets.
  count: [test.secret]
  distinct: client
  per: net
  limit: 2
  half_life: 10m
"""

#: A partition's lines, each with the web server that it comes from.
Traffic = Mapping[int, Sequence[tuple[str, bytes]]]


@dataclass(frozen=True)
class Request:
    second: float
    client: str
    path: str = "/"
    status: int = 200


def make_traffic(seed: int, *, partitions: int = 3, seconds: int = 240, benign: int = 1500) -> Traffic:
    """Return lines by partition; one in a hundred is broken, one in fifty comes seconds late."""
    dice = random.Random(seed)
    requests = [
        Request(dice.uniform(0, seconds), f"198.51.100.{dice.randrange(60)}", f"/page/{dice.randrange(40)}")
        for _ in range(benign)
    ]
    for attacker in range(4):
        begin = dice.uniform(0, seconds / 2)
        requests += [
            Request(begin + n * dice.uniform(0.5, 4), f"203.0.113.{attacker}", f"/hidden/{attacker}/{n}", 404)
            for n in range(12)
        ]
    begin = dice.uniform(0, seconds / 2)
    requests += [Request(begin + n * 0.05, "2001:db8::7", "/") for n in range(150)]
    for neighbour in range(5):
        requests.append(Request(dice.uniform(0, seconds), f"192.0.2.{neighbour}", "/.env", 404))
    requests += [Request(dice.uniform(0, seconds), "scan.example.net", "/?odd=1") for _ in range(3)]
    arrivals = sorted(
        (each.second + (dice.uniform(3, 9) if dice.random() < 0.02 else dice.uniform(0, 0.4)), n, each)
        for n, each in enumerate(requests)
    )
    topic: dict[int, list[tuple[str, bytes]]] = {number: [] for number in range(partitions)}
    for _, _, each in arrivals:
        line = write_line(each)
        if dice.random() < 0.01:
            line = line[: dice.randrange(len(line) // 2)]
        number = zlib.crc32(each.client.encode()) % partitions
        topic[number].append((dice.choice(SERVERS), line))
    return topic


def write_line(request: Request) -> bytes:
    moment = datetime.fromtimestamp(START + int(request.second), UTC)
    told = (
        f"{request.client} - - [{moment:%d/%b/%Y:%H:%M:%S +0000}] "
        f'"GET {request.path} HTTP/1.1" {request.status} 512 "-" "Mozilla/5.0 (test)"'
    )
    return told.encode()


def send_traffic(bootstrap: str, topic: str, traffic: Traffic) -> None:
    """Send the lines as the shipper does: the line is the value, the web server a header."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "max.in.flight": 1})
    for partition, lines in traffic.items():
        for server, line in lines:
            send(producer, topic, [line], partition=partition, headers=[("server", server.encode())])
    assert producer.flush(60) == 0


def cut(traffic: Traffic, first: float, last: float) -> Traffic:
    """Return a share of each partition's lines."""
    return {
        number: lines[int(len(lines) * first) : int(len(lines) * last)] for number, lines in traffic.items()
    }


def write_rules(folder: Path) -> Path:
    path = folder / "rules.yaml"
    path.write_text(RULES)
    return path


def make_settings(
    bootstrap: str, topic: str, database: str, folder: Path, **changes: Any
) -> PipelineSettings:
    """Return settings for tests: the tests' own rules, and short waits."""
    return PipelineSettings(
        topic,
        database,
        {"bootstrap.servers": bootstrap},
        **{"rules": (write_rules(folder),), "interval": "100ms", "idle_after": "1s", "lanes": 5, **changes},
    )


def warm_kernels() -> None:
    """Compile the kernels here, so that workers do not each compile them while a test waits."""
    rules = RuleSet.parse(RULES)
    warm_up(Tools("log", make_parser(), DefenceSettings(rules, lanes=5), MonitorSettings()))


def decide_in_memory(traffic: Traffic, *, lanes: int = 5) -> list[dict[str, Any]]:
    """Return the decisions of an engine that got each partition in one piece."""
    engine = FedEngine(DefenceSettings(RuleSet.parse(RULES), lanes=lanes), partitions=traffic)
    lines = {number: pa.array([line for _, line in some], pa.binary()) for number, some in traffic.items()}
    servers = {number: pa.array([server for server, _ in some]) for number, some in traffic.items()}
    made = [engine.feed(lines, servers=servers), engine.finish()]
    return sort_decisions(row for table in made for row in table.to_pylist())


def sort_decisions(rows: Any) -> list[dict[str, Any]]:
    return sorted((dict(row) for row in rows), key=lambda row: (row["decided_at"], row["decision_id"]))
