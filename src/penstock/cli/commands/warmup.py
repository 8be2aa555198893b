"""Compile all kernels now, for instance while a container image is built.

penstock warmup                     what decodes and encodes records, JSON and Avro values, and access logs
penstock warmup --only decoding     what a query needs that reads no values of a format; much faster

Without it the first query on a new computer takes up to a minute longer, and the first verb of `penstock
accesslog` up to two. The compiled code stays on disk, for this version of Penstock and type of processor.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable

from penstock.cli.shared.terminal import say

DECODING, FORMATS, ACCESS_LOG = "decoding", "formats", "accesslog"
_ALL = (DECODING, FORMATS, ACCESS_LOG)
_TOLD = {
    DECODING: "records",
    FORMATS: "JSON and Avro values",
    ACCESS_LOG: "access logs",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only",
        metavar="PART",
        choices=_ALL,
        action="append",
        help=f"only this part: {', '.join(_ALL)}; may be given several times",
    )
    # Formats were requested with this before `--only` existed; they are now compiled without it.
    parser.add_argument("--formats", action="store_true", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    from penstock.cli.shared import compilation_progress

    # The application needs one more package than the library, which may be missing.
    is_missing = importlib.util.find_spec("yaml") is None
    parts = [each for each in _ALL if each in (arguments.only or _ALL)]
    if is_missing and not arguments.only:
        parts.remove(ACCESS_LOG)
    steps: dict[str, tuple[int, Callable[[], None]]] = {
        DECODING: (compilation_progress.DECODING + compilation_progress.ENCODING, _compile_records),
        FORMATS: (compilation_progress.FORMATS, _compile_formats),
        ACCESS_LOG: (compilation_progress.ACCESS_LOG, _compile_access_log),
    }
    began = time.perf_counter()
    with compilation_progress.showing_compilation(sum(steps[part][0] for part in parts)):
        for part in parts:
            steps[part][1]()
    told = ", ".join(_TOLD[part] for part in parts)
    say(f"The kernels are ready: {told} ({time.perf_counter() - began:.1f} s).")
    if is_missing and not arguments.only:
        say("Those for access logs are left out: they need `pip install 'penstock[accesslog]'`.")
    return 0


def _compile_records() -> None:
    from penstock.kafka.records.record_warmup import compile_encoding, ensure_compiled

    ensure_compiled()
    compile_encoding()


def _compile_formats() -> None:
    import pyarrow as pa

    from penstock.engines.reading.typed_rows import decode_in_turn
    from penstock.formats.avro.avro_decoder import AvroDecoder
    from penstock.formats.json.json_decoder import JsonDecoder
    from penstock.formats.text.string_decoder import StringDecoder

    record = '{"type":"record","name":"R","fields":[{"name":"id","type":"long"}]}'
    samples = (
        (StringDecoder(), b"x"),
        (JsonDecoder("id BIGINT"), b'{"id":1}'),
        (AvroDecoder(record), b"\x02"),
    )
    for decoder, value in samples:
        decode_in_turn(decoder, pa.array([value], pa.binary()))


def _compile_access_log() -> None:
    from penstock.apps.accesslog.command_warmup import warm_up_all

    warm_up_all()
