"""Explains to the user what a move by hand means for a sink's tables: why it is refused, or what it causes.

Rule: never suggest a way out that would be refused. A table with records of a topic that was recreated, or
replaced by an adopted one, cannot be rebuilt. That an adopted topic holds the same records is reported as a
claim.

    raise explain_sums("visits", books, ranges, changes, repeated, ())
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.core.audit.audit_report import NotedRange, TableBook
from penstock.core.audit.replaced_logs import find_adoption, list_adopted
from penstock.core.audit.tables_after_rewinds import (
    ADDING,
    Rebuild,
    describe_adoption,
    describe_ranges,
    intersect_ranges,
    list_held,
    plan_rebuild,
    unite_ranges,
)
from penstock.core.errors import OptionError
from penstock.core.model import OffsetRange, TopicPartition
from penstock.core.offsets.offset_store_contract import Change
from penstock.core.prose import shorten

#: Partitions that a sentence lists by name.
_SHOWN = 5


def describe_kept(book: TableBook, repeated: Sequence[OffsetRange], deleted: Sequence[str]) -> list[str]:
    """Return what to say about a table that keeps its rows."""
    if book.mode in ADDING:
        return [
            f"{book.name} ({book.mode}) counts {describe_ranges(repeated)} twice from now on, as you asked."
        ]
    if book.mode == "upsert":
        return [
            f"{book.name} (upsert): rows of records that are read again are replaced again, by older "
            "ones first. Once the stream has caught up, they are as before, if the program is the same."
        ]
    if book.name in deleted:
        return []
    return [
        f"{book.name} keeps its rows: those of {describe_ranges(repeated)} will be there twice, unless "
        + ("--delete-from" if book.keeps_provenance else "--rebuild")
        + " names it."
    ]


def _name_target(starts: Mapping[TopicPartition, int]) -> str:
    """Return the options that move to where tables began. A log may begin earlier, if the stream started in
    the middle of it."""
    if not any(starts.values()) or len(starts) > _SHOWN:
        return "--to-start"
    return name_offsets(starts)


def name_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    """Return the options that name these offsets."""
    return " ".join(f"--offset {each}={offset}" for each, offset in sorted(offsets.items())[:_SHOWN])


def describe_doubt(
    held: Sequence[NotedRange], changes: Sequence[Change], repeated: Sequence[OffsetRange]
) -> list[str]:
    """Return who claimed that the records to be read again are the same that the table holds."""
    doubtful = intersect_ranges(unite_ranges(list_adopted(held, changes)), repeated)
    adopted = ((topic, find_adoption(topic, changes)) for topic in sorted({each.topic for each in doubtful}))
    return [
        f"They are the same records if that was right: {describe_adoption(topic, change)}. "
        "If it holds others, none of them counts twice."
        for topic, change in adopted
        if change is not None
    ]


def explain_sums(
    stream: str,
    sums: Sequence[TableBook],
    ranges: Sequence[NotedRange],
    changes: Sequence[Change],
    repeated: Mapping[str, Sequence[OffsetRange]],
    deleted: Sequence[str],
    stands: str = "",
) -> OptionError:
    """Return the error that says why the move is refused and which alternatives there are.

    `stands` has the options that name the stream's current position, if it was moved there already.
    """
    starts: dict[TopicPartition, int] = {}
    can_rebuild, doubt = True, ""
    for book in sums:
        needed = plan_rebuild(list_held(book, ranges), changes)
        can_rebuild = can_rebuild and not (needed.lost or needed.adopted)
        doubt = doubt or " ".join(describe_doubt(list_held(book, ranges), changes, repeated[book.name]))
        for each, start in needed.starts.items():
            starts[each] = min(start, starts.get(each, start))
    named = ", ".join(f"{each.name} (mode {each.mode})" for each in sums)
    again = repeated[sums[0].name]
    rebuild = " ".join(f"--rebuild {each.name}" for each in sums)
    rest = "".join(f" --delete-from {name}" for name in sorted(deleted))
    twice = f"`penstock offsets rewind ... {stream} {stands} --sums-count-twice`" if stands else ""
    anew = (
        f", or rebuild the sums from their first record: `penstock offsets rewind ... {stream} "
        f"{_name_target(starts)} {rebuild}{rest}` empties and fills them again"
    )
    return OptionError(
        "SUMS_WOULD_COUNT_TWICE",
        f"{stream} would read {describe_ranges(again)} again, and the rows of {named} hold these records "
        f"already: they would count twice. Nothing was changed.{' ' if doubt else ''}{doubt}",
        hint=f"Let a stream with another name fill new tables{anew if can_rebuild else ''}. To have the "
        f"records counted {'anyway' if doubt else 'twice'}, use {twice or '--sums-count-twice'}.",
        facts={
            "stream": stream,
            "tables": sorted(each.name for each in sums),
            "offsets": [str(each) for each in again],
        },
    )


def describe_earlier(book: TableBook, needed: Rebuild, change: Change) -> list[str]:
    """Return what a table will hold in addition: it is easy to send a stream that once started in the
    middle of the log to the log's beginning by mistake."""
    earlier = [
        f"{each} from {after}, not {start}"
        for each, start in sorted(needed.starts.items())
        if (after := change.after.offsets.get(each, start)) < start
    ]
    if not earlier:
        return []
    named = shorten(earlier, _SHOWN, "partitions more")
    return [
        f"{book.name} will hold more than before: records of {named}. To fill it with what it held, name "
        "these offsets (--offset)."
    ]
