"""Decides what a move by hand does to the rows in a sink's tables: what is refused, deleted or kept.

Rule: all checks come before the first change, so a dry run makes the same checks and is refused for the same
reasons. Rows of records that are read again can be deleted where each row says which record it came from
(`delete_from`). A table of sums cannot be taken back in part: either it is emptied and filled again from its
first record (`rebuild`), or its records count twice, which must be allowed (`may_count_twice`).

What a table holds beyond the position is checked again when a writer opens (`refuse_repeats`): the move may
have been made for a sink without that table.

    plan = plan_rows(session, "visits", change, changes, RowRequest(delete_from=("raw",)))
    accounts = delete_rows(session, plan)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.core.audit.audit_report import NotedRange, TableBook
from penstock.core.audit.replaced_logs import list_adopted, list_lost
from penstock.core.audit.tables_after_rewinds import (
    ADDING,
    FAR,
    describe_ranges,
    find_marks,
    intersect_ranges,
    join_modes,
    list_held,
    list_repeated,
    plan_rebuild,
    unite_ranges,
)
from penstock.core.errors import OptionError
from penstock.core.model import OffsetRange, TopicPartition
from penstock.core.offsets.offset_store_contract import Change, RowRequest
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.sinks.offset_digests import OffsetDigest
from penstock.stores.sql.audit.booked_ranges import digest_booked
from penstock.stores.sql.audit.provenance_digests import read_digests
from penstock.stores.sql.audit.table_spellings import spell_alike
from penstock.stores.sql.connections.sql_names import quote
from penstock.stores.sql.connections.sql_sessions import Session
from penstock.stores.sql.ledger.batch_accounts import (
    ALLOWED,
    DELETED,
    EMPTIED,
    Account,
    BatchAccounts,
    make_books,
    read_accounts,
    sum_accounts,
)
from penstock.stores.sql.ledger.publish_history import select_history
from penstock.stores.sql.ledger.rewind_messages import (
    describe_doubt,
    describe_earlier,
    describe_kept,
    explain_sums,
    name_offsets,
)
from penstock.stores.sql.sink.sql_sink import PROVENANCE, Table
from penstock.stores.sql.sink.target_tables import Target, find_target

#: Partitions that a sentence lists by name.
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Deletion:
    """Rows of one table to be deleted, how many, and how they are booked.

    `which` is the condition. If it is empty, all rows are deleted; else it runs once per set in `values`.
    """

    target: Target
    which: str
    values: tuple[tuple[object, ...], ...]
    rows: int
    account: Account


@dataclass(frozen=True, slots=True)
class RowPlan:
    """What is to be deleted, the tables that may count records twice, and what the user must know."""

    deletions: tuple[Deletion, ...]
    allowed: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Return whether neither rows nor books change."""
        kept = all(not each.rows and not each.account.rows for each in self.deletions)
        return kept and not self.allowed


def plan_rows(
    session: Session, stream: str, change: Change, changes: Sequence[Change], asked: RowRequest
) -> RowPlan:
    """Return what the move does to rows, without changing anything."""
    accounts = read_accounts(session)
    asked = _spell(session, accounts, asked)
    _refuse_twice((*asked.delete_from, *asked.rebuild))
    mine = {token: some for (owner, token), some in accounts.items() if owner == stream}
    books, ranges = make_books(mine), select_history(session, stream).ranges
    rebuilt = [_demand_book(books, stream, name) for name in asked.rebuild]
    for book in rebuilt:
        _refuse_other_streams(accounts, stream, book.name)
        _refuse_incomplete(book, stream, list_held(book, ranges), change, changes, asked.ends)
    deletions = [_plan_emptying(session, book, mine) for book in rebuilt]
    back = _list_back(change, changes)
    for name in asked.delete_from:
        _refuse_sums(accounts, name)
        _refuse_others(accounts, stream, name, back)
        _refuse_other_logs(books, name, ranges, [*changes, change], back)
        deletions.append(_plan_deleting(session, name, back, mine, ranges, changes))
    repeated = {
        each.name: list_repeated(each, ranges, [*changes, change], change.after)
        for each in books
        if each.name not in asked.rebuild and (asked.written is None or each.name in asked.written)
    }
    sums = [each for each in books if each.mode in ADDING and repeated.get(each.name)]
    if sums and not asked.may_count_twice:
        # A program that seeks has no option to allow it; the user has to make the move by hand first.
        stands = "" if asked.written is None else name_offsets(change.after.offsets)
        raise explain_sums(stream, sums, ranges, [*changes, change], repeated, asked.delete_from, stands)
    notes = [_describe_deletion(each) for each in deletions]
    for book in books:
        if repeated.get(book.name):
            notes += describe_kept(book, repeated[book.name], asked.delete_from)
            notes += describe_doubt(list_held(book, ranges), [*changes, change], repeated[book.name])
    for book in rebuilt:
        notes += describe_earlier(book, plan_rebuild(list_held(book, ranges), changes), change)
    return RowPlan(tuple(deletions), tuple(each.name for each in sums), tuple(notes))


def refuse_repeats(
    session: Session,
    stream: str,
    changes: Sequence[Change],
    tables: Iterable[Table],
    position: StreamPosition,
) -> None:
    """Refuse to fill tables of sums with records they already hold, read again from this position on."""
    accounts, listed = read_accounts(session, stream), list(tables)
    books = make_books({token: some for (_, token), some in accounts.items()})
    spelled = spell_alike(session, [*(each.name for each in books), *(each.name for each in listed)])
    modes = {spelled[each.name]: each.mode for each in listed}
    ranges = select_history(session, stream).ranges
    sums = [each for each in books if join_modes((each.mode, modes.get(each.name, "append"))) in ADDING]
    repeated = {
        each.name: list_repeated(each, ranges, changes, position) for each in sums if each.name in modes
    }
    sums = [each for each in sums if repeated.get(each.name)]
    if sums:
        stands = name_offsets(position.offsets)
        raise explain_sums(stream, sums, ranges, changes, repeated, (), stands)


def delete_rows(session: Session, plan: RowPlan) -> list[Account]:
    """Delete the plan's rows; return the accounts to book."""
    accounts = [Account(each, ALLOWED, 0) for each in plan.allowed]
    for each in plan.deletions:
        if each.values:
            session.execute_many(f"DELETE FROM {each.target.quoted} WHERE {each.which}", each.values)
        elif not each.which:
            session.execute(f"DELETE FROM {each.target.quoted}")  # TRUNCATE would end the transaction
        accounts.append(each.account)
    return accounts


# --- names ------------------------------------------------------------------------------------------------


def _spell(session: Session, accounts: BatchAccounts, asked: RowRequest) -> RowRequest:
    """Return the request with each table named as the ledger names it."""
    known = sorted({each.table for some in accounts.values() for each in some})
    names = (*asked.delete_from, *asked.rebuild, *sorted(asked.written or ()))
    spelled = spell_alike(session, [*known, *names])
    return replace(
        asked,
        delete_from=tuple(spelled[each] for each in asked.delete_from),
        rebuild=tuple(spelled[each] for each in asked.rebuild),
        written=None if asked.written is None else frozenset(spelled[each] for each in asked.written),
    )


def _refuse_twice(names: Sequence[str]) -> None:
    """Refuse a table that is named twice: its deleted rows would be counted and booked twice."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise OptionError(
            "TABLE_NAMED_TWICE",
            f"{', '.join(twice)} is named more than once, maybe in two spellings; nothing was changed.",
            hint="Name each table once, with --delete-from or with --rebuild.",
            facts={"tables": twice},
        )


# --- emptying a table ---------------------------------------------------------------------------------------


def _plan_emptying(session: Session, book: TableBook, mine: Mapping[str, Sequence[Account]]) -> Deletion:
    """Return the deletion of all rows, also those that others added. It cancels all that was booked."""
    target = find_target(session, Table(book.name))
    rows = int(session.execute(f"SELECT COUNT(*) FROM {target.quoted}")[0][0])
    booked = [each for some in mine.values() for each in some if each.table == book.name]
    return Deletion(target, "", (), rows, _negate(sum_accounts(book.name, EMPTIED, booked)))


def _negate(account: Account) -> Account:
    digests = {each: OffsetDigest() - digest for each, digest in account.digests.items()}
    return replace(account, rows=0 - account.rows, digests=digests)


def _demand_book(books: Sequence[TableBook], stream: str, name: str) -> TableBook:
    for each in books:
        if each.name == name:
            return each
    raise OptionError(
        "TABLE_NOT_IN_LEDGER",
        f"{stream} has put no rows into a table {name}, so it cannot fill it again.",
        hint=f"It has filled: {', '.join(each.name for each in books) or 'none'}.",
        facts={"table": name, "stream": stream},
    )


def _list_others(
    accounts: BatchAccounts, stream: str, table: str, going: Collection[TopicPartition] | None = None
) -> list[str]:
    """Return the other streams that have filled the table; with `going`, from one of these partitions."""
    return sorted(
        {
            owner
            for (owner, _), some in accounts.items()
            if owner != stream
            and any(each.table == table and (going is None or {*going} & {*each.digests}) for each in some)
        }
    )


def _refuse_other_streams(accounts: BatchAccounts, stream: str, table: str) -> None:
    others = _list_others(accounts, stream, table)
    if others:
        raise OptionError(
            "ROWS_OF_OTHERS",
            f"{', '.join(others)} fills {table} too, and what it has put there would not come back. Nothing "
            "was changed.",
            hint="Let a stream with another name fill a new table.",
            facts={"table": table, "streams": others},
        )


def _refuse_incomplete(
    book: TableBook,
    stream: str,
    held: Sequence[NotedRange],
    change: Change,
    changes: Sequence[Change],
    ends: Mapping[TopicPartition, int],
) -> None:
    """Refuse to empty a table unless all that it holds is read again."""
    needed = plan_rebuild(held, [*changes, change])
    wrong = [
        f"in {each} the stream would begin at {after}, and the table holds records from {start} on"
        for each, start in sorted(needed.starts.items())
        if (after := change.after.offsets.get(each)) is not None and after > start
    ]
    wrong += [
        f"{each} is not read any more" for each in sorted(needed.starts) if each not in change.after.offsets
    ]
    wrong += [f"{each} was another log before, whose records are gone with it" for each in needed.lost]
    wrong += [
        f"{each} is of a topic that was adopted: that it holds the records of the one before it is a claim, "
        "not a proof"
        for each in needed.adopted
    ]
    wrong += [
        f"the log of {each} ends at {ends[each]}, and the table holds records up to {until}"
        for each, until in sorted(needed.ends.items())
        if until > ends.get(each, until)
    ]
    if wrong:
        starts = " ".join(
            f"--offset {each}={start}" for each, start in sorted(needed.starts.items())[:_SHOWN]
        )
        raise OptionError(
            "REBUILD_INCOMPLETE",
            f"{book.name} cannot be rebuilt: {'; '.join(wrong[:_SHOWN])}. Nothing was changed.",
            hint=f"Go back to where the table began (--to-start, or {starts}). If the log no longer "
            "holds these records, keep the table and let a stream with another name fill a new one.",
            facts={"table": book.name, "stream": stream, "wrong": wrong},
        )


# --- deleting what is read again ----------------------------------------------------------------------------


def _list_back(change: Change, changes: Sequence[Change]) -> list[tuple[str, int, int]]:
    """Return the partitions that are read again, each with the offset where that begins."""
    marks = find_marks([*changes, change], change.after)
    before = {} if change.before is None else change.before.offsets
    return [
        (each.topic, each.partition, after)
        for each, after in sorted(change.after.offsets.items())
        if each in before and after < marks.get(each, before[each])
    ]


def _plan_deleting(
    session: Session,
    table: str,
    back: Sequence[tuple[str, int, int]],
    mine: Mapping[str, Sequence[Account]],
    ranges: Sequence[NotedRange],
    changes: Sequence[Change],
) -> Deletion:
    target = find_target(session, Table(table, provenance=True))
    topic, partition, offset = (quote(session.dialect, column) for column in PROVENANCE)
    mark = session.grammar.mark
    behind = f"{topic} = {mark} AND {partition} = {mark} AND {offset} >= {mark}"
    rows, booked = 0, {}
    for values in back:
        each = TopicPartition(values[0], values[1])
        found = read_digests(session, target.quoted, behind, values).get(each)
        rows += 0 if found is None else found.digest.rows
        booked[each] = digest_booked(session, target, table, mine, ranges, changes, (each, values[2]))
    account = Account(table, DELETED, sum(each.rows for each in booked.values()), booked)
    return Deletion(target, behind, tuple(back), rows, _negate(account))


def _refuse_sums(accounts: BatchAccounts, table: str) -> None:
    """Refuse a table whose rows combine many records: only the last of them would be read again."""
    modes = {each.mode for some in accounts.values() for each in some if each.table == table} & ADDING
    if modes:
        raise OptionError(
            "ROWS_ARE_SUMS",
            f"Rows of {table} (mode {', '.join(sorted(modes))}) hold what many records have added up to, and "
            "reading only the last of them again would not restore that. Nothing was changed.",
            hint=f"Use --rebuild {table} with --to-start, which empties it and fills it again from its first "
            "record, or let a stream with another name fill a new table. Only rows of `append` and `upsert` "
            "tables can be deleted and read again.",
            facts={"table": table, "modes": sorted(modes)},
        )


def _refuse_others(
    accounts: BatchAccounts, stream: str, table: str, back: Sequence[tuple[str, int, int]]
) -> None:
    """Refuse a table that other streams fill too: rows say which record they came from, not which stream."""
    others = _list_others(accounts, stream, table, {TopicPartition(*each[:2]) for each in back})
    if others:
        raise OptionError(
            "ROWS_OF_OTHERS",
            f"{table} also has rows of the same partitions from {', '.join(others)}, and nothing in a row "
            "tells them apart. Nothing was changed.",
            hint="Rewind without --delete-from, and delete your own rows by hand.",
            facts={"table": table, "streams": others},
        )


def _refuse_other_logs(
    books: Sequence[TableBook],
    table: str,
    ranges: Sequence[NotedRange],
    changes: Sequence[Change],
    back: Sequence[tuple[str, int, int]],
) -> None:
    """Refuse rows of other logs: a row names its offset but not its log, and rows of a log that is gone could
    never come back."""
    held = [each for book in books if book.name == table for each in list_held(book, ranges)]
    going = [OffsetRange(topic, partition, offset, FAR) for topic, partition, offset in back]
    lost, adopted = list_lost(held, changes), list_adopted(held, changes)
    found = intersect_ranges(unite_ranges([*lost, *adopted]), going)
    if found:
        raise OptionError(
            "ROWS_OF_ANOTHER_LOG",
            f"{table} has rows of {describe_ranges(found)} from a topic that was recreated since"
            + (", or that another one was adopted for" if adopted else "")
            + ": they may not come back, and nothing in a row tells them apart. Nothing was changed.",
            hint="Rewind without --delete-from, or to an offset beyond these, or let a stream with "
            "another name fill a new table.",
            facts={"table": table, "offsets": [str(each) for each in found]},
        )


def _describe_deletion(deletion: Deletion) -> str:
    rows = deletion.rows
    which = "of records that are read again" if deletion.which else "which is all of them"
    return f"Deletes {rows} row{'' if rows == 1 else 's'} of {deletion.account.table}, {which}."
