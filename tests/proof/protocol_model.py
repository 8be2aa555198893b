"""The publishing protocol searched with several things going wrong in one run, and the planted bugs again.

    python -m tests.proof.protocol_model --write

The unit tests search each fault alone. Here two, and all three kinds, strike in one run of two writers, three
batches and two partitions, in every order. A search that ends has tried them all.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.proof.recording import record
from tests.unit.test_protocol_model import BUGS, search, unchanged

SEARCHES: tuple[dict[str, int], ...] = (
    {},
    {"crash": 1},
    {"doubt": 1},
    {"restart": 1},
    {"crash": 2},
    {"crash": 1, "doubt": 1},
    {"crash": 1, "restart": 1},
    {"doubt": 1, "restart": 1},
    {"crash": 1, "doubt": 1, "restart": 1},
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", help="for nothing: every order is searched, whatever the seed")
    parser.add_argument("--write", action="store_true", help="keep the report in docs/proof")
    given = parser.parse_args()
    searches, bugs = [], []
    for faults in SEARCHES:
        began = time.monotonic()
        found = search(unchanged, most_states=100_000_000, **faults)
        took = time.monotonic() - began
        verdict = found.violations[0].what if found.violations else "each row once"
        _tell(f"{faults or 'no fault'}: {found.states} states, {found.ends} ends, {took:.0f} s: {verdict}")
        searches.append(
            {
                "faults": faults,
                "states": found.states,
                "ends": found.ends,
                "violations": [each.what for each in found.violations],
                "seconds": round(took, 1),
            }
        )
    for bug, faults in BUGS:
        found = search(bug, **faults)
        told = found.violations[0] if found.violations else None
        _tell(f"{bug.__name__}: {'found' if told else 'NOT FOUND'} after {found.states} states")
        bugs.append(
            {"bug": bug.__name__, "faults": faults, "found": told is not None, "states": found.states}
        )
    is_good = not any(each["violations"] for each in searches) and all(each["found"] for each in bugs)
    record(
        "protocol-model",
        "the publishing protocol, all orders of two writers with several faults in one run",
        repeat="python -m tests.proof.protocol_model --write",
        facts={"searches": searches, "planted_bugs": bugs},
        write=given.write,
    )
    return 0 if is_good else 1


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
