"""The place where something durable is kept: a path or an address, as one value that can be shown.

Rule: an address is parsed once, before any connection. The password is a `Secret`, `str(place)` leaves it
out, and an error about a wrong address never repeats the address: the fault may be a password written without
percent-encoding.

A plain path is an SQLite file. `sqlite:///var/x.db` is the absolute path `/var/x.db`, as in any address; some
libraries read a relative path there, so a relative one is written as a plain path here.

Several hosts, `postgresql://me@db1,db2:5433/stats`, are one database that may move between them.

>>> str(parse_place("postgresql://me:hunter2@db.example/stats"))
'postgresql://me@db.example:5432/stats'
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from penstock.core.client.client_settings import Secret
from penstock.core.errors import OptionError

Dialect: TypeAlias = Literal["sqlite", "postgresql", "mysql"]

_SCHEMES: Mapping[str, Dialect] = {
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
}
_PORTS: Mapping[Dialect, int] = {"postgresql": 5432, "mysql": 3306}
#: The settings that may follow the question mark, under each driver's own names: how the connection is
#: secured, and which of several hosts is acceptable.
_SETTINGS: Mapping[Dialect, frozenset[str]] = {
    "sqlite": frozenset(),
    "postgresql": frozenset({"sslmode", "sslrootcert", "sslcert", "sslkey", "target_session_attrs"}),
    "mysql": frozenset({"ssl_ca", "ssl_cert", "ssl_key"}),
}
#: The values of `target_session_attrs` that mean the server that takes writes. A standby's answer may be old,
#: and a stream that resumed from an old offset would write its rows twice.
_WRITABLE = ("read-write", "primary")
_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<slashes>//)?")
_AUTHORITY = re.compile(r"[^:]+://(?P<login>[^/?]*)@(?P<hosts>[^/?@]*)(?P<rest>([/?].*)?)", re.DOTALL)
_FORMS = (
    "Write a path, sqlite:///absolute/path, postgresql://user:password@host:port/database or "
    "mysql://user:password@host:port/database (or host:port,host:port); in user and password write "
    "@ : / % as %40 %3A %2F %25."
)


@dataclass(frozen=True, slots=True)
class FilePlace:
    """An SQLite file on this computer."""

    path: str

    @property
    def dialect(self) -> Dialect:
        return "sqlite"

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """A database on a PostgreSQL, MySQL or MariaDB server; of several hosts, on the one that takes writes."""

    dialect: Dialect
    hosts: tuple[tuple[str, int], ...]
    user: str
    password: Secret | None
    database: str
    settings: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.dialect}://{self.user}@{self.show_hosts()}/{self.database}"

    def show_hosts(self) -> str:
        """Return the hosts with their ports, as in an address."""
        shown = ((f"[{host}]" if ":" in host else host, port) for host, port in self.hosts)
        return ",".join(f"{host}:{port}" for host, port in shown)


Place: TypeAlias = FilePlace | ServerPlace
GivenPlace: TypeAlias = str | os.PathLike[str] | Place


def as_place(given: GivenPlace) -> Place:
    """Return the place itself, or the one that a path or an address names."""
    return parse_place(os.fspath(given)) if isinstance(given, str | os.PathLike) else given


def parse_place(text: str) -> Place:
    """Return the place that `text` names; raise PLACE_INVALID if it names none."""
    text = text.strip()
    found = _SCHEME.match(text)
    if not text:
        raise _invalid("The place is blank")
    if "\0" in text:
        raise _invalid("The place holds a zero byte")
    if "${" in text:
        raise _invalid(
            "The place holds a reference (${...}) among other text; a reference is the whole value"
        )
    if text.lower() in (":memory:", "sqlite://", "sqlite:///:memory:"):
        raise _invalid("The place is in memory, where nothing lasts")
    if found and found["slashes"]:
        scheme = found["scheme"].lower()
        if scheme not in _SCHEMES:
            close = difflib.get_close_matches(scheme, _SCHEMES, 1)
            did_you_mean = f" (did you mean {close[0]}?)" if close else ""
            raise _invalid(f"The place begins with {scheme}://, which is not known{did_you_mean}")
        dialect = _SCHEMES[scheme]
        return _parse_file_address(text) if dialect == "sqlite" else _parse_server(dialect, text)
    if found and found["scheme"].lower() in (*_SCHEMES, "jdbc", "file"):
        raise _invalid(f"The place begins with {found['scheme'].lower()}: and is not an address we know")
    return FilePlace(text)


def _parse_file_address(text: str) -> FilePlace:
    address = text[len("sqlite://") :]
    if "?" in address or "#" in address:
        raise _invalid("The sqlite address has settings, which it cannot have")
    if not address.startswith("/"):
        raise _invalid("The sqlite address names a computer; a file is on this one (three slashes)")
    path = "/" + unquote(address).lstrip("/")
    if path == "/":
        raise _invalid("The sqlite address names no file")
    return FilePlace(path)


def _parse_server(dialect: Dialect, text: str) -> ServerPlace:
    if "#" in text:
        raise _invalid(f"The {dialect} address has a #, which must be written %23")
    found = _AUTHORITY.fullmatch(text)
    if found is None:
        raise _invalid(f"The {dialect} address must name a user and a host, as user@host")
    try:
        # The hosts are parsed apart: urlsplit knows only addresses with one.
        address = urlsplit(f"{dialect}://{found['login']}@host{found['rest']}")
        hosts = tuple(_parse_host(dialect, each) for each in found["hosts"].split(","))
    except ValueError:
        # urlsplit's error would repeat the text in the place of the port: often the rest of a password.
        raise _invalid(f"The {dialect} address cannot be read") from None
    if not address.username:
        raise _invalid(f"The {dialect} address names no user")
    if len(set(hosts)) != len(hosts):
        raise _invalid(f"The {dialect} address names a host twice")
    database = unquote(address.path[1:])
    if not database or "/" in address.path[1:]:
        raise _invalid(f"The {dialect} address must name one database after the host")
    return ServerPlace(
        dialect,
        hosts,
        unquote(address.username),
        None if address.password is None else Secret(unquote(address.password)),
        database,
        _parse_settings(dialect, address),
    )


def _parse_host(dialect: Dialect, text: str) -> tuple[str, int]:
    found = urlsplit(f"//{text}")
    if not found.hostname or found.netloc != text:
        raise _invalid(f"The {dialect} address names no host")
    if found.port == 0:
        raise _invalid(f"The {dialect} address has port 0")
    return found.hostname, found.port or _PORTS[dialect]


def _parse_settings(dialect: Dialect, address: SplitResult) -> tuple[tuple[str, str], ...]:
    known = _SETTINGS[dialect]
    try:
        settings = parse_qsl(address.query, keep_blank_values=True, strict_parsing=bool(address.query))
    except ValueError:
        raise _invalid(f"The {dialect} address has settings that are not name=value") from None
    for name, value in settings:
        if name not in known or not value:
            wrong = f"the setting {name!r}" if re.fullmatch(r"[a-z_]{1,30}", name) else "a setting"
            raise _invalid(
                f"The {dialect} address has {wrong}, which is not one of {', '.join(sorted(known))} "
                "with a value"
            )
    if len(dict(settings)) != len(settings):
        raise _invalid(f"The {dialect} address has a setting twice")
    if dict(settings).get("target_session_attrs", _WRITABLE[0]) not in _WRITABLE:
        raise _invalid(
            f"The {dialect} address has a target_session_attrs that is none of {', '.join(_WRITABLE)}; "
            "what another server says may be old"
        )
    if dialect == "mysql" and settings and "ssl_ca" not in dict(settings):
        raise _invalid("The mysql address has ssl settings without ssl_ca, so the server could be anyone")
    return tuple(sorted(settings))


def _invalid(what: str) -> OptionError:
    return OptionError("PLACE_INVALID", f"{what}.", hint=_FORMS)
