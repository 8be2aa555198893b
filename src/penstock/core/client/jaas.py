"""The login text of Java's Kafka clients, read as data.

`sasl.jaas.config` holds one line: a login module, a flag, options in quotes, a semicolon. Only the two
modules that carry a plain name and password are read. Every other module is refused, because in Java naming a
module loads code (a published vulnerability used that) and here nothing would support it.

An option the module does not take is refused, too: `tokenauth` turns a SCRAM login into one with a
delegation token, and a misspelt `username` would appear as a wrong password, later and elsewhere.

Why not a regular expression for `password="..."`: passwords hold quotes, backslashes, equals signs and
semicolons, and a partly read password fails later as a wrong one.

>>> parse_jaas('org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";')
JaasLogin(module='PlainLoginModule', username='a', password=Secret(***))
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.client.client_settings import Secret
from penstock.core.errors import OptionError
from penstock.core.options.option_table import find_close_key

_TOKEN = re.compile(
    r"\s*(?:(?P<double>\"(?:[^\"\\]|\\.)*\")|(?P<single>'(?:[^'\\]|\\.)*')|(?P<sign>[=;])|(?P<word>[^\s=;\"']+))",
    re.DOTALL,
)
_FLAGS = ("required", "requisite", "sufficient", "optional")
_MODULES = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": "PlainLoginModule",
    "org.apache.kafka.common.security.scram.ScramLoginModule": "ScramLoginModule",
}
_NEEDED = ("username", "password")
_TOKEN_LOGIN = "tokenauth"


@dataclass(frozen=True, slots=True)
class JaasLogin:
    """A login: the module, and its name and password."""

    module: str
    username: str
    password: Secret


def parse_jaas(text: str) -> JaasLogin:
    """Return the one login entry; errors never quote the text, because it holds the password."""
    tokens = _split(text)
    words = [value for _, value in tokens]
    if len(tokens) < 3 or tokens[-1] != ("sign", ";") or tokens.count(("sign", ";")) != 1:
        raise _malformed("it must be one entry: a login module, `required`, options, and a closing semicolon")
    module, flag = words[0], words[1].lower()
    if module not in _MODULES:
        raise OptionError(
            "LOGIN_MODULE_REFUSED",
            f"`kafka.sasl.jaas.config` names the login module {module}.",
            hint=f"Supported are {' and '.join(_MODULES)}; no other code is loaded.",
            facts={"module": module},
        )
    if flag not in _FLAGS:
        raise _malformed(f"the module must be followed by one of {', '.join(_FLAGS)}")
    options = _pair_up(tokens[2:-1])
    _refuse_others(options)
    missing = [name for name in _NEEDED if name not in options]
    if missing:
        raise _malformed(f"{' and '.join(missing)} not given")
    return JaasLogin(_MODULES[module], options["username"], Secret(options["password"]))


def _split(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    place = 0
    while text[place:].strip():
        found = _TOKEN.match(text, place)
        if not found:
            raise _malformed("a quote is not closed")
        kind = str(found.lastgroup)
        value = found[kind]
        if kind in ("double", "single"):
            kind, value = "quoted", re.sub(r"\\(.)", r"\1", value[1:-1], flags=re.DOTALL)
        tokens.append((kind, value))
        place = found.end()
    return tokens


def _pair_up(tokens: list[tuple[str, str]]) -> dict[str, str]:
    options: dict[str, str] = {}
    for start in range(0, len(tokens), 3):
        name, equals, value = ([*tokens[start : start + 3], ("", ""), ("", "")])[:3]
        if name[0] != "word" or equals != ("sign", "=") or value[0] not in ("word", "quoted"):
            raise _malformed('options are written name="value" with nothing between them')
        options[name[1]] = value[1]
    return options


def _refuse_others(options: Mapping[str, str]) -> None:
    """Refuse options that the module does not take, and the one that would log in differently."""
    if options.get(_TOKEN_LOGIN, "").lower() == "true":
        raise OptionError(
            "DELEGATION_TOKEN_REFUSED",
            f"`kafka.sasl.jaas.config` asks for a login with a delegation token (`{_TOKEN_LOGIN}`).",
            hint="Delegation tokens are not supported; give a user's name and password.",
            facts={"option": _TOKEN_LOGIN},
        )
    known = (*_NEEDED, _TOKEN_LOGIN)
    for name in options:
        if name in known:
            continue
        meant = find_close_key(name, known)
        advice = f"Did you mean `{meant}`?" if meant else f"It takes {', '.join(known)}."
        # The name is not shown: without quotes, `password=two words=x` turns half a password into a name.
        raise OptionError(
            "OPTION_UNKNOWN",
            "`kafka.sasl.jaas.config` holds an option that its login module does not take.",
            hint=f"{advice} Names are case-sensitive, and a value with blanks or signs needs quotes.",
            facts={"option": "kafka.sasl.jaas.config", "meant": meant},
        )


def _malformed(why: str) -> OptionError:
    return OptionError(
        "OPTION_INVALID",
        f"`kafka.sasl.jaas.config` cannot be read: {why}.",
        hint="Expected e.g. org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="..." password="..."; (the value is not shown here because it holds a secret).',
    )
