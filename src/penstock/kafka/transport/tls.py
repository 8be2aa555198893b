"""TLS for a broker connection: PEM text in, an encrypted socket out.

Rules: TLS 1.2 or newer; the host name is checked unless the user turned that off; private keys
are on disk only for the moment OpenSSL needs a path, in a file only this user can read. Why not pass
the user's own file paths on: a work order is read on another computer, where the path means nothing.

>>> tls_context(TlsSettings()).minimum_version.name
'TLSv1_2'
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import tempfile
from functools import lru_cache
from pathlib import Path

from penstock.core.client.client_settings import TlsSettings
from penstock.core.errors import BrokerError, OptionError
from penstock.kafka.transport.deadlines import Deadline

# OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and _IP_ADDRESS_MISMATCH: the two that mean "right CA, wrong name".
_NAME_MISMATCH = frozenset({62, 64})


@lru_cache(maxsize=16)
def tls_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the TLS context, built once per settings and process; wrong PEM text is an `OptionError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = settings.check_hostname
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        if settings.ca_pem is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(cadata=settings.ca_pem)
    except (ssl.SSLError, ValueError) as error:
        raise OptionError(
            "TLS_MATERIAL_UNREADABLE",
            f"The CA certificates are not readable PEM text ({_reason(error)}).",
            hint="Give certificates between BEGIN CERTIFICATE and END CERTIFICATE lines.",
        ) from error
    if settings.certificate_pem is not None:
        _load_client_certificate(context, settings)
    return context


def _load_client_certificate(context: ssl.SSLContext, settings: TlsSettings) -> None:
    # OpenSSL (through Python) reads a key only from a path. mkstemp and mkdtemp give 0600 and 0700, and the
    # folder is gone before this function returns, even on error.
    with tempfile.TemporaryDirectory(prefix="penstock-tls-") as folder:
        chain = Path(folder) / "chain.pem"
        _write_private(chain, settings.certificate_pem or "")
        if settings.key_pem is not None:
            _write_private(chain.with_name("key.pem"), settings.key_pem.reveal())
        key = chain.with_name("key.pem") if settings.key_pem is not None else None
        # Without a password OpenSSL would prompt in the terminal and hang; an empty one makes it fail.
        password = settings.key_password.reveal() if settings.key_password is not None else ""
        try:
            context.load_cert_chain(chain, key, password=password)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise OptionError(
                "TLS_MATERIAL_UNREADABLE",
                f"The client certificate or its key cannot be used ({_reason(error)}).",
                hint="Check that both are PEM, that they belong together, and the key's password.",
            ) from error


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii", errors="replace") as file:
        file.write(text)


def start_tls(
    raw: socket.socket, settings: TlsSettings, host: str, port: int, deadline: Deadline
) -> ssl.SSLSocket:
    """Do the TLS handshake on a connected socket and return it; the caller closes `raw` when this raises."""
    context = tls_context(settings)
    raw.settimeout(deadline.wait_s(f"the TLS handshake with {host}:{port}"))
    try:
        return context.wrap_socket(raw, server_hostname=host)
    except TimeoutError as error:
        if error.errno == errno.ETIMEDOUT:
            raise  # the system has given up the connection, whatever time is left
        raise deadline.timeout_error(f"the TLS handshake with {host}:{port}") from error
    except ssl.SSLError as error:
        raise tls_failure(error, host, port) from error


def tls_failure(error: ssl.SSLError, host: str, port: int) -> BrokerError:
    """Return an error naming the usual cause: the name, the certificate, or what the broker refused."""
    reason = _reason(error)
    facts: dict[str, object] = {"host": host, "port": port, "reason": reason}
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _NAME_MISMATCH:
            what = f"The certificate of {host}:{port} was issued for another host name ({reason})."
            hint = (
                "Connect by a name the certificate carries, or reissue it; "
                "ssl.endpoint.identification.algorithm= (empty) turns the check off."
            )
        else:
            what = f"The certificate of {host}:{port} is not trusted ({reason})."
            hint = "Give the CA that signed it in ssl.truststore.certificates, and check its dates."
    else:
        what = f"TLS with {host}:{port} failed ({reason})."
        hint = (
            "Check that this listener speaks TLS 1.2 or newer, "
            "and whether it asks for a client certificate it trusts."
        )
    return BrokerError("TLS_FAILED", what, hint=hint, facts=facts)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return str(error) or "no reason was given"
