"""Makes the change that `penstock offsets` has planned, or only shows it.

Rule: nothing is changed without --yes, nor while the stream moves; and a store accepts the change only if the
stream is still where the plan begins. Without --yes the same checks are made, including whether the stream
moves, so what is shown is what would happen.
"""

from __future__ import annotations

import argparse
import getpass
import os
import socket
import time
from dataclasses import replace

from penstock.cli.rewinding.offset_reports import plan_to_json, say_json, say_plan
from penstock.core.errors import OffsetStoreError, OptionError, PenstockError
from penstock.core.offsets.offset_store_contract import Change, Moved, OffsetStore, RowRequest
from penstock.core.offsets.rewinds import LogBounds, RewindPlan
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.prose import shorten


def show_and_apply(
    arguments: argparse.Namespace,
    store: OffsetStore,
    stream: str,
    plan: RewindPlan,
    log: LogBounds | None = None,
) -> int:
    """Show the plan and, with --yes and if the stream does not move, carry it out; return the exit code.

    Without --yes the same cases are refused. Where no offset moves, rows may still be changed.
    """
    rows = ask_rows(arguments, store)
    moved = Moved({}, is_empty=plan.changes_nothing and not rows.is_asked)
    is_wanted = getattr(arguments, "yes", False) and not moved.is_empty
    who = f"{_find_user()}@{socket.gethostname()}"
    change = Change(time.time_ns() // 1_000_000, who, arguments.verb, plan.before, plan.after)
    warnings = [*store.list_warnings(stream), *_warn_of_folders(store, stream, plan)]
    if not moved.is_empty and arguments.verb != "plan":  # `plan` is never carried out, and need not wait
        _demand_stillness(store, stream, plan.before, arguments.watch)
    if not moved.is_empty:
        rows = replace(rows, ends={} if log is None else log.latest)
        moved = _apply(store, stream, change, rows, is_wanted)
    is_done = is_wanted and not moved.is_empty
    notes = [*plan.notes, *(() if moved.is_empty else warnings), *moved.notes]
    if arguments.json:
        head = {"verb": arguments.verb, "store": str(store), "stream": stream, "applied": is_done}
        say_json(**head, notes=notes, deletes=moved.deleted, **plan_to_json(plan))
    else:
        say_plan(arguments.verb, store, stream, plan, notes, is_done, moved.is_empty)
    return 0


def ask_rows(arguments: argparse.Namespace, store: OffsetStore) -> RowRequest:
    """Return what the options request for the rows of a sink; raise an error if the store has no rows."""
    asked = RowRequest(
        delete_from=tuple(getattr(arguments, "delete_from", None) or ()),
        rebuild=tuple(getattr(arguments, "rebuild", None) or ()),
        may_count_twice=getattr(arguments, "sums_count_twice", False),
    )
    if asked.is_asked and not store.keeps_results:
        raise OptionError(
            "NO_RESULTS_HERE",
            f"No results are kept in {store}, so none can be deleted there.",
            hint="--delete-from, --rebuild and --sums-count-twice are for the ledger of a SQL sink: --at "
            "sink:DATABASE.",
        )
    return asked


def _apply(store: OffsetStore, stream: str, change: Change, rows: RowRequest, is_wanted: bool) -> Moved:
    """Make the change, or only check whether it could be made; return what that does."""
    try:
        return (store.move if is_wanted else store.preview)(stream, change, rows)
    except PenstockError as error:
        if change.verb != "plan":
            raise
        return Moved({}, (f"As it is, the move would be refused. {error}",))


def _warn_of_folders(store: OffsetStore, stream: str, plan: RewindPlan) -> list[str]:
    """Return a warning if a file sink has batches beyond the new position.

    A position inside a batch is an error: a batch is kept whole or not at all.
    """
    from penstock.core.sinks.file_batches import choose_dropped, list_logs
    from penstock.engines.sinks.file_sink import list_batches

    sink = store.find_file_sink()
    if sink is None:
        return []
    logs = list_logs(store.list_changes(stream))
    beyond = sorted(choose_dropped(list_batches(sink, stream), plan.after, logs))
    if not beyond:
        return []
    batches = "1 batch" if len(beyond) == 1 else f"{len(beyond)} batches"
    named = shorten([each.name for each in beyond], 5)
    return [
        f"What is read again includes {batches} of the file sink {sink}: {named}. Remove these folders "
        "before the stream starts, or it refuses to (FOLDERS_AHEAD): their rows would be there twice. Or "
        "leave all as it is and start the stream with `seek`, which removes them."
    ]


def _demand_stillness(
    store: OffsetStore, stream: str, position: StreamPosition | None, watch_s: float
) -> None:
    time.sleep(watch_s)
    if store.load(stream) != position:
        raise OffsetStoreError(
            "STREAM_IS_RUNNING",
            f"The stream {stream} has moved while it was looked at; nothing was changed.",
            hint="Stop it first: it keeps its position in memory and would overwrite yours.",
            facts={"stream": stream},
        )


def _find_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"  # a user without a name, as in many containers
