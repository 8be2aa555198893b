"""Moments on the command line: a length of time before now (`2h`), or a time."""

from __future__ import annotations

import argparse
import time

from penstock.core.values import parse_duration_ms, parse_time_ms


def parse_moment(text: str) -> int:
    """Milliseconds since the epoch."""
    try:
        return time.time_ns() // 1_000_000 - parse_duration_ms(text)
    except ValueError:
        pass
    try:
        return parse_time_ms(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a length of time (2h) nor {error}") from None
