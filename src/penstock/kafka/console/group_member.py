"""Membership in a consumer group, for the console only.

Rules: a position is committed after its records were handled, never before and never by a timer; a pattern
must match a topic's whole name and no internal topic, as everywhere here; once `poll` has returned with an
assignment, its positions are fixed, so no later record is missed. Where the log no longer has the group's
position, reading continues with what is left, and `news` says what is gone.

Streams never use this (`committed_offsets.py` says why). kafka-python's consumer does the joining, the
heartbeats and the commits, and nothing else: it never fetches records. Our own reader does
(`topic_tailing.py`), because the client decodes only what its optional libraries decode, which leaves out
snappy and lz4, and resets a lost position silently. The client's errors become a `BrokerError` here. Its
own SCRAM is less strict than ours (`sasl_mechanisms.py`): before it logs in anywhere, our own login to the
same cluster has succeeded.

    with GroupMember(settings, "reports", Subscribe(("orders",)), from_beginning=False) as member:
        records = member.poll(500)
        member.commit()
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from penstock.core.client.client_settings import ClientSettings, TlsSettings
from penstock.core.errors import BrokerError, DataLossError
from penstock.core.model import TopicPartition
from penstock.core.planning.partition_selection import (
    Selection,
    SelectPattern,
    name_topics,
    select_partitions,
)
from penstock.kafka.console.topic_tailing import ConsumedRecord, follow
from penstock.kafka.groups.committed_offsets import GroupCommit, fetch_commits
from penstock.kafka.metadata.routing import routing_for
from penstock.kafka.reading.kafka_log_view import KafkaLogView
from penstock.kafka.transport.deadlines import Deadline
from penstock.kafka.transport.protocol_messages import error_name
from penstock.kafka.transport.tls import tls_context

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata
    from kafka import TopicPartition as ClientPartition
    from kafka.errors import (
        BrokerResponseError,
        CommitFailedError,
        GroupAuthorizationFailedError,
        InconsistentGroupProtocolError,
        KafkaError,
        RebalanceInProgressError,
        TopicAuthorizationFailedError,
    )

#: How often a pattern is matched against the existing topics.
_LOOK_FOR_TOPICS_S = 2.0
_POLL_RECORDS = 5_000
#: How long one `poll` waits for a rebalance. The client (3.0.12) accepts an assignment only while it waits: a
#: rebalance that ends between two calls starts over, for all members.
_REBALANCE_MS = 5_000
#: How long a group may take to give a member its first partitions before that counts as silence.
_JOIN_PATIENCE_S = 30.0
_NO_EPOCH = -1
_DEFAULT_IDLE_MS = 540_000
_HINTS = {
    GroupAuthorizationFailedError: "Give this user the right to read the group.",
    TopicAuthorizationFailedError: "Give this user the right to read the topic.",
    InconsistentGroupProtocolError: (
        "The other members of the group share partitions in a way other than `range` or `roundrobin`. Name "
        "another group, or stop them."
    ),
}


class GroupMember:
    """One member of a group, for one thread. Close it, or the group waits for its session to expire."""

    def __init__(
        self, settings: ClientSettings, group: str, selection: Selection, *, from_beginning: bool
    ) -> None:
        self.group = group
        self.news: list[str] = []  # sentences, the oldest first; the caller removes those it has shown
        self._settings, self._selection = settings, selection
        self._from_beginning = from_beginning
        self._view = KafkaLogView(settings)
        self._timeout_ms = settings.default_api_timeout_ms
        self._subscribed: set[str] = set()
        self._follower = follow(settings, {})
        self._starts: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._is_refused = False  # the last commit came in the middle of a rebalance
        self._is_idle = False
        self._next_look_s = 0.0
        self._begun_s = time.monotonic()
        topics = self._find_topics()  # a wrong name or login fails before anything joins
        self._began_with = self._list_existing(topics)
        with _wrapping(group):
            self._consumer: Any = KafkaConsumer(**_translate(settings, group))
        self._rebalances = _Rebalances(self._consumer)
        try:
            self._subscribe(topics)
        except BaseException:
            self.close()
            raise

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """Return the partitions this member had when `poll` last returned."""
        return frozenset(self._follower.positions)

    @property
    def is_joining(self) -> bool:
        """Return whether the group may still be about to give this member its first partitions."""
        return not self.assigned and time.monotonic() - self._begun_s < _JOIN_PATIENCE_S

    def poll(self, wait_ms: int, most: int | None = None) -> list[ConsumedRecord]:
        """Return new records, at most `most`, one partition after the other.

        Wait up to `wait_ms` if there were none, and some seconds while the group reassigns its
        partitions.
        """
        if time.monotonic() >= self._next_look_s and isinstance(self._selection, SelectPattern):
            self._subscribe(self._find_topics())
        if self._is_idle or not self._subscribed:
            time.sleep(wait_ms / 1000)
        if not self._subscribed:
            return []  # a pattern that matches nothing yet
        with _wrapping(self.group):
            # Not the client's own `poll`, which would wait for records that it must not fetch.
            self._consumer._coordinator.poll(timeout_ms=_REBALANCE_MS)
        if self._rebalances.given is not None:
            self._take_over(self._rebalances.given)
            self._rebalances.given = None
        found: list[ConsumedRecord] = []
        if self._rebalances.is_settled and self._follower.positions:
            try:
                found = self._follower.take(min(_POLL_RECORDS, most or _POLL_RECORDS))
            except (DataLossError, BrokerError) as error:
                self._go_on_after(error)
        self._is_idle = not found
        return found

    def commit(self) -> None:
        """Commit everything `poll` has returned; if it has returned nothing yet, commit the start positions.

        A group takes no commits during a rebalance. The next call then commits what this member keeps;
        `news` reports what it loses.
        """
        positions, epochs = self._follower.positions, self._follower.epochs
        if positions.items() <= self._committed.items():
            return
        if not self._rebalances.is_settled:
            self._is_refused = True
            return
        offsets = {
            ClientPartition(each.topic, each.partition): OffsetAndMetadata(
                offset, "", epochs.get(each, _NO_EPOCH)
            )
            for each, offset in positions.items()
        }
        with _wrapping(self.group):
            try:
                self._consumer.commit(offsets, timeout_ms=self._timeout_ms)
            except (CommitFailedError, RebalanceInProgressError):
                self._is_refused = True
                return
        self._committed, self._is_refused = dict(positions), False

    def close(self) -> None:
        """Leave the group. Whatever was not committed stays uncommitted."""
        with _wrapping(self.group):
            self._consumer.close(autocommit=False)

    def __enter__(self) -> GroupMember:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _take_over(self, given: Collection[TopicPartition]) -> None:
        """Point the follower at the assigned partitions; those we already had keep their positions."""
        self._find_topics()  # a deleted topic is assigned to no member; raises if it was named explicitly
        kept = set() if self._rebalances.lost_all else {*self._follower.positions} & set(given)
        self._rebalances.lost_all = False
        parted = {*self._follower.positions} - kept
        for each in sorted(parted):
            handled_to = (self._committed.pop(each, None), self._starts.pop(each, None))
            if self._is_refused and self._follower.positions[each] not in handled_to:
                self.news.append(
                    f"{each}: the group gave it to another member, which may show the last messages again."
                )
        self._is_refused = False
        self._follower.drop(parted)
        fresh = set(given) - kept
        if fresh:
            deadline = Deadline.after_ms(self._timeout_ms, "default.api.timeout.ms")
            commits = fetch_commits(routing_for(self._settings), self.group, fresh, deadline)
            # Only the group's own commits: a start chosen here must still be committed, even if nothing is
            # read. Otherwise records that arrive before the next member starts would never be shown.
            self._committed |= {each: commit.offset for each, commit in commits.items() if commit}
            self._place(commits)

    def _go_on_after(self, loss: DataLossError | BrokerError) -> None:
        if isinstance(loss, BrokerError) and loss.condition != "UNKNOWN_TOPIC_OR_PARTITION":
            raise loss
        lost = TopicPartition(str(loss.facts["topic"]), int(str(loss.facts["partition"])))
        if loss.condition in ("PARTITION_GONE", "UNKNOWN_TOPIC_OR_PARTITION"):
            self._find_topics()  # raises if the topic was named explicitly
            self._follower.drop([each for each in self._follower.positions if each.topic == lost.topic])
            self._next_look_s = 0.0
        elif loss.condition == "TOPIC_RECREATED":
            begin = self._view.earliest([lost])[lost]
            self.news.append(f"{lost}: the topic was deleted and created again. Going on at {begin}.")
            self._follower.place({lost: begin})
        elif loss.condition == "LOG_TRUNCATED":
            begin = int(str(loss.facts.get("log_end", loss.facts["offset"])))
            self.news.append(
                f"{lost}: records were cut off the log after they were read. Going on at {begin}."
            )
            self._follower.place({lost: begin})
        else:
            self._place({lost: GroupCommit(self._follower.positions[lost])})

    def _place(self, wanted: Mapping[TopicPartition, GroupCommit | None]) -> None:
        """Go on at these offsets, or at the next ones left in the log; None means nothing is committed."""
        earliest, latest = self._view.earliest(wanted), self._view.latest(wanted)
        # An offset past the last stable one is in the log, even if readers of committed records must wait.
        all_there_is = KafkaLogView(replace(self._settings, isolation_level="read_uncommitted"))
        ends = all_there_is.latest(wanted)
        ids = dict(self._list_existing({each.topic for each in wanted}))
        starts, epochs = {}, {}
        for each, commit in wanted.items():
            begin, end = earliest[each], ends[each]
            # If the partition is newer than this member, everything in it has arrived since it started.
            is_newer = (each, ids.get(each)) not in self._began_with
            start = begin if self._from_beginning or is_newer else latest[each]
            if commit is not None and commit.offset < begin:
                start = begin
                self.news.append(
                    f"{each}: {begin - commit.offset} offsets are gone, {commit.offset} to {begin - 1}: they "
                    f"were deleted before group {self.group} had read them. Going on at {begin}."
                )
            elif commit is not None and commit.offset > end:
                self.news.append(
                    f"{each}: group {self.group} stood at {commit.offset}, and the log ends at {end}: it was "
                    f"cut off, or recreated. Going on at {start}."
                )
            elif commit is not None:
                start = commit.offset
                if commit.leader_epoch is not None:
                    epochs[each] = commit.leader_epoch
            starts[each] = start
        self._follower.place(starts, epochs)
        self._starts.update(starts)

    def _find_topics(self) -> set[str]:
        self._next_look_s = time.monotonic() + _LOOK_FOR_TOPICS_S
        named = name_topics(self._selection)
        known = self._view.topics() if named is None else self._view.describe(named)
        return {each.topic for each in select_partitions(self._selection, known).partitions}

    def _list_existing(self, topics: Collection[str]) -> set[tuple[TopicPartition, bytes | None]]:
        """Return the existing partitions, each with its topic's id."""
        return {
            (TopicPartition(name, number), topic.topic_id)
            for name, topic in self._view.describe(topics).items()
            for number in topic.partitions
        }

    def _subscribe(self, topics: set[str]) -> None:
        if topics != self._subscribed and topics:
            with _wrapping(self.group):
                self._consumer.subscribe(topics=sorted(topics), listener=self._rebalances)
                for topic in sorted(topics):
                    # The client may join before it knows the topic. It then assigns no partitions and notices
                    # only when its metadata is minutes old.
                    self._consumer.partitions_for_topic(topic)
            self._subscribed = topics


class _Rebalances(ConsumerRebalanceListener):  # type: ignore[misc]
    """Notes what the group assigns and revokes. Called on the client's own thread, so it only notes."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self.is_settled = False
        self.lost_all = False  # since `given` was last read: other members may have had the same partitions
        self.given: frozenset[TopicPartition] | None = None

    def on_partitions_revoked(self, revoked: Collection[Any]) -> None:  # noqa: ARG002
        self.is_settled = False
        # Without this the client forgets a rebalance that a changed topic started and that outlasts one
        # `poll`: it joins, never accepts its assignment, and sends no more heartbeats.
        self._consumer._coordinator.request_rejoin()

    def on_partitions_lost(self, lost: Collection[Any]) -> None:  # noqa: ARG002
        self.is_settled, self.lost_all = False, True

    def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
        self.given = frozenset(TopicPartition(each.topic, each.partition) for each in assigned)
        self.is_settled = True


def _translate(settings: ClientSettings, group: str) -> dict[str, Any]:
    """Return our settings under kafka-python's names."""
    given: dict[str, Any] = {
        "bootstrap_servers": [
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            for host, port in settings.bootstrap_servers
        ],
        "client_id": settings.client_id,
        "group_id": group,
        "auto_offset_reset": "none",
        "enable_auto_commit": False,
        "isolation_level": settings.isolation_level,
        "allow_auto_create_topics": False,
        "security_protocol": settings.security_protocol,
        "request_timeout_ms": settings.request_timeout_ms,
        "retry_backoff_ms": settings.retry_backoff_ms,
        "metadata_max_age_ms": settings.metadata_max_age_ms,
        # The client requires: connections_max_idle_ms > request_timeout_ms > fetch_max_wait_ms.
        "fetch_max_wait_ms": 0,
        "connections_max_idle_ms": max(_DEFAULT_IDLE_MS, 2 * settings.request_timeout_ms),
        "bootstrap_timeout_ms": settings.default_api_timeout_ms,
        "metrics_enabled": False,
    }
    if settings.security_protocol in ("SSL", "SASL_SSL"):
        given["ssl_context"] = tls_context(settings.tls or TlsSettings())
    if settings.sasl is not None:
        given["sasl_mechanism"] = settings.sasl.mechanism
        given["sasl_plain_username"] = settings.sasl.username
        given["sasl_plain_password"] = settings.sasl.password.reveal()
    return given


@contextmanager
def _wrapping(group: str) -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        hint = "Check that the brokers are up and that this user may read the group and the topic."
        raise BrokerError(
            "GROUP_MEMBER_FAILED",
            f"As a member of group {group}: {_describe(error)}.",
            hint=_HINTS.get(type(error), hint),
            facts={"group": group},
            retriable=bool(error.retriable),
        ) from error


def _describe(error: KafkaError) -> str:
    """Return Kafka's own name for the error, or the client's message; never the name of a class."""
    if isinstance(error, BrokerResponseError) and error.errno is not None:
        return f"{error_name(error.errno)}, {str(error.description).rstrip('.')}"
    return " ".join(str(each) for each in error.args).rstrip(".") or "the client gave up without a reason"
