"""Judges what a table holds: against the books, against its own provenance, and against the log.

Rule: where there is a digest, it decides. Two rows with one offset are not a fault if they were published so
(a record may give several rows). One row for each offset is not proof if it has replaced another one.

>>> [each.condition for each in check_table(TableFacts("visits", held=2, booked=3, mode="append")).findings]
['ROWS_MISSING']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.core.audit.audit_report import (
    DIGEST,
    LEDGER,
    MESSAGES,
    PROVENANCE,
    REREAD,
    Finding,
    Notebook,
    Report,
    Reread,
    TableFacts,
)
from penstock.core.model import OffsetRange, TopicPartition
from penstock.core.sinks.offset_digests import HeldOffsets, OffsetDigest

# --- tables -----------------------------------------------------------------------------------------------


def check_table(facts: TableFacts) -> Report:
    """Check that the table holds what was published, once."""
    book = Notebook()
    if facts.held is None:
        what = "the books have rows for it, and there is no such table."
        book.findings.append(Finding("TABLE_GONE", facts.name, what, LEDGER))
        return book.report()
    _check_rows(book, facts, facts.held)
    if facts.kept is None:
        book.unchecked.append(
            f"{facts.name}: whether each row is there once and from where; it keeps no provenance "
            "(columns penstock_topic, penstock_partition, penstock_offset)."
        )
        return book.report()
    for partition, stray in sorted(facts.strays.items()):
        what = (
            f"{_rows(stray.digest.rows)} from {partition} at offsets {stray.first} to {stray.last}, which no "
            "noted range has."
        )
        book.findings.append(Finding("OFFSETS_OUTSIDE", facts.name, what, f"{PROVENANCE} and {LEDGER}"))
    if facts.mode in ("", "append"):
        _check_digests(book, facts, facts.held, facts.kept)
    if not facts.strays:
        book.checked.append(
            f"{facts.name}: all offsets lie within noted ranges (evidence: {PROVENANCE} and {LEDGER})."
        )
    return book.report()


def _check_rows(book: Notebook, facts: TableFacts, held: int) -> None:
    if facts.booked is None:
        why = (
            f"its mode is {facts.mode}, which changes rows that are there"
            if facts.mode
            else "no batch in the ledger names it"
        )
        book.unchecked.append(f"{facts.name}: its {_rows(held)} against those that were written; {why}.")
    elif facts.booked != held:
        condition = "ROWS_MISSING" if held < facts.booked else "ROWS_TOO_MANY"
        what = f"it holds {_rows(held)}, and {facts.booked} were published ({', '.join(facts.streams)})."
        book.findings.append(Finding(condition, facts.name, what, MESSAGES))
    else:
        book.checked.append(f"{facts.name}: {_rows(held)}, as published (evidence: {MESSAGES}).")


def _check_digests(
    book: Notebook, facts: TableFacts, held: int, kept: Mapping[TopicPartition, HeldOffsets]
) -> None:
    nowhere = held - sum(each.digest.rows for each in kept.values())
    if nowhere:
        what = f"{_rows(nowhere)} without provenance."
        book.findings.append(Finding("ROWS_WITHOUT_ORIGIN", facts.name, what, PROVENANCE))
    if facts.digests is None:
        book.unchecked.append(
            f"{facts.name}: its rows against digests; there is none for some or all of them."
        )
    same = 0
    nothing = HeldOffsets(OffsetDigest(), 0, 0, 0)
    for partition in sorted({*kept, *(facts.digests or ())}):
        there = kept.get(partition, nothing)
        twice = there.digest.rows - there.distinct
        booked = None if facts.digests is None else facts.digests.get(partition, OffsetDigest())
        if booked == there.digest:
            same += 1
            if twice:
                book.notes.append(
                    f"{facts.name}: {_rows(twice)} of {partition} have an offset that another row has, too. "
                    "They were published so: records that gave several rows, that were read again after a "
                    "rewind, or of a topic that was recreated and has the same offsets."
                )
            continue
        if twice:
            what = f"{_rows(twice)} of {partition} have an offset that another row has, too."
            book.findings.append(Finding("OFFSETS_TWICE", facts.name, what, PROVENANCE))
        if booked is not None:
            what = f"the rows of {partition} are not those that were published: {_compare(there, booked)}"
            what += _locate(facts, partition)
            book.findings.append(Finding("DIGEST_DIFFERS", facts.name, what, DIGEST))
    if facts.digests is not None and same and same == len({*kept, *facts.digests}):
        book.checked.append(
            f"{facts.name}: the offsets of all rows are those that were published (evidence: {DIGEST}; "
            "other columns are not in them)."
        )


def _compare(there: HeldOffsets, booked: OffsetDigest) -> str:
    if there.digest.rows == booked.rows:
        return f"{_rows(booked.rows)}, as published, but of other offsets."
    return f"{_rows(there.digest.rows)}, and {booked.rows} were published."


def _locate(facts: TableFacts, partition: TopicPartition) -> str:
    """Return the offsets at which they differ, as far as these were searched."""
    mine = [each for each in facts.spoiled if each.range.topic_partition == partition]
    return "".join(
        f" Offsets [{each.range.start}, {each.range.until}): {each.held} of {each.booked} rows."
        for each in mine
    )


# --- a second reading -------------------------------------------------------------------------------------


def check_reread(facts: Reread, *, leaves_out: bool) -> Report:
    """Check that every record has a row and every row a record. `leaves_out`: the stream drops records."""
    book = Notebook()
    subject = f"{facts.table} {facts.partition}"
    if facts.problem:
        book.unchecked.append(f"{subject}: the log; {facts.problem}")
        return book.report()
    for each in facts.of_other_log:
        book.unchecked.append(
            f"{subject}: [{each.start}, {each.until}) against the log. Rows there are of another log of that "
            "name, which is gone, and cannot be distinguished from those of the log that is read now."
        )
    for each in facts.aged_out:
        book.unchecked.append(f"{subject}: [{each.start}, {each.until}) has aged out of the log.")
    for each in facts.beyond:
        what = f"[{each.start}, {each.until}) was read once, and the log ends before it."
        book.findings.append(Finding("LOG_ENDS_BEFORE", subject, what, REREAD))
    if facts.unread:
        book.notes.append(
            f"{subject}: {_span(facts.awaited)} has not been read again yet: {facts.unread} records have "
            "no row. The stream was taken back and has not caught up."
        )
    if facts.missing:
        what = f"{facts.missing} records have no row: {_show(facts.first_missing, facts.missing)}."
        if leaves_out:
            book.notes.append(f"{subject}: {what} Left out by the stream, as you asked (--filters).")
        else:
            what += (
                " If the stream leaves records out on purpose, say --filters. If it reads committed records "
                "only, say --set isolation.level=read_committed: records of aborted transactions have no row."
            )
            book.findings.append(Finding("RECORDS_WITHOUT_ROW", subject, what, REREAD))
    if facts.extra:
        what = f"{facts.extra} offsets in the table have no record: {_show(facts.first_extra, facts.extra)}."
        book.findings.append(Finding("ROWS_WITHOUT_RECORD", subject, what, REREAD))
    if facts.read and not (facts.missing or facts.extra):
        book.checked.append(
            f"{subject}: {facts.records} records of {_span(facts.read)} each have a row (evidence: {REREAD})."
        )
    return book.report()


def _span(ranges: Sequence[OffsetRange]) -> str:
    return ", ".join(f"[{each.start}, {each.until})" for each in ranges)


def _show(some: Sequence[int], count: int) -> str:
    return ", ".join(map(str, some)) + (", ..." if count > len(some) else "")


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"
