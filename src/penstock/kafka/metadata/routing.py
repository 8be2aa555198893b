"""Finds the broker to ask: one reachable server is enough to find every leader and coordinator.

Rules: metadata is asked from any broker that answers, never from ZooKeeper; a leader is believed
until a broker says otherwise or metadata.max.age.ms has passed; metadata with an older leader epoch than ours
is ignored (it comes from a broker that lags behind); everything is retried with growing pauses, but only
until the caller's deadline, and then the error names the last failure. Why not remember failures: a broker
that was down a moment ago is the one that comes back.

    routing = routing_for(settings)
    leader = routing.leader("orders", 0, Deadline.after_ms(60_000, "default.api.timeout.ms"))
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import BrokerError
from penstock.core.model import TopicPartition, TopicView
from penstock.core.prose import shorten
from penstock.kafka.metadata.broker_errors import (
    LEADER_NOT_AVAILABLE,
    RETRIABLE,
    UNKNOWN_TOPIC_OR_PARTITION,
    refusal,
)
from penstock.kafka.metadata.cluster_map import BrokerAddress, ClusterMap, Leader, TopicRoute
from penstock.kafka.transport.connection_pool import POOL, ConnectionPool
from penstock.kafka.transport.deadlines import Deadline
from penstock.kafka.transport.protocol_messages import FindCoordinatorRequest, MetadataRequest
from penstock.kafka.transport.retries import Attempts

__all__ = ["Leader", "Routing", "routing_for"]

CallResult = TypeVar("CallResult")

# Metadata this young is good enough even when metadata.max.age.ms is 0.
_LEAST_AGE_MS = 1_000
# A new topic is unknown to some brokers for about this many pauses (5 s in all); after them it is reported as
# missing, because a full minute is too long to wait for a misspelt name.
_LOOKS_FOR_A_MISSING_TOPIC = 8


class Routing:
    """One login's view of a cluster's brokers, leaders and coordinators. Safe for several threads."""

    def __init__(self, settings: ClientSettings, pool: ConnectionPool = POOL) -> None:
        self.settings = settings
        self.pool = pool
        self._cluster = ClusterMap()
        self._coordinators: dict[tuple[bool, str], BrokerAddress] = {}  # by `transactional` and key
        self._turn = itertools.count()

    # --- metadata ---------------------------------------------------------------------------------

    def refresh(self, topics: Collection[str] | None, deadline: Deadline) -> dict[str, TopicRoute]:
        """Return the named topics (None: all), asking now; leave out those that do not exist."""
        wanted = "all topics" if topics is None else f"topics {', '.join(sorted(topics))}"
        attempts = self._attempts(deadline, f"metadata of {wanted}")
        for _ in attempts:
            response, broker = self._ask_metadata(topics, deadline)
            settled = True
            for topic in response.topics:
                if topic.error_code == LEADER_NOT_AVAILABLE:
                    settled = False
                elif topic.error_code not in (0, UNKNOWN_TOPIC_OR_PARTITION):
                    raise refusal(topic.error_code, "Metadata", broker, f"topic {topic.name}")
            if settled:
                return self._cluster.learn(response, complete=topics is None)
        raise attempts.given_up()

    def recall(
        self, topics: Collection[str] | None, max_age_ms: int, deadline: Deadline
    ) -> dict[str, TopicRoute]:
        """Return the named topics (None: all) as learned at most `max_age_ms` ago; otherwise ask now.

        A changed leader is picked up as soon as a broker has refused a request because of it.
        """
        known = self._cluster.recall(topics, max_age_ms)
        return self.refresh(topics, deadline) if known is None else known

    def _ask_metadata(self, topics: Collection[str] | None, deadline: Deadline) -> tuple[Any, str]:
        def build() -> Any:
            entries = topics and [MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(topics)]
            return MetadataRequest(
                topics=None if topics is None else entries or [], allow_auto_topic_creation=False
            )

        return self.call_any(build, deadline)

    def leader(self, topic: str, partition: int, deadline: Deadline) -> Leader:
        """Return the leader of one partition; wait for an election to end."""
        wanted = TopicPartition(topic, partition)
        return self.leaders([wanted], deadline)[wanted]

    def leaders(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, Leader]:
        """Return these partitions' leaders, from memory or with one request for the unknown ones."""
        looks = 0
        attempts = self._attempts(deadline, f"the leaders of {_list(partitions)}")
        for _ in attempts:
            known = self._known_leaders(partitions)
            missing = {wanted.topic for wanted, leader in known.items() if leader is None}
            if missing:
                found = self.refresh(missing, deadline)
                known = self._known_leaders(partitions)
                for wanted in partitions:
                    if wanted.topic in missing and not _exists(found, wanted):
                        looks += 1
                        if looks >= _LOOKS_FOR_A_MISSING_TOPIC:
                            raise _missing(wanted)
                        break
            complete = {wanted: leader for wanted, leader in known.items() if leader is not None}
            if len(complete) == len(known):
                return complete
        raise attempts.given_up()

    def _known_leaders(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Leader | None]:
        max_age_ms = max(_LEAST_AGE_MS, self.settings.metadata_max_age_ms)
        return {wanted: self._cluster.leader(wanted, max_age_ms) for wanted in partitions}

    def describe(self, topic: str, deadline: Deadline) -> TopicView | None:
        """Return one topic as the brokers describe it now, or None when it does not exist."""
        found = self.refresh([topic], deadline).get(topic)
        return None if found is None else found.view()

    def address(self, node_id: int, deadline: Deadline) -> BrokerAddress:
        """Return where the broker with this id listens."""
        if node_id not in self._cluster.brokers():
            self.refresh([], deadline)
        address = self._cluster.brokers().get(node_id)
        if address is None:
            raise BrokerError(
                "BROKER_UNKNOWN",
                f"The cluster names no broker {node_id}.",
                hint="It may just have stopped; read from the leader.",
                facts={"node_id": node_id},
                retriable=True,
            )
        return address

    def invalidate(self, topics: Iterable[str]) -> None:
        """Look up the leaders of these topics again before their next use."""
        self._cluster.forget(topics)

    def brokers(self, deadline: Deadline) -> dict[int, BrokerAddress]:
        """Return all live brokers by node id, asking now."""
        self.refresh([], deadline)
        return self._cluster.brokers()

    # --- asking -----------------------------------------------------------------------------------

    def call_any(self, build: Callable[[], Any], deadline: Deadline) -> tuple[Any, str]:
        """Ask known brokers and bootstrap servers in turn; return the first answer and its sender."""
        attempts = self._attempts(deadline, "an answer from any broker")
        for _ in attempts:
            known = self._cluster.brokers().values()
            servers = list(dict.fromkeys([*known, *self.settings.bootstrap_servers]))
            first = next(self._turn) % len(servers)
            for index in range(len(servers)):
                host, port = servers[(first + index) % len(servers)]
                # One silent server must not use up the time of the others.
                share = deadline.or_sooner(
                    max(1, int(deadline.remaining_s() * 1000 / (len(servers) - index))), deadline.name
                )
                with attempts.forgiving():
                    return self.call(build(), host, port, share), f"{host}:{port}"
        raise attempts.given_up()

    def call(
        self, request: Any, host: str, port: int, deadline: Deadline, max_version: int | None = None
    ) -> Any:
        """Send the request to this broker, once, and return its answer."""
        with self.pool.lend(self.settings, host, port, deadline) as connection:
            return connection.call(request, deadline, max_version=max_version)

    def ask_leaders(
        self,
        partitions: Collection[TopicPartition],
        build: Callable[[dict[TopicPartition, Leader]], Any],
        read: Callable[[Any], Iterable[tuple[TopicPartition, int, CallResult]]],
        deadline: Deadline,
    ) -> dict[TopicPartition, CallResult]:
        """Return each partition's answer, sending one request per leader until all have answered.

        `build` makes the request for some partitions; `read` yields (partition, error code, answer).
        """
        answers: dict[TopicPartition, CallResult] = {}
        pending = set(partitions)
        if not pending:
            return answers
        attempts = self._attempts(deadline, f"the leaders' answers about {_list(partitions)}")
        for _ in attempts:
            for (host, port), led in self._by_broker(pending, attempts).items():
                request = build(led)
                name = request.name.removesuffix("Request")
                with attempts.forgiving():
                    for wanted, code, answer in read(self.call(request, host, port, deadline)):
                        if code:
                            attempts.forgive(refusal(code, name, f"{host}:{port}", f"partition {wanted}"))
                        elif wanted in pending:
                            answers[wanted] = answer
                            pending.discard(wanted)
            if not pending:
                return answers
            self.invalidate({wanted.topic for wanted in pending})
        raise attempts.given_up()

    def _by_broker(
        self, partitions: Collection[TopicPartition], attempts: Attempts
    ) -> dict[BrokerAddress, dict[TopicPartition, Leader]]:
        by_broker: dict[BrokerAddress, dict[TopicPartition, Leader]] = {}
        with attempts.forgiving():
            for wanted, leader in self.leaders(partitions, attempts.deadline).items():
                by_broker.setdefault((leader.host, leader.port), {})[wanted] = leader
        return by_broker

    def call_controller(
        self, build: Callable[[], Any], deadline: Deadline, error_of: Callable[[Any], int] = lambda _: 0
    ) -> tuple[Any, str]:
        """Return the controller's answer (or that of a broker that forwards to it), and its sender.

        `error_of` extracts the code to retry on.
        """
        attempts = self._attempts(deadline, "the controller's answer")
        for _ in attempts:
            self.refresh([], deadline)
            address = self._cluster.controller()
            if address is None:
                continue
            broker = f"{address[0]}:{address[1]}"
            with attempts.forgiving():
                response = self.call(build(), *address, deadline)
                code = error_of(response)
                if code in RETRIABLE:
                    raise refusal(code, build().name.removesuffix("Request"), broker, "the cluster")
                return response, broker
        raise attempts.given_up()

    def call_coordinator(
        self,
        key: str,
        build: Callable[[], Any],
        deadline: Deadline,
        error_of: Callable[[Any], int],
        *,
        transactional: bool = False,
        max_version: int | None = None,
    ) -> tuple[Any, str]:
        """Return the answer of a group's (or a transactional id's) coordinator, and its sender.

        Passing codes (`RETRIABLE`, as extracted by `error_of`) are retried; others are left to the caller.
        """
        label = f"transactional id {key}" if transactional else f"group {key}"
        attempts = self._attempts(deadline, f"the coordinator of {label}")
        for _ in attempts:
            with attempts.forgiving():
                # Put back only if it turns out to be right.
                known = self._coordinators.pop((transactional, key), None)
                host, port = known or self.find_coordinator(key, deadline, transactional=transactional)[1]
                response = self.call(build(), host, port, deadline, max_version)
                code = error_of(response)
                if code in RETRIABLE:
                    raise refusal(code, build().name.removesuffix("Request"), f"{host}:{port}", label)
                self._coordinators[transactional, key] = (host, port)
                return response, f"{host}:{port}"
        raise attempts.given_up()

    def find_coordinator(
        self, key: str, deadline: Deadline, *, transactional: bool = False
    ) -> tuple[int, BrokerAddress]:
        """Ask for a group's (or transactional id's) coordinator now; return its id and address."""
        response, broker = self.call_any(
            lambda: FindCoordinatorRequest(key=key, key_type=int(transactional), coordinator_keys=[key]),
            deadline,
        )
        # Version 4 and later answer for several keys; earlier ones have the fields at the top level.
        found = response.coordinators[0] if response.coordinators else response
        if found.error_code:
            label = f"transactional id {key}" if transactional else f"group {key}"
            raise refusal(found.error_code, "FindCoordinator", broker, label, found.error_message)
        return found.node_id, (found.host, found.port)

    def _attempts(self, deadline: Deadline, waiting_for: str) -> Attempts:
        return Attempts(deadline, waiting_for, self.settings.retry_backoff_ms)


def _missing(wanted: TopicPartition) -> BrokerError:
    return BrokerError(
        "UNKNOWN_TOPIC_OR_PARTITION",
        f"There is no partition {wanted}, or this user may not see it.",
        hint="Check the name, that the topic was not deleted, and the right to describe it.",
        facts={"topic": wanted.topic, "partition": wanted.partition},
    )


def _exists(found: dict[str, TopicRoute], wanted: TopicPartition) -> bool:
    return wanted.topic in found and wanted.partition in found[wanted.topic].partitions


def _list(partitions: Collection[TopicPartition]) -> str:
    return shorten([str(partition) for partition in sorted(partitions)], 3)


@lru_cache(maxsize=64)
def _shared_routing(settings: ClientSettings) -> Routing:
    return Routing(settings)


def routing_for(settings: ClientSettings) -> Routing:
    """Return this process's shared `Routing` for these settings, ignoring group and isolation level."""
    return _shared_routing(replace(settings, group_id=None, isolation_level="read_uncommitted"))


# A forked child starts without the maps: their locks may be held by threads that do not exist in it.
os.register_at_fork(after_in_child=_shared_routing.cache_clear)
