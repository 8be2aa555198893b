"""Which parts of an option may be shown."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.redaction import HIDDEN, redact_statement, redact_text, redact_value

SECRET = "hunter2"
PEM_KEY = f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----"
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule required"


@pytest.mark.parametrize("value", [None, ""])
@pytest.mark.parametrize("name", ["kafka.ssl.key.password", "kafka.sasl.jaas.config"])
def test_no_value_and_empty_text_pass_through(name: str, value: str | None) -> None:
    """B196, B198: there is nothing to hide."""
    assert redact_value(name, value) == value


@pytest.mark.parametrize("value", [5, 5.5, True, ["x"], b"bytes", {"a": 1}])
def test_other_values_than_text_are_hidden_by_their_name(value: object) -> None:
    """B197: whatever their type is."""
    assert redact_value("my.secret", value) == HIDDEN
    assert redact_value("my.number", value) == value


@pytest.mark.parametrize(
    "name",
    [
        "kafka.ssl.truststore.password",
        "kafka.ssl.keystore.password",
        "kafka.ssl.key.password",
        "kafka.ssl.keystore.key",
        "KAFKA.SSL.KEY.PASSWORD",
        "clientSecret",
        "aws_secret_access_key",
        "fs.s3a.access.key",
        "auth_token",
        "db-passwd",
        "api.key",
        "Authorization",
        "sasl.oauthbearer.client.credentials.client.secret",
    ],
)
def test_a_value_is_hidden_when_its_name_says_so(name: str) -> None:
    """B199, S10: stores, keys, tokens, passwords."""
    assert redact_value(name, SECRET) == HIDDEN


@pytest.mark.parametrize(
    "name",
    [
        "subscribe",
        "startingOffsets",
        "kafka.sasl.mechanism",
        "kafka.ssl.keystore.location",
        "sasl.token.mechanism",
    ],
)
def test_other_values_stay_readable(name: str) -> None:
    assert redact_value(name, "plain") == "plain"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f'{MODULE} username="u" password="{SECRET}";', f'{MODULE} username="u" password="***";'),
        (f"{MODULE} username='u' password='{SECRET}';", f"{MODULE} username='u' password='***';"),
        (f'{MODULE} password = "{SECRET}" tokenauth="true";', f'{MODULE} password = "***" tokenauth="true";'),
        (f'X required clientId="c" clientSecret="{SECRET}";', 'X required clientId="c" clientSecret="***";'),
        (f'X required password="a\\"{SECRET}" username="u";', 'X required password="***" username="u";'),
        (f'X required password="{SECRET}', 'X required password="***"'),
        (f"X required password={SECRET} username=u;", "X required password=*** username=u;"),
    ],
)
def test_a_login_text_keeps_everything_but_its_secrets(text: str, shown: str) -> None:
    """B198, S11: in single and double quotes, even where Spark's own rule shows them."""
    assert redact_value("kafka.sasl.jaas.config", text) == shown


@pytest.mark.parametrize(
    "text",
    [
        PEM_KEY,
        f"before {PEM_KEY} after",
        PEM_KEY.partition("-----END")[0],
        f"jdbc:postgresql://user:{SECRET}@host:5432/db",
        f"postgresql://user:p@ss/{SECRET}@host/db",
        f"jdbc:mysql://host/db?user=u&password={SECRET}&x=1",
        f"url=postgresql://h/db?password={SECRET}",
        f'{{"user": "u", "password": "{SECRET}"}}',
        f"Server=h;Pwd={SECRET};Database=d",
        f"password: {SECRET}",
    ],
)
def test_secrets_inside_other_texts_are_hidden(text: str) -> None:
    """S11, S12: keys pasted as PEM, passwords in addresses and connection strings."""
    assert SECRET not in redact_value("some.url", text)


def test_an_address_stays_readable_without_its_password() -> None:
    """S12: host and user are helpful, and the password is hidden."""
    assert redact_text(f"postgresql://user:{SECRET}@host:5432/db") == "postgresql://user:***@host:5432/db"


def test_a_certificate_is_no_secret() -> None:
    text = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"
    assert redact_text(text) == text


@settings(deadline=None)
@given(st.text(alphabet=st.characters(exclude_characters="\\", exclude_categories=["Cs"]), min_size=4))
def test_no_quoted_password_survives_whatever_it_holds(password: str) -> None:
    """S10: a mark planted in any password is missing from the text that is shown."""
    quote = "'" if '"' in password else '"'
    planted = "MARK" + password.replace(quote, "") + "MARK"
    assert "MARK" not in redact_text(f"{MODULE} username=u password={quote}{planted}{quote};")


@pytest.mark.parametrize("dialect", ["postgresql", "mysql"])
@pytest.mark.parametrize(
    "text",
    [
        f"ALTER ROLE me PASSWORD '{SECRET}'",
        f"CREATE USER me IDENTIFIED BY '{SECRET}'",
        f"CREATE USER 'it''s' IDENTIFIED BY 'a''{SECRET}'",
        f"ALTER ROLE me PASSWORD '{SECRET}",  # the server has cut it off
        f"/* it's for ann */ ALTER ROLE me PASSWORD '{SECRET}'",
        f"-- don't\nALTER ROLE me PASSWORD '{SECRET}'",
        f"SELECT 'a\\', '{SECRET}'",  # where the first literal ends depends on the dialect and a setting
        f"SELECT 'a\\'', '{SECRET}'",
        f"SELECT dblink('host=db password={SECRET}')",
        f"SELECT 1 -- password {SECRET}",
    ],
)
def test_no_literal_of_a_statement_is_shown(dialect: str, text: str) -> None:
    assert SECRET not in redact_statement(text, dialect)


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("postgresql", f"ALTER ROLE me PASSWORD $${SECRET}$$"),
        ("postgresql", f"ALTER ROLE me PASSWORD $a$it's {SECRET}$a$"),
        ("postgresql", f"UPDATE \"it's\" SET a = '{SECRET}'"),
        ("postgresql", f"SELECT 1 # 2, '{SECRET}'"),
        ("mysql", f'ALTER USER me IDENTIFIED BY "{SECRET}"'),
        ("mysql", f"UPDATE `it's` SET a = '{SECRET}'"),
        ("mysql", f"# don't\nALTER USER me IDENTIFIED BY '{SECRET}'"),
        ("mysql", "ALTER USER me IDENTIFIED WITH p AS 0x68756E74657232"),
    ],
)
def test_literals_are_known_as_each_dialect_writes_them(dialect: str, text: str) -> None:
    shown = redact_statement(text, dialect)
    assert SECRET not in shown
    assert "68756E74657232" not in shown


def test_a_statement_stays_readable_without_its_literals() -> None:
    statement = """UPDATE "Sums" SET n = n + 1\n  WHERE item = 'it''s' AND day > '2026-01-31'"""
    shown = """UPDATE "Sums" SET n = n + 1\n  WHERE item = '***' AND day > '***'"""
    assert redact_statement(statement, "postgresql") == shown
