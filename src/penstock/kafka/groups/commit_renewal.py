"""Keeps a group's offsets alive: commits them again, and finds how long a broker keeps them.

A group without members is empty, and Kafka deletes each of its offsets once its last commit is older than
`offsets.retention.minutes`, whether or not a program still reads there.

Rule: our offset is committed again only where the group's is unchanged or gone. A partition that was moved
meanwhile stays where it was put. Kafka has no compare-and-set, so the check comes directly before the
commit. Why not commit our own position blindly: it would undo a rewind made by hand.

    renew_commits(settings, "nightly", {TopicPartition("orders", 0): GroupCommit(120)}, timeout_ms=30_000)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import BrokerError
from penstock.core.loggers import get_logger
from penstock.core.model import TopicPartition
from penstock.kafka.groups.committed_offsets import GroupCommit, commit_offsets, fetch_commits
from penstock.kafka.metadata.broker_errors import refusal
from penstock.kafka.metadata.routing import routing_for
from penstock.kafka.transport.deadlines import Deadline
from penstock.kafka.transport.protocol_messages import DescribeConfigsRequest
from penstock.kafka.transport.retries import Attempts

log = get_logger(__name__)

_RETENTION = "offsets.retention.minutes"
_BROKER = 4  # Kafka's number for "this resource is a broker"


def renew_commits(
    settings: ClientSettings, group: str, ours: Mapping[TopicPartition, GroupCommit], *, timeout_ms: int
) -> tuple[TopicPartition, ...]:
    """Commit our offsets again where they are unchanged or gone; return the partitions that were moved."""
    deadline = Deadline.after_ms(timeout_ms, "timeout_ms")
    found = fetch_commits(routing_for(settings), group, tuple(ours), deadline)
    again: dict[TopicPartition, GroupCommit] = {}
    for each, mine in ours.items():
        there = found.get(each) or mine
        if there.offset == mine.offset:
            again[each] = there
    commit_offsets(
        settings,
        group,
        {each: commit.offset for each, commit in again.items()},
        timeout_ms=timeout_ms,
        metadata={each: commit.metadata for each, commit in again.items()},
        leader_epochs={
            each: commit.leader_epoch for each, commit in again.items() if commit.leader_epoch is not None
        },
    )
    return tuple(sorted(set(ours) - set(again)))


def find_retention_ms(settings: ClientSettings, group: str, *, timeout_ms: int) -> int | None:
    """Return how long the group's coordinator keeps an offset; None when this user may not ask."""
    deadline = Deadline.after_ms(timeout_ms, "timeout_ms")
    attempts = Attempts(deadline, f"the settings of group {group}'s coordinator", settings.retry_backoff_ms)
    try:
        for _ in attempts:
            with attempts.forgiving():
                return _ask_retention_ms(settings, group, deadline)
        raise attempts.given_up()
    except BrokerError as error:
        log.info("The brokers did not say how long group %s keeps its offsets: %s", group, error)
        return None


def _ask_retention_ms(settings: ClientSettings, group: str, deadline: Deadline) -> int | None:
    routing = routing_for(settings)
    node_id, address = routing.find_coordinator(group, deadline)
    resource = DescribeConfigsRequest.DescribeConfigsResource
    name = str(node_id)
    request: Any = DescribeConfigsRequest(
        resources=[resource(resource_type=_BROKER, resource_name=name, configuration_keys=[_RETENTION])]
    )
    answer = routing.call(request, *address, deadline).results[0]
    if answer.error_code:
        raise refusal(
            answer.error_code, "DescribeConfigs", f"broker {name}", _RETENTION, answer.error_message
        )
    minutes = next((each.value for each in answer.configs if each.name == _RETENTION), None)
    return int(minutes) * 60_000 if minutes is not None and minutes.isdigit() else None
