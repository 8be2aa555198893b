"""Random logs on a real broker: our reader and librdkafka must return identical rows."""

from __future__ import annotations

import secrets
from typing import Any

from penstock.kafka.records.codecs import CODEC_NAMES
from tests.support.kafka.random_logs import FEATURES, run

SEED, LOGS = 42, 30


def test_random_logs_read_as_librdkafka_reads_them(kafka: Any) -> None:
    """T04, T05, T06, T09, T24, T25, B046, B050: transactions, compaction, trims, codecs, fetch sizes."""
    cells = run(kafka.bootstrap, f"random-{secrets.token_hex(4)}", SEED, LOGS)
    for feature in FEATURES:
        assert sum(cells[codec, feature] for codec in CODEC_NAMES) >= 5, feature
