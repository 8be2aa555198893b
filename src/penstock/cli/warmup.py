"""Compile the decoding kernels now, for instance while a container image is built.

Without it the first query on a new machine takes some seconds longer; what is compiled stays on disk.
"""

from __future__ import annotations

import argparse
import time

from penstock.cli.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--formats", action="store_true", help="the kernels of JSON and Avro values, too")


def run(arguments: argparse.Namespace) -> int:
    from penstock.kafka.records.warmup import ensure_compiled

    began = time.perf_counter()
    ensure_compiled()
    if arguments.formats:
        _compile_formats()
    say(f"The kernels are ready ({time.perf_counter() - began:.1f} s).")
    return 0


def _compile_formats() -> None:
    import pyarrow as pa

    from penstock.engines.reading.typed import decode_in_turn
    from penstock.formats.avro import AvroDecoder
    from penstock.formats.json import JsonDecoder
    from penstock.formats.text import StringDecoder

    record = '{"type":"record","name":"R","fields":[{"name":"id","type":"long"}]}'
    samples = (
        (StringDecoder(), b"x"),
        (JsonDecoder("id BIGINT"), b'{"id":1}'),
        (AvroDecoder(record), b"\x02"),
    )
    for decoder, value in samples:
        say(f"Compiling what decodes {type(decoder).__name__.removesuffix('Decoder')} values ...")
        decode_in_turn(decoder, pa.array([value], pa.binary()))
