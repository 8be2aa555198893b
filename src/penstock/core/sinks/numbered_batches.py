"""Decides whether a batch that an engine numbers itself and may repeat is written already, or is the next.

Rule: the results must end with the batch before, at the offsets that the checkpoint has for it. Spark numbers
the batches of a query without gaps and calls its sink for each one, even for those without new data, and
after a restart for the last one again. So an older ledger has lost results, whatever its offsets say, and the
rows of the batches between will not be read again.

>>> is_written({}, "s", "query", 0, StreamPosition({}), StreamPosition({}))
False
"""

from __future__ import annotations

from penstock.core.errors import OffsetStoreError
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.sinks.ledger_positions import find_ledger_position
from penstock.core.sinks.ledger_rules import Ledger, describe_missing, explain_went_back, list_missing


def name_numbered_batch(query: str, batch_id: int) -> str:
    """Return the name of a query's batch in the ledger."""
    return f"{query}/{batch_id}"


def is_next(ledger: Ledger, query: str, batch_id: int) -> bool:
    """Return whether the results end with the batch before this one."""
    last = next(iter(ledger.values())).batch if ledger else None
    return last == (name_numbered_batch(query, batch_id - 1) if batch_id else None)


def is_written(
    ledger: Ledger, stream: str, query: str, batch_id: int, before: StreamPosition, end: StreamPosition
) -> bool:
    """Return whether this batch is in the results already; raise if it is neither there nor the next one."""
    position = find_ledger_position(ledger)
    if position is None:
        if before.offsets or before.gone:
            raise _explain_empty(stream, batch_id, before)
        return False  # without a partition nothing could be written
    known, _, number = next(iter(ledger.values())).batch.rpartition("/")
    if known != query:
        raise _explain_replaced(stream, known, query)
    last = int(number)
    if last == batch_id and _is_at(position, end):
        return True
    if last >= batch_id:
        raise _explain_behind(stream, last, batch_id)
    if last < batch_id - 1:
        raise _explain_lost(stream, last, batch_id, position, before)
    if not _is_at(position, before):
        raise _explain_moved(stream, last)
    return False


def _is_at(position: StreamPosition, other: StreamPosition) -> bool:
    return (position.offsets, position.gone) == (other.offsets, other.gone)


# --- errors -----------------------------------------------------------------------------------------------


def _explain_lost(
    stream: str, last: int, batch_id: int, position: StreamPosition, before: StreamPosition
) -> OffsetStoreError:
    missing = list_missing(position.stands, before.stands)
    first, until = last + 1, batch_id - 1
    lost = f"batch {first}" if first == until else f"the batches {first} to {until}"
    return explain_went_back(
        stream,
        f"{lost} of its query (it ends with batch {last}, and the query is at batch {batch_id}; unless a "
        "function around the sink has left them out, which it must not)",
        missing,
        is_named=True,
        facts={"known": last, "batch": batch_id, "batches": until - last},
    )


def _explain_replaced(stream: str, known: str, query: str) -> OffsetStoreError:
    return OffsetStoreError(
        "CHECKPOINT_REPLACED",
        f"The results of the stream {stream} are of {f'query {known}' if known else 'another engine'}; this "
        f"is query {query}, which has a checkpoint of its own.",
        hint="Start the query with the checkpoint it had. If that is lost, give the stream another name, and "
        "decide whether to keep the results that are there.",
        facts={"stream": stream, "known": known, "query": query},
    )


def _explain_empty(stream: str, batch_id: int, before: StreamPosition) -> OffsetStoreError:
    missing = list_missing({}, before.stands)
    return OffsetStoreError(
        "LEDGER_EMPTY",
        f"The query is at batch {batch_id}, and the ledger has nothing of the stream {stream}: the results "
        f"of all earlier batches are not in this database; {describe_missing(missing)}.",
        hint="Use the database and the stream name that the query had, or start it with a new checkpoint.",
        facts={"stream": stream, "batch": batch_id},
    )


def _explain_behind(stream: str, known: int, batch_id: int) -> OffsetStoreError:
    return OffsetStoreError(
        "CHECKPOINT_WENT_BACK",
        f"The results of the stream {stream} go up to batch {known}; the checkpoint runs batch {batch_id} "
        "with other offsets.",
        hint="The checkpoint was restored to an earlier state: restore the newest one.",
        facts={"stream": stream, "known": known, "batch": batch_id},
    )


def _explain_moved(stream: str, last: int) -> OffsetStoreError:
    return OffsetStoreError(
        "CHECKPOINT_MOVED",
        f"The checkpoint has other offsets for the end of batch {last} than the results of the stream "
        f"{stream}, which end with that batch.",
        hint="The checkpoint was changed by hand (`penstock offsets`). Change it back, or let the query "
        "write to new tables under another stream name.",
        facts={"stream": stream, "batch": last},
    )
