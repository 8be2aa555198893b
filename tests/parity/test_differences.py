"""Every deliberate difference really exists, on both sides, and is on the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.parity.conftest import World
from tests.parity.differences import DIFFERENCES, PAGE, Example, Outcome, write_page
from tests.parity.option_sets import OptionSet
from tests.parity.reading import Answer, read_both
from tests.parity.verdicts import name_our_condition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SELECTIONS = {"subscribe", "assign", "subscribePattern"}
EXAMPLES = [example for difference in DIFFERENCES for example in difference.examples]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: str(example.options))
def test_a_difference_by_choice_is_as_the_table_says(
    spark: SparkSession, world: World, example: Example
) -> None:
    selection = {} if SELECTIONS & set(example.options) else {"subscribe": "~plain"}
    options = OptionSet(tuple({**selection, **example.options}.items()))
    official, ours = read_both(spark, options.resolve(world.prefix, world.bootstrap))
    assert_outcome(official, example.official, official.error)
    assert_outcome(ours, example.ours, name_our_condition(ours.error))
    if example.tasks is not None:
        assert (len(official.tasks), len(ours.tasks)) == example.tasks


def assert_outcome(answer: Answer, expected: Outcome, told: str) -> None:
    if isinstance(expected, int):
        assert (answer.error, answer.rows) == ("", expected)
    else:
        assert expected in told


def test_the_page_of_differences_is_up_to_date() -> None:
    assert PAGE.read_text() == write_page(), "run `python -m tests.parity.differences`"
