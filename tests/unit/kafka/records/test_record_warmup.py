"""Kernels are compiled once, by the first process that needs them; no endless wait, no stale kernel."""

from __future__ import annotations

import json
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
from penstock.kernels import compilation_lock, source_stamp
from tests.support.stopped_lock_holder import hold_lock


def run(command: list[str], environment: dict[str, str] | None = None) -> str:
    outcome = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout.strip()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the cache of a process that has not warmed up, without a mark."""
    monkeypatch.setattr(record_warmup, "_done", False)
    monkeypatch.setattr(compilation_lock, "_cache_place", lambda: tmp_path)
    return tmp_path


def marks(place: Path) -> list[Path]:
    return list(place.glob("penstock-records-*.compiled"))


def test_a_compiler_that_is_stopped_is_not_waited_for_without_end(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A task that waits for it compiles alone, and later ones find the mark."""
    monkeypatch.setattr(compilation_lock, "LOCK_PATIENCE_S", 0.3)
    with hold_lock(place / "penstock-records.lock"), caplog.at_level(logging.WARNING):
        began = time.monotonic()
        record_warmup.ensure_compiled()
        assert 0.3 <= time.monotonic() - began < 60
        assert "compiling here" in caplog.text
        assert len(marks(place)) == 1
        monkeypatch.setattr(record_warmup, "_done", False)
        monkeypatch.setattr(compilation_lock, "LOCK_PATIENCE_S", 600.0)
        record_warmup.ensure_compiled()


def test_that_other_sources_were_compiled_is_forgotten(place: Path) -> None:
    """If they come back, every process would compile at once, because our kernels replaced theirs."""
    old = [place / f"penstock-records-0123456789abcdef-{processor}.compiled" for processor in ("one", "two")]
    foreign = [
        place / "penstock-JsonDecoder-0123456789abcdef-one.compiled",
        place / "other.kernel-1.py311.nbi",
    ]
    for path in (*old, *foreign):
        path.touch()
    record_warmup.ensure_compiled()
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in foreign)
    assert len(marks(place)) == 1


def test_what_the_same_sources_gave_another_processor_is_kept(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home folder may be shared by different machines, each of which adds its own kernels to one index."""
    record_warmup.ensure_compiled()
    ours = marks(place)
    monkeypatch.setattr(record_warmup, "_done", False)
    monkeypatch.setattr(compilation_lock.llvmlite.binding, "get_host_cpu_name", lambda: "another")
    record_warmup.ensure_compiled()
    assert set(marks(place)) > set(ours)
    assert len(marks(place)) == 2


def test_where_nothing_can_be_kept_everybody_compiles_for_himself(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(compilation_lock, "_cache_place", lambda: place / "nowhere")
    compilation_lock.compile_in_turn("x", record_warmup.__name__, lambda: calls.append(1), told="all")
    monkeypatch.setattr(compilation_lock, "_cache_place", lambda: None)
    compilation_lock.compile_in_turn("x", record_warmup.__name__, lambda: calls.append(2), told="all")
    assert calls == [1, 2]


def test_all_that_a_kernel_is_made_of_is_in_its_stamp() -> None:
    """numba itself tracks only a kernel's own file."""
    made = json.loads(run([sys.executable, "-c", KERNELS]))
    assert len(made) > 20
    for module, origins in made.items():
        followed: dict[str, bytes] = {}
        source_stamp._follow(module, followed)
        assert set(origins) <= set(followed), module


#: For each module with kernels, the modules that its imported objects come from.
KERNELS = """
import json, sys
from numba.core.dispatcher import Dispatcher
import penstock.apps.accesslog.command_warmup
import penstock.formats.avro.avro_columns
import penstock.formats.json.json_columns
import penstock.formats.protobuf.protobuf_columns
import penstock.formats.text.utf8_kernel

made = {}
for name, module in list(sys.modules.items()):
    values = list(vars(module).values()) if name.startswith("penstock.") else []
    if any(isinstance(value, Dispatcher) and value.py_func.__module__ == name for value in values):
        found = [getattr(value, "py_func", value) for value in values]
        origins = {getattr(each, "__module__", None) or getattr(each, "__name__", "") for each in found}
        made[name] = [each for each in origins if isinstance(each, str) and each.startswith("penstock.")]
print(json.dumps(made))
"""
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
    """numba itself looks only at a kernel's own file; the copying code that it inlines is in another file."""
    shutil.copytree(
        Path(penstock.__file__).parent, tmp_path / "penstock", ignore=shutil.ignore_patterns("__pycache__")
    )
    environment = {key: text for key, text in os.environ.items() if not key.startswith("NUMBA_")}
    environment["PYTHONPATH"] = str(tmp_path)

    columns = record_columns(pa.record_batch({"value": [b"abc"]}), now_ms=0)
    (batch,) = Encoder().encode(columns, np.zeros(1, np.int64), ProducerStamp(-1, -1, -1))

    def read() -> str:
        return run([sys.executable, "-c", READ, bytes(batch.data).hex()], environment)

    assert read() == "[b'abc']"
    jit = tmp_path / "penstock" / "kernels" / "compilation.py"
    assert jit.read_text().count(COPY) == 1
    loop = "        for i in range(size):\n            target[target_at + i] = 120\n"
    jit.write_text(jit.read_text().replace(COPY, loop))
    assert read() == "[b'xxx']"
