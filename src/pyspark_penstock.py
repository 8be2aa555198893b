"""Lets Spark find the format "penstock" by itself.

Spark imports every top-level module named `pyspark_*` whenever any Python data source is looked up and
takes its `DefaultSource`. So this module must never fail and must import nothing heavy: an error here
would break other people's sources. numba, kafka-python and pyarrow stay out until a read begins.
"""

from penstock.engines.source import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
