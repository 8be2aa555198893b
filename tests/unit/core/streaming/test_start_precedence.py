"""The precedence of starts: one table of every combination, and the rest of the stored position."""

from __future__ import annotations

import pytest

from penstock.core.errors import OffsetStoreError
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.streaming.start_precedence import Origin, choose_start

T0, T1, T2, U0 = (
    TopicPartition("t", 0),
    TopicPartition("t", 1),
    TopicPartition("t", 2),
    TopicPartition("u", 0),
)
ID = b"\x01" * 16

# For one partition: who specifies a start for it, and which specification wins. `other`: the stream has run
# before, but the stored position is about another partition. Then the rule decides nothing, and the run finds
# the partition.
FORCED, STORED, EXPLICIT, BY_RULE = 10, 20, 30, 50
ORDER: list[tuple[bool, str, bool, int | None, Origin | None, int | None]] = [
    # forced, stored, explicit, rule, -> origin, offset
    (False, "never", False, BY_RULE, "rule", BY_RULE),
    (False, "never", False, None, None, 0),
    (False, "never", True, BY_RULE, "explicit", EXPLICIT),
    (False, "never", True, None, "explicit", EXPLICIT),
    (False, "other", False, BY_RULE, None, None),
    (False, "other", False, None, None, None),
    (False, "other", True, BY_RULE, "explicit", EXPLICIT),
    (False, "other", True, None, "explicit", EXPLICIT),
    (False, "known", False, BY_RULE, "stored", STORED),
    (False, "known", False, None, "stored", STORED),
    (False, "known", True, BY_RULE, "stored", STORED),
    (False, "known", True, None, "stored", STORED),
    *(
        (True, stored, explicit, rule, "forced", FORCED)
        for stored in ("never", "other", "known")
        for explicit in (False, True)
        for rule in (BY_RULE, None)
    ),
]


@pytest.mark.parametrize(("forced", "stored", "explicit", "rule", "origin", "offset"), ORDER)
def test_the_order_is_forced_then_stored_then_explicit_then_the_rule(
    forced: bool, stored: str, explicit: bool, rule: int | None, origin: Origin | None, offset: int | None
) -> None:
    """C6, C7, C18, B19: one table for all combinations of one partition."""

    def choose() -> tuple[Origin | None, int | None]:
        position = {"never": None, "other": StreamPosition({U0: 7}), "known": StreamPosition({T0: STORED})}
        choice = choose_start(
            forced={T0: FORCED} if forced else {},
            stored=position[stored],
            explicit={T0: EXPLICIT} if explicit else {},
            by_rule={T0: rule},
        )
        (note,) = [each for each in choice.notes if each.partition == T0] or [None]
        assert choice.position.offsets.get(T0) == (note and note.offset)
        return (None, None) if note is None else (note.origin, note.offset)

    if origin is None and stored == "never":
        with pytest.raises(OffsetStoreError, match="NO_STORED_OFFSET"):
            choose()
    else:
        assert choose() == (origin, offset)


def test_the_table_has_every_combination() -> None:
    assert len({row[:4] for row in ORDER}) == len(ORDER) == 2 * 3 * 2 * 2


def test_each_partition_is_decided_by_itself() -> None:
    """C19: one without a stored position sends no other back, and the rule skips none of its records."""
    choice = choose_start(
        forced={U0: 4},
        stored=StreamPosition({T0: 5, T1: 7, U0: 9}, {"t": ID, "u": ID}, {T0: 3, U0: 2}),
        explicit={T1: 100, T2: 12},
        by_rule={T2: 90},
    )
    assert choice.position == StreamPosition({T0: 5, T1: 7, T2: 12, U0: 4}, {"t": ID}, {T0: 3})
    assert [str(each) for each in choice.notes] == [
        "t-0 at 5 (stored)",
        "t-1 at 7 (stored)",
        "t-2 at 12 (explicit)",
        "u-0 at 4 (forced, instead of 9)",
    ]


def test_rule_none_names_every_partition_that_has_no_start() -> None:
    """C7: the error says what to do, and names all of them at once."""
    with pytest.raises(OffsetStoreError, match=r"NO_STORED_OFFSET.* t-1, u-0, .*expired") as caught:
        choose_start(forced={T0: 1}, stored=None, explicit={}, by_rule={T1: None, U0: None})
    assert caught.value.facts["partitions"] == ["t-1", "u-0"]


def test_a_stream_that_stood_nowhere_has_run_before() -> None:
    """Its topics came later; what was written before they were found is not skipped."""
    choice = choose_start(forced={}, stored=StreamPosition({}), explicit={}, by_rule={T0: 99})
    assert choice.position == StreamPosition({})


def test_a_new_partition_without_a_known_start_is_no_guess() -> None:
    choice = choose_start(forced={}, stored=StreamPosition({T0: 1}), explicit={}, by_rule={T1: 99})
    assert choice.position == StreamPosition({T0: 1})


def test_what_is_stored_of_other_partitions_stays() -> None:
    """Whether they are gone is decided by the log; dropping a position here would hide the loss."""
    stored = StreamPosition({T0: 5, T1: 6}, {"t": ID}, {T1: 1}, starts={T0: 2}, gone={T2: 8})
    choice = choose_start(forced={}, stored=stored, explicit={T2: 1}, by_rule={})
    assert choice.position == StreamPosition({T0: 5, T1: 6}, {"t": ID}, {T1: 1}, gone={T2: 8})
    told = [str(each) for each in choice.notes]
    assert told == ["t-0 at 5 (stored)", "t-1 at 6 (stored)", "t-2 at 8 (stored)"]
    forced = choose_start(forced={T2: 1}, stored=stored, explicit={}, by_rule={}).position
    assert (forced.offsets[T2], forced.gone) == (1, {})
