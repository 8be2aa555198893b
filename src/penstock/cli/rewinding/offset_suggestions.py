"""Suggests another place, when the named one has no offsets of the stream but one beside it does.

Rule: a suggestion is looked up, never guessed; where nothing is found, none is made.
"""

from __future__ import annotations

from penstock.core.errors import OffsetStoreError
from penstock.core.offsets.offset_store_contract import OffsetStore


def suggest_place(store: OffsetStore, stream: str | None = None) -> str:
    """Return a sentence that names the sink whose offsets were probably meant; "" if there is none."""
    from penstock.stores.offsets.file_store import FileOffsetStore
    from penstock.stores.offsets.sql_store import SqlOffsetStore

    if isinstance(store, SqlOffsetStore) and has_results(store, stream):
        return f"A sink keeps offsets there with its results: say sink:{store.place}."
    if isinstance(store, FileOffsetStore) and (inner := store.find_inner()) is not None:
        return f"It is the folder of a file sink, whose offsets are in {inner}."
    return ""


def has_results(store: OffsetStore, stream: str | None) -> bool:
    """Return whether a sink in the same database has results, of this stream or of any."""
    from penstock.stores.offsets.sink_ledger_store import SinkOffsetStore
    from penstock.stores.offsets.sql_store import SqlOffsetStore

    if not isinstance(store, SqlOffsetStore):
        return False
    try:
        sink = SinkOffsetStore(store.place)
        return bool(sink.list_streams()) if stream is None else sink.load(stream) is not None
    except OffsetStoreError as error:
        if error.condition != "OFFSETS_NOT_FOUND":
            raise
        return False
