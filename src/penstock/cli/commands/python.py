"""Print the path of a Python for Spark's processes: this interpreter, started half a second faster.

export PYSPARK_PYTHON="$(penstock python)"                          for programs that make their own session
spark-submit --conf "spark.pyspark.python=$(penstock python)" ...   for those that are submitted

Spark's processes import PySpark from a zip without compiled files. The launcher at this path lets them
import the installed PySpark if it is the same version, and changes nothing otherwise. It is made at the first
call, in the cache folder (PENSTOCK_CACHE). On a cluster every computer needs it at the same path.
"""

from __future__ import annotations

import argparse
import sys

from penstock.cli.shared.terminal import complain, say
from penstock.cluster.processes.python_launcher import make_launcher


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the interpreter is the one that runs this."""


def run(_arguments: argparse.Namespace) -> int:
    path = make_launcher()
    if path == sys.executable:
        complain(
            "This is the interpreter itself. A launcher needs bash, PySpark in the site-packages, and a "
            "cache folder that can hold programs (PENSTOCK_CACHE names another)."
        )
    say(path)
    return 0
