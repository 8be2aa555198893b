"""Java's client settings: what each one becomes, and what is reported about those that have no effect."""

from __future__ import annotations

import pickle

import pytest

from penstock.core.client.client_settings import ClientSettings, Secret
from penstock.core.client.jaas import parse_jaas
from penstock.core.client.java_settings import ParsedClient, parse_client
from penstock.core.errors import OptionError

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"
KEY = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIE\n-----END ENCRYPTED PRIVATE KEY-----"
FILES = {
    "/etc/ca.pem": CERTIFICATE,
    "/etc/client.pem": f"{KEY}\n{CERTIFICATE}\n",
    "/etc/empty.pem": "nothing",
}
PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";'
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required username='u' password='p';"


def read_file(path: str) -> str:
    if path not in FILES:
        raise FileNotFoundError(path)
    return FILES[path]


def parse(settings: dict[str, str]) -> ParsedClient:
    return parse_client({"bootstrap.servers": "b:9092", **settings}, read_file=read_file)


def translate(**settings: str) -> ClientSettings:
    return parse({name.replace("_", "."): text for name, text in settings.items()}).settings


def refuse(settings: dict[str, str]) -> OptionError:
    with pytest.raises(OptionError) as caught:
        parse(settings)
    return caught.value


# --- names and numbers ----------------------------------------------------------------------------


def test_settings_that_are_not_given_keep_the_clients_own_defaults() -> None:
    """B200: the translation adds nothing."""
    assert parse({}).settings == ClientSettings((("b", 9092),))
    assert parse({}).warnings == ()


def test_settings_that_are_given_win() -> None:
    """B200, F17, I23: each arrives under its own name."""
    settings = translate(
        fetch_max_bytes="7", fetch_min_bytes="0", check_crcs="false", client_rack="r1", request_timeout_ms="9"
    )
    assert (settings.fetch_max_bytes, settings.fetch_min_bytes, settings.check_crcs) == (7, 0, False)
    assert (settings.client_rack, settings.request_timeout_ms) == ("r1", 9)


def test_names_are_read_in_any_case() -> None:
    """B073: Spark passes them on in lower case, and users write them as they like."""
    assert parse({"Fetch.Max.BYTES": "7"}).settings.fetch_max_bytes == 7


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1, b:2,a:1,", (("a", 1), ("b", 2))),
        ("[2001:db8::1]:9092", (("2001:db8::1", 9092),)),
        ("[fe80::1%eth0]:9092", (("fe80::1%eth0", 9092),)),
        ("10.0.0.1:9092", (("10.0.0.1", 9092),)),
        ("PLAINTEXT://a:1,SASL_SSL://[::1]:2", (("a", 1), ("::1", 2))),
    ],
)
def test_addresses_may_be_names_numbers_or_ipv6_in_brackets(text: str, expected: object) -> None:
    """I15, I25: each one once, in order."""
    assert translate(bootstrap_servers=text).bootstrap_servers == expected


@pytest.mark.parametrize("text", ["::1:9092", "a:65536", "kafka://a", "a:1 b:2", "a:", "user@a:1"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    assert refuse({"bootstrap.servers": text}).condition == "OPTION_INVALID"


@pytest.mark.parametrize(
    ("text", "expected"), [("read_committed", "read_committed"), ("READ_UNCOMMITTED", "read_uncommitted")]
)
def test_the_isolation_level_is_one_of_two_words(text: str, expected: str) -> None:
    """B131: in any case; other words are refused."""
    assert translate(isolation_level=text).isolation_level == expected
    assert refuse({"isolation.level": "intentionally_invalid"}).condition == "OPTION_INVALID"


def test_the_isolation_level_is_sparks_when_not_given() -> None:
    """B131, T20: read uncommitted, whatever other clients use."""
    assert translate().isolation_level == "read_uncommitted"


def test_a_buffer_of_minus_one_is_left_to_the_system() -> None:
    assert translate(receive_buffer_bytes="-1", send_buffer_bytes="-1").receive_buffer_bytes == 0
    assert translate(send_buffer_bytes="-1").send_buffer_bytes == 0


@pytest.mark.parametrize("text", ["inf", "nan", "-1", "1e3", "", "5 5", "1_000", "9999999999"])
def test_a_wait_is_a_number_that_ends(text: str) -> None:
    """I22: no infinite, negative or enormous waits."""
    assert refuse({"request.timeout.ms": text}).condition == "OPTION_INVALID"


def test_blanks_around_a_setting_do_not_count_as_in_java() -> None:
    assert translate(request_timeout_ms=" 5000 ", client_rack=" a ") == translate(
        request_timeout_ms="5000", client_rack="a"
    )


def test_a_misspelt_setting_is_an_error_with_the_right_name() -> None:
    error = refuse({"fetch.max.byte": "5"})
    assert error.condition == "OPTION_UNKNOWN"
    assert error.facts["meant"] == "kafka.fetch.max.bytes"


def test_a_setting_kafka_does_not_know_is_a_warning() -> None:
    (warning,) = parse({"my.own.thing": "5"}).warnings
    assert warning == "Not known to Kafka, ignored: kafka.my.own.thing."


def test_the_settings_of_a_producer_are_called_that() -> None:
    """One set of options often serves a job's reads and writes; what a read ignores is reported."""
    (warning,) = parse({"acks": "all", "linger.ms": "5", "batch.size": "9"}).warnings
    assert warning == (
        "Settings of a producer, without effect on a read: kafka.acks, kafka.batch.size, kafka.linger.ms."
    )
    assert refuse({"linger.m": "5"}).facts["meant"] == "kafka.linger.ms"


# --- login ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "jaas"),
    [("PLAIN", PLAIN), ("SCRAM-SHA-256", SCRAM), ("scram-sha-512", SCRAM)],
)
def test_a_login_is_read_from_javas_text(mechanism: str, jaas: str) -> None:
    """F17: name and password, the password as a secret."""
    settings = translate(security_protocol="SASL_SSL", sasl_mechanism=mechanism, sasl_jaas_config=jaas)
    assert settings.sasl is not None
    assert (settings.sasl.username, settings.sasl.password) == ("u", Secret("p"))
    assert settings.sasl.mechanism == mechanism.upper()
    assert settings.tls is not None


@pytest.mark.parametrize(
    ("written", "password"),
    [
        (r'"a\"b"', 'a"b'),
        (r"'it\'s'", "it's"),
        (r'"back\\slash"', "back\\slash"),
        ('"semi;colon = and space"', "semi;colon = and space"),
        ('"it\'s"', "it's"),
        ("'say \"x\"'", 'say "x"'),
        ("bare", "bare"),
        ('""', ""),
    ],
)
def test_a_password_is_read_whole(written: str, password: str) -> None:
    text = (
        f"org.apache.kafka.common.security.plain.PlainLoginModule Required\n password={written} username=u ;"
    )
    assert parse_jaas(text).password.reveal() == password


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        PLAIN[:-1],
        PLAIN + PLAIN,
        PLAIN.replace("required", "maybe"),
        PLAIN.replace('password="p"', ""),
        PLAIN.replace('"p"', '"hunter2'),
        PLAIN.replace("=", " "),
    ],
)
def test_a_login_text_that_cannot_be_read_is_refused_without_showing_it(text: str) -> None:
    """S10: the text holds a password, so no error quotes it."""
    with pytest.raises(OptionError) as caught:
        parse_jaas(text)
    assert caught.value.condition == "OPTION_INVALID"
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("extra", "advice"),
    [
        ("usernme=u", "Did you mean `username`?"),
        ("Password=p", "Did you mean `password`?"),
        ("token_auth=true", "Did you mean `tokenauth`?"),
        ("serviceName=kafka", "It takes username, password, tokenauth."),
        ("user_alice=hunter2", "It takes username, password, tokenauth."),
        ("password=some hunter2=x", "It takes username, password, tokenauth."),
    ],
)
@pytest.mark.parametrize("login", [PLAIN, SCRAM])
def test_a_login_option_the_module_does_not_take_is_refused(login: str, extra: str, advice: str) -> None:
    """S10: only the likely intended name is shown, because the text may be half of an unquoted password."""
    with pytest.raises(OptionError) as caught:
        parse_jaas(login.replace(";", f" {extra};"))
    assert caught.value.condition == "OPTION_UNKNOWN"
    assert caught.value.hint.startswith(advice)
    assert "hunter2" not in f"{caught.value} {caught.value.facts}"


@pytest.mark.parametrize("text", ["true", "TRUE"])
def test_a_login_with_a_delegation_token_is_refused(text: str) -> None:
    """Without the option for it the broker would mistake the token's id for a user name."""
    with pytest.raises(OptionError, match=r"\[DELEGATION_TOKEN_REFUSED\]"):
        parse_jaas(SCRAM.replace(";", f' tokenauth="{text}";'))


def test_a_token_login_that_is_turned_off_is_an_ordinary_one() -> None:
    assert parse_jaas(SCRAM.replace(";", " tokenauth=false;")) == parse_jaas(SCRAM)


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL", "SSL"])
def test_the_protocol_decides_whether_certificates_are_used(protocol: str) -> None:
    """B204: without TLS the files are not even opened; with it, whatever is given is used, as in Java."""
    opened: list[str] = []

    def note(path: str) -> str:
        opened.append(path)
        return read_file(path)

    given = {
        "bootstrap.servers": "b:9092",
        "security.protocol": protocol,
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": PLAIN,
        "ssl.truststore.location": "/etc/ca.pem",
        "ssl.keystore.location": "/etc/client.pem",
        "ssl.key.password": "k",
    }
    found = parse_client(given, read_file=note).settings
    if protocol.endswith("PLAINTEXT"):
        assert (found.tls, opened) == (None, [])
    else:
        assert found.tls is not None
        assert (found.tls.ca_pem, found.tls.certificate_pem) == (CERTIFICATE, CERTIFICATE)
        assert opened == ["/etc/ca.pem", "/etc/client.pem"]
    assert (found.sasl is not None) == protocol.startswith("SASL")


@pytest.mark.parametrize(
    "module",
    [
        "com.sun.security.auth.module.JndiLoginModule",
        "com.sun.security.auth.module.LdapLoginModule",
        "com.sun.security.auth.module.Krb5LoginModule",
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
        "my.own.PlainLoginModule",
    ],
)
def test_any_other_login_module_is_refused(module: str) -> None:
    """S08: in Java, naming one loads code."""
    with pytest.raises(OptionError, match="LOGIN_MODULE_REFUSED"):
        parse_jaas(f'{module} required user.provider.url="ldap://evil" username="u" password="p";')


@pytest.mark.parametrize("mechanism", ["GSSAPI", "OAUTHBEARER", "AWS_MSK_IAM"])
def test_a_mechanism_that_cannot_carry_name_and_password_is_refused(mechanism: str) -> None:
    """B202: before any connection."""
    settings = {"security.protocol": "SASL_SSL", "sasl.mechanism": mechanism, "sasl.jaas.config": PLAIN}
    assert refuse(settings).condition == "SASL_MECHANISM_REFUSED"


def test_no_mechanism_is_javas_default_which_is_refused() -> None:
    error = refuse({"security.protocol": "SASL_SSL", "sasl.jaas.config": PLAIN})
    assert error.condition == "SASL_MECHANISM_REFUSED"
    assert "not set" in str(error)


def test_a_login_module_must_fit_its_mechanism() -> None:
    settings = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": SCRAM}
    assert refuse(settings).condition == "OPTION_CONFLICT"


def test_a_login_without_its_text_is_missing_something() -> None:
    assert refuse({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}).condition == "OPTION_MISSING"


def test_a_readable_password_on_the_wire_is_warned_about() -> None:
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN}
    assert any("readable" in warning for warning in parse(settings).warnings)
    assert not parse({**settings, "security.protocol": "SASL_SSL"}).warnings


def test_security_settings_without_security_are_warned_about() -> None:
    """B201: credentials are used only with a protocol that carries them, and the warning says so."""
    parsed = parse(
        {"sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN, "ssl.truststore.location": "/etc/ca.pem"}
    )
    assert parsed.settings.sasl is None
    assert parsed.settings.tls is None
    assert "kafka.sasl.jaas.config" in parsed.warnings[0]


# --- TLS ------------------------------------------------------------------------------------------


def test_trusted_certificates_come_from_a_file_or_as_text() -> None:
    from_file = translate(
        security_protocol="SSL", ssl_truststore_type="PEM", ssl_truststore_location="/etc/ca.pem"
    )
    as_text = translate(security_protocol="SSL", ssl_truststore_certificates=CERTIFICATE)
    assert from_file.tls is not None
    assert from_file.tls == as_text.tls
    assert from_file.tls.ca_pem == CERTIFICATE
    assert from_file.tls.check_hostname


def test_a_clients_identity_comes_from_a_file_or_as_text() -> None:
    from_file = translate(
        security_protocol="SSL", ssl_keystore_location="/etc/client.pem", ssl_key_password="hunter2"
    )
    as_text = parse(
        {
            "security.protocol": "SSL",
            "ssl.keystore.certificate.chain": CERTIFICATE,
            "ssl.keystore.key": KEY,
            "ssl.key.password": "hunter2",
        }
    ).settings
    assert from_file.tls is not None
    assert from_file.tls == as_text.tls
    assert from_file.tls.key_pem == Secret(KEY)
    assert from_file.tls.certificate_pem == CERTIFICATE


def test_a_password_without_a_key_is_warned_about() -> None:
    settings = {"security.protocol": "SSL", "ssl.key.password": "hunter2"}
    (warning,) = parse(settings).warnings
    assert "`kafka.ssl.key.password` is set, but no key" in warning
    assert "hunter2" not in warning
    assert not parse({**settings, "ssl.keystore.location": "/etc/client.pem"}).warnings


def test_an_empty_algorithm_turns_the_host_check_off_and_is_warned_about() -> None:
    parsed = parse({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""})
    assert parsed.settings.tls is not None
    assert not parsed.settings.tls.check_hostname
    assert any("turned off" in warning for warning in parsed.warnings)


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        (
            {"ssl.truststore.location": "/s/trust.jks"},
            "keytool -list -rfc -keystore /s/trust.jks -storetype JKS",
        ),
        ({"ssl.truststore.type": "PKCS12"}, "keytool -list -rfc -keystore truststore.p12 -storetype PKCS12"),
        ({"ssl.keystore.location": "/s/k.p12"}, "openssl pkcs12 -in /s/k.p12 -out keystore.pem"),
        ({"ssl.keystore.type": "jks"}, "keytool -importkeystore -srckeystore keystore.jks -srcstoretype JKS"),
    ],
)
def test_a_java_store_is_refused_with_the_command_that_converts_it(
    settings: dict[str, str], command: str
) -> None:
    error = refuse({"security.protocol": "SSL", **settings})
    assert error.condition == "STORE_TYPE_REFUSED"
    assert command in error.hint


@pytest.mark.parametrize(
    ("settings", "condition"),
    [
        ({"ssl.truststore.location": "/etc/none.pem"}, "FILE_UNREADABLE"),
        ({"ssl.truststore.location": "/etc/empty.pem"}, "OPTION_INVALID"),
        ({"ssl.keystore.location": "/etc/ca.pem"}, "OPTION_INVALID"),
        ({"ssl.keystore.certificate.chain": CERTIFICATE}, "OPTION_CONFLICT"),
        (
            {"ssl.truststore.location": "/etc/ca.pem", "ssl.truststore.certificates": CERTIFICATE},
            "OPTION_CONFLICT",
        ),
        ({"ssl.keystore.location": "/etc/client.pem", "ssl.keystore.key": KEY}, "OPTION_CONFLICT"),
        (
            {"ssl.keystore.location": "/etc/client.pem", "ssl.keystore.certificate.chain": CERTIFICATE},
            "OPTION_CONFLICT",
        ),
    ],
)
def test_certificates_that_cannot_be_used_are_refused(settings: dict[str, str], condition: str) -> None:
    assert refuse({"security.protocol": "SSL", **settings}).condition == condition


# --- secrets --------------------------------------------------------------------------------------


def test_settings_show_no_secret_and_still_carry_it_to_a_worker() -> None:
    """S10: repr hides it, a pickle keeps it, the socket gets it."""
    settings = parse(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": PLAIN.replace('"p"', '"hunter2"'),
            "ssl.keystore.location": "/etc/client.pem",
            "ssl.key.password": "hunter3",
        }
    ).settings
    shown = f"{settings!r} {settings} {settings.sasl} {settings.tls}"
    assert not any(secret in shown for secret in ("hunter2", "hunter3", "MIIE"))
    carried = pickle.loads(pickle.dumps(settings))
    assert carried == settings
    assert carried.sasl.password.reveal() == "hunter2"


def test_secrets_are_equal_by_their_text_only() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2
    assert f"{Secret('a')}" == "Secret(***)"
