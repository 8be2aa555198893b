"""The evidence of decisions, found for all of them at once, compared with a plain reading of the rule."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.apps.accesslog.defence.evidence_lines import EVIDENCE, MOST_EVIDENCE, Witnesses

_KEPT = 12
keys = st.tuples(st.integers(0, 1), st.sampled_from([0, 5, 2**64 - 1]), st.sampled_from([0, 5, 2**63]))


def _tell(offset: int) -> tuple[int, int, int, bytes]:
    """Return partition, offset, time and text of a row, all different."""
    return 1000 + offset, offset, 2000 + offset, b"%d" % offset


def make_rows(subjects: list[tuple[int, int, int]], first_offset: int) -> pa.Table:
    rows = [
        (*subject, time, partition, offset, text)
        for at, subject in enumerate(subjects, first_offset)
        for partition, offset, time, text in [_tell(at)]
    ]
    columns = list(zip(*rows, strict=True)) or [()] * len(EVIDENCE)
    return pa.table(
        [pa.array(each, field.type) for each, field in zip(columns, EVIDENCE, strict=True)], EVIDENCE
    )


@given(
    st.lists(keys, max_size=_KEPT),
    st.lists(st.tuples(st.integers(1, 3), keys), max_size=40),
    st.lists(st.tuples(st.integers(0, 90), keys), max_size=20),
)
def test_the_last_rows_of_a_subject_up_to_its_event_are_found(
    before: list[tuple[int, int, int]],
    batch: list[tuple[int, tuple[int, int, int]]],
    asked: list[tuple[int, tuple[int, int, int]]],
) -> None:
    """`batch` says how many events further each row is; `asked`, the events and subjects of decisions."""
    places = np.cumsum([0, *(step for step, _ in batch)], dtype=np.int64)[1:]
    witnesses = Witnesses(
        make_rows(before, 0), _KEPT, places, make_rows([key for _, key in batch], len(before))
    )
    found = witnesses.find(
        np.array([event for event, _ in asked], np.int64),
        np.array([kind for _, (kind, _, _) in asked], np.int64),
        np.array([high for _, (_, high, _) in asked], np.uint64),
        np.array([low for _, (_, _, low) in asked], np.uint64),
    )
    standing = [(-1, key) for key in before] + [
        (int(at), key) for at, (_, key) in zip(places, batch, strict=True)
    ]
    for (event, subject), told in zip(asked, found, strict=True):
        until = sum(at <= event for at, _ in standing)
        wanted = [offset for offset in range(max(until - _KEPT, 0), until) if standing[offset][1] == subject]
        assert told == [_tell(offset) for offset in wanted[-MOST_EVIDENCE:]]
