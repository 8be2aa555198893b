"""Kernels are compiled once, by whoever comes first; never waited for without end, never stale."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.kafka.records import record_warmup
from penstock.kafka.records.record_encoder import Encoder, ProducerStamp, record_columns
from tests.support.stopped_lock_holder import hold_lock


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process that has not warmed up, and a cache place nobody has marked."""
    monkeypatch.setattr(record_warmup, "_done", False)
    monkeypatch.setattr(record_warmup, "_cache_place", lambda: tmp_path)
    return tmp_path


def marks(place: Path) -> list[Path]:
    return list(place.glob("penstock-kernels-*.compiled"))


def test_a_compiler_that_is_stopped_is_not_waited_for_without_end(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """DESIGN house rule 7: a task behind it compiles alone, and those that follow find the mark."""
    monkeypatch.setattr(record_warmup, "LOCK_PATIENCE_S", 0.3)
    with hold_lock(place / "penstock-kernels.lock"), caplog.at_level(logging.WARNING):
        began = time.monotonic()
        record_warmup.ensure_compiled()
        assert 0.3 <= time.monotonic() - began < 60
        assert "compiling alone" in caplog.text
        assert len(marks(place)) == 1
        monkeypatch.setattr(record_warmup, "_done", False)
        monkeypatch.setattr(record_warmup, "LOCK_PATIENCE_S", 600.0)
        record_warmup.ensure_compiled()


def test_what_other_sources_were_compiled_to_is_removed(place: Path) -> None:
    stale = [
        place / name for name in ("record_decoding_kernel.fill-1.py311.nbi", "key_partitioner.x-1.py312.nbi")
    ]
    old_mark = place / "penstock-kernels-0123456789abcdef.compiled"
    foreign = place / "somebody_elses.kernel-1.py311.nbi"
    for path in (*stale, old_mark, foreign):
        path.touch()
    record_warmup.ensure_compiled()
    assert not any(path.exists() for path in (*stale, old_mark))
    assert foreign.exists()
    assert len(marks(place)) == 1


def test_what_the_same_sources_gave_another_processor_is_kept(place: Path) -> None:
    """A home folder shared by different machines: each adds its own to one index."""
    index = place / "record_decoding_kernel.fill-1.py311.nbi"
    index.touch()
    other = place / f"penstock-kernels-{record_warmup._source_key()}-anotherprocessor.compiled"
    other.touch()
    record_warmup.ensure_compiled()
    assert index.exists()
    assert len(marks(place)) == 2


COPY = "        _memcpy(target, target_at, source, source_at, size)\n"
READ = """
import sys
import numpy as np
from penstock.kafka.records.record_decoder import RecordDecoder
from penstock.kafka.records.record_warmup import ensure_compiled

ensure_compiled()
decoder = RecordDecoder("t", 0, ("value",), max_rows=8, max_bytes=64)
decoder.open(np.frombuffer(bytes.fromhex(sys.argv[1]), np.uint8))
(rows,) = (*decoder.rows(0, 1), *decoder.rest())
print(rows.column(0).to_pylist())
"""


@pytest.mark.slow
def test_a_change_of_what_is_inlined_is_not_hidden_by_compiled_kernels(tmp_path: Path) -> None:
    """numba itself looks only at a kernel's own file; the copying it inlines stands in another one."""
    shutil.copytree(
        Path(penstock.__file__).parent, tmp_path / "penstock", ignore=shutil.ignore_patterns("__pycache__")
    )
    environment = {key: text for key, text in os.environ.items() if not key.startswith("NUMBA_")}
    environment["PYTHONPATH"] = str(tmp_path)

    columns = record_columns(pa.record_batch({"value": [b"abc"]}), now_ms=0)
    (batch,) = Encoder().encode(columns, np.zeros(1, np.int64), ProducerStamp(-1, -1, -1))

    def read() -> str:
        command = [sys.executable, "-c", READ, bytes(batch.data).hex()]
        outcome = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert outcome.returncode == 0, outcome.stderr
        return outcome.stdout.strip()

    assert read() == "[b'abc']"
    jit = tmp_path / "penstock" / "kernels" / "compilation.py"
    assert jit.read_text().count(COPY) == 1
    loop = "        for i in range(size):\n            target[target_at + i] = 120\n"
    jit.write_text(jit.read_text().replace(COPY, loop))
    assert read() == "[b'xxx']"
