"""Digests of the offsets that rows came from: for any part, in any order, and as text."""

from __future__ import annotations

import pyarrow as pa

from penstock.core.model import TopicPartition
from penstock.core.sinks.offset_digests import OffsetDigest, sum_digests
from penstock.stores.sql.audit.provenance_digests import digest_rows, parse_digests, write_digests

ONE = TopicPartition("t", 0)


def test_a_digest_depends_on_no_order_and_on_no_cut() -> None:
    def rows(*offsets: int | None) -> pa.Table:
        count = len(offsets)
        return pa.table(
            {
                "penstock_topic": ["t"] * count,
                "penstock_partition": pa.array([0] * count, pa.int32()),
                "penstock_offset": pa.array(offsets, pa.int64()),
            }
        )

    whole = digest_rows(rows(1, 2, 3, 2**40, 5))
    assert whole == digest_rows(rows(5, 2**40, 3, 2, 1))
    assert whole == sum_digests([digest_rows(rows(1, 2)), digest_rows(rows(3, 2**40, 5, None))])
    assert parse_digests(write_digests(whole)) == whole
    assert whole != digest_rows(rows(1, 2, 4, 2**40, 4))  # the same sum
    assert digest_rows(rows(0, 4, 7, 11)) != digest_rows(rows(1, 2, 9, 10))  # the same squares and cubes
    assert digest_rows(pa.table({"x": [1]})) == {}
    gone = OffsetDigest() - whole[ONE]
    assert whole[ONE] + gone == OffsetDigest()
