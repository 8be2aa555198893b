"""The access-log kernel against the slow reference: every field of every line, and every reason."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.formats.accesslog import make_parser
from tests.accesslog_reference import parse_line
from tests.proof.fuzz_accesslog import FORMATS, PROXIES, as_rows, damage, make_format, make_line


def compare(values: list[bytes | None], log_format: str, proxies: tuple[str, ...] = ()) -> None:
    lines = make_parser(log_format, proxies).parse(pa.array(values, pa.binary()))
    assert lines.rows.tolist() == sorted(lines.rows.tolist())
    assert lines.bad_rows.tolist() == sorted(lines.bad_rows.tolist())
    for value, row in zip(values, as_rows(lines, len(values)), strict=True):
        assert row == parse_line(value, log_format, proxies), (log_format, value)


@given(st.randoms(use_true_random=False), st.sampled_from(sorted(FORMATS)), st.sampled_from([(), PROXIES]))
@settings(max_examples=300, deadline=None)
def test_every_field_of_every_line_is_what_the_reference_reads(
    rng: random.Random, log_format: str, proxies: tuple[str, ...]
) -> None:
    values = [damage(rng, make_line(rng, log_format))[1] for _ in range(4)]
    compare([*values, None], log_format, proxies)


@given(st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_lines_of_any_format_are_what_the_reference_reads(rng: random.Random) -> None:
    log_format, lines = make_format(rng)
    compare([*lines, damage(rng, lines[0])[1]], log_format, PROXIES)


@given(st.lists(st.binary(max_size=120), min_size=1, max_size=6), st.sampled_from(sorted(FORMATS)))
@settings(max_examples=100, deadline=None)
def test_random_bytes_are_read_as_the_reference_reads_them(values: list[bytes], log_format: str) -> None:
    compare(list(values), log_format)


# --- real logs ----------------------------------------------------------------------------------------


def read_lines(path: Path) -> list[bytes]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return data.removesuffix(b"\n").split(b"\n")


def test_real_logs_are_parsed_nearly_all_and_as_the_reference_parses_them(accesslog_data: Path) -> None:
    paths = sorted([*accesslog_data.rglob("*.log"), *accesslog_data.rglob("*.txt.gz")])
    assert paths
    for path in paths:
        values = read_lines(path)
        lines = make_parser().parse(pa.array(values, pa.binary()))
        written = [value for value in values if value.strip()]
        assert len(lines) >= 0.999 * len(written), path.name
        assert len(lines) + len(lines.bad_rows) == len(values), path.name
        sample: list[bytes | None] = list(values[:: max(1, len(values) // 500)])
        compare(sample, "auto")
        compare(sample, "combined")
