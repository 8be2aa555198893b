"""The kernel that finds the evidence of decisions.

Rule: it walks back from a decision over at most as many rows as a lane keeps, so a decision does not cost
more in a flood of them. Why not Arrow for each decision: its calls took an eighth of the workers' time in a
profile of a million lines.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from penstock.kernels.compilation import kernel


@kernel
def find_last(kinds, highs, lows, untils, kept, of_kinds, of_highs, of_lows, places, counts):
    """Find the last rows of each subject before `untils`, no further back than `kept` rows.

    They go to the end of the subject's row of `places`, in order. `counts` holds their number.
    """
    most = places.shape[1]
    for n in range(untils.size):
        count = 0
        at = untils[n] - 1
        since = max(untils[n] - kept, 0)
        while at >= since and count < most:
            if lows[at] == of_lows[n] and highs[at] == of_highs[n] and kinds[at] == of_kinds[n]:
                count += 1
                places[n, most - count] = at
            at -= 1
        counts[n] = count
