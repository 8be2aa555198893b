"""`penstock warmup` leaves nothing to compile for the processes that follow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli import main

PROGRAM = """
import json, sys
from numba.core.dispatcher import Dispatcher
from penstock.cli import main

def count():
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("penstock.")]
    ours = [each for module in modules for each in vars(module).values() if isinstance(each, Dispatcher)]
    return {f"{each.py_func.__module__}.{each.py_func.__name__}": len(each.overloads) for each in ours}

assert main(["warmup"]) == 0
before = count()
with open("in.csv", "w") as file:
    file.write("uri\\n/about\\n/?id=1'+OR+'1'='1\\n")
simulate = ["simulate", "--rate", "300", "--seconds", "5", "--fast"]
for verb in (
    [*simulate, "--out", "a.log", "--truth", "truth.csv"],
    ["replay", "a.log", "--decisions", "found.csv"],
    ["replay", "a.log", "--decisions", "other.csv", "--trusted-proxy", "10.0.0.7", "--allow", "192.0.2.0/24"],
    ["score", "found.csv", "truth.csv", "a.log"],
    ["classify", "in.csv", "out.csv"],
    ["rules", "check"],
):
    assert main(["accesslog", *verb]) == 0

import pyarrow as pa
from penstock.apps.accesslog.shipping.whole_lines import Piece
from penstock.kernels.newline_cutting import cut_lines
from penstock.apps.accesslog.shipping.shipper import make_records
from penstock.apps.accesslog.stream.pipeline_settings import PipelineSettings
from penstock.apps.accesslog.stream.pipeline_warmup import warm_up
from penstock.kafka.records.record_encoder import Encoder, record_columns
from penstock.kafka.records.murmur2_kernel import group_rows, partition_of_keys

lines, cut_rows = cut_lines(open("a.log", "rb").read(), 200)
records = make_records([Piece("a.log", lines, cut_rows, 1)], "web1", "client")
columns = record_columns(records, now_ms=1)
rows, starts = group_rows(partition_of_keys(columns.keys, 4), 4)
for partition in range(4):
    list(Encoder(max_batch_bytes=10_000).encode(columns, rows[starts[partition] : starts[partition + 1]]))
warm_up(PipelineSettings("log", "x.db", {"bootstrap.servers": "b:9092"}).tools)
after = count()
print(json.dumps([len(before), [name for name in after if after[name] != before.get(name)]]))
"""


@pytest.mark.slow  # compiles its kernels anew
def test_after_a_warmup_no_verb_has_anything_to_compile(tmp_path: Path) -> None:
    """A kernel that is called for the first time with other types would be compiled then."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    known, new = json.loads(done.stdout.splitlines()[-1])
    assert known > 50
    assert new == []


def test_what_is_compiled_is_told_and_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warmup", "--only", "decoding"]) == 0
    assert capsys.readouterr().out.startswith("The kernels are ready: records (")
    assert main(["warmup", "--formats", "--only", "decoding", "--only", "formats"]) == 0
    assert capsys.readouterr().out.startswith("The kernels are ready: records, JSON and Avro values (")
