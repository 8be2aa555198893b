"""Compiles all kernels of the pipeline before it starts, so that its first batch is as quick as the others.

Kernels are compiled when they are first called and kept on disk; the workers of Spark find there what the
driver has compiled on the same computer. Rule: the calls here are those of the stages, with lines that take
all their paths: many clients, two minutes, attacks, a broken line, state that comes back. Why not leave it to
the first batch: each worker would spend a minute on compiling everything for itself, while lines wait.

    warm_up(settings.tools)
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from penstock.apps.accesslog.defence.defence_settings import OrdersInForce
from penstock.apps.accesslog.events.log_clocks import Clocks, advance, finish
from penstock.apps.accesslog.parsing.line_parser import SERVER_HEADER
from penstock.apps.accesslog.stream.lane_stage import STATE, LaneStage, read_maxima
from penstock.apps.accesslog.stream.line_stage import COLUMNS, COUNTS, LogStage, Tools, make_kit
from penstock.apps.accesslog.stream.parcels import make_parcel, read_parcels, unpack
from penstock.kafka.records.record_schema import HEADERS
from penstock.kafka.records.record_warmup import ensure_compiled
from penstock.kernels.compilation_lock import compile_in_turn

#: More clients in a minute than are counted one by one.
CLIENTS = 10_000
_PATHS = (b"/", b"/.env", b"/a?q=1+union+select+2", b"/%2e%2e/%2e%2e/etc/passwd", b"/wp-login.php")


def warm_up(tools: Tools) -> None:
    """Run made-up lines through both stages, in this process."""
    ensure_compiled()
    compile_in_turn(
        "accesslog", __name__, partial(_run_stages, tools), told="the kernels of the access-log application"
    )


def _run_stages(tools: Tools) -> None:
    kit = make_kit(tools)
    parcels = list(LogStage(kit, {})([_make_records()]))
    clocks, state = Clocks.begin([0]), dict[tuple[int, int], pa.RecordBatch]()
    for given in (parcels, [], parcels):
        made = [each for rows in LaneStage(kit, clocks, OrdersInForce())([*state.values(), *given])
                for each in read_parcels(rows)]  # fmt: skip
        for each in made:
            if each.kind == STATE and each.payload is not None:
                state[each.lane, each.part] = make_parcel(STATE, each.lane, each.payload, each.part)
        counts = [unpack(each.payload) for each in made if each.kind == COUNTS and each.payload is not None]
        clocks = finish(advance(clocks, read_maxima(counts), lateness_us=tools.defence.lateness_us))


def _make_records() -> pa.RecordBatch:
    lines = [
        b'10.%d.%d.7 - - [10/Oct/2000:13:5%d:%02d +0000] "%s %s HTTP/1.1" %d 23 "-" "curl/8.%d" 900'
        % (n >> 8, n & 255, n % 2, n % 60, b"POST" if n % 5 == 4 else b"GET", _PATHS[n % 5], 404, n % 7)
        for n in range(CLIENTS)
    ]
    lines += [b"none", b'host.example - - [10/Oct/2000:13:59:59 +0000] "-" 408 - "-" "-"']
    count = len(lines)
    columns = [
        pa.array(lines, pa.binary()),
        pa.array(np.zeros(count, np.int32)),
        pa.array(np.arange(count)),
        pa.array([[{"key": SERVER_HEADER, "value": b"w"}]] * count, HEADERS),
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(COLUMNS))
