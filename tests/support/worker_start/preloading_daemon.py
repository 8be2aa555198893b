"""PySpark's daemon, which imports before it forks what each of its workers would otherwise import afterwards.

Rule: only third-party libraries. What a worker loads of Penstock is still loaded in the worker. The tests
start about 600 workers, and these imports take half of each one's start.
"""

from __future__ import annotations

import gc
import importlib
import runpy

for name in ("numpy", "pyarrow", "pyarrow.compute", "numba", "kafka", "pyspark.worker"):
    importlib.import_module(name)
gc.freeze()  # PySpark collects garbage after every task, and would walk all of this each time
runpy.run_module("pyspark.daemon", run_name="__main__")
