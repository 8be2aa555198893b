"""Compile the decoding kernels now, for instance while a container image is built.

Without it the first query on a new machine takes some seconds longer; what is compiled stays on disk.
"""

from __future__ import annotations

import argparse
import time

from penstock.cli.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments."""


def run(arguments: argparse.Namespace) -> int:
    from penstock.kafka.records.warmup import ensure_compiled

    began = time.perf_counter()
    ensure_compiled()
    say(f"The kernels are ready ({time.perf_counter() - began:.1f} s).")
    return 0
