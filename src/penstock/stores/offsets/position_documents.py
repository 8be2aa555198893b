"""A position, or a change to one, as text that can be kept anywhere: versioned, and bound to its stream.

Rule: a text of a newer version is refused, and so is one that belongs to another stream. A copy under another
name would let two streams begin at the same position.

    text = write_document("visits", position)
    read_document("offsets/visits.json", "visits", text)
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from penstock.core.errors import OffsetStoreError
from penstock.core.offsets.offset_store_contract import Change, check_stream_name, read_change, write_change
from penstock.core.offsets.stream_position import StreamPosition, read_position, write_position

VERSION = 1


def write_document(stream: str, position: StreamPosition) -> str:
    return json.dumps({"version": VERSION, "stream": stream, "position": write_position(position)})


def read_document(where: str, stream: str, text: str) -> StreamPosition:
    """Return the position in the text; `where` is its place, for errors."""
    stored = _parse(where, text)
    if stored.get("stream") != stream:
        raise damaged(where, f"it belongs to the stream {stored.get('stream')!r}")
    return read_position(stored.get("position"))


def read_stream_name(where: str, text: str) -> str:
    """Return the name of the stream whose position the text holds."""
    name = _parse(where, text).get("stream")
    if not isinstance(name, str):
        raise damaged(where, "it names no stream")
    return name


def write_change_document(change: Change) -> str:
    return json.dumps({"version": VERSION, **write_change(change)})


def read_change_document(where: str, text: str) -> Change:
    try:
        return read_change(_parse(where, text))
    except (KeyError, TypeError, ValueError):
        raise damaged(where, "it is not a change of offsets") from None


def write_name(stream: str) -> str:
    """Return the stream's name as one plain word without dots, so that it leads to no other folder."""
    return quote(check_stream_name(stream), safe="").replace(".", "%2E")


def damaged(where: str, why: str) -> OffsetStoreError:
    return OffsetStoreError(
        "OFFSETS_DAMAGED",
        f"{where} cannot be trusted: {why}.",
        hint="Restore it from a backup, or remove it and say where the stream starts.",
        facts={"where": where, "reason": why},
    )


def _parse(where: str, text: str) -> dict[str, Any]:
    try:
        stored = json.loads(text)
    except ValueError:
        raise damaged(where, "it is not JSON") from None
    version = stored.get("version") if isinstance(stored, dict) else None
    if (
        not isinstance(stored, dict)
        or not isinstance(version, int)
        or isinstance(version, bool)
        or version < 1
    ):
        raise damaged(where, "it holds no offsets")
    if version > VERSION:
        raise OffsetStoreError(
            "OFFSETS_TOO_NEW",
            f"{where} has version {version}; this Penstock reads up to {VERSION}.",
            hint="Run the stream with the Penstock that wrote it, or a newer one.",
            facts={"where": where, "version": version, "known": VERSION},
        )
    return stored
