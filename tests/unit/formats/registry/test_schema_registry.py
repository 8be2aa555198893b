"""Lookups in a schema registry: what is cached, what is an error, and what must never be sent by mistake."""

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

from penstock.core.client.client_settings import Secret
from penstock.core.errors import DecodeError, OptionError
from penstock.formats.registry import schema_lookups
from penstock.formats.registry.schema_lookups import find_schemas
from penstock.formats.registry.schema_registry import (
    RegisteredSchema,
    Registry,
    RegistrySettings,
    find_latest,
    parse_urls,
)
from penstock.testing.registry import RegistryServer
from tests.support.registry_memory import forget_schemas


@pytest.fixture(autouse=True)
def fresh() -> None:
    forget_schemas()


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def find_schema(settings: RegistrySettings, schema_id: int) -> RegisteredSchema | None:
    with Registry(settings) as registry:
        return registry.find_schema(schema_id)


def test_a_schema_is_asked_for_once_and_then_kept() -> None:
    with RegistryServer() as registry:
        schema_id = registry.register("s", '"long"')
        settings = RegistrySettings((registry.url,))
        for _ in range(3):
            found = find_schemas(settings, [schema_id])[schema_id]
            assert found is not None
            assert (found.kind, found.text) == ("AVRO", '"long"')
        assert registry.requests == [f"/schemas/ids/{schema_id}"]


class _Clock:
    """The clock that lookups see; sleeping advances it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_s, self.slept_s = 1000.0, 0.0
        patch.setattr(schema_lookups.time, "monotonic", lambda: self.now_s)
        patch.setattr(schema_lookups.time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept_s += seconds


def test_an_unknown_id_is_asked_for_twice_and_believed_for_as_long_as_it_has_been_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with RegistryServer() as registry:
        settings, clock = RegistrySettings((registry.url,)), _Clock(monkeypatch)
        assert find_schemas(settings, [7, 8]) == {7: None, 8: None}
        assert (len(registry.requests), clock.slept_s) == (4, 1.0)  # one pause for all of them together
        looks: list[float] = []
        began = clock.now_s - 1
        while clock.now_s < began + 300:
            clock.now_s += 0.5
            asked = len(registry.requests)
            assert find_schemas(settings, [7]) == {7: None}
            looks += [clock.now_s - began] * (len(registry.requests) - asked)
        assert looks == [2, 4, 8, 16, 32, 64, 124, 184, 244]
        assert clock.slept_s == 1.0


def test_an_id_that_becomes_known_is_found_at_the_next_question(monkeypatch: pytest.MonkeyPatch) -> None:
    with RegistryServer() as registry:
        settings, clock = RegistrySettings((registry.url,)), _Clock(monkeypatch)
        assert find_schemas(settings, [1]) == {1: None}
        registry.register("s", '"long"')
        assert find_schemas(settings, [1]) == {1: None}  # believed for a moment
        clock.now_s += 1.0
        assert find_schemas(settings, [1])[1] is not None


def test_an_id_not_seen_for_long_gets_two_questions_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with RegistryServer() as registry:
        settings, clock = RegistrySettings((registry.url,)), _Clock(monkeypatch)
        assert find_schemas(settings, [1]) == {1: None}
        clock.now_s += 3600
        registry.register("s", '"long"')
        registry.lagging[1] = 1
        assert find_schemas(settings, [1])[1] is not None


def test_what_this_process_keeps_of_unknown_ids_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_lookups, "MAX_UNKNOWN_KEPT", 10)
    with RegistryServer() as registry:
        settings, _ = RegistrySettings((registry.url,)), _Clock(monkeypatch)
        asked: list[int] = []
        for ids in (range(100, 110), range(100, 110), range(200, 210), range(100, 110)):
            assert set(find_schemas(settings, ids).values()) == {None}
            asked.append(len(registry.requests))
        assert asked == [20, 20, 40, 60]


def test_all_questions_of_a_call_go_over_one_connection() -> None:
    with RegistryServer() as registry:
        settings = RegistrySettings((registry.url,), second_look_ms=1)
        assert set(find_schemas(settings, range(100, 150)).values()) == {None}
        assert (len(registry.requests), registry.connections) == (100, 1)


def test_a_connection_that_the_registry_has_closed_in_between_is_made_again() -> None:
    with RegistryServer() as registry:
        schema_id = registry.register("s", '"long"')
        with Registry(RegistrySettings((registry.url,))) as asked:
            for connections in (1, 2):
                assert asked.find_schema(schema_id) is not None
                assert registry.connections == connections
                registry.hang_up()


def test_an_address_that_has_answered_is_asked_first_from_then_on() -> None:
    with RegistryServer() as broken, RegistryServer() as registry:
        broken.fail_with = 503
        settings = RegistrySettings((broken.url, registry.url), second_look_ms=1)
        assert set(find_schemas(settings, range(100, 150)).values()) == {None}
        assert (len(broken.requests), len(registry.requests)) == (1, 100)


def test_a_call_ends_at_its_deadline_and_calls_no_row_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    with RegistryServer() as registry:
        settings, clock = RegistrySettings((registry.url,)), _Clock(monkeypatch)
        registry.before_answer = lambda: clock.sleep(schema_lookups.LOOKUP_TIMEOUT_S / 10)
        with pytest.raises(DecodeError, match=r"SCHEMA_IDS_UNSETTLED.* 290 ") as caught:
            find_schemas(settings, range(100, 400))
        assert caught.value.retriable
        assert len(registry.requests) == 10


def test_ids_that_were_unknown_before_count_too_when_they_are_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with RegistryServer() as registry:
        settings, clock = RegistrySettings((registry.url,), max_unknown_ids=9), _Clock(monkeypatch)
        for ids in (range(100, 110), range(110, 120)):
            assert set(find_schemas(settings, ids).values()) == {None}
        clock.now_s += 30
        registry.requests.clear()
        with pytest.raises(DecodeError, match="SCHEMA_IDS_UNKNOWN"):
            find_schemas(settings, range(100, 120))
        assert len(registry.requests) == 10


def test_many_ids_that_a_replica_hears_of_late_are_all_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with RegistryServer(first_id=100) as registry:
        settings, _ = RegistrySettings((registry.url,), max_unknown_ids=9), _Clock(monkeypatch)
        ids = [registry.register("s", json.dumps(f"n{n}")) for n in range(25)]
        registry.lagging.update(dict.fromkeys(ids, 1))
        assert None not in find_schemas(settings, ids).values()


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
    """Otherwise a wrong path before the registry (a proxy's 404) would turn a whole topic into bad rows."""
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
