"""Being a member of a consumer group: for the console only.

Rules: a position is committed after its records were handled, never before and never by a timer; a pattern
must match a topic's whole name and no internal topic, as everywhere here; once `poll` has told of an
assignment, its positions are fixed: a record that arrives later is seen. Where the log no longer has the
position of the group, reading goes on at what is left, and `news` says what is gone: the client would go by
its reset rule, to the end of the log even, and not say so; therefore it has none.

Streams never use this (`groups.py` says why). kafka-python's consumer does the joining, the heartbeats and
the fetching; what it raises becomes a `BrokerError` here. Its own SCRAM is less strict than ours
(`sasl.py`): before it logs in anywhere, our own login to the same cluster has held.

    with GroupMember(settings, "reports", Subscribe(("orders",)), from_beginning=False) as member:
        records = member.poll(500)
        member.commit()
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from penstock.core.client import ClientSettings, TlsSettings
from penstock.core.errors import BrokerError
from penstock.core.model import TopicPartition
from penstock.core.selection import Selection, SubscribePattern, name_topics, select_partitions
from penstock.kafka.control import KafkaLogView
from penstock.kafka.following import ConsumedRecord
from penstock.kafka.tls import tls_context

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer
    from kafka import TopicPartition as ClientPartition
    from kafka.errors import (
        CommitFailedError,
        KafkaError,
        LogTruncationError,
        NoOffsetForPartitionError,
        OffsetOutOfRangeError,
        RebalanceInProgressError,
    )

#: How often a pattern is held against the topics there are.
_LOOK_FOR_TOPICS_S = 2.0
_POLL_RECORDS = 5_000


class GroupMember:
    """One member. For one thread; close it, or the group waits for its session to expire."""

    def __init__(
        self, settings: ClientSettings, group: str, selection: Selection, *, from_beginning: bool
    ) -> None:
        self.group = group
        self.news: list[str] = []  # sentences, the oldest first; whoever has told them takes them away
        self._selection = selection
        self._from_beginning = from_beginning
        self._view = KafkaLogView(settings)
        self._timeout_ms = settings.default_api_timeout_ms
        self._subscribed: set[str] = set()
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._next_look_s = 0.0
        topics = self._find_topics()  # a wrong name or login is told before anything joins
        with _wrapping(group):
            self._consumer: Any = KafkaConsumer(**_translate(settings, group))
        try:
            self._subscribe(topics)
        except BaseException:
            self.close()
            raise

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """What this member had when `poll` last returned."""
        return self._assigned

    def poll(self, wait_ms: int, most: int | None = None) -> list[ConsumedRecord]:
        """What has come, at most so many, waiting at most so long; partitions one after the other."""
        if time.monotonic() >= self._next_look_s and isinstance(self._selection, SubscribePattern):
            self._subscribe(self._find_topics())
        if not self._subscribed:
            time.sleep(wait_ms / 1000)  # a pattern that matches nothing yet
            return []
        found: dict[ClientPartition, list[Any]] = {}
        with _wrapping(self.group):
            with self._placing():
                found = self._consumer.poll(
                    timeout_ms=wait_ms, max_records=min(_POLL_RECORDS, most or _POLL_RECORDS)
                )
            now = {TopicPartition(each.topic, each.partition) for each in self._consumer.assignment()}
            if now != self._assigned:
                for each in self._consumer.assignment():
                    # Resolved here and now, not with the first record.
                    with self._placing():
                        self._consumer.position(each, timeout_ms=self._timeout_ms)
                self._assigned = frozenset(now)
        return [
            ConsumedRecord(
                each.topic,
                each.partition,
                each.offset,
                each.timestamp,
                each.key,
                each.value,
                tuple(each.headers),
            )
            for records in found.values()
            for each in records
        ]

    def commit(self) -> bool:
        """Commit all that `poll` has returned; False when the group has moved on, and others will get it."""
        with _wrapping(self.group):
            try:
                self._consumer.commit(timeout_ms=self._timeout_ms)
            except (CommitFailedError, RebalanceInProgressError):
                return False
        return True

    def close(self) -> None:
        """Leave the group; what was not committed stays uncommitted."""
        with _wrapping(self.group):
            self._consumer.close(autocommit=False)

    def __enter__(self) -> GroupMember:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @contextmanager
    def _placing(self) -> Iterator[None]:
        """Go on where that is possible when the client does not know where. It raises only with empty hands:
        records that it has for other partitions come first."""
        try:
            yield
        except NoOffsetForPartitionError as error:
            self._place(dict.fromkeys(error.args[0]))
        except OffsetOutOfRangeError as error:
            self._place(error.args[0])
        except LogTruncationError as error:
            for each, place in error.divergent_offsets.items():
                self.news.append(
                    f"{each.topic}-{each.partition}: records were cut off the log after they were read."
                )
                self._place({each: None if place is None else place.offset})

    def _place(self, wanted: Mapping[ClientPartition, int | None]) -> None:
        """Seek these offsets, or what comes next to them in the log; None: nothing is committed."""
        names = {each: TopicPartition(each.topic, each.partition) for each in wanted}
        earliest, latest = self._view.earliest(names.values()), self._view.latest(names.values())
        for each, offset in wanted.items():
            begin, end = earliest[names[each]], latest[names[each]]
            start = begin if self._from_beginning else end
            if offset is not None and offset < begin:
                start = begin
                self.news.append(
                    f"{names[each]}: {begin - offset} offsets are gone, {offset} to {begin - 1}: they were "
                    f"deleted before group {self.group} had read them. Going on at {begin}."
                )
            elif offset is not None and offset > end:
                self.news.append(
                    f"{names[each]}: group {self.group} stood at {offset}, and the log ends at {end}: it was "
                    f"cut off, or made anew. Going on at {start}."
                )
            elif offset is not None:
                start = offset
            self._consumer.seek(each, start)

    def _find_topics(self) -> set[str]:
        self._next_look_s = time.monotonic() + _LOOK_FOR_TOPICS_S
        named = name_topics(self._selection)
        known = self._view.topics() if named is None else self._view.describe(named)
        return {each.topic for each in select_partitions(self._selection, known).partitions}

    def _subscribe(self, topics: set[str]) -> None:
        if topics != self._subscribed and topics:
            with _wrapping(self.group):
                self._consumer.subscribe(topics=sorted(topics))
                for topic in sorted(topics):
                    # The client may join before it has heard of the topic. It then gives out no partitions,
                    # and notices only when its metadata is minutes old.
                    self._consumer.partitions_for_topic(topic)
            self._subscribed = topics


def _translate(settings: ClientSettings, group: str) -> dict[str, Any]:
    """Our settings in kafka-python's names."""
    given: dict[str, Any] = {
        "bootstrap_servers": [
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            for host, port in settings.bootstrap_servers
        ],
        "client_id": settings.client_id,
        "client_rack": settings.client_rack,
        "group_id": group,
        "auto_offset_reset": "none",
        "enable_auto_commit": False,
        "isolation_level": settings.isolation_level,
        "check_crcs": settings.check_crcs,
        "allow_auto_create_topics": False,
        "security_protocol": settings.security_protocol,
        "request_timeout_ms": settings.request_timeout_ms,
        "retry_backoff_ms": settings.retry_backoff_ms,
        "metadata_max_age_ms": settings.metadata_max_age_ms,
        "fetch_min_bytes": settings.fetch_min_bytes,
        "fetch_max_wait_ms": settings.fetch_max_wait_ms,
        "fetch_max_bytes": settings.fetch_max_bytes,
        "max_partition_fetch_bytes": settings.max_partition_fetch_bytes,
        "max_poll_records": _POLL_RECORDS,
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
        raise BrokerError(
            "GROUP_MEMBER_FAILED",
            f"As a member of group {group}: {error}.",
            hint="Check that this user may read the group and the topic, and that the brokers are up.",
            facts={"group": group},
            retriable=bool(error.retriable),
        ) from error
