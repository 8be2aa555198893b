"""The kernel part that distinguishes a broken link from a probe, by who else asked for the same missing path.

Rules. A missing path counts against nobody once two visitors vouch for it, from two networks other than that
of the client that asks now. A visitor is a client without a fault that has loaded an existing page. It can
vouch for a few paths only (`MOST_VOUCHED`). A path is forgotten after a day in which no visitor asked for it.
Once two vouch for it, any client of a third network counts as a visitor here.

What this does not stop: an attacker with well-behaved helpers in two more networks can hide as many paths of
a scan as such a pair may vouch for. A larger scan needs more pairs. What a content rule hits is never hidden.
"""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import numpy as np

from penstock.apps.accesslog.defence import behaviour_fold_arrays as s
from penstock.apps.accesslog.events.line_events_kernel import mix, mix_subject
from penstock.apps.accesslog.parsing.client_addresses import cut_to_net
from penstock.kernels.compilation import part


@part
def note_missing_path(table, row, path, time):
    """Note that a client missed this path; return 1 if two visitors of two other networks missed it, too."""
    paths, rows = table.paths, table.rows
    key = np.int64(path)
    net_high, net_low = cut_to_net(np.uint64(rows[row, s.HIGH]), np.uint64(rows[row, s.LOW]))
    me = np.int64(mix_subject(net_high, net_low, 1) | np.uint64(1))
    buckets = paths.shape[0] // s.PATH_WAYS
    begin = np.int64(mix(np.uint64(path)) % np.uint64(buckets)) * s.PATH_WAYS
    place, oldest = np.int64(-1), begin
    for at in range(begin, begin + s.PATH_WAYS):
        if paths[at, s.PATH_FIRST] != 0 and paths[at, s.PATH_KEY] == key:
            place = at
            break
        if paths[at, s.PATH_FIRST] == 0:
            if paths[oldest, s.PATH_FIRST] != 0:
                oldest = at
        elif paths[oldest, s.PATH_FIRST] != 0 and (
            paths[at, s.PATH_LAST] < paths[oldest, s.PATH_LAST]
            or (paths[at, s.PATH_LAST] == paths[oldest, s.PATH_LAST]
                and paths[at, s.PATH_KEY] < paths[oldest, s.PATH_KEY])
        ):  # fmt: skip
            oldest = at
    if place >= 0 and time > paths[place, s.PATH_LAST] + s.PATH_MEMORY_US:
        paths[place, s.PATH_FIRST], paths[place, s.PATH_SECOND] = 0, 0
        oldest, place = place, np.int64(-1)
    innocent = (
        rows[row, s.LEVEL] == 0 and table.marks[row, s.SCORE] == 0.0 and table.marks[row, s.SHADOW] == 0.0
        and 0 < rows[row, s.VOUCHED] <= s.MOST_VOUCHED
    )  # fmt: skip
    if place < 0:
        if innocent:
            rows[row, s.VOUCHED] += 1
            paths[oldest, s.PATH_KEY], paths[oldest, s.PATH_FIRST] = key, me
            paths[oldest, s.PATH_SECOND], paths[oldest, s.PATH_LAST] = 0, time
        return 0
    first, second = paths[place, s.PATH_FIRST], paths[place, s.PATH_SECOND]
    if innocent or (first != me and second != 0 and second != me):
        paths[place, s.PATH_LAST] = time
    if first == me or second == me:
        return 0
    if second != 0:
        return 1
    if innocent:
        rows[row, s.VOUCHED] += 1
        paths[place, s.PATH_SECOND] = me
    return 0
