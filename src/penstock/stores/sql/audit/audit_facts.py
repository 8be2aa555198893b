"""Reads from a database what an audit judges: the sink's ledger, and aggregates of the tables it fills.

Rule: everything is read as of one moment, so a stream may keep writing meanwhile. Nothing is read row by row,
so a table of any size costs a few scans in the database. If a digest differs, a binary search finds where.

    streams, others, tables = gather_facts(place, "visits", ())
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

from penstock.core.audit.audit_report import NotedBatch, Spoiled, StreamFacts, TableFacts
from penstock.core.audit.tables_after_rewinds import unite_ranges
from penstock.core.errors import OptionError, SinkError
from penstock.core.model import OffsetRange, TopicPartition
from penstock.core.offsets.offset_store_contract import Change, unknown_stream
from penstock.core.options.storage_addresses import Place
from penstock.core.sinks.offset_digests import HeldOffsets, OffsetDigest, sum_digests
from penstock.stores.offsets.sink_ledger_store import SinkOffsetStore
from penstock.stores.sql.audit.provenance_digests import digest_range, read_digests
from penstock.stores.sql.audit.table_spellings import spell_alike
from penstock.stores.sql.connections import database_timeouts
from penstock.stores.sql.connections.sql_names import check_table_name, quote
from penstock.stores.sql.connections.sql_sessions import Database, Session, open_session
from penstock.stores.sql.ledger.batch_accounts import (
    BatchAccounts,
    join_account_modes,
    make_books,
    read_accounts,
)
from penstock.stores.sql.ledger.ledger_tables import read_entries, read_generation
from penstock.stores.sql.ledger.publish_history import History, select_history
from penstock.stores.sql.sink.sql_sink import PROVENANCE, Table
from penstock.stores.sql.sink.target_tables import Target, find_target

_Result = TypeVar("_Result")

#: Conditions per statement: SQLite takes no expression of more than a thousand parts.
_CONDITIONS = 100
#: How many batches are searched for where a digest differs.
_SPOILED = 5


def gather_facts(
    place: Place, stream: str | None, named: Collection[str]
) -> tuple[list[StreamFacts], list[StreamFacts], list[TableFacts]]:
    """Return the facts of one stream or of all, of the other streams that fill the same tables, and of these
    tables and the `named` ones."""
    store = SinkOffsetStore(place)
    streams = store.list_streams()
    if stream is not None and stream not in streams:
        raise unknown_stream(f"The ledger at {place}", stream, streams)
    changes = {each: tuple(store.list_changes(each)) for each in streams}
    for name in named:
        check_table_name(name)

    def look(session: Session) -> tuple[list[StreamFacts], list[StreamFacts], list[TableFacts]]:
        books = read_accounts(session)
        histories = {each: select_history(session, each) for each in streams}
        chosen = streams if stream is None else [stream]
        filled = {each.table for (owner, _), some in books.items() if owner in chosen for each in some}
        owners = {owner for (owner, _), some in books.items() if filled & {each.table for each in some}}
        others = [each for each in streams if each in owners and each not in chosen]
        mine, theirs = (
            [_read_stream(session, each, histories[each], books, changes[each]) for each in some]
            for some in (chosen, others)
        )
        spelled = set(spell_alike(session, [*sorted(filled), *named]).values())
        _demand_tables(session, sorted(spelled - filled), sorted(filled), stream)
        tables = [_read_table(session, name, books, histories, chosen) for name in sorted(spelled)]
        return mine, theirs, tables

    return read_in_snapshot(place, look)


def _demand_tables(session: Session, named: Iterable[str], filled: Sequence[str], stream: str | None) -> None:
    """Refuse names that neither the ledger nor the database has: such a name is a typo, not a finding."""
    for name in named:
        try:
            find_target(session, Table(name))
        except SinkError as error:
            if error.condition != "TABLE_NOT_FOUND":
                raise
            whose = "No stream here has a" if stream is None else f"The stream {stream} has no"
            raise OptionError(
                "TABLE_NOT_IN_LEDGER",
                f"{whose} table {name} in its books, and the database has no such table either.",
                hint=f"The books have: {', '.join(filled) or 'none'}. Leave --table out to audit these.",
                facts={"table": name, "tables": list(filled)},
            ) from None


def find_table(place: Place, name: str) -> Target:
    """Return a table as the catalog describes it."""
    return Database(place).run(lambda session: find_target(session, Table(name)))


def read_in_snapshot(place: Place, work: Callable[[Session], _Result]) -> _Result:
    """Return what `work` returns, from one transaction that sees a single moment for as long as it takes."""
    with open_session(place, limit_s=database_timeouts.BULK_TIMEOUT_S) as session:
        if place.dialect != "sqlite":
            # The isolation level must be chosen before the first statement of a transaction.
            session.connection.rollback()
            session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        if place.dialect == "mysql":
            session.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        result = work(session)
        session.connection.rollback()
        return result


# --- the ledger -------------------------------------------------------------------------------------------


def _read_stream(
    session: Session, stream: str, history: History, books: BatchAccounts, changes: tuple[Change, ...]
) -> StreamFacts:
    entries = read_entries(session, stream, locked=False)
    return StreamFacts(
        stream,
        read_generation(session, stream),
        {each: entry.offset for each, entry in entries.items()},
        history.ranges,
        tuple(
            NotedBatch(
                each.token,
                each.generation,
                each.rows,
                sum(account.rows for account in books.get((stream, each.token), ())),
                each.batches,
            )
            for each in history.batches
        ),
        changes,
        tuple(make_books({token: some for (owner, token), some in books.items() if owner == stream})),
        {each.topic: entry.topic_id for each, entry in entries.items() if entry.topic_id is not None},
    )


# --- a table ----------------------------------------------------------------------------------------------


def _read_table(
    session: Session, name: str, books: BatchAccounts, histories: Mapping[str, History], chosen: Sequence[str]
) -> TableFacts:
    mine = [(owner, each) for (owner, _), some in books.items() for each in some if each.table == name]
    streams = tuple(sorted({owner for owner, _ in mine})) or tuple(chosen)
    mode = join_account_modes(each for _, each in mine)
    booked = sum(each.rows for _, each in mine) if mode == "append" else None
    try:
        target = find_target(session, Table(name))
    except SinkError as error:
        if error.condition != "TABLE_NOT_FOUND":
            raise
        return TableFacts(name, None, booked, mode, streams)
    held = int(session.execute(f"SELECT COUNT(*) FROM {target.quoted}")[0][0])
    if not set(PROVENANCE) <= {each.name for each in target.columns}:
        return TableFacts(name, held, booked, mode, streams)
    kept = read_digests(session, target.quoted)
    digests = sum_digests(each.digests for _, each in mine)
    is_whole = booked is not None and sum(each.rows for each in digests.values()) == booked
    noted = [each.range for owner in streams for each in histories[owner].ranges]
    spoiled: list[Spoiled] = []
    if is_whole:
        for partition in sorted({*kept, *digests}):
            there = kept.get(partition)
            if digests.get(partition) != (OffsetDigest() if there is None else there.digest):
                spans = _list_spans(name, partition, streams, books, histories)
                _search(session, target, spans, spoiled)
    return TableFacts(
        name,
        held,
        booked,
        mode,
        streams,
        kept,
        digests if is_whole else None,
        _find_strays(session, target, kept, noted),
        tuple(spoiled),
    )


def _find_strays(
    session: Session, target: Target, kept: Mapping[TopicPartition, HeldOffsets], noted: Iterable[OffsetRange]
) -> dict[TopicPartition, HeldOffsets]:
    """Return the rows outside all ranges: those before, between and after them."""
    regions: dict[TopicPartition, list[OffsetRange]] = {}
    for each in unite_ranges(noted):
        regions.setdefault(each.topic_partition, []).append(each)
    strays = {partition: found for partition, found in kept.items() if partition not in regions}
    topic, number, offset = (quote(session.dialect, column) for column in PROVENANCE)
    mark = session.grammar.mark
    conditions: list[tuple[str, tuple[object, ...]]] = []
    for partition, mine in sorted(regions.items()):
        there = kept.get(partition)
        if there is None or (mine[0].start <= there.first and there.last < mine[0].until):
            continue
        where, whose = f"{topic} = {mark} AND {number} = {mark}", (partition.topic, partition.partition)
        outer = f"({where} AND ({offset} < {mark} OR {offset} >= {mark}))"
        conditions.append((outer, (*whose, mine[0].start, mine[-1].until)))
        between = f"({where} AND {offset} >= {mark} AND {offset} < {mark})"
        conditions += [(between, (*whose, one.until, other.start)) for one, other in pairwise(mine)]
    for first in range(0, len(conditions), _CONDITIONS):
        some = conditions[first : first + _CONDITIONS]
        which = f"({' OR '.join(condition for condition, _ in some)})"
        values = tuple(value for _, values in some for value in values)
        for partition, found in read_digests(session, target.quoted, which, values).items():
            strays[partition] = _join(strays[partition], found) if partition in strays else found
    return strays


def _join(one: HeldOffsets, other: HeldOffsets) -> HeldOffsets:
    return HeldOffsets(
        one.digest + other.digest,
        one.distinct + other.distinct,
        min(one.first, other.first),
        max(one.last, other.last),
    )


# --- where a digest differs -------------------------------------------------------------------------------

_Span = tuple[OffsetRange, OffsetDigest]


def _list_spans(
    table: str,
    partition: TopicPartition,
    streams: Iterable[str],
    books: BatchAccounts,
    histories: Mapping[str, History],
) -> list[_Span]:
    """Return what each batch read of the partition, with the digest of its rows; none if they overlap."""
    spans: list[_Span] = []
    for stream in streams:
        read: dict[str, OffsetRange] = {}
        for each in histories[stream].ranges:
            if each.range.topic_partition == partition:
                known = read.get(each.token, each.range)
                start, until = min(known.start, each.range.start), max(known.until, each.range.until)
                read[each.token] = OffsetRange(partition.topic, partition.partition, start, until)
        for token, span in read.items():
            accounts = [each for each in books.get((stream, token), ()) if each.table == table]
            spans.append(
                (span, sum_digests(each.digests for each in accounts).get(partition, OffsetDigest()))
            )
    spans.sort(key=lambda each: each[0])
    overlap = any(one.until > other.start for (one, _), (other, _) in pairwise(spans))
    return [] if overlap else spans


def _search(session: Session, target: Target, spans: Sequence[_Span], spoiled: list[Spoiled]) -> None:
    """Bisect the batches for those whose rows differ, and add the first few to `spoiled`."""
    if not spans or len(spoiled) >= _SPOILED:
        return
    first, last = spans[0][0], spans[-1][0]
    booked = OffsetDigest()
    for _, digest in spans:
        booked += digest
    held = digest_range(session, target.quoted, replace(first, until=last.until))
    if held == booked:
        return
    if len(spans) == 1:
        spoiled.append(Spoiled(first, booked.rows, held.rows))
        return
    half = len(spans) // 2
    _search(session, target, spans[:half], spoiled)
    _search(session, target, spans[half:], spoiled)
