"""Computes digests of where rows came from: over Arrow columns in a task, and over a table in its database.

Rule: both compute exactly `core.sinks.offset_digests`. Only provenance columns are read.

    digest_rows(batch)
    read_digests(session, '"visits"')
"""

from __future__ import annotations

import json

import pyarrow as pa

from penstock.core.model import OffsetRange, TopicPartition
from penstock.core.sinks.offset_digests import FIRST, MODULUS, SECOND, SHIFT, HeldOffsets, OffsetDigest
from penstock.stores.sql.connections.sql_names import quote
from penstock.stores.sql.connections.sql_sessions import Session
from penstock.stores.sql.sink.sql_sink import PROVENANCE


def digest_rows(rows: pa.RecordBatch | pa.Table) -> dict[TopicPartition, OffsetDigest]:
    """Return the digests by partition; empty for rows that do not say where they came from."""
    if not set(PROVENANCE) <= set(rows.schema.names):
        return {}
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    table = table.select(list(PROVENANCE)).drop_null()
    offsets = table[PROVENANCE[2]].cast(pa.int64()).to_numpy()
    low = offsets % MODULUS
    mixed = low * FIRST % MODULUS
    mixed = (mixed ^ (mixed >> SHIFT)) * SECOND % MODULUS
    sums = (
        pa.table({"topic": table[PROVENANCE[0]], "partition": table[PROVENANCE[1]], "low": low, "mix": mixed})
        .group_by(["topic", "partition"])
        .aggregate([("low", "count"), ("low", "sum"), ("mix", "sum")])
    )
    columns = [sums[name].to_pylist() for name in ("topic", "partition", "low_count", "low_sum", "mix_sum")]
    return {
        TopicPartition(topic, int(partition)): OffsetDigest(count, low_sum, mix_sum)
        for topic, partition, count, low_sum, mix_sum in zip(*columns, strict=True)
    }


def write_digests(digests: dict[TopicPartition, OffsetDigest]) -> str:
    """Return the digests as the text in a task's report."""
    return json.dumps(
        [[each.topic, each.partition, of.rows, of.total, of.mixed] for each, of in digests.items()]
    )


def parse_digests(text: str) -> dict[TopicPartition, OffsetDigest]:
    return {TopicPartition(topic, number): OffsetDigest(*of) for topic, number, *of in json.loads(text)}


def read_digests(
    session: Session, table: str, which: str = "1 = 1", values: tuple[object, ...] = ()
) -> dict[TopicPartition, HeldOffsets]:
    """Return digests by partition of a table (quoted) with provenance, or of the rows `which` selects."""
    topic, partition, offset = (quote(session.dialect, column) for column in PROVENANCE)
    modulo = "%" if session.dialect == "sqlite" else "%%"  # the other drivers interpret % themselves
    whole = f"CAST({offset} AS {'SIGNED' if session.dialect == 'mysql' else 'BIGINT'})"
    shifted = f"(x >> {SHIFT})"
    rows = session.execute(
        f"SELECT topic, part, COUNT(*), COUNT(DISTINCT at), MIN(at), MAX(at), SUM(at {modulo} {MODULUS}), "
        f"SUM(((x | {shifted}) - (x & {shifted})) * {SECOND} {modulo} {MODULUS}) "
        f"FROM (SELECT {topic} AS topic, {partition} AS part, {whole} AS at, "
        f"({whole} {modulo} {MODULUS}) * {FIRST} {modulo} {MODULUS} AS x "
        f"FROM {table} WHERE {topic} IS NOT NULL AND {partition} IS NOT NULL AND {offset} IS NOT NULL "
        f"AND {which}) came GROUP BY topic, part",
        values,
    )
    return {
        TopicPartition(topic, int(part)): HeldOffsets(
            OffsetDigest(int(count), int(total), int(mixed)), int(distinct), int(first), int(last)
        )
        for topic, part, count, distinct, first, last, total, mixed in rows
    }


def digest_range(session: Session, table: str, where: OffsetRange) -> OffsetDigest:
    """Return the digest of the rows that a table (quoted) with provenance has from these offsets."""
    topic, partition, offset = (quote(session.dialect, column) for column in PROVENANCE)
    mark = session.grammar.mark
    which = f"{topic} = {mark} AND {partition} = {mark} AND {offset} >= {mark} AND {offset} < {mark}"
    values = (where.topic, where.partition, where.start, where.until)
    found = read_digests(session, table, which, values).get(where.topic_partition)
    return OffsetDigest() if found is None else found.digest
