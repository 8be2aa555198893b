"""Logins as exchanges of bytes: known test vectors, and servers that cheat."""

from __future__ import annotations

import base64
import struct

import pytest

from penstock.core.client.client_settings import ClientSettings, SaslSettings, Secret, TlsSettings
from penstock.core.errors import BrokerError, OptionError
from penstock.kafka.transport.connection import Connection, Deadline
from penstock.kafka.transport.sasl_mechanisms import AuthenticationRefused, exchange_for, plain, scram
from penstock.kafka.transport.tls import tls_context
from tests.support.servers.hostile_server import frame, serve

# The exchange printed in RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def begun(mechanism: str = "SCRAM-SHA-256", username: str = "user"):  # type: ignore[no-untyped-def]
    exchange = scram(mechanism, username, Secret("pencil"), NONCE)
    return exchange, next(exchange)


def test_the_published_scram_exchange_is_reproduced() -> None:
    """S07: the test vector of the standard, byte for byte, signature included."""
    exchange, first = begun()
    assert first == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert exchange.send(SERVER_FIRST) == CLIENT_FINAL
    with pytest.raises(StopIteration):
        exchange.send(SERVER_FINAL)


@pytest.mark.parametrize(
    ("server_first", "reason"),
    [
        (SERVER_FIRST.replace(b"rOprNG", b"rOprXX"), "nonce"),
        (b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce"),
        (SERVER_FIRST.replace(b"i=4096", b"i=4095"), "4095 rounds"),
        (SERVER_FIRST.replace(b"i=4096", b"i=1"), "1 rounds"),
        (SERVER_FIRST.replace(b"i=4096", b"i=999999999"), "999999999 rounds"),
        (SERVER_FIRST.replace(b"i=4096", b"i=x"), "iteration count"),
        (SERVER_FIRST.replace(b"i=4096", b"i=-4096"), "iteration count"),
        (SERVER_FIRST.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s=!"), "base64"),
        (SERVER_FIRST.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s="), "salt"),
        (b"m=future," + SERVER_FIRST, "extension"),
        (b"\xff\xfe", "not text"),
        (b"", "nonce"),
    ],
)
def test_a_cheating_server_gets_no_proof_of_the_password(server_first: bytes, reason: str) -> None:
    """S07: nonce, iteration minimum and maximum, unknown extensions."""
    exchange, _ = begun()
    with pytest.raises(AuthenticationRefused, match=reason):
        exchange.send(server_first)


@pytest.mark.parametrize("final", [SERVER_FINAL.replace(b"6rri", b"7rri"), b"v=", b"", b"e=other-error"])
def test_a_server_without_the_password_cannot_sign(final: bytes) -> None:
    """S07: the server's signature is checked, so an impostor's "yes" does not count."""
    exchange, _ = begun()
    exchange.send(SERVER_FIRST)
    with pytest.raises(AuthenticationRefused):
        exchange.send(final)


def test_user_names_with_separators_are_escaped() -> None:
    _, first = begun(username="a=b,c")
    assert first.startswith(b"n,,n=a=3Db=2Cc,r=")


def test_sha_512_makes_longer_proofs() -> None:
    exchange, _ = begun("SCRAM-SHA-512")
    proof = exchange.send(SERVER_FIRST).split(b",p=")[1]
    assert len(base64.b64decode(proof)) == 64


def test_plain_sends_name_and_password_once() -> None:
    exchange = plain("alice", Secret("pässword"))
    assert next(exchange) == b"\0alice\0" + "pässword".encode()
    with pytest.raises(StopIteration):
        exchange.send(b"")


def test_nonces_are_never_used_twice() -> None:
    login = SaslSettings("SCRAM-SHA-256", "alice", Secret("x"))
    assert len({next(exchange_for(login)) for _ in range(50)}) == 50


def test_an_unknown_mechanism_is_an_option_error_that_lists_the_known_ones() -> None:
    with pytest.raises(OptionError, match="SCRAM-SHA-512"):
        exchange_for(SaslSettings("GSSAPI", "alice", Secret("x")))


def test_a_broker_that_repeats_the_password_in_its_refusal_is_not_quoted() -> None:
    """S01: whatever the broker writes into its error message, the password is not shown."""
    versions = struct.pack(">hi", 0, 3) + b"".join(
        struct.pack(">hhh", *api) for api in ((18, 0, 0), (17, 1, 1), (36, 0, 0))
    )

    def answer(peer, request) -> None:  # type: ignore[no-untyped-def]
        key, _, correlation_id = struct.unpack_from(">hhi", request)
        text = b"cannot log in with hunter2"
        body = {
            18: versions,
            17: struct.pack(">hi", 0, 1) + struct.pack(">h", 5) + b"PLAIN",
            36: struct.pack(">h", 58) + struct.pack(">h", len(text)) + text + struct.pack(">i", 0),
        }[key]
        if key == 18 and request[3] != 0:
            body = struct.pack(">h", 35) + versions[2:]
        peer.sendall(frame(correlation_id, body))

    login = SaslSettings("PLAIN", "alice", Secret("hunter2"))
    config = ClientSettings((("127.0.0.1", 1),), security_protocol="SASL_PLAINTEXT", sasl=login)
    with serve(answer, speak_kafka=False) as port, pytest.raises(BrokerError) as caught:
        Connection(config, "127.0.0.1", port, Deadline.after_ms(5_000))
    assert caught.value.condition == "AUTHENTICATION_FAILED"
    assert "'alice' with PLAIN: cannot log in with ***" in str(caught.value)
    assert "hunter2" not in repr(caught.value)


@pytest.mark.parametrize(
    "material",
    [
        TlsSettings(ca_pem="nonsense"),
        TlsSettings(certificate_pem="nonsense", key_pem=Secret("nonsense")),
        TlsSettings(certificate_pem="-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
    ],
)
def test_pem_text_that_is_none_is_an_option_error(material: TlsSettings) -> None:
    with pytest.raises(OptionError, match="TLS_MATERIAL_UNREADABLE"):
        tls_context(material)
