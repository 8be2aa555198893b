"""What each batch put into each table: rows as the tasks counted them, and a digest of where they came from.

Rule: rows that are deleted on purpose (`offsets rewind --delete-from` or `--rebuild`) are booked as a
negative count in the same transaction, so that the sum always says what the table must hold. A table that was
emptied is booked under the generation that the move opened, and so is a user's permission to count its
records twice. A table that is spelled in two ways (`sums`, `main.sums`) has one account. Audits depend on
this, and so do rewinds, which must know what each table holds. Old batches are merged with the rest of the
history.

    note_accounts(session, "visits", token, [Account("totals", "append", 120, digests)])
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.core.audit.audit_report import TableBook
from penstock.core.audit.tables_after_rewinds import join_modes
from penstock.core.model import TopicPartition
from penstock.core.sinks.ledger_rules import LedgerBatch
from penstock.core.sinks.offset_digests import Digests, OffsetDigest, sum_digests
from penstock.stores.sql.audit.table_spellings import spell_alike
from penstock.stores.sql.connections.sql_sessions import Session
from penstock.stores.sql.ledger.ledger_tables import DIGESTS, TABLES, delete_batches

#: The mode of an account of rows that were deleted: its count is negative.
DELETED = "deleted"
#: The mode of an account of a whole table that was emptied: what it held before no longer counts.
EMPTIED = "emptied"
#: The mode of an account without rows: records that are read again may be added to the table a second time.
ALLOWED = "allowed"
_BY_HAND = frozenset({DELETED, EMPTIED, ALLOWED})
_ACCOUNT = ("stream", "token", "table_name", "write_mode", "row_count")
_DIGEST = (*_ACCOUNT[:3], "topic", "partition_id", "row_count", "offset_sum", "offset_mix")
_MOVE = re.compile(r"moved-g([0-9]+)-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Account:
    """What one batch, or several merged ones, wrote to one table."""

    table: str
    mode: str
    rows: int
    digests: Digests = field(default_factory=dict)


#: Accounts by stream and token.
BatchAccounts: TypeAlias = Mapping[tuple[str, str], Sequence[Account]]


def note_accounts(session: Session, stream: str, token: str, accounts: Iterable[Account]) -> None:
    listed = list(accounts)
    session.execute_many(
        session.grammar.insert(TABLES, _ACCOUNT),
        [(stream, token, each.table, each.mode, each.rows) for each in listed],
    )
    session.execute_many(
        session.grammar.insert(DIGESTS, _DIGEST),
        [
            (stream, token, each.table, of.topic, of.partition, digest.rows, digest.total, digest.mixed)
            for each in listed
            for of, digest in sorted(each.digests.items())
        ],
    )


def make_accounts(batch: LedgerBatch, modes: Mapping[str, str]) -> list[Account]:
    """Return one account for each table that has stages in the batch."""
    tables = dict.fromkeys(stage.table for stage in batch.stages)
    return [
        Account(
            table,
            modes[table],
            sum(stage.rows for stage in batch.stages if stage.table == table),
            sum_digests(dict(stage.digests) for stage in batch.stages if stage.table == table),
        )
        for table in tables
    ]


def make_move_token(generation: int) -> str:
    """Return the token, which no batch has, for the move by hand that opens this generation."""
    return f"moved-g{generation}-{uuid.uuid4().hex}"


def parse_move_token(token: str) -> int | None:
    """Return the generation that the move with this token has opened; None if the token names none."""
    found = _MOVE.fullmatch(token)
    return int(found[1]) if found else None


def make_books(accounts: Mapping[str, Sequence[Account]]) -> list[TableBook]:
    """Return what one stream's accounts, by token, say about each of its tables."""
    by_table: dict[str, list[tuple[str, Account]]] = {}
    for token, some in accounts.items():
        for each in some:
            by_table.setdefault(each.table, []).append((token, each))
    return [_make_book(table, some) for table, some in sorted(by_table.items())]


def join_account_modes(accounts: Iterable[Account]) -> str:
    """Return the modes in which batches have written the table of these accounts; empty if none has."""
    return join_modes({each.mode for each in accounts if each.mode not in _BY_HAND})


def sum_accounts(table: str, mode: str, accounts: Iterable[Account]) -> Account:
    """Return the sum of these accounts as one account."""
    some = list(accounts)
    return Account(table, mode, sum(each.rows for each in some), sum_digests(each.digests for each in some))


def _make_book(table: str, accounts: Sequence[tuple[str, Account]]) -> TableBook:
    filled = [(token, each) for token, each in accounts if each.mode not in _BY_HAND]
    return TableBook(
        table,
        join_account_modes(each for _, each in accounts),
        frozenset(token for token, _ in filled),
        _list_generations(accounts, EMPTIED),
        any(each.digests for _, each in filled),
        _list_generations(accounts, ALLOWED),
        _list_generations(accounts, DELETED),
    )


def _list_generations(accounts: Iterable[tuple[str, Account]], mode: str) -> frozenset[int]:
    moves = (parse_move_token(token) for token, each in accounts if each.mode == mode)
    return frozenset(move for move in moves if move is not None)


def read_accounts(session: Session, stream: str | None = None) -> dict[tuple[str, str], list[Account]]:
    """Return accounts by stream and token, of one stream or of all. Each table has one name, even if it is
    spelled in several ways."""
    where, values = ("", []) if stream is None else (f" WHERE stream = {session.grammar.mark}", [stream])
    digests: dict[tuple[str, str, str], dict[TopicPartition, OffsetDigest]] = {}
    for name, token, table, topic, partition, *of in session.execute(
        f"SELECT {', '.join(_DIGEST)} FROM {DIGESTS}{where}", values
    ):
        kept = digests.setdefault((name, token, table), {})
        kept[TopicPartition(topic, int(partition))] = OffsetDigest(*map(int, of))
    accounts: dict[tuple[str, str], list[Account]] = {}
    listed = session.execute(f"SELECT {', '.join(_ACCOUNT)} FROM {TABLES}{where}", values)
    spelled = spell_alike(session, sorted({each[2] for each in listed}, key=lambda each: (len(each), each)))
    for name, token, table, mode, rows in listed:
        account = Account(spelled[table], mode, int(rows), digests.get((name, token, table), {}))
        accounts.setdefault((name, token), []).append(account)
    return accounts


def merge_accounts(session: Session, stream: str, tokens: Collection[str], into: str) -> None:
    """Replace the accounts of these batches with their sum."""
    known = [
        account
        for (_, token), some in read_accounts(session, stream).items()
        if token in tokens
        for account in some
    ]
    delete_batches(session, (TABLES, DIGESTS), stream, tokens)
    merged = []
    for table in dict.fromkeys(each.table for each in known):
        some = [each for each in known if each.table == table]
        merged.append(sum_accounts(table, join_account_modes(some), some))
    note_accounts(session, stream, into, merged)
