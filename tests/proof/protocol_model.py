"""The publishing protocol, searched with several faults in one run, and the planted bugs again.

    python -m tests.proof.protocol_model --write

The unit tests search each fault alone. Here two faults, or three of different kinds, strike in one run of two
writers, three batches and two partitions, in every order. A fail-over, which takes the database back to any
earlier state, strikes two writers on its own. Together with a crash and a lost answer, it strikes one writer
whose batches offsets do not distinguish. A search that ends has tried them all.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.testing.checker import Exploration
from tests.proof.recording import record
from tests.unit.core.sinks import test_protocol_failover as failover
from tests.unit.core.sinks.test_protocol_model import BUGS, search, unchanged

FAULTS: tuple[dict[str, int], ...] = (
    {},
    {"crash": 1},
    {"doubt": 1},
    {"restart": 1},
    {"failover": 1},
    {"crash": 2},
    {"crash": 1, "doubt": 1},
    {"crash": 1, "restart": 1},
    {"doubt": 1, "restart": 1},
    {"crash": 1, "doubt": 1, "restart": 1},
)
LOST = {"failover": 1}
#: For batches that offsets do not distinguish: the kind of writer, how many writers, and what happens to
#: them.
FAILOVERS: tuple[tuple[Any, str, tuple[failover.Planned, ...], dict[str, int]], ...] = (
    (failover.write_direct, "a", failover.PLAN, {"failover": 1, "crash": 1, "doubt": 1}),
    (failover.write_query, "a", failover.PLAN, {"failover": 1, "crash": 1, "doubt": 1}),
    (failover.write_direct, "ab", failover.SHORT, {"failover": 1}),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", help="for nothing: every order is searched, whatever the seed")
    parser.add_argument("--failover", action="store_true", help="only searches with a fail-over: minutes")
    parser.add_argument("--write", action="store_true", help="keep the report in docs/proof")
    given = parser.parse_args()
    only = given.failover
    # The small searches come first, because they find their bugs within seconds.
    bugs = [
        *(_look_for(bug.__name__, partial(search, bug), faults) for bug, faults in BUGS if not only),
        *(
            _look_for(
                f"{write.__name__}, {bug.__name__}", partial(failover.search, write, bug, writers), LOST
            )
            for write, bug, writers in failover.BUGS
        ),
    ]
    searches = [
        *(
            _search(
                f"{write.__name__}, {'one writer' if len(writers) == 1 else 'two writers'}",
                partial(failover.search, write, unchanged, writers, plan),
                faults,
            )
            for write, writers, plan, faults in FAILOVERS
        ),
        *(
            _search("write_all, two writers", partial(search, unchanged, most_states=100_000_000), faults)
            for faults in FAULTS
            if "failover" in faults or not only
        ),
    ]
    is_good = not any(each["violations"] for each in searches) and all(each["found"] for each in bugs)
    record(
        f"protocol-model{'-failover' if only else ''}",
        "the publishing protocol, all orders of its writers with "
        + ("a fail-over to any earlier state" if only else "several faults in one run"),
        repeat=f"python -m tests.proof.protocol_model --write{' --failover' if only else ''}",
        facts={"searches": searches, "planted_bugs": bugs},
        write=given.write,
    )
    return 0 if is_good else 1


def _search(who: str, run: Callable[..., Exploration], faults: dict[str, int]) -> dict[str, Any]:
    began = time.monotonic()
    found = run(**faults)
    took = time.monotonic() - began
    verdict = found.violations[0].what if found.violations else "each row once"
    _tell(f"{who}, {faults or 'no fault'}: {found.states} states, {found.ends} ends, {took:.0f} s: {verdict}")
    return {
        "who": who,
        "faults": faults,
        "states": found.states,
        "ends": found.ends,
        "violations": [each.what for each in found.violations],
        "seconds": round(took, 1),
    }


def _look_for(bug: str, run: Callable[..., Exploration], faults: dict[str, int]) -> dict[str, Any]:
    found = run(**faults)
    is_found = bool(found.violations)
    _tell(f"{bug}: {'found' if is_found else 'NOT FOUND'} after {found.states} states")
    return {"bug": bug, "faults": faults, "found": is_found, "states": found.states}


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
