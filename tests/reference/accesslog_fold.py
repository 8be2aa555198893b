"""The fold in plain Python, to compare with the kernel, and random histories with what is needed to run them.

The reference has no buckets, no pools and no batches: one dictionary of subjects, one list of lines in order.
"""

from __future__ import annotations

import ipaddress
import random
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.apps.accesslog.defence.behaviour_fold import fold_lane
from penstock.apps.accesslog.defence.defence_settings import DefenceSettings, OrdersInForce
from penstock.apps.accesslog.defence.lane_state import LaneState
from penstock.apps.accesslog.detection.detector import Findings
from penstock.apps.accesslog.detection.rule_set import BehaviourRule, RuleSet
from penstock.apps.accesslog.events.line_events import make_events
from penstock.apps.accesslog.events.log_clocks import Clocks, finish
from penstock.apps.accesslog.parsing.line_parser import TEXT_FIELDS, Lines

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
WORD = (1 << 64) - 1

RULES = RuleSet.parse(
    """
- {id: signal.a, class: probing, what: A., look: [path], any: [a], hits: [GET /a], misses: [GET /b]}
- {id: signal.b, class: probing, what: B., look: [path], any: [b], hits: [GET /b], misses: [GET /c]}
- {id: soft.four, class: xss, what: S., look: [path], any: [s], points: 4, hits: [GET /s], misses: [GET /c]}
- {id: hard.ten, class: xss, what: H., look: [path], any: [h], block: true, hits: [GET /h], misses: [GET /c]}
- {id: mock.ten, class: xss, what: M., look: [path], any: [m], block: true, mode: simulate, hits: [GET /m],
   misses: [GET /c]}
- {id: signal.asset, class: probing, what: I., look: [path], ends: [.css], hits: [GET /c.css],
   misses: [GET /c]}
- {id: any.fast, class: flood, what: F., count: [any-request], limit: 9, half_life: 4s}
- {id: any.soft, class: flood, what: F., count: [any-request], limit: 14, half_life: 20s, points: 6}
- {id: any.agents, class: agent_switching, what: G., count: [any-request], distinct: agent, limit: 3,
   half_life: 8s}
- {id: paths.many, class: probing, what: P., count: [signal.a], distinct: path, limit: 4, half_life: 6s}
- {id: window.some, class: probing, what: W., count: [signal.b, soft.four], limit: 5, window: 7s}
- {id: window.paths, class: probing, what: W., count: [signal.b], distinct: path, limit: 4, window: 9s,
   points: 5}
- {id: mock.count, class: probing, what: P., count: [signal.a], limit: 3, half_life: 5s, mode: simulate}
- {id: net.clients, class: distributed_scan, what: N., count: [soft.four, signal.b], distinct: client,
   per: net, limit: 2, half_life: 9s}
- {id: print.clients, class: distributed_scan, what: N., count: [signal.a], distinct: client,
   per: print, limit: 3, half_life: 30s}
- {id: print.all, class: flood, what: N., count: [soft.four], per: print, limit: 5, half_life: 30s,
   mode: simulate}
"""
)
CLIENTS = ("192.0.2.1", "192.0.2.2", "192.0.2.3",
           "198.51.100.9", "2001:db8::1", "2001:db8::ffff:0:0:3",
           "2001:db8:0:7::3", "host.example", "203.0.113.77", "203.0.113.78",
           "203.0.113.79", "2001:db8:0:8::ffff", "64:ff9b::c000:201", "64:ff9b::c000:202")  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One line of a history: what the parser and the detector would return for it."""

    number: int
    client: str
    server: str
    time_us: int
    hits: tuple[int, ...]
    path: int
    agent: int
    print: int
    answer: int = 0  # 1: it was there; 3: it was, and pages load it by themselves


def make_history(seed: int, size: int, *, jitter_us: int = 0, step_us: int = 2 * SECOND) -> list[Line]:
    """Return lines in the order they are written; times may go back by up to `jitter_us`."""
    dice = random.Random(seed)
    content = [
        RULES.find(name).number for name in ("signal.a", "signal.b", "soft.four", "hard.ten", "mock.ten")
    ]
    weights = (40, 30, dice.choice((0, 10)), dice.choice((0, 1)), dice.choice((0, 1)))
    clients = dice.sample(CLIENTS, dice.randint(2, len(CLIENTS)))
    pauses = dice.choice(((0, 0, 0, 0, SECOND // 2), (0, 0, 0, SECOND // 2, SECOND, step_us)))
    time, lines = START, []
    for number in range(size):
        time += dice.choice(pauses)
        if dice.random() < 0.01:
            time += dice.choice((60, 700, 4000)) * SECOND
        hits = tuple(sorted(set(dice.choices(content, weights, k=dice.choice((0, 0, 1, 1, 2))))))
        lines.append(
            Line(
                number,
                dice.choice(clients),
                dice.choice(("web-1", "web-2", "web-3")),
                time - dice.randint(0, jitter_us),
                hits,
                dice.randint(1, 12),
                dice.randint(1, 5),
                dice.randint(1, 3),
                dice.choice((0, 0, 1, 2, 3)),
            )
        )
    return lines


def spread(history: Sequence[Line], key: str, partitions: int = 3) -> dict[int, list[Line]]:
    """Return the history split into partitions, as a topic keyed by client or by server has it."""
    topic: dict[int, list[Line]] = {n: [] for n in range(partitions)}
    for line in history:
        value = client_of(line.client) if key == "client" else getattr(line, key)
        topic[zlib.crc32(value.encode()) % partitions].append(line)
    return topic


def name_agent(agent: int) -> bytes:
    """Return the log's text for the number of an agent."""
    return b"agent/%d" % agent


def make_batch(lines: Sequence[Line]) -> tuple[Lines, Findings]:
    """Return what the parser and the detector would return for these lines."""
    texts = [line.client.encode() for line in lines] + [name_agent(line.agent) for line in lines]
    sizes = np.array([len(text) for text in texts], np.int32)
    starts = (np.cumsum(sizes) - sizes).astype(np.int32)
    nothing = np.full(len(lines), -1, np.int32)
    places = {"client": slice(len(lines)), "agent": slice(len(lines), None)}
    parsed = Lines(
        data=np.frombuffer(b"".join(texts), np.uint8),
        rows=np.arange(len(lines), dtype=np.int32),
        starts={name: starts[places[name]] if name in places else nothing for name in TEXT_FIELDS},
        lengths={name: sizes[places[name]] if name in places else nothing for name in TEXT_FIELDS},
        time_us=np.array([line.time_us for line in lines], np.int64),
        status=np.array([200 if line.answer & 1 else 404 for line in lines], np.int16),
        size=np.zeros(len(lines), np.int64),
        latency_us=np.zeros(len(lines), np.int64),
        is_json=np.zeros(len(lines), bool),
        bad_rows=np.zeros(0, np.int32),
        bad_reasons=np.zeros(0, np.int8),
    )
    asset = RULES.find("signal.asset").number
    pairs = [
        (n, rule)
        for n, line in enumerate(lines)
        for rule in sorted({*line.hits, *([asset] if line.answer & 2 else [])})
    ]
    findings = Findings(
        np.array([n for n, _ in pairs], np.int32),
        np.array([rule for _, rule in pairs], np.int16),
        *(
            np.array([getattr(line, name) for line in lines], np.uint64)
            for name in ("path", "agent", "print")
        ),
    )
    return parsed, findings


@dataclass
class Runner:
    """Feeds batches of lines through `make_events` and `fold_lane`, as the pipeline does."""

    settings: DefenceSettings
    partitions: int = 3
    packs: bool = False  # serialize the state and read it again after every batch
    clocks: Clocks = field(init=False)
    states: list[LaneState] = field(init=False)
    offsets: dict[int, int] = field(default_factory=dict)
    log: dict[tuple[int, int], int] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clocks = Clocks.begin(range(self.partitions))
        self.states = [LaneState.begin(self.settings) for _ in range(self.settings.lanes)]

    def feed(self, batch: Iterable[tuple[int, Sequence[Line]]], orders: OrdersInForce | None = None) -> None:
        events: list[list[pa.RecordBatch]] = [[] for _ in self.states]
        for partition, lines in batch:
            if not lines:
                continue
            first = self.offsets.get(partition, 0)
            self.offsets[partition] = first + len(lines)
            for n, line in enumerate(lines):
                self.log[partition, first + n] = line.number
            made = make_events(
                *make_batch(lines), self.settings.ruleset, partition=partition,
                offsets=np.arange(first, first + len(lines)),
                servers=pa.array([line.server for line in lines]), lanes=self.settings.lanes,
                lateness_us=self.settings.lateness_us,
            )  # fmt: skip
            for lane, some in made.items():
                events[lane].append(some)
        self._fold(events, orders)

    def end(self) -> list[tuple[str, str, str, int, int, int]]:
        """Fold the rest; return all decisions as (client, rule, action, causing line, level, ban seconds)."""
        self._fold([[] for _ in self.states], None, finish(self.clocks))
        return sorted(
            (row["client"], row["rule"], row["action"], self.log[row["partition"], row["offset"]],
             row["level"], row["ban_seconds"])
            for row in self.rows
        )  # fmt: skip

    def _fold(
        self, events: list[list[pa.RecordBatch]], orders: OrdersInForce | None, ended: Clocks | None = None
    ) -> None:
        clocks = self.clocks
        for lane, state in enumerate(self.states):
            result = fold_lane(state, events[lane], self.clocks, self.settings, orders, finished=ended)
            self.rows += result.decisions.to_pylist()
            self.states[lane], clocks = result.state, result.clocks
            for name, value in result.counters.items():
                self.counters[name] = self.counters.get(name, 0) + value
            if self.packs:
                self.states[lane] = LaneState.unpack(result.state.pack(), self.settings)
        self.clocks = Clocks.unpack(clocks.pack()) if self.packs else clocks


def mix(word: int) -> int:
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & WORD
    return word ^ word >> 31


#: Networks whose addresses do not all belong to one customer.
CROWDS = [ipaddress.ip_network(each) for each in ("::/64", "64:ff9b::/32", "2001::/32")]


def client_of(text: str) -> str:
    """Return the client that is counted: an IPv4 address, the /64 of an IPv6 address, or a host name."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    if address.version == 6 and address.ipv4_mapped:
        return str(address.ipv4_mapped)
    if address.version == 4 or any(address in each for each in CROWDS):
        return str(address)
    return str(ipaddress.ip_network((address, 64), strict=False))


def number_client(text: str) -> tuple[int, int]:
    """Return the 128 bits of a client; a host name's are hashes of its text."""
    try:
        first = ipaddress.ip_network(client_of(text)).network_address
    except ValueError:
        high, low = 0xCBF29CE484222325, 0x9AE16A3B2F90404F
        for c in text.encode():
            high = (high ^ c) * 0x100000001B3 & WORD
            low = mix(low ^ c)
        return 1 << 48 | mix(high) & (1 << 48) - 1, low
    whole = int(first) | (0xFFFF << 32 if first.version == 4 else 0)
    return whole >> 64, whole & WORD


def net_of(client: str) -> str:
    """Return the network of a client and its neighbours."""
    if "/" in client:
        return str(ipaddress.ip_network(client).supernet(new_prefix=48))
    try:
        address = ipaddress.ip_address(client)
    except ValueError:
        return client
    return str(ipaddress.ip_network((address, 24), strict=False)) if address.version == 4 else client


def bits_of(value: int) -> int:
    spread_bits = mix(value + 0x9E3779B97F4A7C15 & WORD)
    return 1 << (spread_bits & 255) | 1 << (spread_bits >> 8 & 255)


@dataclass
class Counter:
    """The state of one behaviour rule for one subject."""

    level: float = 0.0
    previous: float = 0.0
    at: int = 0
    index: int = -(1 << 62)
    bits: int = 0
    hot_until: int = -(1 << 62)

    def knows(self, value: int) -> bool:
        return self.bits & bits_of(value) == bits_of(value)

    def remember(self, value: int) -> bool:
        wanted = bits_of(value)
        if self.knows(value):
            return False
        if self.bits.bit_count() > 160:
            self.bits = 0
        self.bits |= wanted
        return True


@dataclass
class Subject:
    """Everything known about a client, a network or a fingerprint."""

    begun: int
    last: int = 0
    expires: int = 0
    requests: int = 0
    classes: frozenset[str] = frozenset()
    agent: int = 0
    level: int = 0
    ban_from: int = 0
    ban_until: int = -(1 << 62)
    quiet_until: int = -(1 << 62)
    score: float = 0.0
    shadow: float = 0.0
    scored_at: int = 0
    dense: dict[str, float] = field(default_factory=dict)
    counters: dict[str, Counter] = field(default_factory=dict)
    members: dict[str, dict[str, Any]] = field(default_factory=dict)


class Reference:
    """The rules of the fold, applied one line at a time."""

    def __init__(self, settings: DefenceSettings) -> None:
        self.settings = settings
        self.rules = settings.ruleset
        self.counted = {rule.id: set(self.rules.counted(rule)) for rule in self.rules.behaviour}
        self.subjects: dict[tuple[str, str], Subject] = {}
        self.decisions: list[tuple[str, str, str, int, int, int]] = []

    def run(self, topic: dict[int, list[Line]]) -> list[tuple[str, str, str, int, int, int]]:
        ordered = []
        for partition, lines in topic.items():
            most = -(1 << 62)
            for offset, written in enumerate(lines):
                line = replace(written, client=client_of(written.client))
                time = max(line.time_us, most - self.settings.lateness_us)
                is_counted = time - line.time_us <= 60 * SECOND
                most = max(most, line.time_us)
                high, low = number_client(line.client)
                server = zlib.crc32(line.server.encode())
                tie = (low * 0x9E3779B97F4A7C15 + high & WORD) ^ server << 32
                ordered.append((time, server, tie, partition, offset, is_counted, line))
        for time, *_, is_counted, line in sorted(ordered, key=lambda each: (each[0], each[1], *each[3:5])):
            self.fold_client(time, line, is_counted)
        for time, *_, is_counted, line in sorted(ordered, key=lambda each: (each[0], each[2], *each[3:5])):
            if not is_counted:
                continue
            for kind, name in (("net", net_of(line.client)), ("print", str(line.print))):
                counting = [
                    rule for number in line.hits for rule in self.rules.behaviour
                    if rule.per == kind and number in self.counted[rule.id]
                ]  # fmt: skip
                if counting:
                    self.fold_group(time, line, kind, name, counting)
        return sorted(self.decisions)

    def find(self, kind: str, name: str, time: int) -> Subject:
        found = self.subjects.get((kind, name))
        if found is None or time > found.expires:
            found = self.subjects[kind, name] = Subject(time, time, time, scored_at=time)
        return found

    def fold_client(self, time: int, line: Line, is_counted: bool) -> None:
        one = self.find("client", line.client, time)
        one.requests += 1
        verdicts: list[tuple[int, str]] = []
        for number in line.hits:
            if self.rules.rules[number].points:
                verdicts.append((self.add_points(one, number, time), self.rules.rules[number].id))
        client_rules = [rule for rule in self.rules.behaviour if rule.per == "client" and is_counted]
        for number in line.hits:
            for rule in client_rules:
                if number in self.counted[rule.id] and self.count(one, rule, line, time):
                    verdicts.append(self.trigger(one, rule, time))
        everything = [rule for rule in client_rules if "any-request" in rule.count]
        for rule in everything:
            if rule.distinct == "none":
                level = one.dense.get(rule.id, 0.0)
                if time > one.last:
                    level *= 2.0 ** (-(time - one.last) / rule.half_life_us)
                one.dense[rule.id] = level + 1.0
                one.expires = max(one.expires, time + 8 * rule.half_life_us)
                if level + 1.0 > rule.limit:
                    verdicts.append(self.trigger(one, rule, time))
        for rule in everything:
            if rule.distinct == "agent" and line.answer == 3 and self.take_back(one, rule, line.agent, time):
                continue
            if rule.distinct == "agent" and one.requests > 1 and one.agent != line.agent:
                counter = one.counters.setdefault(rule.id, Counter(at=time))
                if counter.level == 0.0 and counter.previous == 0.0:
                    counter.remember(one.agent)
                if self.count(one, rule, line, time):
                    verdicts.append(self.trigger(one, rule, time))
        one.agent, one.last = line.agent, time if is_counted else one.last
        enforced = [name for verdict, name in verdicts if verdict == 1]
        simulated = [name for verdict, name in verdicts if verdict == 2]
        if enforced and time < one.ban_until:
            news = [name for name in enforced if self.is_news(one, name)]
            if news:
                one.classes |= {self.rules.find(news[0]).attack_class}
                left = (one.ban_until - time) // SECOND
                self.decisions.append((line.client, news[0], "block", line.number, one.level, left))
        elif enforced:
            ban = self.escalate(one, time)
            one.classes = frozenset({self.rules.find(enforced[0]).attack_class})
            self.decisions.append((line.client, enforced[0], "block", line.number, one.level, ban // SECOND))
        elif simulated and time >= one.quiet_until and time >= one.ban_until:
            one.quiet_until = time + self.settings.quiet_us
            one.expires = max(one.expires, one.quiet_until)
            self.decisions.append((line.client, simulated[0], "simulate", line.number, one.level, 0))

    def take_back(self, one: Subject, rule: BehaviourRule, agent: int, time: int) -> bool:
        """Take back a hit of a known agent; return whether the rule had counted that agent.

        A known agent that loads what belongs to a page is a browser behind a shared address.
        """
        counter = one.counters.get(rule.id)
        if counter is None or not counter.knows(agent):
            return False
        if time > counter.at:
            counter.level *= 2.0 ** (-(time - counter.at) / rule.half_life_us)
        counter.level, counter.at = max(counter.level - 1.0, 0.0), time
        return True

    def is_news(self, one: Subject, name: str) -> bool:
        rule = self.rules.find(name)
        return rule.attack_class not in one.classes and 2 * rule.points >= 10

    def fold_group(self, time: int, line: Line, kind: str, name: str, rules: list[BehaviourRule]) -> None:
        group = self.find(kind, name, time)
        group.last = time
        member = group.members.setdefault(line.client, {"until": -(1 << 62), "rules": set(), "last": time})
        member["last"] = time
        for rule in rules:
            enforced, is_new = rule.mode == "enforce", rule.id not in member["rules"]
            member["rules"].add(rule.id)
            over = self.count(group, rule, line, time)
            counter = group.counters[rule.id]
            if time < counter.hot_until:
                if enforced or is_new:
                    self.name(group, line.client, rule, line, time)
            elif over:
                counter.hot_until = time + (self.escalate(group, time) if enforced else self.settings.ban_us)
                group.expires = max(group.expires, counter.hot_until)
                for client, each in group.members.items():
                    if rule.id in each["rules"] and each["last"] >= time - 8 * rule.half_life_us:
                        self.name(group, client, rule, line, time)
                    elif not enforced:
                        each["rules"].discard(rule.id)

    def name(self, group: Subject, client: str, rule: BehaviourRule, line: Line, time: int) -> None:
        member = group.members[client]
        if rule.mode == "simulate":
            self.decisions.append((client, rule.id, "simulate", line.number, group.level, 0))
        elif time >= member["until"]:
            ban = group.ban_until - group.ban_from
            member["until"] = time + ban
            self.decisions.append((client, rule.id, "block", line.number, group.level, ban // SECOND))

    def trigger(self, one: Subject, rule: BehaviourRule, time: int) -> tuple[int, str]:
        if rule.points < 10:
            one.dense[rule.id] = 0.0
            if rule.id in one.counters:
                one.counters[rule.id].level = one.counters[rule.id].previous = 0.0
        return self.add_points(one, rule.number, time), rule.id

    def add_points(self, one: Subject, number: int, time: int) -> int:
        rule = self.rules.rules[number]
        if time > one.scored_at:
            fading = 2.0 ** (-(time - one.scored_at) / self.settings.score_half_life_us)
            one.score, one.shadow = one.score * fading, one.shadow * fading
        one.scored_at = time
        one.shadow = min(one.shadow + rule.points, 20.0)
        if rule.mode == "enforce":
            one.score = min(one.score + rule.points, 20.0)
        one.expires = max(one.expires, time + 8 * self.settings.score_half_life_us)
        if rule.mode == "enforce":
            return 1 if one.score >= 10 else 0
        return 2 if one.shadow >= 10 else 0

    def escalate(self, one: Subject, time: int) -> int:
        if one.level:
            one.level = max(0, one.level - (time - one.ban_until) // self.settings.forget_us)
        one.level += 1
        ban = min(self.settings.ban_us << one.level - 1, self.settings.most_ban_us)
        one.ban_from, one.ban_until = time, time + ban
        one.expires = max(one.expires, time + ban + one.level * self.settings.forget_us)
        return ban

    def count(self, one: Subject, rule: BehaviourRule, line: Line, time: int) -> bool:
        counter = one.counters.setdefault(rule.id, Counter(at=time))
        high, low = number_client(line.client)
        value = {"path": line.path, "agent": line.agent, "client": mix(mix(high) + low & WORD)}.get(
            rule.distinct, 0
        )
        if rule.half_life_us:
            one.expires = max(one.expires, time + 8 * rule.half_life_us)
            level = counter.level
            if time > counter.at:
                level *= 2.0 ** (-(time - counter.at) / rule.half_life_us)
            if rule.distinct != "none":
                if level < 0.5:
                    counter.bits = 0
                if not counter.remember(value):
                    return level > rule.limit
            counter.level, counter.at = level + 1.0, time
            return level + 1.0 > rule.limit
        one.expires = max(one.expires, time + 2 * rule.window_us)
        index = time // rule.window_us
        if index - counter.index > 1:
            counter.level = counter.previous = 0.0
            counter.bits = 0
        elif index - counter.index == 1:
            counter.previous, counter.level = counter.level, 0.0
        counter.index = index
        if rule.distinct == "none" or counter.remember(value):
            counter.level += 1.0
        left = 1.0 - (time - index * rule.window_us) / rule.window_us
        return counter.previous * left + counter.level > rule.limit
