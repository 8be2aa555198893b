"""The columns' types, as Spark expects them of a Python source; kept apart so that no kernel is loaded."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
ARROW_TYPES: Mapping[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "timestampMs": pa.int64(),
    "headers": HEADERS,
}
