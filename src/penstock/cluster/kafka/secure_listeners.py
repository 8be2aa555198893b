"""Listeners with TLS and logins for a local cluster, with throwaway certificates and random passwords.

Rule: nothing here has a default. Keys, certificates and passwords are made for each cluster, kept in its
private folder and removed with it. A password known from the documentation would soon protect something real.

Listeners: SSL (the server shows a certificate), MTLS (the client must show one, too), SASL_SSL and
SASL_PLAINTEXT (logins with PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512). The certificate is for 127.0.0.1 only, so
a client that checks names must refuse the same broker under the name `localhost`. The plain CLIENT listener
stays and needs no login. Create topics and access rules there.

    with LocalKafka(secure=True) as kafka:
        kafka.secure.bootstrap("SASL_SSL"), kafka.secure.ca_pem_path, kafka.secure.password.reveal()
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import ipaddress
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.core.client.client_settings import Secret
from penstock.core.errors import ClusterError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

#: Listener name to Kafka's security protocol.
SECURE_LISTENERS: Mapping[str, str] = {
    "SSL": "SSL",
    "MTLS": "SSL",
    "SASL_SSL": "SASL_SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_SCRAM_ITERATIONS = 4096
_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


@dataclass(frozen=True, slots=True)
class SecureAccess:
    """What a client needs to connect. `other_ca_pem_path` is a CA that has signed nothing here."""

    folder: Path
    username: str
    password: Secret
    other_username: str
    other_password: Secret
    client_key_password: Secret
    _ports: dict[str, list[int]] = field(default_factory=dict)

    def bootstrap(self, listener: str) -> str:
        """Return the addresses of one listener: SSL, MTLS, SASL_SSL or SASL_PLAINTEXT."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports[listener])

    @property
    def ca_pem_path(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def other_ca_pem_path(self) -> Path:
        return self.folder / "other-ca.pem"

    @property
    def client_certificate_path(self) -> Path:
        return self.folder / "client.pem"

    @property
    def client_key_path(self) -> Path:
        """Return the path of the client's private key, encrypted with `client_key_password`."""
        return self.folder / "client-key.pem"

    @property
    def server_keystore_path(self) -> Path:
        return self.folder / "server.pem"

    @property
    def _users(self) -> dict[str, str]:
        return {
            self.username: self.password.reveal(),
            self.other_username: self.other_password.reveal(),
        }

    def note_ports(self, listener_ports: Sequence[Mapping[str, int]]) -> None:
        for name in SECURE_LISTENERS:
            self._ports[name] = [ports[name] for ports in listener_ports]

    def broker_settings(self) -> dict[str, str]:
        """Return the brokers' settings: stores, logins, an authorizer that allows what no rule forbids."""
        users = "".join(f' user_{name}="{password}"' for name, password in self._users.items())
        settings = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.server_keystore_path),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca_pem_path),
            "listener.name.mtls.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
            "super.users": "User:ANONYMOUS",
        }
        for listener in ("sasl_ssl", "sasl_plaintext"):
            prefix = f"listener.name.{listener}"
            settings[f"{prefix}.plain.sasl.jaas.config"] = f"{_PLAIN_MODULE} required{users};"
            for mechanism in ("scram-sha-256", "scram-sha-512"):
                settings[f"{prefix}.{mechanism}.sasl.jaas.config"] = f"{_SCRAM_MODULE} required;"
        return settings

    def scram_users(self) -> list[str]:
        """Return the users for the storage tool, with hashed passwords: all users can see command lines."""
        described = []
        for name, password in self._users.items():
            for mechanism in MECHANISMS[1:]:
                hash_name = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
                salt = secrets.token_bytes(16)
                salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, _SCRAM_ITERATIONS)
                described.append(
                    f'{mechanism}=[name={name},iterations={_SCRAM_ITERATIONS},salt="{_base64(salt)}"'
                    f',saltedpassword="{_base64(salted)}"]'
                )
        return described


def make_secure_access(folder: Path) -> SecureAccess:
    """Create the certificates in `folder` and return what clients need. Its ports are not known yet."""
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError as error:
        raise ClusterError(
            "CRYPTOGRAPHY_MISSING",
            "A cluster with TLS needs the package `cryptography`, which is not installed.",
            hint="Run `pip install cryptography`.",
        ) from error
    folder.mkdir(mode=0o700)
    access = SecureAccess(
        folder,
        "alice",
        Secret(secrets.token_urlsafe(16)),
        "bob",
        Secret(secrets.token_urlsafe(16)),
        Secret(secrets.token_urlsafe(16)),
    )
    ca_key, ca = _make_authority("penstock test CA")
    _, other = _make_authority("another CA")
    server_key, server = _make_certificate("broker", ca_key, ca)
    client_key, client = _make_certificate("client", ca_key, ca)
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    encrypted = serialization.BestAvailableEncryption(access.client_key_password.reveal().encode())
    files = {
        access.ca_pem_path: ca.public_bytes(pem),
        access.other_ca_pem_path: other.public_bytes(pem),
        access.server_keystore_path: server_key.private_bytes(pem, pkcs8, serialization.NoEncryption())
        + server.public_bytes(pem)
        + ca.public_bytes(pem),
        access.client_certificate_path: client.public_bytes(pem),
        access.client_key_path: client_key.private_bytes(pem, pkcs8, encrypted),
    }
    for path, content in files.items():
        path.touch(mode=0o600)
        path.write_bytes(content)
    return access


def _make_authority(name: str) -> tuple[EllipticCurvePrivateKey, x509.Certificate]:
    from cryptography import x509

    return _sign(name, None, None, [(x509.BasicConstraints(ca=True, path_length=0), True)])


def _make_certificate(
    name: str, ca_key: EllipticCurvePrivateKey, ca: x509.Certificate
) -> tuple[EllipticCurvePrivateKey, x509.Certificate]:
    from cryptography import x509

    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    return _sign(name, ca_key, ca, [(names, False)])


def _sign(
    name: str,
    issuer_key: EllipticCurvePrivateKey | None,
    issuer: x509.Certificate | None,
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
) -> tuple[EllipticCurvePrivateKey, x509.Certificate]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer is not None else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # the clocks of two containers may differ
        .not_valid_after(now + datetime.timedelta(days=7))
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return key, builder.sign(issuer_key or key, hashes.SHA256())


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
