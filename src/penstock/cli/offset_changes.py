"""Making the change that `penstock offsets` has planned, or only showing it.

Rule: nothing is changed without --yes, nor while the stream moves; and a store takes the change only where
the stream still stands where the plan begins.
"""

from __future__ import annotations

import argparse
import getpass
import os
import socket
import time
from typing import TYPE_CHECKING

from penstock.cli.offset_reports import plan_to_json, say_json, say_plan
from penstock.core.errors import OffsetStoreError, OptionError
from penstock.core.offset_stores import Change, OffsetStore
from penstock.core.rewinds import MovePlan
from penstock.core.stream_offsets import StreamPosition

if TYPE_CHECKING:
    from penstock.stores.offsets.sql import SqlOffsetStore


def settle(arguments: argparse.Namespace, store: OffsetStore, stream: str, plan: MovePlan) -> int:
    """Show the plan; with --yes, and if the stream stands still, do it."""
    notes = [*plan.notes, *_warn(store, stream)]
    is_wanted = getattr(arguments, "yes", False) and not plan.changes_nothing
    if is_wanted:
        _demand_stillness(store, stream, plan.before, arguments.watch)
        who = f"{_find_user()}@{socket.gethostname()}"
        now_ms = time.time_ns() // 1_000_000
        _apply(arguments, store, stream, Change(now_ms, who, arguments.verb, plan.before, plan.after))
    if arguments.json:
        head = {"verb": arguments.verb, "store": repr(store), "stream": stream, "applied": is_wanted}
        say_json(**head, notes=notes, **plan_to_json(plan))
    else:
        say_plan(arguments.verb, store, stream, plan, notes, is_wanted)
    return 0


def _apply(arguments: argparse.Namespace, store: OffsetStore, stream: str, change: Change) -> None:
    from penstock.stores.offsets.ledger import SinkOffsetStore

    tables = getattr(arguments, "delete_from", None)
    if not tables:
        store.change(stream, change)
    elif isinstance(store, SinkOffsetStore):
        store.change(stream, change, delete_from=tables)
    else:
        raise OptionError(
            "NO_RESULTS_HERE",
            f"{store!r} keeps no results, so none can be deleted there.",
            hint="--delete-from is for the ledger of a SQL sink: --at sink:DATABASE.",
        )


def _warn(store: OffsetStore, stream: str) -> list[str]:
    from penstock.stores.offsets.checkpoint import CheckpointOffsetStore
    from penstock.stores.offsets.ledger import SinkOffsetStore
    from penstock.stores.offsets.sql import SqlOffsetStore

    if isinstance(store, SqlOffsetStore) and _has_results(store, stream):
        return [f"A sink here has results of {stream}, and they decide where it starts: move sink:."]
    if isinstance(store, SinkOffsetStore):
        return ["Rows that were written stay, unless --delete-from names their table; a writer is fenced."]
    if not isinstance(store, CheckpointOffsetStore):
        return []
    warnings = [
        f"Batch {each} was planned and is not done; it is planned anew." for each in store.list_planned()
    ]
    if store.keeps_state:
        warnings.append("The query keeps state, which stays as it is: rows that are read again count again.")
    return warnings


def _has_results(store: SqlOffsetStore, stream: str) -> bool:
    from penstock.stores.offsets.ledger import SinkOffsetStore

    try:
        return SinkOffsetStore(store.place).load(stream) is not None
    except OffsetStoreError as error:
        if error.condition != "OFFSETS_NOT_FOUND":
            raise
        return False


def _demand_stillness(
    store: OffsetStore, stream: str, position: StreamPosition | None, watch_s: float
) -> None:
    time.sleep(watch_s)
    if store.load(stream) != position:
        raise OffsetStoreError(
            "STREAM_IS_RUNNING",
            f"The stream {stream} has moved while it was looked at; nothing was changed.",
            hint="Stop it first: it keeps its position in memory and would write over yours.",
            facts={"stream": stream},
        )


def _find_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"  # one without a name, as in many containers
