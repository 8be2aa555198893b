"""Access to a real broker with TLS and logins, and what errors and logs may say about it."""

from __future__ import annotations

import base64
import logging
import os
import pickle
import secrets
import signal
import ssl
import stat
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from penstock.core.client.client_settings import ClientSettings, SaslSettings, Secret, TlsSettings
from penstock.core.errors import BrokerError, OptionError, PenstockError
from penstock.core.model import At, RangeOrder, TopicPartition, WorkOrder
from penstock.kafka.groups.commit_renewal import find_retention_ms
from penstock.kafka.groups.committed_offsets import commit_offsets
from penstock.kafka.metadata import topic_admin
from penstock.kafka.reading.kafka_log_view import KafkaLogView
from penstock.kafka.reading.kafka_reader import KafkaReader
from penstock.kafka.transport.connection import Connection, Deadline
from penstock.kafka.transport.connection_pool import POOL
from penstock.kafka.transport.protocol_messages import MetadataRequest
from penstock.kafka.transport.tls import tls_context
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from penstock.cluster import LocalKafka

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def tls(kafka: LocalKafka, **changes: Any) -> TlsSettings:
    return TlsSettings(ca_pem=kafka.secure.ca_pem_path.read_text(), **changes)


def with_client_certificate(kafka: LocalKafka, **changes: Any) -> TlsSettings:
    fields: dict[str, Any] = {
        "certificate_pem": kafka.secure.client_certificate_path.read_text(),
        "key_pem": Secret(kafka.secure.client_key_path.read_text()),
        "key_password": kafka.secure.client_key_password,
    }
    return tls(kafka, **(fields | changes))


def login(kafka: LocalKafka, mechanism: str, **changes: Any) -> SaslSettings:
    return replace(SaslSettings(mechanism, kafka.secure.username, kafka.secure.password), **changes)


def settings_for(
    kafka: LocalKafka, listener: str, *, tls: TlsSettings | None = None, sasl: SaslSettings | None = None
) -> ClientSettings:
    host, port = kafka.secure.bootstrap(listener).rsplit(":", 1)
    protocol = "SSL" if listener == "MTLS" else listener
    return ClientSettings(
        ((host, int(port)),),
        security_protocol=protocol,
        tls=tls,
        sasl=sasl,
        default_api_timeout_ms=20_000,
    )


def plain_settings(kafka: LocalKafka) -> ClientSettings:
    """Return settings for the listener without access control, to prepare what a test needs."""
    return ClientSettings((("127.0.0.1", kafka.brokers[0].port),))


def produce(kafka: LocalKafka, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, value)
    assert producer.flush(20) == 0


def refusal_of(settings: ClientSettings) -> PenstockError:
    """Return the error that refuses these settings, well within the time limit."""
    begun = time.monotonic()
    with pytest.raises(PenstockError) as caught:
        KafkaLogView(settings).topics()
    assert time.monotonic() - begun < 10, "a refusal that cannot change must not be tried again and again"
    assert not caught.value.retriable
    return caught.value


def test_tls_with_the_brokers_ca_gets_in(secure_kafka: LocalKafka) -> None:
    """S04: the server's certificate is checked against the given CA, and so is its name."""
    KafkaLogView(settings_for(secure_kafka, "SSL", tls=tls(secure_kafka))).topics()


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("listener", ["SASL_SSL", "SASL_PLAINTEXT"])
def test_a_login_gets_in_and_reads(secure_kafka: LocalKafka, listener: str, mechanism: str) -> None:
    """S01: metadata, bounds and records, with each mechanism, with and without TLS."""
    topic = f"secure-{secrets.token_hex(4)}"
    topic_admin.create_topic(plain_settings(secure_kafka), topic)
    produce(secure_kafka, topic, b"behind the door")
    partition = TopicPartition(topic, 0)
    settings = settings_for(
        secure_kafka, listener, tls=tls(secure_kafka), sasl=login(secure_kafka, mechanism)
    )
    view = KafkaLogView(settings)
    assert view.describe([topic])[topic].partitions == (0,)
    assert view.latest([partition]) == {partition: 1}
    order = WorkOrder((RangeOrder(topic, 0, At(0), At(1)),), settings, ("value",))
    # The order is pickled as it would be on its way to a worker, which must be able to log in too.
    (batch,) = KafkaReader().read(pickle.loads(pickle.dumps(order)))
    assert batch.to_pylist() == [{"value": b"behind the door"}]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("wrong", [{"password": Secret("not-it-9f3a")}, {"username": "mallory"}])
def test_a_wrong_password_and_an_unknown_user_are_refused_at_once(
    secure_kafka: LocalKafka, mechanism: str, wrong: dict[str, Any]
) -> None:
    """S01: the error names user and mechanism, it is not retriable, and it comes at once."""
    attempt = login(secure_kafka, mechanism, **wrong)
    error = refusal_of(settings_for(secure_kafka, "SASL_SSL", tls=tls(secure_kafka), sasl=attempt))
    assert error.condition == "AUTHENTICATION_FAILED"
    assert f"user {attempt.username!r} with {mechanism}" in str(error)
    assert attempt.password.reveal() not in str(error)


def test_a_changed_password_counts_from_the_next_connection(secure_kafka: LocalKafka) -> None:
    """S01: credentials change while it runs; the old ones are refused, the new ones get in."""
    broker = AdminClient({"bootstrap.servers": secure_kafka.bootstrap})

    def set_password(text: str) -> None:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        change = UserScramCredentialUpsertion("carol", info, text.encode(), secrets.token_bytes(16))
        broker.alter_user_scram_credentials([change])["carol"].result(timeout=20)

    def settings(password: str) -> ClientSettings:
        sasl = SaslSettings("SCRAM-SHA-256", "carol", Secret(password))
        return settings_for(secure_kafka, "SASL_PLAINTEXT", sasl=sasl)

    def can_log_in(password: str) -> bool:
        try:
            Connection(
                settings(password), *settings(password).bootstrap_servers[0], Deadline.after_ms(10_000)
            ).close()
        except BrokerError as error:
            if error.condition != "AUTHENTICATION_FAILED":
                raise
            return False
        return True

    def wait_until(password: str, expected: bool) -> None:
        deadline = time.monotonic() + 20  # the broker learns about the change from its metadata log
        while can_log_in(password) is not expected:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    set_password("first-password")
    wait_until("first-password", True)
    view = KafkaLogView(settings("first-password"))
    view.topics()
    set_password("second-password")
    wait_until("first-password", False)
    assert can_log_in("second-password")
    view.topics()  # a connection that logged in before the change still works
    KafkaLogView(settings("second-password")).topics()


def test_another_ca_is_not_trusted(secure_kafka: LocalKafka) -> None:
    """S04: and the error says that the certificate is the problem, not the name."""
    other = TlsSettings(ca_pem=secure_kafka.secure.other_ca_pem_path.read_text())
    error = refusal_of(settings_for(secure_kafka, "SSL", tls=other))
    assert error.condition == "TLS_FAILED"
    assert "is not trusted" in str(error)


def test_without_a_ca_the_systems_authorities_decide(secure_kafka: LocalKafka) -> None:
    """S04: no given CA does not mean "trust everybody"."""
    error = refusal_of(settings_for(secure_kafka, "SSL"))
    assert error.condition == "TLS_FAILED"
    assert "is not trusted" in str(error)


def test_a_certificate_for_another_name_is_refused_unless_the_check_is_off(secure_kafka: LocalKafka) -> None:
    """S04: the host name check is on by default, and the error says that the name is the problem."""
    settings = settings_for(secure_kafka, "SSL", tls=tls(secure_kafka))
    port = settings.bootstrap_servers[0][1]
    with pytest.raises(BrokerError) as caught:
        Connection(settings, "localhost", port, Deadline.after_ms(10_000))
    assert caught.value.condition == "TLS_FAILED"
    assert "another host name" in str(caught.value)
    unchecked = replace(settings, tls=tls(secure_kafka, check_hostname=False))
    Connection(unchecked, "localhost", port, Deadline.after_ms(10_000)).close()


def test_the_name_check_off_still_checks_the_certificate(secure_kafka: LocalKafka) -> None:
    """S04: turning off one check does not turn off the other."""
    other = TlsSettings(ca_pem=secure_kafka.secure.other_ca_pem_path.read_text(), check_hostname=False)
    assert refusal_of(settings_for(secure_kafka, "SSL", tls=other)).condition == "TLS_FAILED"


def test_mutual_tls_with_an_encrypted_key_gets_in(secure_kafka: LocalKafka) -> None:
    """S04: with a client certificate, and a key that only its password decrypts."""
    settings = settings_for(secure_kafka, "MTLS", tls=with_client_certificate(secure_kafka))
    KafkaLogView(settings).topics()


def test_mutual_tls_without_a_certificate_is_refused(secure_kafka: LocalKafka) -> None:
    """S04: TLS 1.3 reports this only after the handshake, and it is a TLS failure all the same."""
    error = refusal_of(settings_for(secure_kafka, "MTLS", tls=tls(secure_kafka)))
    assert error.condition == "TLS_FAILED"
    assert "client certificate" in str(error)


@pytest.mark.parametrize("password", [None, Secret("wrong")])
def test_an_encrypted_key_without_its_password_is_an_option_error_and_no_question(
    secure_kafka: LocalKafka, password: Secret | None
) -> None:
    """S04: OpenSSL would prompt on the terminal, and a worker has no terminal."""
    material = with_client_certificate(secure_kafka, key_password=password)
    error = refusal_of(settings_for(secure_kafka, "MTLS", tls=material))
    assert isinstance(error, OptionError)
    assert error.condition == "TLS_MATERIAL_UNREADABLE"


def test_private_keys_are_on_disk_only_for_a_moment_and_only_for_us(
    secure_kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S14: mode 0600 in a private folder, deleted before the first byte is sent."""
    seen: list[int] = []
    load = ssl.SSLContext.load_cert_chain

    def spy(context: ssl.SSLContext, chain: Path, key: Path, **named: Any) -> None:
        seen.extend(stat.S_IMODE(path.stat().st_mode) for path in (chain, key, key.parent))
        assert key.parent.parent == tmp_path
        load(context, chain, key, **named)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", spy)
    tls_context.cache_clear()
    tls_context(with_client_certificate(secure_kafka))
    assert seen == [0o600, 0o600, 0o700]
    assert list(tmp_path.iterdir()) == []
    tls_context.cache_clear()
    with pytest.raises(OptionError):
        tls_context(with_client_certificate(secure_kafka, key_password=Secret("wrong")))
    assert list(tmp_path.iterdir()) == []


def test_a_tls_client_on_a_plain_listener_fails_with_a_tls_error(secure_kafka: LocalKafka) -> None:
    settings = settings_for(secure_kafka, "SSL", tls=tls(secure_kafka))
    with pytest.raises(BrokerError) as caught:
        Connection(settings, "127.0.0.1", secure_kafka.brokers[0].port, Deadline.after_ms(5_000))
    assert caught.value.condition in ("TLS_FAILED", "BROKER_DISCONNECTED")


def test_a_plain_client_on_a_tls_listener_is_told_to_use_tls(secure_kafka: LocalKafka) -> None:
    port = settings_for(secure_kafka, "SSL").bootstrap_servers[0][1]
    with pytest.raises(BrokerError) as caught:
        Connection(ClientSettings(()), "127.0.0.1", port, Deadline.after_ms(5_000))
    assert "TLS" in str(caught.value)


def test_a_forked_child_does_not_end_the_tls_session_of_its_parent(secure_kafka: LocalKafka) -> None:
    settings = settings_for(secure_kafka, "SSL", tls=tls(secure_kafka))
    host, port = settings.bootstrap_servers[0]
    deadline = Deadline.after_ms(20_000)
    with POOL.lend(settings, host, port, deadline) as connection:
        connection.call(MetadataRequest(topics=[]), deadline)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a child that hangs must not be left behind
        os._exit(0 if connection.closed and len(POOL._idle) == 0 else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    with POOL.lend(settings, host, port, deadline) as again:
        assert again is connection
        assert again.call(MetadataRequest(topics=[]), deadline).brokers


# --- rights -------------------------------------------------------------------------------------------


@pytest.fixture
def guarded_topic(secure_kafka: LocalKafka) -> str:
    """Return a topic that alice may describe but not read, and that bob may not even see."""
    topic = f"guarded-{secrets.token_hex(4)}"
    topic_admin.create_topic(plain_settings(secure_kafka), topic)
    allow(secure_kafka, ResourceType.TOPIC, topic, AclOperation.DESCRIBE)
    return topic


def allow(kafka: LocalKafka, kind: ResourceType, name: str, operation: AclOperation) -> None:
    broker = AdminClient({"bootstrap.servers": kafka.bootstrap})
    rule = AclBinding(
        kind,
        name,
        ResourcePatternType.LITERAL,
        f"User:{kafka.secure.username}",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )
    broker.create_acls([rule])[rule].result(timeout=20)


def bob(kafka: LocalKafka) -> ClientSettings:
    sasl = SaslSettings("PLAIN", kafka.secure.other_username, kafka.secure.other_password)
    return settings_for(kafka, "SASL_PLAINTEXT", sasl=sasl)


def wait_for_refusal(call: Any) -> PenstockError:
    """Call until it is refused and return the error: new rules take a moment to reach the broker."""
    deadline = time.monotonic() + 20
    while True:
        try:
            call()
        except PenstockError as error:
            return error
        assert time.monotonic() < deadline, "never refused"
        time.sleep(0.05)


def test_a_topic_without_the_right_to_describe_is_an_error_and_not_a_missing_topic(
    secure_kafka: LocalKafka, guarded_topic: str
) -> None:
    """S06: the error names the topic; silence would read as "no data"."""
    view = KafkaLogView(bob(secure_kafka))
    error = wait_for_refusal(lambda: view.describe([guarded_topic]))
    assert error.condition == "TOPIC_AUTHORIZATION_FAILED"
    assert f"topic {guarded_topic}" in str(error)
    assert not error.retriable
    error = wait_for_refusal(lambda: view.latest([TopicPartition(guarded_topic, 0)]))
    assert error.condition == "TOPIC_AUTHORIZATION_FAILED"
    assert guarded_topic in str(error)


def test_a_topic_without_the_right_to_read_can_be_planned_and_not_read(
    secure_kafka: LocalKafka, guarded_topic: str
) -> None:
    """S06: the reader's error names the topic too."""
    produce(secure_kafka, guarded_topic, b"not for alice")
    alice = settings_for(secure_kafka, "SASL_PLAINTEXT", sasl=login(secure_kafka, "PLAIN"))
    wait_for_refusal(lambda: KafkaLogView(bob(secure_kafka)).describe([guarded_topic]))
    assert KafkaLogView(alice).latest([TopicPartition(guarded_topic, 0)]) == {
        TopicPartition(guarded_topic, 0): 1
    }
    order = WorkOrder((RangeOrder(guarded_topic, 0, At(0), At(1)),), alice, ("value",))
    error = wait_for_refusal(lambda: list(KafkaReader().read(order)))
    assert "TOPIC_AUTHORIZATION_FAILED" in str(error)
    assert guarded_topic in str(error)


def test_a_group_without_the_right_is_an_error_and_not_an_empty_group(secure_kafka: LocalKafka) -> None:
    """S06: the error names the group."""
    group = f"guarded-{secrets.token_hex(4)}"
    topic = f"open-{secrets.token_hex(4)}"
    topic_admin.create_topic(plain_settings(secure_kafka), topic)
    allow(secure_kafka, ResourceType.GROUP, group, AclOperation.READ)
    view = KafkaLogView(bob(secure_kafka))
    error = wait_for_refusal(lambda: view.committed(group, [TopicPartition(topic, 0)]))
    assert error.condition == "GROUP_AUTHORIZATION_FAILED"
    assert f"group {group}" in str(error)
    offsets = {TopicPartition(topic, 0): 1}
    error = wait_for_refusal(lambda: commit_offsets(bob(secure_kafka), group, offsets, timeout_ms=10_000))
    assert error.condition == "GROUP_AUTHORIZATION_FAILED"
    assert f"group {group}" in str(error)


def test_a_commit_for_a_topic_without_the_right_names_the_topic(
    secure_kafka: LocalKafka, guarded_topic: str
) -> None:
    """S06: everyone may use the group, but not the topic."""
    offsets = {TopicPartition(guarded_topic, 0): 1}
    group = f"open-{secrets.token_hex(4)}"
    error = wait_for_refusal(lambda: commit_offsets(bob(secure_kafka), group, offsets, timeout_ms=10_000))
    assert error.condition == "TOPIC_AUTHORIZATION_FAILED"
    assert f"{guarded_topic}-0" in str(error)
    assert not error.retriable


# --- secrets ------------------------------------------------------------------------------------------


def test_no_secret_is_found_in_logs_reprs_or_errors(
    secure_kafka: LocalKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """F17, S01: with every logger at DEBUG, through successful logins, failed ones and broken keys."""
    planted = Secret(f"planted-{secrets.token_urlsafe(12)}")
    key_text = secure_kafka.secure.client_key_path.read_text()
    said: list[str] = []
    with caplog.at_level(logging.DEBUG):
        for name in list(logging.root.manager.loggerDict):
            if name.split(".")[0] in ("kafka", "penstock"):
                caplog.set_level(logging.DEBUG, logger=name)
        for listener in ("SASL_SSL", "SASL_PLAINTEXT"):
            for mechanism in MECHANISMS:
                for sasl in (
                    login(secure_kafka, mechanism),
                    login(secure_kafka, mechanism, password=planted),
                    login(secure_kafka, mechanism, username="mallory", password=planted),
                ):
                    settings = settings_for(secure_kafka, listener, tls=tls(secure_kafka), sasl=sasl)
                    said += [repr(settings), str(settings)]
                    try:
                        connection = Connection(
                            settings, *settings.bootstrap_servers[0], Deadline.after_ms(10_000)
                        )
                        said.append(repr(connection))
                        connection.close()
                    except PenstockError as error:
                        said += [str(error), repr(error), repr(error.facts), repr(error.__cause__)]
        for password in (secure_kafka.secure.client_key_password, planted):
            material = with_client_certificate(secure_kafka, key_password=password)
            settings = settings_for(secure_kafka, "MTLS", tls=material)
            said.append(repr(settings))
            try:
                KafkaLogView(settings).topics()
            except PenstockError as error:
                said += [str(error), repr(error), repr(error.facts), repr(error.__cause__)]
    assert sum("AUTHENTICATION_FAILED" in text for text in said) >= 12
    everything = "\n".join([*said, caplog.text, *(repr(record.__dict__) for record in caplog.records)])
    texts = [
        planted.reveal(),
        secure_kafka.secure.password.reveal(),
        secure_kafka.secure.client_key_password.reveal(),
    ]
    for text in texts:
        assert text not in everything
        assert base64.b64encode(text.encode()).decode().rstrip("=") not in everything
    assert key_text.splitlines()[1] not in everything


def test_a_password_sent_in_the_clear_is_warned_about(
    secure_kafka: LocalKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """S01: PLAIN without TLS gets a warning."""
    settings = settings_for(secure_kafka, "SASL_PLAINTEXT", sasl=login(secure_kafka, "PLAIN"))
    with caplog.at_level(logging.WARNING):
        Connection(settings, *settings.bootstrap_servers[0], Deadline.after_ms(10_000)).close()
    assert "unencrypted password" in caplog.text


def test_who_may_not_ask_how_long_offsets_are_kept_is_told_nothing_and_goes_on(
    secure_kafka: LocalKafka,
) -> None:
    """Its offsets are then renewed at a period that fits every broker's default."""
    client, group = bob(secure_kafka), f"group-{secrets.token_hex(4)}"
    assert find_retention_ms(client, group, timeout_ms=30_000) == 7 * 86_400_000
    allow(secure_kafka, ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE_CONFIGS)
    try:
        wait_until(
            lambda: find_retention_ms(client, group, timeout_ms=30_000) is None, "the question is refused"
        )
    finally:  # the rule covers the whole cluster, which other tests share
        broker = AdminClient({"bootstrap.servers": secure_kafka.bootstrap})
        all_rules = AclBindingFilter(
            ResourceType.BROKER,
            "kafka-cluster",
            ResourcePatternType.LITERAL,
            None,
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        broker.delete_acls([all_rules])[all_rules].result(timeout=20)
        wait_until(
            lambda: find_retention_ms(client, group, timeout_ms=30_000) is not None, "it is allowed again"
        )
