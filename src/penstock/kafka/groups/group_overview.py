"""Consumer groups as an operator sees them: their states, members, partitions, positions and lag.

Rules: every partition that the group has committed or that a member owns is a row, so groups without members
and groups without commits are both shown in full; a member without partitions is a row too; "nothing
committed" and "topic gone" are None, never 0. Why the log ends are read last, all at once: a lag must not be
negative because records arrived between two questions.

    describe_group(settings, "reports").rows
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import BrokerError
from penstock.core.model import TopicPartition
from penstock.kafka.groups.committed_offsets import fetch_committed
from penstock.kafka.groups.kip848_groups import DescribeNewerGroup, Member
from penstock.kafka.metadata.broker_errors import refusal
from penstock.kafka.metadata.routing import Routing, routing_for
from penstock.kafka.reading.kafka_log_view import KafkaLogView
from penstock.kafka.transport.deadlines import Deadline
from penstock.kafka.transport.protocol_messages import DescribeGroupsRequest, ListGroupsRequest
from penstock.kafka.transport.retries import Attempts
from penstock.kafka.transport.wire_cursor import WireCursor

_NOT_FOUND = 69
_NEWER_PROTOCOL = "consumer"


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """One group. `kind` is classic, consumer (newer protocol), share or streams, or "" if unknown."""

    name: str
    state: str
    kind: str


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One partition, or a member that has none. `end` is None when the partition no longer exists."""

    partition: TopicPartition | None
    committed: int | None
    end: int | None
    member: Member | None

    @property
    def lag(self) -> int | None:
        """Return the number of offsets still to read; markers and holes count, as in every lag tool."""
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True)
class GroupDetails:
    """One group in full. `members_known` is False for share and streams groups: they have no consumers."""

    name: str
    state: str
    kind: str
    members: tuple[Member, ...]
    rows: tuple[GroupRow, ...]
    members_known: bool = True


def list_groups(settings: ClientSettings) -> list[ListedGroup]:
    """Return all groups, asking every broker: each knows only the groups it coordinates."""
    deadline = Deadline.of_call(settings)
    routing = routing_for(settings)
    found: dict[str, ListedGroup] = {}
    pending = set(routing.brokers(deadline).values())
    attempts = Attempts(deadline, "the groups of every broker", settings.retry_backoff_ms)
    for _ in attempts:
        for host, port in sorted(pending):
            with attempts.forgiving():  # a broker that has just become coordinator asks us to wait
                request = ListGroupsRequest(states_filter=[], types_filter=[])
                response = routing.call(request, host, port, deadline)
                if response.error_code:
                    raise refusal(response.error_code, "ListGroups", f"{host}:{port}", "all groups")
                for each in response.groups:
                    state, kind = each.group_state or "", each.group_type or ""
                    found[each.group_id] = ListedGroup(each.group_id, state, kind)
                pending.discard((host, port))
        if not pending:
            return [found[name] for name in sorted(found)]
    raise attempts.given_up()


def describe_group(settings: ClientSettings, group: str) -> GroupDetails:
    """Return one group in full; raise if it does not exist."""
    deadline = Deadline.of_call(settings)
    routing = routing_for(settings)
    response, broker = routing.call_coordinator(
        group,
        lambda: DescribeGroupsRequest(groups=[group], include_authorized_operations=False),
        deadline,
        lambda response: int(response.groups[0].error_code),
    )
    answer = response.groups[0]
    if answer.error_code == _NOT_FOUND or answer.group_state == "Dead":
        listed = next((each for each in list_groups(settings) if each.name == group), None)
        if listed is None:
            raise BrokerError(
                "GROUP_NOT_FOUND",
                f"There is no consumer group {group}.",
                hint="`penstock groups list` shows all; a group without members and commits is forgotten.",
                facts={"group": group},
            )
        state, kind = listed.state, listed.kind
        members = _ask_newer_members(routing, group, deadline) if kind == _NEWER_PROTOCOL else None
    elif answer.error_code:
        raise refusal(answer.error_code, "DescribeGroups", broker, f"group {group}")
    else:
        state, kind, members = answer.group_state, "classic", tuple(_read_members(answer.members))
    committed = fetch_committed(routing, group, None, deadline)
    rows = _make_rows(KafkaLogView(settings), committed, members or ())
    return GroupDetails(group, state, kind, members or (), rows, members_known=members is not None)


def _ask_newer_members(routing: Routing, group: str, deadline: Deadline) -> tuple[Member, ...]:
    answer, broker = routing.call_coordinator(
        group, lambda: DescribeNewerGroup(group), deadline, lambda answer: int(answer.error_code)
    )
    if answer.error_code:
        raise refusal(answer.error_code, "ConsumerGroupDescribe", broker, f"group {group}")
    found: tuple[Member, ...] = answer.members
    return tuple(sorted(found, key=lambda member: member.consumer_id))


def _read_members(members: Iterable[Any]) -> Iterable[Member]:
    for each in sorted(members, key=lambda each: str(each.member_id)):
        yield Member(
            each.member_id,
            each.client_host.removeprefix("/"),  # Java writes addresses this way
            each.client_id,
            read_assignment(bytes(each.member_assignment)),
        )


def read_assignment(data: bytes) -> tuple[TopicPartition, ...] | None:
    """Return the partitions in a member's assignment: none while it is joining, None if it is unreadable."""
    if not data:
        return ()
    cursor = WireCursor(data)
    try:
        cursor.skip(2)  # every version begins the same way
        found = []
        for _ in range(cursor.count(6)):
            topic = cursor.text()
            found += [TopicPartition(topic, cursor.integer(4)) for _ in range(cursor.count(4))]
    except ValueError:
        return None  # the client uses a custom protocol
    return tuple(sorted(found))


def _make_rows(
    view: KafkaLogView, committed: dict[TopicPartition, int | None], members: tuple[Member, ...]
) -> tuple[GroupRow, ...]:
    owners = {each: member for member in members for each in member.partitions or ()}
    partitions = sorted({*committed, *owners})
    topics = view.describe({each.topic for each in partitions})
    existing = [
        each
        for each in partitions
        if each.topic in topics and each.partition in topics[each.topic].partitions
    ]
    ends = view.latest(existing)
    rows = [GroupRow(each, committed.get(each), ends.get(each), owners.get(each)) for each in partitions]
    return (*rows, *(GroupRow(None, None, None, member) for member in members if not member.partitions))
