"""Measures decoding and encoding alone, on one core, without a network: records and bytes a second per codec.

Values look like log lines, so that they compress as such lines do. Rates count plain bytes (keys and
values), so codecs can be compared with each other. Processor time is measured, not wall time, because the
machine may be busy.

    python -m bench.records --records 500000
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from bench.sampling import Samples, describe_machine
from penstock.kafka.records.codecs import CODEC_NAMES
from penstock.kafka.records.record_decoder import RecordDecoder
from penstock.kafka.records.record_encoder import Encoder, record_columns

RUNS = 5
SIZES = (100, 1000)
COLUMNS = ("key", "value", "offset", "timestamp", "timestampType")


def make_lines(records: int, size: int) -> pa.RecordBatch:
    """Return keys and lines with a changing number, a changing path and a constant rest."""
    rng = np.random.default_rng(7)
    paths = rng.integers(0, 5_000, records)
    rest = "GET /shop/item HTTP/1.1 200 Mozilla/5.0 (X11; Linux x86_64) penstock " * (size // 60 + 1)
    lines = [f"{n:09d} 10.0.{p % 256}.{p // 256} /{p:06x} {rest}"[:size] for n, p in enumerate(paths)]
    return pa.record_batch(
        {
            "key": pa.array([f"client-{p % 1000}" for p in paths]).cast(pa.binary()),
            "value": pa.array(lines).cast(pa.binary()),
        }
    )


def sample(action: Callable[[], None]) -> Samples:
    """Return the processor seconds of each of five runs, after one that is not counted (it compiles)."""
    action()
    times = []
    for _ in range(RUNS):
        began = time.process_time()
        action()
        times.append(time.process_time() - began)
    return Samples(tuple(times))


def report(what: str, size: int, codec: int, records: int, plain_bytes: int, samples: Samples) -> None:
    rate, speed = records / samples.median / 1e6, plain_bytes / samples.median / 1e9
    raw = " ".join(f"{1000 * each:.1f}" for each in samples.seconds)
    name = f"{what:6} {size:>5} B {CODEC_NAMES[codec]:6}"
    print(f"{name} {rate:7.2f} M records/s {speed:6.2f} GB/s   ({raw} ms)")


def measure(size: int, codec: int, records: int) -> None:
    table = make_lines(records, size)
    columns = record_columns(table, now_ms=1_700_000_000_000)
    plain_bytes = columns.keys.data.size + columns.values.data.size
    encoder = Encoder(codec=codec)

    def encode() -> None:
        for _ in encoder.encode(columns):
            pass

    report("encode", size, codec, records, plain_bytes, sample(encode))
    batches, base = [], 0
    for batch in encoder.encode(columns):
        batch.data[:8] = base.to_bytes(8, "big")  # the broker's part: the checksum leaves it out
        batches.append(batch.data)
        base += batch.records
    # As they come from a broker: answers of about 8 MiB.
    answers = [np.frombuffer(b"".join(batches[at : at + 8]), np.uint8) for at in range(0, len(batches), 8)]
    decoder = RecordDecoder("bench", 0, COLUMNS)

    def decode() -> None:
        rows = 0
        for answer in answers:
            decoder.open(answer)
            rows += sum(batch.num_rows for batch in decoder.rows(0, records))
        rows += sum(batch.num_rows for batch in decoder.rest())
        assert rows == records, rows

    report("decode", size, codec, records, plain_bytes, sample(decode))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=500_000, help="of 100 B; a tenth of it of 1 kB")
    options = parser.parse_args()
    for name, value in describe_machine(["pyarrow", "numba", "cramjam", "crc32c"]).items():
        print(f"{name}: {value}")
    for size in SIZES:
        for codec in range(5):
            measure(size, codec, options.records * 100 // size)


if __name__ == "__main__":
    main()
