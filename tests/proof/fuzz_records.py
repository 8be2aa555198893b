"""Throws damaged record batches at the fast decoder and compares it with the reference decoder.

Every input comes from (seed, number), so any finding can be repeated alone with `--only`. The input ends at a
protected page; in every second one so does each decompressed batch and each buffer that is written. Two
outcomes are allowed: both decoders return the same rows, or both refuse, the fast one with the condition that
matches the reference's verdict. A finding is a crash, another exception, other rows, a refusal of what the
reference reads, or a second without an answer.

    python -m tests.proof.fuzz_records --inputs 1000000 --seed 7
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.core.errors import DecodeError
from penstock.kafka.records.codecs import Decompressor
from penstock.kafka.records.record_decoder import RecordDecoder
from tests.proof.mutations import MUTATIONS, make_input
from tests.reference.record_decoder import DamageError, Row, visible_rows
from tests.support.guard_page import GuardedMemory, guarded_array
from tests.support.kafka.decoding_checks import COLUMNS, take_rows

CONDITIONS = {"old format": "UNSUPPORTED_MESSAGE_FORMAT", "time": "TIMESTAMP_OVERFLOW"}
SLOW_S = 1.0
CAPACITY = 4 << 20


class GuardedDecompressor(Decompressor):
    """A decompressor that puts its output in front of a protected page too."""

    def __init__(self) -> None:
        super().__init__()
        self._memory = GuardedMemory(CAPACITY)

    def append(self, codec: int, source: npt.NDArray[np.uint8], at: int) -> int:
        return -1 if at else super().append(codec, source, at)  # each batch alone in front of the page

    def held(self, size: int) -> npt.NDArray[np.uint8]:
        plain = super().held(size)
        return plain if plain.size > CAPACITY else self._memory.place(plain.tobytes())


class FastDecoder:
    """The decoder under test, with small Arrow batches, so that records often meet the ends of buffers.

    `guarded` puts each decompressed batch, and each column that is written, alone in front of a protected
    page; otherwise decompressed batches lie side by side, as in production.
    """

    def __init__(self, *, guarded: bool) -> None:
        self._memory = GuardedMemory(CAPACITY)
        self._decoder = RecordDecoder("fuzz", 0, COLUMNS, max_rows=7, max_bytes=256)
        if guarded:
            self._decoder._decompressor = GuardedDecompressor()
            self._decoder._new_memory = guarded_array

    def rows(self, data: bytes, start: int, until: int, aborted: list[tuple[int, int]] | None) -> list[Row]:
        self._decoder.open(self._memory.place(data))
        return take_rows(self._decoder, start, until, aborted)


def judge(fast: Callable[..., list[Row]], arguments: tuple[Any, ...]) -> str:
    """Return the outcome of one input: "same rows", a refusal's condition, or a text with FINDING."""
    expected: list[Row] | None = None
    wanted = ""
    try:
        expected = list(visible_rows(*arguments))
    except DamageError as damage:
        wanted = CONDITIONS.get(damage.kind, "corrupt")
        reason = str(damage)
    began = time.process_time()
    try:
        rows = fast(*arguments)
    except DecodeError as error:
        if expected is not None:
            return f"FINDING: refused {error.condition}, but the reference reads {len(expected)} rows"
        kind = error.condition if error.condition in CONDITIONS.values() else "corrupt"
        if kind != wanted:
            return f"FINDING: refused {error.condition}, the reference says {reason}"
        return error.condition
    finally:
        if time.process_time() - began > SLOW_S:
            return "FINDING: no answer within a second"  # noqa: B012
    if expected is None:
        return f"FINDING: returned {len(rows)} rows, the reference says {reason}"
    if rows != expected:
        return f"FINDING: {len(rows)} rows differ from the reference's {len(expected)}"
    return "same rows" if rows else "no rows"


def run(seed: int, inputs: int, only: int | None = None) -> dict[str, Any]:
    """Judge the inputs of one seed and return a table of outcomes by kind of mutation, with the findings."""
    decoders = (FastDecoder(guarded=True), FastDecoder(guarded=False))
    for warm_up in range(40):  # compile before the clock starts, for every codec
        for decoder in decoders:
            decoder.rows(make_input(random.Random(warm_up), "none")[0], 0, 100, [(7, 0)])
    table: dict[str, Counter[str]] = {name: Counter() for name in ("none", *MUTATIONS)}
    findings: list[str] = []
    resealed = 0
    for number in range(inputs) if only is None else [only]:
        rng = random.Random(f"{seed}/{number}")
        kind = rng.choice(("none", *MUTATIONS)) if rng.random() < 0.25 else rng.choice(MUTATIONS)
        data, sealed = make_input(rng, kind)
        resealed += sealed
        start = rng.choice((0, 0, 0, rng.randrange(60)))
        until = rng.choice((2**62, 2**62, start + rng.randrange(60)))
        aborted = rng.choice(
            (None, [(rng.choice((7, 8)), rng.randrange(60)) for _ in range(rng.randrange(4))])
        )
        outcome = judge(decoders[number % 2].rows, (data, start, until, aborted))
        if outcome.startswith("FINDING"):
            findings.append(f"seed {seed} input {number} ({kind}): {outcome}")
            outcome = "FINDING"
        table[kind][outcome] += 1
    return {
        "seed": seed, "inputs": inputs, "resealed": resealed, "findings": findings,
        "table": {kind: dict(counts) for kind, counts in table.items()},
    }  # fmt: skip


def format_table(report: dict[str, Any]) -> str:
    outcomes = sorted({outcome for counts in report["table"].values() for outcome in counts})
    lines = [f"seed {report['seed']}, {report['inputs']} inputs, {report['resealed']} with a right checksum"]
    lines.append("| mutation | " + " | ".join(outcomes) + " |")
    lines.append("|---|" + "---|" * len(outcomes))
    for kind, counts in report["table"].items():
        lines.append(f"| {kind} | " + " | ".join(str(counts.get(o, 0)) for o in outcomes) + " |")
    return "\n".join([*lines, *report["findings"][:50]])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="repeat one input of the seed")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args()
    faulthandler.enable()
    report = run(options.seed, options.inputs, options.only)
    sys.stdout.write((json.dumps(report) if options.json else format_table(report)) + "\n")
    return 1 if report["findings"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
