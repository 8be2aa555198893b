"""Offsets in one of Kafka's consumer groups, where every lag tool sees them.

Rule: the store's `group` is its namespace: a stream with that name is committed to it, any other stream to
`group/stream`. The commit's metadata keeps what an offset lacks: the topic's id (so that a recreated topic is
noticed), where the last batch began, and the last change by hand. A group promises less than other stores:
- `load` returns None both for a stream that was never seen and for one whose offsets have expired. `renew`
  keeps the offsets of a running stream; others are lost after `offsets.retention.minutes`.
- It keeps no position without partitions and no offsets of partitions that are gone. A partition that left
  the stream stays in the group.
- It keeps only the last change by hand, partition by partition.
- It has no compare-and-set: another program that commits meanwhile, or a late commit, can still move an
  offset back. Run one program per group.

    store = KafkaOffsetStore(client, group="visits")
    store.save_async("visits", position, lambda position, error: ...)
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote, unquote

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import BrokerError, OffsetStoreError, OptionError, PenstockError
from penstock.core.loggers import get_logger
from penstock.core.model import TopicPartition, is_another
from penstock.core.offsets.offset_store_contract import (
    Change,
    OffsetStore,
    SaveCallback,
    check_stream_name,
    refuse_going_back,
    refuse_moved,
)
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.streaming.log_changes import list_names
from penstock.kafka.groups.commit_renewal import find_retention_ms, renew_commits
from penstock.kafka.groups.committed_offsets import GroupCommit, commit_offsets, fetch_commits
from penstock.kafka.groups.group_overview import describe_group, list_groups
from penstock.kafka.metadata.routing import routing_for
from penstock.kafka.transport.deadlines import Deadline
from penstock.stores.offsets.commit_thread import CommitThread
from penstock.stores.offsets.renewal_schedule import RenewalSchedule

log = get_logger(__name__)

VERSION = 1
_LONGEST_WHO = 200  # a broker takes 4096 bytes of metadata

Commits = Mapping[TopicPartition, GroupCommit]


class KafkaOffsetStore(OffsetStore):
    """The offset store in a consumer group. `group` is required: no default name would suit every user."""

    is_async = True

    def __init__(
        self,
        client: ClientSettings,
        *,
        group: str,
        timeout_ms: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._group = client, _check_group(group)
        self._timeout_ms = client.default_api_timeout_ms if timeout_ms is None else timeout_ms
        self._turn = threading.Lock()  # one commit at a time, from any thread
        self._committed: dict[str, Commits] = {}
        self._queues: dict[str, CommitThread[StreamPosition]] = {}
        self._clock = clock
        self._renewals: dict[str, RenewalSchedule] = {}
        self._told_moved: dict[str, tuple[TopicPartition, ...]] = {}

    def __repr__(self) -> str:
        hosts = ",".join(f"{host}:{port}" for host, port in self._client.bootstrap_servers)
        return f"KafkaOffsetStore({hosts!r}, group={self._group!r})"

    def __str__(self) -> str:
        hosts = ",".join(f"{host}:{port}" for host, port in self._client.bootstrap_servers)
        return f"the group {self._group} at {hosts}"

    def name_group(self, stream: str) -> str:
        """Return the group that this stream is committed to."""
        check_stream_name(stream)
        return self._group if stream == self._group else f"{self._group}/{quote(stream, safe=' ')}"

    def load(self, stream: str) -> StreamPosition | None:
        return _read_position(self.name_group(stream), self._fetch(stream))

    def save(self, stream: str, position: StreamPosition, *, may_go_back: bool = False) -> None:
        group = self.name_group(stream)
        if may_go_back:
            self._drop_waiting(stream)
        with self._turn:
            committed = self._fetch(stream)
            if not may_go_back:
                refuse_going_back(stream, _read_position(group, committed), position)
            self._commit(stream, position, committed)

    def save_async(self, stream: str, position: StreamPosition, callback: SaveCallback | None = None) -> None:
        """Commit soon, in order, merged with waiting commits; `callback` gets this position and the error.

        A failed commit is counted, logged, and sent again with the next one, or at `flush` and `close`.
        """
        group = self.name_group(stream)
        if stream not in self._queues:
            self._queues[stream] = CommitThread(
                lambda merged: self._commit_in_order(stream, merged), group, merge_positions
            )
        self._queues[stream].offer(position, callback)

    def renew(self, stream: str, position: StreamPosition) -> None:
        """Repeat the last commit of a running stream if that is due, so that it does not expire.

        `position` is what the stream believes to be stored. A group that differs was moved by a person or by
        another program, and is left alone. A failure is logged and retried later.
        """
        renewal = self._renewal(stream)
        if not position.offsets or not renewal.is_due():
            return
        group = self.name_group(stream)
        with self._turn:
            last = self._committed.get(stream, {})
            ours = {
                each: last.get(each)
                or GroupCommit(
                    offset, position.leader_epochs.get(each), _write_metadata(each, position, None, None)
                )
                for each, offset in position.offsets.items()
            }
            try:
                moved = renew_commits(self._client, group, ours, timeout_ms=self._timeout_ms)
            except PenstockError as error:
                renewal.note_failure()
                log.warning("The offsets of group %s were not renewed, and may expire: %s", group, error)
                return
            renewal.note_renewal()
        if moved and moved != self._told_moved.get(stream):
            names = list_names(moved)
            log.warning("Group %s is not at its stream's position, and is left there: %s.", group, names)
        self._told_moved[stream] = moved

    def _renewal(self, stream: str) -> RenewalSchedule:
        if stream not in self._renewals:
            group = self.name_group(stream)
            self._renewals[stream] = RenewalSchedule(
                lambda: find_retention_ms(self._client, group, timeout_ms=self._timeout_ms), self._clock
            )
        return self._renewals[stream]

    @property
    def commits_done(self) -> int:
        return sum(queue.done for queue in self._queues.values())

    @property
    def commits_failed(self) -> int:
        return sum(queue.failed for queue in self._queues.values())

    def flush(self, timeout_s: float) -> bool:
        """Send waiting and failed commits; return False when something is still not committed."""
        deadline = time.monotonic() + timeout_s
        for queue in self._queues.values():
            queue.flush(max(0.0, deadline - time.monotonic()))
            queue.retry()
        for queue in self._queues.values():
            queue.flush(max(0.0, deadline - time.monotonic()))
        return all(queue.is_settled for queue in self._queues.values())

    def list_streams(self) -> list[str]:
        names = []
        for group in (each.name for each in list_groups(self._client)):
            if group == self._group:
                names.append(group)
            elif group.startswith(f"{self._group}/"):
                names.append(unquote(group.removeprefix(f"{self._group}/")))
        return sorted(name for name in names if self._fetch(name))

    def change(self, stream: str, change: Change) -> None:
        group = self.name_group(stream)
        self._drop_waiting(stream)
        with self._turn:
            committed = self._fetch(stream)
            refuse_moved(stream, _read_position(group, committed), change)
            self._commit(stream, change.after, committed, change)

    def check_change(self, stream: str, change: Change) -> None:
        super().check_change(stream, change)
        group = self.name_group(stream)
        try:
            members = describe_group(self._client, group).members
        except BrokerError as error:
            if error.condition != "GROUP_NOT_FOUND":
                raise
            return
        if members:
            raise BrokerError(
                "GROUP_HAS_MEMBERS",
                f"The group {group} has {len(members)} members, and accepts offsets from no one else while a "
                "consumer is in it.",
                hint="Stop the consumers of the group first (`penstock groups describe` names them).",
                facts={"group": group},
            )

    def list_changes(self, stream: str) -> list[Change]:
        """Return the last change of each partition; changes that were made together are one change."""
        group = self.name_group(stream)
        found: dict[tuple[int, str, str], tuple[dict[TopicPartition, int], dict[TopicPartition, int]]] = {}
        for each, commit in self._fetch(stream).items():
            note = _read_metadata(group, commit.metadata).get("changed")
            if isinstance(note, dict):
                key = (int(note["atMs"]), str(note["who"]), str(note["verb"]))
                before, after = found.setdefault(key, ({}, {}))
                after[each] = int(note["to"])
                if note.get("from") is not None:
                    before[each] = int(note["from"])
        return [
            Change(*key, StreamPosition(before) if before else None, StreamPosition(after))
            for key, (before, after) in sorted(found.items())
        ]

    def close(self) -> None:
        """Send the last commit, within the usual timeout: after a clean stop nothing is read twice."""
        limit_s = self._timeout_ms / 1000
        if not self.flush(limit_s):
            log.warning(
                "The last position was not committed to group %s in %g s; the last records are read again.",
                self._group,
                limit_s,
            )
        for queue in self._queues.values():
            queue.close()

    # --- the group ------------------------------------------------------------------------------------------

    def _drop_waiting(self, stream: str) -> None:
        if stream in self._queues:
            self._queues[stream].drop(self._timeout_ms / 1000)

    def _commit_in_order(self, stream: str, position: StreamPosition) -> None:
        with self._turn:
            group = self.name_group(stream)
            known: Commits
            if stream not in self._committed:
                known = self._fetch(stream)  # committed by an earlier program
                refuse_going_back(stream, _read_position(group, known), position)
            else:
                known = self._committed[stream]
                before = _read_position(group, known)
                position = position if before is None else merge_positions(before, position)
            self._commit(stream, position, known)

    def _commit(
        self, stream: str, position: StreamPosition, committed: Commits, change: Change | None = None
    ) -> None:
        texts = {
            each: _write_metadata(each, position, committed.get(each), change) for each in position.offsets
        }
        commit_offsets(
            self._client,
            self.name_group(stream),
            position.offsets,
            timeout_ms=self._timeout_ms,
            metadata=texts,
            leader_epochs=position.leader_epochs,
        )
        self._renewal(stream).note_commit()
        self._committed[stream] = {
            **committed,
            **{
                each: GroupCommit(offset, position.leader_epochs.get(each), texts[each])
                for each, offset in position.offsets.items()
            },
        }

    def _fetch(self, stream: str) -> dict[TopicPartition, GroupCommit]:
        deadline = Deadline.after_ms(self._timeout_ms, "default.api.timeout.ms")
        found = fetch_commits(routing_for(self._client), self.name_group(stream), None, deadline)
        return {each: commit for each, commit in sorted(found.items()) if commit is not None}


def merge_positions(older: StreamPosition, newer: StreamPosition) -> StreamPosition:
    """Return the newer position, with no offset before the older one's unless the topic was recreated."""
    ahead = {
        each: older.offsets[each]
        for each, offset in newer.offsets.items()
        if older.offsets.get(each, 0) > offset
        and not is_another(older.topic_ids.get(each.topic), newer.topic_ids.get(each.topic))
    }
    epochs = {
        **{each: epoch for each, epoch in newer.leader_epochs.items() if each not in ahead},
        **{each: older.leader_epochs[each] for each in ahead if each in older.leader_epochs},
    }
    return replace(newer, offsets={**newer.offsets, **ahead}, leader_epochs=epochs)


def _check_group(group: str) -> str:
    if group and group.isprintable() and group == group.strip() and "/" not in group and len(group) <= 200:
        return group
    raise OptionError(
        "GROUP_NAME_INVALID",
        f"Offsets cannot be kept in a group named {group!r}.",
        hint="Name the consumer group: 1 to 200 printable characters without a slash, which separates the "
        "group from the names of further streams.",
        facts={"group": group},
    )


# --- metadata ---------------------------------------------------------------------------------------


def _write_metadata(
    each: TopicPartition, position: StreamPosition, before: GroupCommit | None, change: Change | None
) -> str:
    written: dict[str, Any] = {"penstock": VERSION}
    if each.topic in position.topic_ids:
        written["topicId"] = position.topic_ids[each.topic].hex()
    if each in position.starts:
        written["start"] = position.starts[each]
    if change is not None:
        then = None if change.before is None else change.before.offsets.get(each)
        written["changed"] = {
            **{"atMs": change.at_ms, "who": change.who[:_LONGEST_WHO], "verb": change.verb},
            **{"from": then, "to": position.offsets[each]},
        }
    elif before is not None:
        noted = _parse(before.metadata).get("changed")
        if noted is not None:
            # The stream goes on, and the last change by hand is kept.
            written["changed"] = noted
    return json.dumps(written, separators=(",", ":"))


def _parse(metadata: str) -> dict[str, Any]:
    """Return our own metadata, or {} for another program's commit, of which only the offset is used."""
    try:
        stored = json.loads(metadata) if metadata else None
    except ValueError:
        return {}
    return stored if isinstance(stored, dict) and isinstance(stored.get("penstock"), int) else {}


def _read_metadata(group: str, metadata: str) -> dict[str, Any]:
    stored = _parse(metadata)
    if stored.get("penstock", VERSION) > VERSION:
        raise OffsetStoreError(
            "OFFSETS_TOO_NEW",
            f"The offsets of group {group} have version {stored['penstock']}; this Penstock reads up to "
            f"{VERSION}.",
            hint="Run the stream with the Penstock that wrote it, or a newer one.",
            facts={"group": group, "version": stored["penstock"], "known": VERSION},
        )
    return stored


def _read_position(group: str, committed: Commits) -> StreamPosition | None:
    if not committed:
        return None
    ids: dict[str, bytes] = {}
    starts: dict[TopicPartition, int] = {}
    for each, commit in committed.items():
        stored = _read_metadata(group, commit.metadata)
        if "topicId" in stored:
            ids[each.topic] = bytes.fromhex(stored["topicId"])
        if "start" in stored:
            starts[each] = int(stored["start"])
    return StreamPosition(
        {each: commit.offset for each, commit in committed.items()},
        ids,
        {each: commit.leader_epoch for each, commit in committed.items() if commit.leader_epoch is not None},
        starts,
    )
