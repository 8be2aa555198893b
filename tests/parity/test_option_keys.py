"""Every option of Spark's connector, alone: known to both connectors, and accepted or refused by both."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.options.batch_option_table import REPLACED, BatchTable
from penstock.core.options.option_table import option_specs
from penstock.core.options.stream_option_table import STREAM_ONLY
from tests.parity.conftest import World
from tests.parity.option_sets import KEYS, OptionSet
from tests.parity.option_values import (
    END_FAULTS,
    FINE,
    ORDER_FAULTS,
    REFUSED,
    SELECTION_FAULTS,
    START_FAULTS,
    VALUE_FAULTS,
)
from tests.parity.reading import read_both
from tests.parity.verdicts import judge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Keys in the connector's class that are not options of a batch read.
ELSEWHERE = {"topic": "of the sink", "_mocksystemtime": "a hook for Spark's own tests"}
_KEY_METHOD = re.compile(r"(?:.*\$\$)?(?!DEFAULT_|INSTRUCTION_|CUSTOM_)[A-Z_]+")


def read_keys_by_reflection(spark: SparkSession) -> set[str]:
    """Return the option keys in the companion object of the connector's provider class, in lower case."""
    jvm: Any = spark.sparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    provider = loader.loadClass("org.apache.spark.sql.kafka010.KafkaSourceProvider$")
    instance = provider.getField("MODULE$").get(None)
    nothing = spark.sparkContext._gateway.new_array(jvm.java.lang.Object, 0)  # type: ignore[union-attr]
    return {
        str(method.invoke(instance, nothing)).lower()
        for method in provider.getMethods()
        if _KEY_METHOD.fullmatch(method.getName())
        and method.getReturnType().getName() == "java.lang.String"
        and method.getParameterCount() == 0
    }


def test_every_key_of_the_official_connector_is_an_option_here_and_is_compared(spark: SparkSession) -> None:
    keys = read_keys_by_reflection(spark) - set(ELSEWHERE)
    assert len(keys) > 15
    ours = {spec.key.lower() for spec in option_specs(BatchTable).values()}
    assert keys - ours - {each.lower() for each in (*STREAM_ONLY, *REPLACED)} == set()
    assert keys - {each.lower() for each in KEYS} == set()


#: All options at once, each with its first value, then with its second, and so on.
ACCEPTED = [
    {"subscribe": "~skew", **{key: texts[turn % len(texts)] for key, texts in FINE.items()}}
    for turn in range(max(map(len, FINE.values())))
]
REJECTED: list[dict[str, str]] = [
    *SELECTION_FAULTS,
    *({"subscribe": "~plain", **fault} for fault in ORDER_FAULTS),
    *({"subscribe": "~plain", key: text} for key, text in (*START_FAULTS, *END_FAULTS, *VALUE_FAULTS)),
    *({"subscribe": "~plain", key: text} for key, texts in REFUSED.items() for text in texts),
]


def compare(spark: SparkSession, world: World, options: dict[str, str]) -> str:
    option_set = OptionSet(tuple(options.items()))
    return judge(*read_both(spark, option_set.resolve(world.prefix, world.bootstrap)), option_set)


@pytest.mark.parametrize("options", ACCEPTED, ids=lambda options: f"minPartitions {options['minPartitions']}")
def test_what_one_connector_accepts_the_other_reads_alike(
    spark: SparkSession, world: World, options: dict[str, str]
) -> None:
    """B107, B131: every option with every good value."""
    assert compare(spark, world, options).startswith("same rows")


@pytest.mark.parametrize("options", REJECTED, ids=str)
def test_what_one_connector_refuses_the_other_refuses_for_the_same_reason(
    spark: SparkSession, world: World, options: dict[str, str]
) -> None:
    """B067, B099, B100, B101, B102, B103, B132, B133: every wrong value, on its own."""
    assert compare(spark, world, options).startswith("both fail: ")
