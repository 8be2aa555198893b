"""Logs in a fresh connection: SaslHandshake, then SaslAuthenticate until the mechanism is satisfied.

Rule: the error names the user and the mechanism, never the password, whatever the broker answers.
It is not retriable: the same password will not become right, and repeating it can lock an account.

    expires_at = log_in(connection, deadline)
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.core.client.client_settings import SaslSettings
from penstock.core.errors import BrokerError, OptionError
from penstock.core.loggers import get_logger
from penstock.kafka.transport.deadlines import Deadline
from penstock.kafka.transport.protocol_messages import SaslAuthenticateRequest, SaslHandshakeRequest
from penstock.kafka.transport.sasl_mechanisms import AuthenticationRefused, exchange_for

if TYPE_CHECKING:
    from penstock.kafka.transport.connection import Connection

log = get_logger(__name__)
_UNSUPPORTED_MECHANISM = 33
# A broker with connections.max.reauth.ms hangs up when the session ends; stop using it a bit earlier.
_SHARE_OF_SESSION = 0.85


def log_in(connection: Connection, deadline: Deadline) -> float | None:
    """Authenticate; return the monotonic time after which a new login is due, or None for never."""
    settings = connection.settings.sasl
    if settings is None:
        raise OptionError(
            "OPTION_MISSING",
            f"security.protocol is {connection.settings.security_protocol} but no login is given.",
            hint="Set sasl.mechanism and sasl.jaas.config.",
        )
    if settings.mechanism == "PLAIN" and connection.settings.security_protocol == "SASL_PLAINTEXT":
        log.warning("Logging in to %s:%d with an unencrypted password.", connection.host, connection.port)
    exchange = exchange_for(settings)

    handshake = connection.call(SaslHandshakeRequest(mechanism=settings.mechanism), deadline)
    if handshake.error_code == _UNSUPPORTED_MECHANISM:
        offered = ", ".join(handshake.mechanisms) or "none"
        raise _refused(connection, settings, f"the broker offers only {offered}")
    if handshake.error_code:
        raise _refused(connection, settings, f"error code {handshake.error_code} to SaslHandshake")
    message = next(exchange)
    while True:
        answer = connection.call(SaslAuthenticateRequest(auth_bytes=message), deadline)
        if answer.error_code:
            reason = (answer.error_message or f"error code {answer.error_code}").strip().rstrip(".")
            # A broker has no reason to echo the password; if one does, the password is masked here.
            raise _refused(connection, settings, reason.replace(settings.password.reveal() or "\0", "***"))
        try:
            message = exchange.send(answer.auth_bytes or b"")
        except StopIteration:
            break
        except AuthenticationRefused as error:
            raise _refused(connection, settings, str(error)) from error
    lifetime_ms = getattr(answer, "session_lifetime_ms", 0) or 0
    return time.monotonic() + lifetime_ms / 1000 * _SHARE_OF_SESSION if lifetime_ms > 0 else None


def _refused(connection: Connection, settings: SaslSettings, reason: str) -> BrokerError:
    return BrokerError(
        "AUTHENTICATION_FAILED",
        f"{connection.host}:{connection.port} did not log in user {settings.username!r} "
        f"with {settings.mechanism}: {reason}.",
        hint="Check the user name, the password and sasl.mechanism.",
        facts={
            "host": connection.host,
            "port": connection.port,
            "username": settings.username,
            "mechanism": settings.mechanism,
        },
    )
