"""The table of Java's client settings that have an effect here, one field each.

Rule: a setting is in exactly one place: in this table or in one of the lists of `untranslated_settings`
(without effect, a producer's, refused). None means "not set", so the defaults of `ClientSettings` stay the
only ones. Why not pass the settings through: every Python client has its own names, and a setting that is
silently dropped is noticed only in production.

>>> parse_secret("hunter2")
Secret(***)
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.client.client_settings import Secret
from penstock.core.options.option_table import option
from penstock.core.options.option_values import parse_boolean, parse_integer_from, parse_text, parse_word

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_STORE_TYPES = ("PEM", "JKS", "PKCS12")


def parse_maybe_blank(text: str) -> str:
    """Return the text; blank is allowed and always means "off" here."""
    return text.strip()


def parse_secret(text: str) -> Secret:
    """Return the text as a secret; the blanks around it are gone already, as around all values."""
    if not text:
        raise ValueError("a value that is not blank")
    return Secret(text)


def parse_tls_versions(text: str) -> str:
    """Return a list that has all versions this client offers: a shorter one would be a false promise."""
    if not {"TLSv1.2", "TLSv1.3"} <= {each.strip() for each in text.split(",")}:
        raise ValueError("a list with `TLSv1.2` and `TLSv1.3`, the versions this client offers")
    return text


def parse_buffer_bytes(text: str) -> int:
    """Return the size; Java's -1, "leave it to the system", becomes 0."""
    return 0 if text == "-1" else parse_integer_from(1)(text)


_SIZE = parse_integer_from(1)
_WAIT = parse_integer_from(1)


@dataclass(frozen=True)
class JavaSettings:
    """The table of translated settings. None means not set, so the client's own default applies."""

    bootstrap_servers: str | None = option(
        "bootstrap.servers",
        parse_text,
        "Addresses to begin with, `host:port` separated by commas; IPv6 in brackets. Required.",
        accepts=("broker:9092", "a:9092, b:9092", "[::1]:9092"),
        rejects=(
            ("", "OPTION_INVALID"),
            ("broker", "OPTION_INVALID"),
            ("broker:x", "OPTION_INVALID"),
            ("broker:0", "OPTION_INVALID"),
            (":9092", "OPTION_INVALID"),
            (",", "OPTION_INVALID"),
        ),
    )
    client_id: str | None = option(
        "client.id",
        parse_text,
        "Name shown in the brokers' logs and quotas.",
        default_doc="`penstock`",
        accepts=("reports",),
        rejects=((" ", "OPTION_INVALID"),),
    )
    client_rack: str | None = option(
        "client.rack",
        parse_maybe_blank,
        "Rack of this client, to read from a follower nearby.",
        accepts=("eu-1a", ""),
    )
    group_id: str | None = option(
        "group.id",
        parse_text,
        "Group whose committed offsets `committed` means; replaces the generated one.",
        accepts=("reports",),
        rejects=(("", "OPTION_INVALID"),),
    )
    isolation_level: str | None = option(
        "isolation.level",
        parse_word("read_uncommitted", "read_committed"),
        "Whether records of open and aborted transactions are seen, in planning and in reading alike.",
        default_doc="`read_uncommitted`",
        accepts=("read_committed", "READ_UNCOMMITTED"),
        rejects=(("committed", "OPTION_INVALID"), ("", "OPTION_INVALID")),
    )
    security_protocol: str | None = option(
        "security.protocol",
        parse_word("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        "Whether connections are encrypted (SSL) and log in (SASL).",
        default_doc="`PLAINTEXT`",
        accepts=("PLAINTEXT", "ssl"),
        rejects=(("TLS", "OPTION_INVALID"),),
    )
    sasl_mechanism: str | None = option(
        "sasl.mechanism",
        parse_text,
        f"How to log in: {', '.join(MECHANISMS)}.",
        accepts=("PLAIN",),
        rejects=(("GSSAPI", "SASL_MECHANISM_REFUSED"),),
        needs={
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
            'username="u" password="p";',
        },
    )
    sasl_jaas_config: Secret | None = option(  # noqa: RUF009
        "sasl.jaas.config",
        parse_secret,
        "Name and password, as the text Java's clients take.",
        accepts=(f"{_SCRAM} required username='u' password='p';",),
        rejects=(
            ('com.sun.security.auth.module.JndiLoginModule required x="y";', "LOGIN_MODULE_REFUSED"),
            ("PlainLoginModule", "OPTION_INVALID"),
            (f'{_SCRAM} required username="u" password="p" tokenauth="true";', "DELEGATION_TOKEN_REFUSED"),
            (f'{_SCRAM} required user="u" password="p";', "OPTION_UNKNOWN"),
        ),
        needs={"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "SCRAM-SHA-256"},
    )
    ssl_truststore_type: str | None = option(
        "ssl.truststore.type",
        parse_word(*_STORE_TYPES),
        "Format of the trusted certificates; only PEM.",
        accepts=("PEM",),
        needs={"kafka.security.protocol": "SSL"},
        rejects=(("JKS", "STORE_TYPE_REFUSED"), ("PKCS12", "STORE_TYPE_REFUSED"), ("x", "OPTION_INVALID")),
    )
    ssl_truststore_location: str | None = option(
        "ssl.truststore.location",
        parse_text,
        "File with the trusted certificates (PEM).",
        accepts=("ca.pem",),
        rejects=(("truststore.jks", "STORE_TYPE_REFUSED"), ("missing.pem", "FILE_UNREADABLE")),
        needs={"kafka.security.protocol": "SSL"},
    )
    ssl_truststore_certificates: str | None = option(
        "ssl.truststore.certificates",
        parse_text,
        "Trusted certificates as PEM text.",
        accepts=("-----BEGIN CERTIFICATE-----\n...\n-----END CERTIFICATE-----",),
        rejects=(("ca.pem", "OPTION_INVALID"),),
        needs={"kafka.security.protocol": "SSL"},
    )
    ssl_keystore_type: str | None = option(
        "ssl.keystore.type",
        parse_word(*_STORE_TYPES),
        "Format of this client's certificate and key; only PEM.",
        accepts=("PEM",),
        needs={"kafka.security.protocol": "SSL"},
        rejects=(("JKS", "STORE_TYPE_REFUSED"), ("PKCS12", "STORE_TYPE_REFUSED")),
    )
    ssl_keystore_location: str | None = option(
        "ssl.keystore.location",
        parse_text,
        "File with this client's certificate chain and private key (PEM).",
        accepts=("client.pem",),
        rejects=(("client.p12", "STORE_TYPE_REFUSED"),),
        needs={"kafka.security.protocol": "SSL"},
    )
    ssl_keystore_certificate_chain: str | None = option(
        "ssl.keystore.certificate.chain",
        parse_text,
        "This client's certificate chain as PEM text.",
        rejects=(("-----BEGIN CERTIFICATE-----", "OPTION_CONFLICT"),),
        needs={"kafka.security.protocol": "SSL"},
    )
    ssl_keystore_key: Secret | None = option(  # noqa: RUF009
        "ssl.keystore.key",
        parse_secret,
        "This client's private key as PEM text.",
        rejects=(("-----BEGIN PRIVATE KEY-----", "OPTION_CONFLICT"),),
        needs={"kafka.security.protocol": "SSL"},
    )
    ssl_key_password: Secret | None = option(  # noqa: RUF009
        "ssl.key.password",
        parse_secret,
        "Password of the private key.",
        accepts=("hunter2",),
        rejects=(("", "OPTION_INVALID"),),
        needs={"kafka.security.protocol": "SSL"},
    )
    ssl_endpoint_identification_algorithm: str | None = option(
        "ssl.endpoint.identification.algorithm",
        parse_maybe_blank,
        "`https` checks that the certificate names the broker's host; empty turns the check off.",
        default_doc="`https`",
        accepts=("https", ""),
        rejects=(("none", "OPTION_INVALID"),),
        needs={"kafka.security.protocol": "SSL"},
    )
    ssl_enabled_protocols: str | None = option(
        "ssl.enabled.protocols",
        parse_tls_versions,
        "TLS versions; this client offers 1.2 and 1.3.",
        accepts=("TLSv1.2,TLSv1.3",),
        rejects=(("TLSv1.3", "OPTION_INVALID"),),
        needs={"kafka.security.protocol": "SSL"},
    )
    fetch_min_bytes: int | None = option(
        "fetch.min.bytes",
        parse_integer_from(0),
        "How much a broker gathers before it answers.",
        default_doc="`1`",
        accepts=("0", "1", "65536"),
        rejects=(("-1", "OPTION_INVALID"),),
    )
    fetch_max_wait_ms: int | None = option(
        "fetch.max.wait.ms",
        parse_integer_from(0),
        "How long a broker waits for that much.",
        default_doc="`500`",
        accepts=("100",),
        rejects=(("1s", "OPTION_INVALID"), ("nan", "OPTION_INVALID")),
    )
    fetch_max_bytes: int | None = option(
        "fetch.max.bytes",
        _SIZE,
        "Size of one answer.",
        default_doc="`52428800`",
        accepts=("1048576",),
        rejects=(("0", "OPTION_INVALID"),),
    )
    max_partition_fetch_bytes: int | None = option(
        "max.partition.fetch.bytes",
        _SIZE,
        "Size of one partition's part of an answer.",
        default_doc="`8388608` (Java: 1048576)",
        accepts=("1048576",),
        rejects=(("1e6", "OPTION_INVALID"),),
    )
    check_crcs: bool | None = option(
        "check.crcs",
        parse_boolean,
        "Whether each batch's checksum is checked.",
        default_doc="`true`",
        accepts=("true", "FALSE"),
        rejects=(("yes", "OPTION_INVALID"),),
    )
    request_timeout_ms: int | None = option(
        "request.timeout.ms",
        _WAIT,
        "How long one request may take.",
        default_doc="`30000`",
        accepts=("5000",),
        rejects=(("-1", "OPTION_INVALID"), ("inf", "OPTION_INVALID"), ("0", "OPTION_INVALID")),
    )
    default_api_timeout_ms: int | None = option(
        "default.api.timeout.ms",
        _WAIT,
        "How long one look-up may take, retries included.",
        default_doc="`60000`",
        accepts=("10000",),
        rejects=(("0", "OPTION_INVALID"),),
    )
    socket_connection_setup_timeout_ms: int | None = option(
        "socket.connection.setup.timeout.ms",
        _WAIT,
        "How long connecting may take.",
        default_doc="`10000`",
        accepts=("3000",),
        rejects=(("0", "OPTION_INVALID"),),
    )
    connections_max_idle_ms: int | None = option(
        "connections.max.idle.ms",
        _WAIT,
        "When an unused connection is closed.",
        default_doc="`540000`",
        accepts=("60000",),
        rejects=(("-5", "OPTION_INVALID"),),
    )
    metadata_max_age_ms: int | None = option(
        "metadata.max.age.ms",
        parse_integer_from(0),
        "When knowledge of leaders is refreshed.",
        default_doc="`300000`",
        accepts=("5000",),
        rejects=(("x", "OPTION_INVALID"),),
    )
    retry_backoff_ms: int | None = option(
        "retry.backoff.ms",
        parse_integer_from(0),
        "Pause before a request is retried.",
        default_doc="`100`",
        accepts=("50",),
        rejects=(("-1", "OPTION_INVALID"),),
    )
    receive_buffer_bytes: int | None = option(
        "receive.buffer.bytes",
        parse_buffer_bytes,
        "The socket's receive buffer.",
        default_doc="`-1`, as the system sizes it",
        accepts=("65536", "-1"),
        rejects=(("-2", "OPTION_INVALID"),),
    )
    send_buffer_bytes: int | None = option(
        "send.buffer.bytes",
        parse_buffer_bytes,
        "The socket's send buffer.",
        default_doc="`131072`",
        accepts=("65536",),
        rejects=(("big", "OPTION_INVALID"),),
    )
