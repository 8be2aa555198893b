"""Logs in to a broker: PLAIN and SCRAM as exchanges of bytes, independent of any socket.

Rule: a mechanism is a generator. It yields what to send, receives what the server answers, and either ends
when the login succeeds or raises `AuthenticationRefused`. So SCRAM's checks (the server's nonce starts with
ours, at least 4096 rounds, at most a million, no unknown mandatory extension, the server's signature) can be
tested with vectors and hostile servers. Why not kafka-python's classes: they accept a single round,
which hands the password to any server that answers, and they write user names with `,` or `=` unescaped.

>>> next(plain("alice", Secret("pencil")))
b'\\x00alice\\x00pencil'
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Generator

from penstock.core.client.client_settings import SaslSettings, Secret
from penstock.core.errors import OptionError

#: Yields bytes to send and receives the server's bytes.
Exchange = Generator[bytes, bytes, None]

_HASH_NAMES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
# RFC 7677 asks for at least 4096. The maximum stops a hostile server from keeping us busy for hours.
_MIN_ROUNDS, _MAX_ROUNDS = 4096, 1_000_000


class AuthenticationRefused(Exception):  # noqa: N818  (it never leaves this folder: `broker_login` wraps it)
    """One side failed to prove its identity. The text is safe to show."""


def exchange_for(settings: SaslSettings) -> Exchange:
    """Return the exchange for the mechanism the settings ask for."""
    if settings.mechanism == "PLAIN":
        return plain(settings.username, settings.password)
    if settings.mechanism in _HASH_NAMES:
        return scram(settings.mechanism, settings.username, settings.password, secrets.token_urlsafe(24))
    raise OptionError(
        "SASL_MECHANISM_UNSUPPORTED",
        f"sasl.mechanism {settings.mechanism!r} is not supported.",
        hint=f"Use one of {', '.join(['PLAIN', *_HASH_NAMES])}.",
    )


def plain(username: str, password: Secret) -> Exchange:
    """Log in by RFC 4616: one message, and no error code in the response means success."""
    yield b"\0".join((b"", username.encode(), password.reveal().encode()))


def scram(mechanism: str, username: str, password: Secret, nonce: str) -> Exchange:
    """Log in by RFC 5802 without channel binding, the way Kafka's brokers speak it (no SASLprep)."""
    hash_name = _HASH_NAMES[mechanism]
    first_bare = f"n={username.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
    server_first = _text((yield f"n,,{first_bare}".encode()))

    answer = _attributes(server_first)
    if "m" in answer:
        raise AuthenticationRefused("the server demands a SCRAM extension that does not exist")
    server_nonce = answer.get("r", "")
    if not server_nonce.startswith(nonce) or len(server_nonce) == len(nonce):
        raise AuthenticationRefused("the server's nonce does not continue ours, so it may be a replay")
    rounds = answer.get("i", "")
    if not (rounds.isascii() and rounds.isdigit() and len(rounds) < 10):
        raise AuthenticationRefused("the server sent no iteration count")
    if not _MIN_ROUNDS <= int(rounds) <= _MAX_ROUNDS:
        raise AuthenticationRefused(
            f"the server asks for {int(rounds)} rounds; from {_MIN_ROUNDS} to {_MAX_ROUNDS} are accepted"
        )

    salted = hashlib.pbkdf2_hmac(
        hash_name, password.reveal().encode(), _decode(answer.get("s", "")), int(rounds)
    )
    final_bare = f"c=biws,r={server_nonce}"
    message = f"{first_bare},{server_first},{final_bare}".encode()
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    stored_key = hashlib.new(hash_name, client_key).digest()
    signature = hmac.digest(stored_key, message, hash_name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    server_final = _text((yield f"{final_bare},p={base64.b64encode(proof).decode()}".encode()))

    expected = hmac.digest(hmac.digest(salted, b"Server Key", hash_name), message, hash_name)
    if not hmac.compare_digest(expected, _decode(_attributes(server_final).get("v", ""))):
        raise AuthenticationRefused("the server could not prove that it knows the password either")


def _attributes(message: str) -> dict[str, str]:
    return {part[:1]: part[2:] for part in message.split(",") if part[1:2] == "="}


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError as error:
        raise AuthenticationRefused("the server's answer is not text") from error


def _decode(text: str) -> bytes:
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise AuthenticationRefused("the server's answer is not base64") from error
    if not decoded:
        raise AuthenticationRefused("the server left out its salt or its signature")
    return decoded
