"""A server that implements just enough of Kafka's protocol to be believed, and then does what a test wants.

It does what no real broker can be made to do: impossible lengths, noise, half a frame, silence.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: ApiVersions, version 0, as the answer to the first request: ApiVersions 0-3, Metadata 0-12, Fetch 4-17.
VERSIONS = struct.pack(">hi", 0, 3) + b"".join(
    struct.pack(">hhh", *api) for api in ((18, 0, 0), (3, 0, 1), (1, 4, 17))
)
Answer = Callable[[socket.socket, bytes], None]


def frame(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", len(body) + 4, correlation_id) + body


def _receive_request(peer: socket.socket) -> bytes:
    size = peer.recv(4, socket.MSG_WAITALL)
    if len(size) < 4:
        return b""
    return peer.recv(struct.unpack(">i", size)[0], socket.MSG_WAITALL)


@contextmanager
def serve(answer: Answer, *, speak_kafka: bool = True) -> Iterator[int]:
    """Serve on a free port: negotiate versions like an old broker, then call `answer`. Yield the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    peers: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def accept() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            peers.append(peer)
            threads.append(threading.Thread(target=talk, args=(peer,), daemon=True))
            threads[-1].start()

    def talk(peer: socket.socket) -> None:
        negotiating = speak_kafka
        try:
            while request := _receive_request(peer):
                correlation_id = struct.unpack_from(">i", request, 4)[0]
                if negotiating:
                    version = struct.unpack_from(">h", request, 2)[0]
                    # UNSUPPORTED_VERSION to the new version, then the answer in the old one.
                    body = VERSIONS if version == 0 else struct.pack(">h", 35) + VERSIONS[2:]
                    peer.sendall(frame(correlation_id, body))
                    negotiating = version != 0
                else:
                    answer(peer, request)
        except OSError:
            return  # the client left, or the test is over

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join(5)
        for peer in peers:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it
        for thread in threads:
            thread.join(5)
        for peer in peers:
            peer.close()


def send_raw(data: bytes) -> Answer:
    return lambda peer, request: peer.sendall(data)


def silence(peer: socket.socket, request: bytes) -> None:
    """Answer nothing and keep the connection open."""


def hang_up(peer: socket.socket, _request: bytes) -> None:
    peer.shutdown(socket.SHUT_RDWR)
