"""Places: which texts name one, what they name, and that no password is ever shown."""

from __future__ import annotations

import contextlib
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.client.client_settings import Secret
from penstock.core.errors import OptionError
from penstock.core.options.storage_addresses import FilePlace, ServerPlace, parse_place


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("losses.db", "losses.db"),
        (" ./a b/losses.db ", "./a b/losses.db"),
        ("/var/x.db", "/var/x.db"),
        ("sqlite:///var/x.db", "/var/x.db"),
        ("SQLITE:////var/x.db", "/var/x.db"),
        ("sqlite:///var/a%20b.db", "/var/a b.db"),
        ("odd:name.db", "odd:name.db"),
    ],
)
def test_a_path_or_a_sqlite_address_names_a_file(text: str, path: str) -> None:
    assert parse_place(text) == FilePlace(path)
    assert parse_place(text).dialect == "sqlite"
    assert str(parse_place(text)) == path


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (
            "postgresql://me:pw@db.example:6000/stats?sslmode=require",
            ServerPlace(
                "postgresql", (("db.example", 6000),), "me", Secret("pw"), "stats", (("sslmode", "require"),)
            ),
        ),
        ("postgres://me@h/d", ServerPlace("postgresql", (("h", 5432),), "me", None, "d")),
        ("mysql://me:@h/d", ServerPlace("mysql", (("h", 3306),), "me", Secret(""), "d")),
        ("mariadb://me:x@h/d", ServerPlace("mysql", (("h", 3306),), "me", Secret("x"), "d")),
        (
            "mysql://m%40e:p%2Fw%3A%40%23%25@[::1]:33/d%20b",
            ServerPlace("mysql", (("::1", 33),), "m@e", Secret("p/w:@#%"), "d b"),
        ),
        (
            "postgresql://me:a,b@db1,db2:6000,[::1]:33/d?target_session_attrs=primary",
            ServerPlace(
                "postgresql",
                (("db1", 5432), ("db2", 6000), ("::1", 33)),
                "me",
                Secret("a,b"),
                "d",
                (("target_session_attrs", "primary"),),
            ),
        ),
        ("mysql://me@h1:1,h2/d", ServerPlace("mysql", (("h1", 1), ("h2", 3306)), "me", None, "d")),
    ],
)
def test_an_address_names_a_database(text: str, place: ServerPlace) -> None:
    assert parse_place(text) == place


WRONG = [
    "",
    "   ",
    "a\0b",
    ":memory:",
    "sqlite://",
    "sqlite:///",
    "sqlite:///:memory:",
    "sqlite:x.db",
    "sqlite://host/x.db",
    "sqlite:///x.db?mode=ro",
    "postgresql:me@h/d",
    "jdbc:postgresql://h/d",
    "oracle://me:hunter2@h/d",
    "postgresql://me:hunter2@h",
    "postgresql://me:hunter2@h/",
    "postgresql://me:hunter2@h/a/b",
    "postgresql://me:hunter2@/d",
    "postgresql://h/d",
    "postgresql://:hunter2@h/d",
    "mysql://me:hunter2@h:0/d",
    "mysql://me:hunter2@h:port/d",
    "mysql://me:hunter2@h:99999/d",
    "mysql://me:hunter2@h1,/d",
    "mysql://me:hunter2@h1:1,h2:x/d",
    "mysql://me:hunter2@h1,h1:3306/d",
    "mysql://me:hunter2@h/d?target_session_attrs=primary",
    "postgresql://me:hunter2@h1,h2/d?target_session_attrs=any",
    "postgresql://me:hunter2@h1,h2/d?target_session_attrs=standby",
    "mysql://me:hunt/hunter2@h/d",
    "mysql://me:hunt#hunter2@h/d",
    "mysql://me:hunt?hunter2@h/d",
    "mysql://me:hunter2@[h/d",
    "mysql://me:hunter2@h/d?ssl_ca",
    "mysql://me:hunter2@h/d?ssl_ca=",
    "mysql://me:hunter2@h/d?ssl_ca=a&ssl_ca=b",
    "mysql://me:hunter2@h/d?ssl_cert=a&ssl_key=b",
    "mysql://me:x@h/d?password=hunter2",
    "mysql://me:x@h/d?hunter2-=1",
    "postgresql://me:x@h/d?options=-c%20hunter2",
]


@pytest.mark.parametrize("text", WRONG)
def test_what_names_no_place_is_refused_without_being_repeated(text: str) -> None:
    """S12: an address that cannot be parsed may hold its password anywhere, so none of it is shown."""
    with pytest.raises(OptionError, match="PLACE_INVALID") as caught:
        parse_place(text)
    assert "hunter2" not in f"{caught.value} {caught.value.facts}"
    assert caught.value.__cause__ is None  # the parser's own error repeats what it could not parse
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_misspelled_scheme_gets_a_suggestion() -> None:
    with pytest.raises(OptionError, match="did you mean postgresql"):
        parse_place("postgressql://me:x@h/d")


def test_a_place_shows_no_password_and_survives_pickling() -> None:
    """S12: not in repr, not in str."""
    place = parse_place("postgresql://me:hunter2@h/d")
    assert "hunter2" not in f"{place} {place!r}"
    several = parse_place("postgresql://me:hunter2@h1,[::1]:7/d")
    assert str(several) == "postgresql://me@h1:5432,[::1]:7/d"
    assert pickle.loads(pickle.dumps(place)) == place


@given(
    st.text(max_size=60),
    st.sampled_from(["", "sqlite:///", "postgresql://", "mysql://u:p@h/", "mysql://", "mysql://u:p@h1,"]),
)
def test_any_text_is_a_place_or_an_option_error(text: str, head: str) -> None:
    with contextlib.suppress(OptionError):
        assert str(parse_place(head + text))
