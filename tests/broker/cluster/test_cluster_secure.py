"""The local cluster's secure listeners let the right clients in, and only those."""

from __future__ import annotations

import stat
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from penstock.cluster import LocalKafka
from penstock.cluster.kafka import broker_process
from penstock.core.errors import ClusterError


def connect(**settings: object) -> set[int]:
    """Return the broker ids that a client with these settings sees."""
    quiet = {"log_level": 0, "socket.connection.setup.timeout.ms": 5000}
    return set(AdminClient({**quiet, **settings}).list_topics(timeout=5).brokers)


def tls_settings(kafka: LocalKafka, protocol: str, listener: str) -> dict[str, object]:
    return {
        "bootstrap.servers": kafka.secure.bootstrap(listener),
        "security.protocol": protocol,
        "ssl.ca.location": str(kafka.secure.ca_pem_path),
    }


def login(kafka: LocalKafka, mechanism: str, password: str | None = None) -> dict[str, object]:
    return {
        "sasl.mechanism": mechanism,
        "sasl.username": kafka.secure.username,
        "sasl.password": password or kafka.secure.password.reveal(),
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_SSL", "SASL_PLAINTEXT"])
def test_a_login_with_the_right_password_gets_in(
    secure_kafka: LocalKafka, protocol: str, mechanism: str
) -> None:
    assert connect(**tls_settings(secure_kafka, protocol, protocol), **login(secure_kafka, mechanism)) == {1}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_does_not_get_in(secure_kafka: LocalKafka, mechanism: str) -> None:
    settings = tls_settings(secure_kafka, "SASL_SSL", "SASL_SSL")
    with pytest.raises(KafkaException):
        connect(**settings, **login(secure_kafka, mechanism, "wrong"))


@pytest.mark.kafka
def test_a_login_module_that_is_not_listed_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """S08: Kafka's list of allowed modules is on the broker's command line, without Java's own modules."""
    # The reason stands further up in the log than the lines that an error usually shows.
    monkeypatch.setattr(
        broker_process, "read_tail", partial(broker_process.read_tail, lines=20_000, limit_bytes=4_194_304)
    )
    module = "com.sun.security.auth.module.UnixLoginModule"
    jaas = {"listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{module} required;"}
    with pytest.raises(ClusterError) as caught, LocalKafka(secure=True, broker_settings=jaas):
        pass
    assert caught.value.condition == "BROKER_DID_NOT_START"
    assert f"{module} is not allowed" in str(caught.value)


def test_a_client_that_trusts_the_ca_reaches_the_tls_listener(secure_kafka: LocalKafka) -> None:
    assert connect(**tls_settings(secure_kafka, "SSL", "SSL")) == {1}


def test_a_client_that_trusts_another_ca_turns_away(secure_kafka: LocalKafka) -> None:
    settings = tls_settings(secure_kafka, "SSL", "SSL")
    settings["ssl.ca.location"] = str(secure_kafka.secure.other_ca_pem_path)
    with pytest.raises(KafkaException):
        connect(**settings)


def test_a_client_that_checks_names_refuses_the_broker_under_another_name(secure_kafka: LocalKafka) -> None:
    settings = tls_settings(secure_kafka, "SSL", "SSL")
    settings["bootstrap.servers"] = str(settings["bootstrap.servers"]).replace("127.0.0.1", "localhost")
    with pytest.raises(KafkaException):
        connect(**settings)
    # librdkafka checks every address it is given, so the name alone must have made the difference.
    assert connect(**settings, **{"ssl.endpoint.identification.algorithm": "none"}) == {1}


def test_mutual_tls_needs_the_clients_certificate_and_its_encrypted_key(secure_kafka: LocalKafka) -> None:
    settings = tls_settings(secure_kafka, "SSL", "MTLS")
    with pytest.raises(KafkaException):
        connect(**settings)
    own = {
        "ssl.certificate.location": str(secure_kafka.secure.client_certificate_path),
        "ssl.key.location": str(secure_kafka.secure.client_key_path),
        "ssl.key.password": secure_kafka.secure.client_key_password.reveal(),
    }
    assert connect(**settings, **own) == {1}


def test_keys_and_settings_are_for_their_owner_only(secure_kafka: LocalKafka) -> None:
    """S35: the data directory is private, and so is every file that contains a secret."""
    private = [secure_kafka.data_dir, secure_kafka.secure.folder, secure_kafka.secure.client_key_path]
    private += [secure_kafka.secure.server_keystore_path]
    private += list(secure_kafka.data_dir.glob("node-*/server.properties"))
    assert len(private) == 5
    assert [path for path in private if stat.S_IMODE(path.stat().st_mode) & 0o077] == []


def test_two_secure_clusters_share_no_password(secure_kafka: LocalKafka, tmp_path: Path) -> None:
    """S35: there is no default password."""
    from penstock.cluster.kafka.secure_listeners import make_secure_access

    other = make_secure_access(tmp_path / "secure")
    ours = secure_kafka.secure
    assert other.password != ours.password
    assert other.client_key_password != ours.client_key_password
    assert ours.password.reveal() not in repr(ours)


def test_a_secure_cluster_cannot_be_kept(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="SECURE_NEEDS_OWN_FOLDER"):
        LocalKafka(secure=True, data_dir=tmp_path)


def test_a_plain_cluster_says_that_it_has_no_secure_side() -> None:
    with pytest.raises(ClusterError, match="NOT_SECURE"):
        _ = LocalKafka().secure
