"""Asking a schema registry: what is kept, what is an error, and what never leaves by mistake."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import socket
import ssl
import urllib.request
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from penstock.core.client import Secret
from penstock.core.errors import DecodeError, OptionError
from penstock.formats.registry import (
    RegistrySettings,
    find_latest,
    find_schema,
    forget_schemas,
    parse_urls,
)
from penstock.testing.registry import RegistryServer


@pytest.fixture(autouse=True)
def fresh() -> None:
    forget_schemas()


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_schema_is_asked_for_once_and_then_kept() -> None:
    with RegistryServer() as registry:
        schema_id = registry.register("s", '"long"')
        settings = RegistrySettings((registry.url,))
        for _ in range(3):
            found = find_schema(settings, schema_id)
            assert found is not None
            assert (found.kind, found.text) == ("AVRO", '"long"')
        assert registry.requests == [f"/schemas/ids/{schema_id}"]


def test_an_unknown_id_is_none_and_remembered_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    with RegistryServer() as registry:
        settings = RegistrySettings((registry.url,))
        assert find_schema(settings, 1) is None
        assert find_schema(settings, 1) is None
        assert len(registry.requests) == 1
        registry.register("s", '"long"')
        monkeypatch.setattr("penstock.formats.registry.time.monotonic", lambda: 1e12)
        found = find_schema(settings, 1)
        assert found is not None


def test_the_latest_version_of_a_subject_is_found_by_any_name() -> None:
    with RegistryServer() as registry:
        settings = RegistrySettings((registry.url,))
        for text in ('"int"', '"long"'):
            schema_id = registry.register("odd/name with ümlaut", text)
        found = find_latest(settings, "odd/name with ümlaut")
        assert (found.text, found.schema_id) == ('"long"', schema_id)
        with pytest.raises(OptionError, match="SCHEMA_NOT_FOUND"):
            find_latest(settings, "other")


def test_the_next_address_is_asked_when_one_does_not_answer() -> None:
    with RegistryServer() as broken, RegistryServer() as registry:
        broken.fail_with = 503
        schema_id = registry.register("s", '"long"')
        urls = (f"http://127.0.0.1:{closed_port()}", broken.url, registry.url)
        assert find_schema(RegistrySettings(urls), schema_id) is not None


@pytest.mark.parametrize("status", [500, 503, 429, 302, 307])
def test_a_registry_that_fails_is_an_error_to_try_again_and_never_an_unknown_id(status: int) -> None:
    with RegistryServer() as registry:
        registry.fail_with = status
        settings = RegistrySettings((registry.url,))
        for _ in range(2):
            with pytest.raises(DecodeError) as caught:
                find_schema(settings, 1)
            assert caught.value.condition == "SCHEMA_REGISTRY_UNREACHABLE"
            assert caught.value.retriable
        registry.fail_with = None
        registry.register("s", '"long"')
        assert find_schema(settings, 1) is not None


def test_a_registry_that_is_not_there_is_an_error_to_try_again() -> None:
    with pytest.raises(DecodeError) as caught:
        find_schema(RegistrySettings((f"http://127.0.0.1:{closed_port()}",)), 1)
    assert caught.value.condition == "SCHEMA_REGISTRY_UNREACHABLE"
    assert caught.value.retriable


def test_a_registry_that_says_nothing_is_given_up_after_its_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = RegistrySettings((f"http://127.0.0.1:{silent.getsockname()[1]}",), timeout_ms=200)
        with pytest.raises(DecodeError, match="SCHEMA_REGISTRY_UNREACHABLE"):
            find_schema(settings, 1)


def test_a_404_of_somebody_else_is_no_unknown_id() -> None:
    """A wrong path before the registry (a proxy's 404) would turn a whole topic into bad rows."""
    with RegistryServer() as registry:
        registry.register("s", '"long"')
        with pytest.raises(DecodeError, match="SCHEMA_REGISTRY_UNREACHABLE"):
            find_schema(RegistrySettings((registry.url + "/wrong",)), 1)


def test_a_login_is_sent_and_a_refused_one_says_so_without_showing_it() -> None:
    with RegistryServer(basic_auth="me:hunter2") as registry:
        schema_id = registry.register("s", '"long"')
        good = RegistrySettings((registry.url,), Secret("me:hunter2"))
        assert find_schema(good, schema_id) is not None
        assert "hunter2" not in repr(good)
        with pytest.raises(DecodeError) as caught:
            find_schema(RegistrySettings((registry.url,), Secret("me:wrong-one")), schema_id)
        assert caught.value.condition == "SCHEMA_REGISTRY_REFUSED"
        assert not caught.value.retriable
        assert "wrong-one" not in str(caught.value) + repr(caught.value.facts)
        assert caught.value.__cause__ is None


def test_a_redirect_is_not_followed_with_the_login() -> None:
    with RegistryServer() as registry:
        registry.fail_with = 307  # its Location is a port nobody listens on
        with pytest.raises(DecodeError, match="status 307"):
            find_schema(RegistrySettings((registry.url,), Secret("me:hunter2")), 1)


def test_references_come_before_what_uses_them_and_circles_end() -> None:
    with RegistryServer() as registry:
        registry.register("c", '"C"')
        registry.register("b", '"B"', references=[{"name": "c", "subject": "c", "version": 1}])
        both = [{"name": "b", "subject": "b", "version": 1}, {"name": "c", "subject": "c", "version": 1}]
        top = registry.register("a", '"A"', references=both)
        loop = registry.register("l", '"L"', references=[{"name": "l", "subject": "l", "version": 1}])
        settings = RegistrySettings((registry.url,))
        found = find_schema(settings, top)
        assert found is not None
        assert found.references == (("c", '"C"'), ("b", '"B"'))
        circle = find_schema(settings, loop)
        assert circle is not None
        assert [name for name, _ in circle.references] == ["l"]


def test_an_answer_that_is_no_schema_is_an_error() -> None:
    with RegistryServer() as registry:
        registry.fail_with = 200
        with pytest.raises(DecodeError) as caught:
            find_schema(RegistrySettings((registry.url,)), 1)
        assert caught.value.condition == "SCHEMA_REGISTRY_UNREACHABLE"


def test_a_registry_with_tls_is_trusted_only_with_its_authority(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    names: list[x509.GeneralName] = [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    (tmp_path / "both.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + pem
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "both.pem")
    with RegistryServer(tls=context) as registry:
        schema_id = registry.register("s", '"long"')
        assert find_schema(RegistrySettings((registry.url,), ca_pem=pem.decode()), schema_id) is not None
        with pytest.raises(DecodeError, match="SCHEMA_REGISTRY_UNREACHABLE"):
            find_schema(RegistrySettings((registry.url,)), schema_id)
    with pytest.raises(OptionError, match="TLS_MATERIAL_UNREADABLE"):
        find_schema(RegistrySettings(("https://localhost:1",), ca_pem="no certificate"), 1)


@pytest.mark.parametrize(
    "text", ["", " , ", "localhost:8081", "file:///etc/passwd", "ftp://r", "http://", "http://me:secret@r"]
)
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_urls(text)
    assert "secret" not in str(caught.value)


def test_the_test_registry_takes_schemas_over_http() -> None:
    with RegistryServer() as registry:
        body = json.dumps({"schema": '"int"', "schemaType": "AVRO"}).encode()
        request = urllib.request.Request(f"{registry.url}/subjects/t-value/versions", body, method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:
            schema_id = json.load(answer)["id"]
        assert find_latest(RegistrySettings((registry.url,)), "t-value").schema_id == schema_id
