"""What each batch put into each table: rows by the tasks' own messages, and a digest of where they came from.

Rule: rows that are deleted on purpose (`offsets rewind --delete-from`) are booked with a minus in the same
transaction, so that the sum always says what the table must hold. Nothing but audits depends on it, and old
batches are merged with the rest of the history.

    note_account(session, "visits", token, Account("totals", "append", 120, digests))
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from penstock.core.digests import Digests, OffsetDigest, add_digests
from penstock.core.model import TopicPartition
from penstock.core.protocol import Batch
from penstock.stores.sql.ledger import DIGESTS, TABLES
from penstock.stores.sql.sessions import Session

#: The mode of an account of rows that were deleted: its count is below zero.
DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Account:
    """What one batch, or several that were merged, put into one table."""

    table: str
    mode: str
    rows: int
    digests: Digests = field(default_factory=dict)


def note_accounts(session: Session, stream: str, token: str, accounts: Iterable[Account]) -> None:
    listed = list(accounts)
    session.execute_many(
        f"INSERT INTO {TABLES} (stream, token, table_name, write_mode, row_count) "
        f"VALUES ({session.grammar.marks(5)})",
        [(stream, token, each.table, each.mode, each.rows) for each in listed],
    )
    session.execute_many(
        f"INSERT INTO {DIGESTS} (stream, token, table_name, topic, partition_id, row_count, offset_sum, "
        f"offset_mix) VALUES ({session.grammar.marks(8)})",
        [
            (stream, token, each.table, of.topic, of.partition, digest.rows, digest.total, digest.mixed)
            for each in listed
            for of, digest in sorted(each.digests.items())
        ],
    )


def make_accounts(batch: Batch, modes: Mapping[str, str]) -> list[Account]:
    """The batch's stages, by table."""
    tables = dict.fromkeys(stage.table for stage in batch.stages)
    return [
        Account(
            table,
            modes[table],
            sum(stage.rows for stage in batch.stages if stage.table == table),
            add_digests(dict(stage.digests) for stage in batch.stages if stage.table == table),
        )
        for table in tables
    ]


def read_accounts(session: Session, stream: str | None = None) -> dict[tuple[str, str], list[Account]]:
    """By stream and token; of one stream or of all."""
    where, values = ("", []) if stream is None else (f" WHERE stream = {session.grammar.mark}", [stream])
    digests: dict[tuple[str, str, str], dict[TopicPartition, OffsetDigest]] = {}
    for name, token, table, topic, partition, *of in session.execute(
        "SELECT stream, token, table_name, topic, partition_id, row_count, offset_sum, offset_mix "
        f"FROM {DIGESTS}{where}",
        values,
    ):
        kept = digests.setdefault((name, token, table), {})
        kept[TopicPartition(topic, int(partition))] = OffsetDigest(*map(int, of))
    accounts: dict[tuple[str, str], list[Account]] = {}
    for name, token, table, mode, rows in session.execute(
        f"SELECT stream, token, table_name, write_mode, row_count FROM {TABLES}{where}", values
    ):
        account = Account(table, mode, int(rows), digests.get((name, token, table), {}))
        accounts.setdefault((name, token), []).append(account)
    return accounts


def merge_accounts(session: Session, stream: str, tokens: Collection[str], into: str) -> None:
    """Make one of the accounts of these batches."""
    known = [
        account
        for (_, token), some in read_accounts(session, stream).items()
        if token in tokens
        for account in some
    ]
    mark = session.grammar.mark
    for table in (TABLES, DIGESTS):
        session.execute_many(
            f"DELETE FROM {table} WHERE stream = {mark} AND token = {mark}",
            [(stream, token) for token in tokens],
        )
    kinds = dict.fromkeys(each.table for each in known)
    merged = []
    for table in kinds:
        some = [each for each in known if each.table == table]
        modes = {each.mode for each in some}
        digests = add_digests(each.digests for each in some)
        # A table that was first appended to and then something else can be counted no more.
        mode = modes.pop() if len(modes) == 1 else "mixed"
        merged.append(Account(table, mode, sum(each.rows for each in some), digests))
    note_accounts(session, stream, into, merged)
