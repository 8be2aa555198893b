"""The random histories of tests/unit/engines/reading/test_stream_histories.py, by the ten thousand.

python -m tests.proof.stream_miniature --histories 20000 --seed 1 --write
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.proof.recording import record
from tests.unit.engines.reading.test_stream_histories import (
    test_with_loss_nothing_is_read_twice_and_what_is_missing_is_named as play_with_loss,
)
from tests.unit.engines.reading.test_stream_histories import (
    test_without_loss_every_record_is_read_once_and_in_order as play_without_loss,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=20_000, help="of each kind")
    parser.add_argument("--seed", type=int, default=1, help="of the first")
    parser.add_argument("--minutes", type=float, default=600, help="begin no history after this")
    parser.add_argument("--write", action="store_true", help="to docs/proof/stream-miniature.json")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # each loss is logged, and there are many
    began, done, failures = time.monotonic(), 0, []
    for seed in range(options.seed, options.seed + options.histories):
        if time.monotonic() - began > options.minutes * 60:
            break
        done += 1
        with tempfile.TemporaryDirectory() as folder:
            kinds: dict[str, Callable[[], None]] = {
                "without loss": partial(play_without_loss, seed),
                "with loss": partial(play_with_loss, seed, Path(folder)),
            }
            for kind, play in kinds.items():
                try:
                    play()
                except Exception as error:  # noqa: BLE001 each is written down with its seed
                    failures.append({"seed": seed, "kind": kind, "error": repr(error)[:2000]})
    record(
        "stream-miniature",
        "random histories of a log and its stream, Spark's engine in miniature, kills at every step",
        repeat=f"python -m tests.proof.stream_miniature --histories {done} --seed {options.seed} --write",
        facts={
            "first_seed": options.seed,
            "histories_without_loss": done,
            "histories_with_loss": done,
            "seconds": round(time.monotonic() - began),
            "failures": failures,
        },
        write=options.write,
    )
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
