"""Translates Java's names for client settings: from `kafka.*` options to `ClientSettings`.

Rule: nothing is ignored silently. A setting is translated (`java_setting_table`), known to have no effect
here (one warning), or refused with what to use instead. A name that Java does not know either causes a
warning, or an error if it looks like a misspelt one.

Files are read through the given `read_file`, since the core does no I/O. Java's binary stores (JKS, PKCS12)
are refused with the command that converts them: reading them would need a JVM, which this project does
without.

>>> parse_client({"bootstrap.servers": "a:9092"}, read_file=str).settings.bootstrap_servers
(('a', 9092),)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from penstock.core.client.client_settings import ClientSettings, SaslSettings, Secret, TlsSettings
from penstock.core.client.jaas import parse_jaas
from penstock.core.client.java_setting_table import MECHANISMS, JavaSettings
from penstock.core.client.untranslated_settings import PRODUCER_ONLY, REFUSED, WITHOUT_EFFECT, explain_refusal
from penstock.core.errors import OptionError
from penstock.core.options.option_table import find_close_key, invalid, option_specs, read_surface
from penstock.core.options.secret_references import read_option_file

PREFIX = "kafka."
ReadFile = Callable[[str], str]
_CERTIFICATE = "-----BEGIN CERTIFICATE-----"
_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?-----END [A-Z0-9 ]*PRIVATE KEY-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ParsedClient:
    """The settings, and warnings for the user."""

    settings: ClientSettings
    warnings: tuple[str, ...]


def parse_client(texts: Mapping[str, str], *, read_file: ReadFile, has_brokers: bool = True) -> ParsedClient:
    """Translate settings, named without their `kafka.` prefix in any case, and return them.

    `has_brokers` is false for a queue that is not Kafka: it needs no servers.
    """
    # Java's clients drop the blanks around every value, passwords included.
    written = {name.lower(): name for name in texts}
    texts = {name.lower(): text.strip() for name, text in texts.items()}
    warnings = _sort_names(written)
    java = read_surface(JavaSettings, texts, shown_prefix=PREFIX)
    if java.bootstrap_servers is None and has_brokers:
        raise OptionError(
            "OPTION_MISSING",
            "Option `kafka.bootstrap.servers` is not set.",
            hint="Set it to the brokers' addresses, e.g. `broker:9092`.",
            facts={"option": "kafka.bootstrap.servers"},
        )
    protocol = java.security_protocol or "PLAINTEXT"
    same = {each.name for each in fields(ClientSettings)} & {each.name for each in fields(java)}
    given = {name: getattr(java, name) for name in same if getattr(java, name) is not None}
    servers = java.bootstrap_servers
    given["bootstrap_servers"] = (
        () if servers is None else parse_servers(f"{PREFIX}bootstrap.servers", servers)
    )
    if protocol in ("SSL", "SASL_SSL"):
        given["tls"] = _read_tls(java, read_file)
    if protocol.startswith("SASL"):
        given["sasl"] = _read_sasl(java)
    settings = ClientSettings(**given)
    return ParsedClient(settings, (*warnings, *_warn_about_security(java, protocol, settings)))


def parse_servers(key: str, text: str) -> tuple[tuple[str, int], ...]:
    """Return the `host:port` pairs, each once, in order."""
    found: dict[tuple[str, int], None] = {}
    for address in (each.strip() for each in text.split(",")):
        if not address:
            continue
        match = re.fullmatch(
            r"(?:[\w%.-]*://)?(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\s:\[\]/@]+)):(?P<port>[0-9]{1,5})",
            address,
        )
        if not match or not 0 < int(match["port"]) < 65536:
            raise invalid(key, text, "`host:port` addresses separated by commas, IPv6 in brackets")
        found[(match["six"] or match["host"], int(match["port"]))] = None
    if not found:
        raise invalid(key, text, "at least one `host:port` address")
    return tuple(found)


def _sort_names(written: Mapping[str, str]) -> list[str]:
    """Refuse forbidden settings and return warnings for those without effect. Keys are in lower case."""
    translated = {spec.key for spec in option_specs(JavaSettings).values()}
    idle, producing, strange = [], [], []
    for name in sorted(set(written) - translated):
        if name in REFUSED:
            raise explain_refusal(name)
        if name in WITHOUT_EFFECT:
            idle.append(name)
        elif name in PRODUCER_ONLY:
            producing.append(name)
        elif meant := find_close_key(name, {*translated, *WITHOUT_EFFECT, *PRODUCER_ONLY, *REFUSED}):
            raise OptionError(
                "OPTION_UNKNOWN",
                f"There is no option `{PREFIX}{written[name]}`.",
                hint=f"Did you mean `{PREFIX}{meant}`?",
                facts={"option": PREFIX + written[name], "meant": PREFIX + meant},
            )
        else:
            strange.append(name)
    sorted_out = {
        "Without effect in Penstock": idle,
        "Settings of a producer, without effect on a read": producing,
        "Not known to Kafka, ignored": strange,
    }
    return [
        f"{what}: {', '.join(PREFIX + written[name] for name in names)}."
        for what, names in sorted_out.items()
        if names
    ]


def _warn_about_security(java: JavaSettings, protocol: str, settings: ClientSettings) -> list[str]:
    warnings = []
    if settings.sasl and settings.sasl.mechanism == "PLAIN" and protocol == "SASL_PLAINTEXT":
        warnings.append("SASL PLAIN without TLS sends the password readable over the network; use SASL_SSL.")
    if settings.tls and not settings.tls.check_hostname:
        warnings.append("The check that a broker's certificate names its host is turned off.")
    if settings.tls and settings.tls.key_password and not settings.tls.key_pem:
        warnings.append(
            "`kafka.ssl.key.password` is set, but no key for it to open: this client shows no certificate. "
            "Set `kafka.ssl.keystore.location`, or `kafka.ssl.keystore.key` with its certificate chain."
        )
    unused = [
        PREFIX + spec.key
        for name, spec in option_specs(JavaSettings).items()
        if getattr(java, name) is not None
        and (
            (name.startswith("ssl_") and not settings.tls) or (name.startswith("sasl_") and not settings.sasl)
        )
    ]
    if unused:
        warnings.append(
            f"`kafka.security.protocol` is {protocol}, so these have no effect: {', '.join(unused)}."
        )
    return warnings


# --- login ----------------------------------------------------------------------------------------


def _read_sasl(java: JavaSettings) -> SaslSettings:
    mechanism = (java.sasl_mechanism or "GSSAPI").upper()
    if mechanism not in MECHANISMS:
        origin = "set to" if java.sasl_mechanism else "not set, which means"
        raise OptionError(
            "SASL_MECHANISM_REFUSED",
            f"`kafka.sasl.mechanism` is {origin} {mechanism}, which is not supported.",
            hint=f"Set it to one of {', '.join(MECHANISMS)}.",
            facts={"mechanism": mechanism},
        )
    if java.sasl_jaas_config is None:
        raise OptionError(
            "OPTION_MISSING",
            f"`kafka.sasl.mechanism` is {mechanism}, but `kafka.sasl.jaas.config` is not set.",
            hint="Set it to the login text with name and password.",
            facts={"option": "kafka.sasl.jaas.config"},
        )
    login = parse_jaas(java.sasl_jaas_config.reveal())
    if (login.module == "PlainLoginModule") != (mechanism == "PLAIN"):
        raise OptionError(
            "OPTION_CONFLICT",
            f"`kafka.sasl.jaas.config` names {login.module}, but `kafka.sasl.mechanism` is {mechanism}.",
            hint="PlainLoginModule goes with PLAIN, ScramLoginModule with the SCRAM mechanisms.",
            facts={"module": login.module, "mechanism": mechanism},
        )
    return SaslSettings(mechanism, login.username, login.password)


# --- TLS ------------------------------------------------------------------------------------------


def _read_tls(java: JavaSettings, read_file: ReadFile) -> TlsSettings:
    _refuse_binary_store("truststore", java.ssl_truststore_type, java.ssl_truststore_location)
    _refuse_binary_store("keystore", java.ssl_keystore_type, java.ssl_keystore_location)
    _refuse_both(
        "ssl.truststore.certificates",
        java.ssl_truststore_certificates,
        "ssl.truststore.location",
        java.ssl_truststore_location,
    )
    _refuse_both(
        "ssl.keystore.key", java.ssl_keystore_key, "ssl.keystore.location", java.ssl_keystore_location
    )
    _refuse_both(
        "ssl.keystore.certificate.chain",
        java.ssl_keystore_certificate_chain,
        "ssl.keystore.location",
        java.ssl_keystore_location,
    )
    ca = java.ssl_truststore_certificates
    if java.ssl_truststore_location:
        ca = read_option_file(PREFIX + "ssl.truststore.location", java.ssl_truststore_location, read_file)
    if ca is not None and _CERTIFICATE not in ca:
        where = "certificates" if java.ssl_truststore_certificates else "location"
        raise invalid(
            PREFIX + f"ssl.truststore.{where}", "(no certificate in it)", f"PEM text with `{_CERTIFICATE}`"
        )
    chain, key = _read_identity(java, read_file)
    algorithm = java.ssl_endpoint_identification_algorithm
    if algorithm not in (None, "", "https", "HTTPS"):
        raise invalid(
            PREFIX + "ssl.endpoint.identification.algorithm", algorithm, "`https`, or empty for off"
        )
    return TlsSettings(ca, chain, key, java.ssl_key_password, check_hostname=algorithm != "")


def _read_identity(java: JavaSettings, read_file: ReadFile) -> tuple[str | None, Secret | None]:
    chain, key = java.ssl_keystore_certificate_chain, java.ssl_keystore_key
    if java.ssl_keystore_location:
        text = read_option_file(PREFIX + "ssl.keystore.location", java.ssl_keystore_location, read_file)
        found = _KEY.search(text)
        key = Secret(found[0]) if found else None
        chain = _KEY.sub("", text).strip() if _CERTIFICATE in text else None
        if not found or chain is None:
            raise invalid(
                PREFIX + "ssl.keystore.location",
                java.ssl_keystore_location,
                "a PEM file with both a private key and the certificate chain",
            )
    if (chain is None) != (key is None):
        raise OptionError(
            "OPTION_CONFLICT",
            "Only one of `kafka.ssl.keystore.certificate.chain` and `kafka.ssl.keystore.key` is set.",
            hint="Set both, or neither.",
        )
    return chain, key


def _refuse_both(one: str, first: object, other: str, second: object) -> None:
    if first and second:
        raise OptionError(
            "OPTION_CONFLICT", f"Both `kafka.{one}` and `kafka.{other}` are set.", hint="Set one of them."
        )


def _refuse_binary_store(store: str, kind: str | None, location: str | None) -> None:
    if (
        kind is None
        and location
        and re.search(r"\.(jks|p12|pfx|keystore|truststore)$", location, re.IGNORECASE)
    ):
        kind = "JKS" if location.lower().endswith("jks") else "PKCS12"
    if kind in (None, "PEM"):
        return
    path = location or f"{store}.{'jks' if kind == 'JKS' else 'p12'}"
    if store == "truststore":
        command = f"keytool -list -rfc -keystore {path} -storetype {kind} > truststore.pem"
    elif kind == "PKCS12":
        command = f"openssl pkcs12 -in {path} -out keystore.pem"
    else:
        command = (
            f"keytool -importkeystore -srckeystore {path} -srcstoretype JKS -destkeystore keystore.p12 "
            "-deststoretype PKCS12 && openssl pkcs12 -in keystore.p12 -out keystore.pem"
        )
    raise OptionError(
        "STORE_TYPE_REFUSED",
        f"The {store} is of type {kind}; only PEM is read.",
        hint=f"Convert it once: {command} ; then set `kafka.ssl.{store}.type` to PEM and "
        f"`kafka.ssl.{store}.location` to the new file.",
        facts={"store": store, "type": kind},
    )
