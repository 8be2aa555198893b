"""Spark standalone from the pip package: two workers, each with its own executor."""

from __future__ import annotations

from tests.cluster.conftest import TwoWorkers

DRIVER = """
spark = builder.getOrCreate()

def where(_):
    import os
    yield os.getcwd()  # each executor works in a folder of its own

print("TOLD", len(set(spark.sparkContext.parallelize(range(8), 8).mapPartitions(where).collect())))
spark.stop()
"""


def test_tasks_run_in_two_executors_on_a_real_cluster(two_workers: TwoWorkers) -> None:
    assert two_workers.cluster.count_workers() == 2
    told = two_workers.run(DRIVER)
    assert told == 2
