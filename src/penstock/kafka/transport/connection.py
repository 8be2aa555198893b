"""One blocking connection to one broker, for both planes: requests as objects, or frames as bytes.

Rules: every wait ends at its deadline; a connection that met an error is closed, because an unknown part
of an answer may still be on its way; a length sent by the broker is checked before it is
used; foreign exceptions become `BrokerError` here and nowhere else. Why not kafka-python's own
connections: they need an event loop thread in each worker, read 4 KiB at a time, and write whole requests,
passwords included, to the log at DEBUG. Only its message classes (encode, decode, versions) are used.

    connection = Connection(settings, "127.0.0.1", 9092, Deadline.after_ms(10_000))
    metadata = connection.call(MetadataRequest(topics=None), Deadline.after_ms(30_000))

    connection.send(fetch_frame, deadline)          # the data plane: nothing is copied
    size = connection.receive_into(buffer, deadline)  # buffer[:size] starts with the correlation id
"""

from __future__ import annotations

import errno
import select
import socket
import ssl
import struct
import time
from typing import Any

from penstock.core.client.client_settings import ClientSettings, TlsSettings
from penstock.core.errors import BrokerError, PenstockError
from penstock.core.loggers import get_logger
from penstock.core.outages import TOLD_AFTER_S, find_patience
from penstock.kafka.transport.broker_login import log_in
from penstock.kafka.transport.deadlines import LOOK_FOR_STOP_S, Deadline
from penstock.kafka.transport.protocol_messages import ApiVersionsRequest
from penstock.kafka.transport.tcp_connect import connect_tcp
from penstock.kafka.transport.tls import start_tls, tls_failure

__all__ = ["MAX_FRAME_BYTES", "Connection", "Deadline"]

log = get_logger(__name__)

#: Larger answers are refused: the largest valid one is `fetch.max.bytes` or a single record batch.
MAX_FRAME_BYTES = 1 << 28
_UNSUPPORTED_VERSION = 35
_API_VERSIONS = 18
_SIZE = struct.Struct(">i")


class Connection:
    """A logged-in connection that knows which request versions its broker speaks.

    Not for two threads at once, except that one may send while another receives. `in_flight` counts
    unanswered requests; a pool must not take a connection back while it is above zero.
    """

    def __init__(self, settings: ClientSettings, host: str, port: int, deadline: Deadline) -> None:
        self.settings = settings
        self.host = host
        self.port = port
        self.client_id = settings.client_id
        self.in_flight = 0
        self.closed = False
        self.last_used = time.monotonic()
        self.login_expires_at: float | None = None  # when the broker will want a new login (monotonic)
        self._versions: dict[int, tuple[int, int]] = {}
        self._correlation_id = 0
        self._size = bytearray(4)
        deadline = deadline.or_sooner(
            settings.socket_connection_setup_timeout_ms, "socket.connection.setup.timeout.ms"
        )
        self._socket: socket.socket = connect_tcp(settings, host, port, deadline)
        try:
            if settings.security_protocol in ("SSL", "SASL_SSL"):
                self._socket = start_tls(self._socket, settings.tls or TlsSettings(), host, port, deadline)
            self._negotiate(deadline)
            if settings.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL"):
                self.login_expires_at = log_in(self, deadline)
        except OSError as error:
            self.close()
            raise self._lost(error, "while connecting") from error
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.in_flight} in flight"
        return f"Connection({self.host}:{self.port}, {state})"

    @property
    def max_frame_bytes(self) -> int:
        return max(MAX_FRAME_BYTES, 2 * self.settings.fetch_max_bytes)

    # --- requests as objects: the control plane ---------------------------------------------------

    def call(self, request: Any, deadline: Deadline, *, max_version: int | None = None) -> Any:
        """Send one of kafka-python's request objects and return its response object.

        Wait until `deadline` or for request.timeout.ms, whichever is sooner. Error codes inside the
        response are left to the caller.
        """
        wanted = request.max_version if max_version is None else min(max_version, request.max_version)
        version = self.version_of(request.API_KEY, wanted, name=request.name.removesuffix("Request"))
        return self._exchange(request, version, deadline)

    def version_of(self, api_key: int, wanted_max: int, *, wanted_min: int = 0, name: str = "") -> int:
        """Return the highest version of an API, up to `wanted_max`, that the broker also speaks."""
        lowest, highest = self._versions.get(api_key, (0, -1))
        version = min(highest, wanted_max)
        if version < max(lowest, wanted_min):
            theirs = f"versions {lowest} to {highest}" if highest >= 0 else "no version"
            raise BrokerError(
                "UNSUPPORTED_VERSION",
                f"Broker {self.host}:{self.port} speaks {theirs} of request {name or api_key}; "
                f"{wanted_min} to {wanted_max} are wanted.",
                hint="Use a broker from 2.1 to 4.x, or another version of Penstock.",
                facts={"api_key": api_key, "wanted_min": wanted_min, "wanted_max": wanted_max},
            )
        return version

    def next_correlation_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return self._correlation_id

    def _exchange(self, request: Any, version: int, deadline: Deadline) -> Any:
        deadline = deadline.or_sooner(self.settings.request_timeout_ms, "request.timeout.ms")
        correlation_id = self.next_correlation_id()
        request.API_VERSION = version
        request.with_header(correlation_id, self.client_id)
        name = request.name.removesuffix("Request")
        answer = bytearray()
        self.send(request.encode(header=True, framed=True), deadline, waiting_for=name)
        self._tell_silence(name, deadline)
        self.receive_into(answer, deadline, waiting_for=name)
        if _SIZE.unpack_from(answer)[0] != correlation_id:
            raise self._malformed(f"answer to {name} belongs to another request")
        try:
            return request.header.get_response_class().decode(answer, header=True)
        except Exception as error:  # whatever a hostile answer makes the decoder raise, it means the same
            raise self._malformed(f"answer to {name} v{version} cannot be decoded") from error

    def _tell_silence(self, name: str, deadline: Deadline) -> None:
        """Log a warning when no answer begins to arrive for long.

        A hung broker still accepts requests, and the time limit of a request is half a minute.
        """
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return  # decrypted already, so the descriptor may stay silent
        poller = select.poll()
        poller.register(self._socket.fileno(), select.POLLIN)
        told_at = time.monotonic() + TOLD_AFTER_S
        while (left_s := told_at - time.monotonic()) > 0:
            rest_s = deadline.remaining_s()
            if not rest_s or poller.poll(min(left_s, rest_s, LOOK_FOR_STOP_S) * 1000):
                return  # an answer, or no time left: the caller reads it, or finds out
        patience = find_patience()
        log.warning(
            "No answer from %s:%d to %s for %.0f s; waiting for it up to %.0f s more (%s).%s",
            self.host,
            self.port,
            name,
            TOLD_AFTER_S,
            deadline.remaining_s(),
            deadline.name,
            "" if patience is None else f" {patience}",
        )

    def _negotiate(self, deadline: Deadline) -> None:
        request = ApiVersionsRequest(client_software_name="penstock", client_software_version="1")
        response = self._exchange(request, ApiVersionsRequest.max_version, deadline)
        if response.error_code == _UNSUPPORTED_VERSION:
            # An older broker answers in version 0 and lists the versions it does speak.
            known = {api.api_key: api.max_version for api in response.api_keys}
            version = min(known.get(_API_VERSIONS, 0), ApiVersionsRequest.max_version)
            response = self._exchange(request, version, deadline)
        if response.error_code:
            raise self._malformed(f"answer to ApiVersions carries error code {response.error_code}")
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}

    # --- frames as bytes: the data plane ----------------------------------------------------------

    def send(
        self, frame: bytes | bytearray | memoryview, deadline: Deadline, *, waiting_for: str = "a request"
    ) -> None:
        """Send one whole frame, including its 4-byte length. It counts as in flight until it is answered."""
        what = f"{self.host}:{self.port} to take {waiting_for}"
        self.in_flight += 1
        view = memoryview(frame)
        try:
            while view.nbytes:
                self._socket.settimeout(deadline.slice_s(what))
                try:
                    view = view[self._socket.send(view) :]
                except TimeoutError as error:
                    _raise_if_broken(error)  # otherwise there may be time left: the deadline decides
        except OSError as error:
            raise self._failed(error, what) from error
        except PenstockError:
            self.close()
            raise

    def receive_into(self, buffer: bytearray, deadline: Deadline, *, waiting_for: str = "a request") -> int:
        """Read one frame (without its length) into the front of `buffer` and return its size.

        A larger frame grows the buffer, which never shrinks; no view of it may exist at that time.
        """
        size = self.receive_size(deadline, waiting_for=waiting_for)
        if size > len(buffer):
            buffer.extend(bytes(size - len(buffer)))
        with memoryview(buffer) as view:
            self.receive_exactly(view[:size], deadline, waiting_for=waiting_for)
        return size

    def receive_size(self, deadline: Deadline, *, waiting_for: str = "a request") -> int:
        """Read and return the next frame's size: the first half of `receive_into`, for your own memory."""
        self._fill(memoryview(self._size), deadline, waiting_for)
        size = int(_SIZE.unpack(self._size)[0])
        if size < 4:
            raise self._malformed(f"answer to {waiting_for} claims a length of {size} bytes")
        if size > self.max_frame_bytes:
            self.close()
            raise BrokerError(
                "FRAME_TOO_LARGE",
                f"{self.host}:{self.port} announces an answer to {waiting_for} of {size} bytes; "
                f"at most {self.max_frame_bytes} are read.",
                hint=_guess_other_protocol(bytes(self._size))
                or "Raise fetch.max.bytes if batches are that large.",
                facts={"host": self.host, "port": self.port, "size": size, "limit": self.max_frame_bytes},
            )
        return size

    def receive_exactly(
        self, view: memoryview, deadline: Deadline, *, waiting_for: str = "a request"
    ) -> None:
        """Fill `view` with the frame: the second half. After it the request counts as answered."""
        self._fill(view, deadline, waiting_for)
        self.in_flight -= 1
        self.last_used = time.monotonic()

    def _fill(self, view: memoryview, deadline: Deadline, waiting_for: str) -> None:
        what = f"the answer of {self.host}:{self.port} to {waiting_for}"
        done, wanted = 0, view.nbytes
        try:
            while done < wanted:
                self._socket.settimeout(deadline.slice_s(what))
                try:
                    received = self._socket.recv_into(view[done:])
                except TimeoutError as error:
                    _raise_if_broken(error)
                    continue  # there may be time left: the deadline decides
                if received == 0:
                    raise ConnectionResetError("closed by the broker")
                done += received
        except OSError as error:
            raise self._failed(error, what) from error
        except PenstockError:
            self.close()
            raise

    # --- ends -------------------------------------------------------------------------------------

    def is_alive(self) -> bool:
        """Return whether the broker still holds its end. Takes no round trip, so it can soon be wrong."""
        if self.closed:
            return False
        # A readable socket may be alive: after a TLS 1.3 handshake, session tickets wait to be read.
        hung_up = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)
        poller = select.poll()
        poller.register(self._socket.fileno(), hung_up)
        return not poller.poll(0)

    def close(self) -> None:
        """Close the socket; a second call does nothing."""
        self.closed = True
        self._socket.close()

    def _failed(self, error: OSError, what: str) -> BrokerError:
        self.close()
        return self._lost(error, f"while waiting for {what}")

    def _lost(self, error: OSError, when: str) -> BrokerError:
        if isinstance(error, ssl.SSLError) and not isinstance(
            error, ssl.SSLEOFError | ssl.SSLZeroReturnError
        ):
            return tls_failure(error, self.host, self.port)  # TLS 1.3 reports a refused client here
        if error.errno == errno.ETIMEDOUT:
            return BrokerError(
                "BROKER_DISCONNECTED",
                f"Nothing comes back from {self.host}:{self.port} any more: its connection broke {when} "
                f"({error.strerror or error}).",
                hint="Check that the broker's machine is up, and the network on the way to it.",
                facts={"host": self.host, "port": self.port},
                retriable=True,
            )
        return BrokerError(
            "BROKER_DISCONNECTED",
            f"The connection to {self.host}:{self.port} broke {when} ({error.strerror or error}).",
            hint="Look at the broker's log; a listener that wants TLS or a login hangs up like this too.",
            facts={"host": self.host, "port": self.port},
            retriable=True,
        )

    def _malformed(self, what: str) -> BrokerError:
        self.close()
        return BrokerError(
            "MALFORMED_RESPONSE",
            f"{self.host}:{self.port} does not speak Kafka's protocol: its {what}.",
            hint="Check that the address is a Kafka listener and that nothing in between alters the bytes.",
            facts={"host": self.host, "port": self.port},
        )


def _raise_if_broken(error: TimeoutError) -> None:
    """Raise the error again if it is the system's, which has given up the connection.

    The next read would return an end, as if the broker had hung up. A timeout that we set means only that
    nothing has come so far.
    """
    if error.errno == errno.ETIMEDOUT:
        raise error


def _guess_other_protocol(first_bytes: bytes) -> str:
    if first_bytes[:2] == b"\x15\x03" or first_bytes[:2] == b"\x16\x03":
        return "This listener speaks TLS: set security.protocol to SSL or SASL_SSL."
    if first_bytes == b"HTTP":
        return "This is a web server, not a Kafka broker."
    return ""
