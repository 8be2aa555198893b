"""Stored positions of a shipper: it continues from the newest of several."""

from __future__ import annotations

import pytest

from penstock.apps.accesslog.shipping.shipped_positions import ShipState, Stored, find_newest


def store(partition: int, step: int, time_ms: int) -> Stored:
    return Stored(partition, ShipState(step=step), time_ms, wanted=0, partitions=4, files={})


@pytest.mark.parametrize(
    ("found", "newest", "step"),
    [
        pytest.param([(7, 100), (9, 90)], 1, 9, id="steps count, whatever a clock did"),
        pytest.param([(0, 100), (0, 200)], 1, 0, id="without steps the time counts"),
        pytest.param([(50, 100), (0, 200)], 1, 50, id="an older release ran after the roll-back"),
        pytest.param([(50, 300), (0, 200)], 0, 50, id="an older release ran before the update"),
        pytest.param([(50, 100), (51, 90), (0, 80)], 1, 51, id="all three"),
    ],
)
def test_the_newest_position_is_found_also_after_a_release_that_counted_no_steps(
    found: list[tuple[int, int]], newest: int, step: int
) -> None:
    """Using an old position would ship lines twice. The step count continues from the highest one found."""
    for order in (1, -1):
        taken = find_newest([store(number, *each) for number, each in enumerate(found)][::order])
        assert taken is not None
        assert (taken.partition, taken.state.step) == (newest, step)


def test_without_a_position_there_is_none() -> None:
    assert find_newest([]) is None
