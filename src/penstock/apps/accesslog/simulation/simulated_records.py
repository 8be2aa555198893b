"""A step of a simulation as records: what a shipper on each server would have sent.

writer.write("lines", make_records(step))
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.apps.accesslog.parsing.line_parser import SERVER_HEADER
from penstock.apps.accesslog.simulation.traffic_simulation import SimulatedStep
from penstock.kafka.records.record_schema import HEADERS


def make_records(step: SimulatedStep) -> pa.RecordBatch:
    """Return all servers' lines (without newlines), keyed by client, the server's name in a header."""
    names = [[{"key": SERVER_HEADER, "value": each.server.encode()}] for each in step.servers]
    which = np.repeat(np.arange(len(names)), [len(each.lines) for each in step.servers])
    return pa.record_batch(
        {
            "key": pa.concat_arrays([each.clients for each in step.servers]),
            "value": pa.concat_arrays([each.lines for each in step.servers]),
            "headers": pa.array(names, HEADERS).take(pa.array(which)),
        }
    )
