"""Planted secrets, then a search through everything a Spark application writes and shows."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.processes.python_launcher import make_launcher
from tests.support.kafka.topic_filling import produce

#: Runs at the start of every Python process: sets all loggers to DEBUG, into one file per process.
_EVERYTHING_LOGGED = """
import logging, os
file = os.path.join(os.environ["PLANTED_LOGS"], f"{os.getpid()}.log")
logging.basicConfig(level=logging.DEBUG, filename=file)
# At DEBUG py4j writes down every call of the driver, texts of options included, before they reach us.
logging.getLogger("py4j").setLevel(logging.INFO)
"""

_APPLICATION = """
import json, os, sys, traceback
from pyspark.sql import SparkSession

folder, right, wrong = sys.argv[1], *map(json.loads, sys.stdin.read().splitlines())
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", "file://" + folder)
    .getOrCreate())
spark.sparkContext.setLogLevel("INFO")

def show(frame):
    frame.explain("extended")
    print(frame._jdf.queryExecution().toString(), frame, frame.schema)
    print(frame._jdf.queryExecution().logical().toJSON())

frame = spark.read.format("penstock").options(**right).load()
show(frame)
print("ROWS", frame.count())
show(frame.groupBy("partition").count())
for options in wrong:
    try:
        frame = spark.read.format("penstock").options(**options).load()
        print(frame._jdf.queryExecution().logical().toJSON())
        frame.count()
        print("NO ERROR")
    except Exception as error:
        print("ERROR", repr(error), str(error))
        traceback.print_exc()
spark.stop()
"""


def jaas(mechanism: str, user: str, password: str, quote: str = '"') -> str:
    return f"{mechanism} required username={quote}{user}{quote} password={quote}{password}{quote};"


@pytest.fixture
def world(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which every Python process logs at DEBUG."""
    (tmp_path / "site").mkdir()
    (tmp_path / "logs").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(_EVERYTHING_LOGGED)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), os.environ["PYTHONPATH"]]),
        "PLANTED_LOGS": str(tmp_path / "logs"),
        "PYSPARK_PYTHON": make_launcher(),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def test_no_secret_is_shown_anywhere(
    secure_kafka: Any, topic: Any, tmp_path: Path, world: dict[str, str]
) -> None:
    """S10, S11, B198, B199: logs at DEBUG, event log, plans and errors, of one good and five bad reads."""
    access = secure_kafka.secure
    name = topic(on=secure_kafka)
    produce(secure_kafka.bootstrap, name, ["x"] * 25)
    password = access.password.reveal()
    key_pem = access.client_key_path.read_text()
    planted = {
        kind: f"{kind}{secrets.token_hex(12)}" for kind in ("wrong", "single", "client", "store", "token")
    }
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule"
    right = {
        "kafka.bootstrap.servers": access.bootstrap("SASL_SSL"),
        "subscribe": name,
        "fetchOffset.numRetries": "1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": jaas(scram, access.username, password),
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": access.ca_pem_path.read_text(),
    }
    mutual = {
        "kafka.bootstrap.servers": access.bootstrap("MTLS"),
        "subscribe": "not-there",
        "fetchOffset.numRetries": "1",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": access.ca_pem_path.read_text(),
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": access.client_certificate_path.read_text(),
        "kafka.ssl.keystore.key": key_pem,
        "kafka.ssl.key.password": access.client_key_password.reveal(),
    }
    wrong = [
        {**right, "kafka.sasl.jaas.config": jaas(scram, access.username, planted["wrong"])},
        {
            **right,
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": jaas(plain, access.username, planted["single"], quote="'"),
        },
        mutual,
        {**mutual, "kafka.ssl.key.password": planted["store"]},
        {**right, "kafka.sasl.jaas.config": f"broken clientSecret='{planted['client']}' {planted['token']}"},
    ]
    run = subprocess.run(
        [sys.executable, "-c", _APPLICATION, str(tmp_path)],
        input=f"{json.dumps(right)}\n{json.dumps(wrong)}\n",
        env=world,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert "ROWS 25" in run.stdout
    assert run.stdout.count("ERROR ") == len(wrong)
    assert "NO ERROR" not in run.stdout
    shown = {"stdout": run.stdout, "stderr": run.stderr}
    for file in tmp_path.rglob("*"):
        if file.is_file() and file.name != "sitecustomize.py":
            shown[str(file.relative_to(tmp_path))] = file.read_text(errors="replace")
    event_logs = [name for name in shown if "local-" in name]
    python_logs = [name for name in shown if name.startswith("logs/")]
    assert event_logs, "the event log is there to be searched"
    assert len(python_logs) >= 2, "driver and workers wrote their logs"
    hidden = [password, access.client_key_password.reveal(), *planted.values()]
    hidden += [line for line in key_pem.splitlines() if len(line) > 40]
    found = [(where, text[:9]) for text in hidden for where, content in shown.items() if text in content]
    assert found == []
