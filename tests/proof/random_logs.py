"""Three hundred random logs on a real broker; the table says how often each codec met each feature.

python -m tests.proof.random_logs --logs 300 --seed 1
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter

from penstock.cluster import LocalKafka
from penstock.kafka.records.codecs import CODEC_NAMES
from tests.conftest import IMPATIENT
from tests.support.kafka.random_logs import FEATURES, run

SHARE = 50  # logs in progress at once; each open transaction holds a producer
FEWEST_PER_CELL = 10


def format_table(cells: Counter[tuple[str, str]]) -> str:
    lines = ["| codec | " + " | ".join(FEATURES) + " |", "|---|" + "---|" * len(FEATURES)]
    for codec in CODEC_NAMES:
        lines.append(f"| {codec} | " + " | ".join(str(cells[codec, feature]) for feature in FEATURES) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    cells: Counter[tuple[str, str]] = Counter()
    with LocalKafka(broker_settings=IMPATIENT) as kafka:
        for share, first in enumerate(range(0, options.logs, SHARE)):
            count = min(SHARE, options.logs - first)
            cells.update(run(kafka.bootstrap, f"random-{share}", options.seed + share, count))
    sys.stdout.write(f"seed {options.seed}: {options.logs} logs, identical rows in all\n")
    sys.stdout.write(format_table(cells) + "\n")
    fewest = FEWEST_PER_CELL if options.logs >= 300 else 0
    thin = [cell for cell in itertools.product(CODEC_NAMES, FEATURES) if cells[cell] < fewest]
    return 1 if thin else 0


if __name__ == "__main__":
    raise SystemExit(main())
