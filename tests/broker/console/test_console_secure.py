"""The console commands against a broker with TLS and logins, with settings from a properties file."""

from __future__ import annotations

import secrets
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.console import make_console, read_json

if TYPE_CHECKING:
    from penstock.cluster import LocalKafka


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_every_command_logs_in_with_a_properties_file(
    secure_kafka: LocalKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str], mechanism: str
) -> None:
    """A20: create, produce, consume as a member of a group, and describe it; the password is never shown."""
    access = secure_kafka.secure
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_SSL\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={access.ca_pem_path}\n"
        f"sasl.mechanism={mechanism}\n"
        f"sasl.jaas.config=org.apache.kafka.common.security.{module} required \\\n"
        f'    username="{access.username}" \\\n'
        f'    password="{access.password.reveal()}";\n'
    )
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    run = make_console(capsys, access.bootstrap("SASL_SSL"))
    name, group = f"t-{secrets.token_hex(4)}", f"g-{secrets.token_hex(4)}"
    login = ["--command-config", str(config)]
    everything = run("topics", "create", name, *login)
    everything += run("produce", name, "--file", str(lines), *login)
    how = ["--group", group, "--from-beginning", "--max-messages", "2", "--timeout-ms", "30000"]
    # It runs as a separate process, because the group client's library may leave its TLS socket open until
    # the process ends.
    address = ["--bootstrap-server", access.bootstrap("SASL_SSL")]
    consumed = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "consume", name, *address, *how, *login],
        capture_output=True,
        text=True,
        timeout=90,
    )
    shown = consumed.stdout
    assert shown == "one\ntwo\n", consumed.stderr
    everything += consumed.stderr
    described = run("groups", "describe", group, "--json", *login)
    assert read_json(described)["groups"][0]["partitions"][0]["lag"] == 0
    config.write_text(config.read_text().replace(access.password.reveal(), "not-the-password"))
    refused = run("consume", name, *how, *login, code=1)
    assert "[AUTHENTICATION_FAILED]" in refused
    assert access.password.reveal() not in everything + shown + described + refused
