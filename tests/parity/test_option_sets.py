"""Random option sets read with both connectors: the same rows in the same tasks, or the same error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.parity.conftest import World
from tests.parity.option_sets import make_option_set
from tests.parity.reading import read_both
from tests.parity.verdicts import judge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The default sample; `python -m tests.proof.parity_campaign` draws others, and many more.
SEED = 1
COUNT = 60


@pytest.mark.parametrize("number", range(COUNT))
def test_both_connectors_answer_alike(spark: SparkSession, world: World, number: int) -> None:
    """B073, B096, B104: the sets include names in any case, several starts at once, and cut ranges."""
    option_set = make_option_set(seed=SEED, number=number)
    answers = read_both(spark, option_set.resolve(world.prefix, world.bootstrap))
    verdict = judge(*answers, option_set)
    assert not verdict.startswith("FINDING"), f"seed {SEED} number {number} {option_set}: {verdict}"
