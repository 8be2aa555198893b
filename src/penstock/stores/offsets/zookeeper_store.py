"""Offsets in ZooKeeper, one node per stream.

Rules: all partitions of a stream are in one node, so a position is replaced whole or not at all. It is
replaced only if the node still has the version that was read, so the second of two writers compares again.
The usual layout, one node per partition, does neither: a crash leaves some partitions ahead of others.
Everything is below this application's own folder (`prefix`): ZooKeeper is shared, and without a folder the
nodes would be scattered.

A call waits out a broken connection for up to `timeout_ms`. A write whose answer was lost is checked, never
repeated blindly. A write that was reported as failed may still happen when the connection comes back, but
only if no other write has come since.

    store = ZooKeeperOffsetStore("zk1:2181,zk2:2181", prefix="/penstock/shop")
    store.save("visits", position)      # /penstock/shop/offsets/visits
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import unquote

from penstock.core.errors import OffsetStoreError, OptionError, PenstockError, VersionError
from penstock.core.offsets.offset_store_contract import Change, OffsetStore, refuse_going_back, refuse_moved
from penstock.core.offsets.stream_position import StreamPosition
from penstock.stores.offsets.position_documents import (
    damaged,
    read_change_document,
    read_document,
    write_change_document,
    write_document,
    write_name,
)

#: How long one call may take in all, including reconnections.
TIMEOUT_MS = 30_000
#: After this long without a message from us, the server ends the session. Nothing is lost with it.
SESSION_TIMEOUT_S = 10.0
#: A server drops the connection of a client that sends more than a MiB (`jute.maxbuffer`).
LARGEST_NODE_BYTES = 1_000_000
_PAUSE_S = 0.1

_Result = TypeVar("_Result")


class ZooKeeperOffsetStore(OffsetStore):
    """The offset store in ZooKeeper. It keeps one connection, from the first call to `close`. Without
    `create`, a missing prefix is an error."""

    def __init__(self, hosts: str, *, prefix: str, timeout_ms: int = TIMEOUT_MS, create: bool = True) -> None:
        self._hosts, self._prefix, self._timeout_ms = hosts, check_prefix(prefix), timeout_ms
        self._errors, client_kind = _import_kazoo()
        self._client = client_kind(hosts=hosts, timeout=SESSION_TIMEOUT_S)
        try:
            self._connect()
            if create:
                self._run(lambda ask: ask(self._client.ensure_path_async, f"{self._prefix}/offsets"))
            elif not self._run(lambda ask: ask(self._client.exists_async, f"{self._prefix}/offsets")):
                raise _not_found(self._place)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"ZooKeeperOffsetStore({self._hosts!r}, prefix={self._prefix!r})"

    def __str__(self) -> str:
        return f"ZooKeeper at {self._hosts}{self._prefix}"

    def load(self, stream: str) -> StreamPosition | None:
        node = self._node(stream)
        return self._run(lambda ask: self._read(ask, node, stream)[0])

    def save(self, stream: str, position: StreamPosition, *, may_go_back: bool = False) -> None:
        node, data = self._node(stream), _encode(stream, write_document(stream, position))

        def save(ask: _Ask) -> bool:
            stored, version = self._read(ask, node, stream)
            if stored == position:
                return True
            if not may_go_back:
                refuse_going_back(stream, stored, position)
            return self._write(ask, node, data, version)

        self._run_until_made(save)

    def list_streams(self) -> list[str]:
        found = self._run(lambda ask: ask(self._client.get_children_async, f"{self._prefix}/offsets"))
        return sorted(map(unquote, found))

    def change(self, stream: str, change: Change) -> None:
        node, folder = self._node(stream), self._changes(stream)
        data = _encode(stream, write_document(stream, change.after))
        note = _encode(stream, write_change_document(change))
        was_tried = False

        def make(ask: _Ask) -> bool:
            nonlocal was_tried
            stored, version = self._read(ask, node, stream)
            if was_tried and stored == change.after:
                return True  # created by a try whose answer was lost
            refuse_moved(stream, stored, change)
            ask(self._client.ensure_path_async, folder)
            was_tried = True
            return self._write(ask, node, data, version, note=(f"{folder}/change-", note))

        self._run_until_made(make)

    def list_changes(self, stream: str) -> list[Change]:
        folder = self._changes(stream)

        def read(ask: _Ask) -> list[Change]:
            try:
                names = sorted(ask(self._client.get_children_async, folder))
            except self._errors.NoNodeError:
                return []
            nodes = [f"{folder}/{name}" for name in names]
            return [
                read_change_document(node, _decode(node, ask(self._client.get_async, node)[0]))
                for node in nodes
            ]

        return self._run(read)

    def close(self) -> None:
        self._client.stop()
        self._client.close()

    # --- one call -----------------------------------------------------------------------------------------

    @property
    def _place(self) -> str:
        return f"zookeeper://{self._hosts}{self._prefix}"

    def _node(self, stream: str) -> str:
        return f"{self._prefix}/offsets/{write_name(stream)}"

    def _changes(self, stream: str) -> str:
        return f"{self._prefix}/changes/{write_name(stream)}"

    def _connect(self) -> None:
        try:
            self._client.start(timeout=self._timeout_ms / 1000)
        except self._client.handler.timeout_exception as error:
            raise _unreachable(self._place, self._timeout_ms) from error

    def _read(self, ask: _Ask, node: str, stream: str) -> tuple[StreamPosition | None, int | None]:
        """Return the position and the node's version; None, None where there is no node."""
        try:
            data, state = ask(self._client.get_async, node)
        except self._errors.NoNodeError:
            return None, None
        return read_document(node, stream, _decode(node, data)), int(state.version)

    def _write(
        self, ask: _Ask, node: str, data: bytes, version: int | None, note: tuple[str, bytes] | None = None
    ) -> bool:
        """Write all of it or nothing; return False when another program has written in between."""
        transaction = self._client.transaction()
        if version is None:
            transaction.create(node, data)
        else:
            transaction.set_data(node, data, version=version)
        if note is not None:
            transaction.create(*note, sequence=True)
        errors = self._errors
        overtaken = errors.BadVersionError | errors.NodeExistsError | errors.NoNodeError
        # The other operations of a refused transaction get these.
        undone = errors.RolledBackError | errors.RuntimeInconsistency
        refused = [each for each in ask(transaction.commit_async) if isinstance(each, Exception)]
        for error in refused:
            if version is None and isinstance(error, errors.NoNodeError):
                raise _not_found(self._place)  # the folder was removed in the meantime
            if not isinstance(error, overtaken | undone):
                raise error
        return not refused

    def _run_until_made(self, attempt: Callable[[_Ask], bool]) -> None:
        def make(ask: _Ask) -> None:
            # A failure means that another program has made progress. `ask` ends the loop at the deadline.
            while not attempt(ask):
                pass

        self._run(make)

    def _run(self, work: Callable[[_Ask], _Result]) -> _Result:
        """Do `work` and return its result. If the connection breaks, start again, until the deadline."""
        deadline = time.monotonic() + self._timeout_ms / 1000

        def ask(question: Callable[..., Any], *arguments: Any) -> Any:
            return question(*arguments).get(timeout=max(0.001, deadline - time.monotonic()))

        while True:
            try:
                return work(ask)
            except PenstockError:
                raise
            except (self._errors.ConnectionLoss, self._errors.SessionExpiredError) as error:
                if time.monotonic() + _PAUSE_S >= deadline:
                    raise _unreachable(self._place, self._timeout_ms) from error
            except self._client.handler.timeout_exception as error:
                raise _unreachable(self._place, self._timeout_ms) from error
            except self._errors.KazooException as error:
                raise _failed(self._place, error) from error
            # Wait for a connection. Only another question shows whether there is one.
            time.sleep(_PAUSE_S)


_Ask = Callable[..., Any]


def check_prefix(prefix: str) -> str:
    """Return our folder if it is an absolute path, not the root, without empty parts; refuse it otherwise."""
    parts = prefix.removesuffix("/").split("/")
    is_whole = prefix.isprintable() and len(parts) > 1 and parts[0] == ""
    if is_whole and all(part.strip() == part and part not in ("", ".", "..") for part in parts[1:]):
        return "/".join(parts)
    raise OptionError(
        "PREFIX_INVALID",
        f"{prefix!r} is not a ZooKeeper folder that can keep offsets.",
        hint="Name a folder that only this application uses, such as /penstock/shop: ZooKeeper is shared.",
        facts={"prefix": prefix},
    )


def _import_kazoo() -> tuple[Any, Any]:
    try:
        from kazoo import exceptions
        from kazoo.client import KazooClient
    except ImportError as error:
        raise VersionError(
            "DRIVER_MISSING",
            "ZooKeeper cannot be reached without kazoo, which is not installed here.",
            hint="Install it where the stream's driver runs: pip install 'penstock[zookeeper]'.",
            facts={"driver": "kazoo"},
        ) from error
    return exceptions, KazooClient


def _encode(stream: str, text: str) -> bytes:
    data = text.encode()
    if len(data) > LARGEST_NODE_BYTES:
        raise OffsetStoreError(
            "OFFSETS_TOO_BIG",
            f"The position of stream {stream} takes {len(data)} bytes; a ZooKeeper node holds "
            f"{LARGEST_NODE_BYTES}.",
            hint="Read fewer partitions in one stream, or keep its offsets in a SQL database.",
            facts={"stream": stream, "bytes": len(data), "limit": LARGEST_NODE_BYTES},
        )
    return data


def _decode(node: str, data: bytes) -> str:
    with contextlib.suppress(UnicodeDecodeError):
        return data.decode()
    raise damaged(node, "it is not text")


def _unreachable(place: str, timeout_ms: int) -> OffsetStoreError:
    return OffsetStoreError(
        "ZOOKEEPER_UNREACHABLE",
        f"{place} did not answer within {timeout_ms} ms.",
        hint="Check hosts, ports and network, and that a majority of its servers is running.",
        facts={"place": place, "timeout_ms": timeout_ms},
        retriable=True,
    )


def _not_found(place: str) -> OffsetStoreError:
    return OffsetStoreError(
        "OFFSETS_NOT_FOUND",
        f"There is no folder for offsets at {place}.",
        hint="Check the hosts and the prefix: they must be those that the stream names as its store.",
        facts={"place": place},
    )


def _failed(place: str, error: Exception) -> OffsetStoreError:
    # Most errors of the client have no text, only a type: NoAuthError becomes "no auth".
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__.removesuffix("Error")).lower()
    said = str(error) or kind
    return OffsetStoreError(
        "ZOOKEEPER_FAILED",
        f"{place} failed: {said}.",
        hint="If it refuses access, check the rights (ACL) of the folder; otherwise see the server's log.",
        facts={"place": place, "error": type(error).__name__},
    )
