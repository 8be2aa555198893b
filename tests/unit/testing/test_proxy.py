"""The fault proxy, in front of a server that echoes."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from penstock.testing.proxy import FaultProxy
from tests.support.waiting import is_silent, wait_until


class Echo(socketserver.ThreadingTCPServer):
    """A server that sends back what it receives and remembers it."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        self.heard = bytearray()
        self.ends = 0
        super().__init__(("127.0.0.1", 0), EchoOne)


class EchoOne(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        server = self.server
        assert isinstance(server, Echo)
        with contextlib.suppress(ConnectionError):
            while piece := self.request.recv(65536):
                server.heard += piece
                self.request.sendall(piece)
        server.ends += 1


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join(30)


@pytest.fixture
def proxy(echo: Echo) -> Iterator[FaultProxy]:
    with FaultProxy(echo.server_address[:2]) as running:  # type: ignore[arg-type]
        yield running


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[socket.socket]:
    with socket.create_connection(proxy.address, timeout=10) as connection:
        connection.sendall(b"hello")
        assert connection.recv(100) == b"hello"
        yield connection


@pytest.mark.usefixtures("client")
def test_traffic_passes_and_is_counted_in_each_direction(proxy: FaultProxy) -> None:
    assert proxy.counts.connections == proxy.counts.open == 1
    assert proxy.counts.bytes_to_server == proxy.counts.bytes_to_client == 5


@pytest.mark.usefixtures("proxy")
def test_a_megabyte_arrives_whole_and_in_order(client: socket.socket) -> None:
    payload = bytes(range(256)) * 4096
    sender = threading.Thread(target=client.sendall, args=(payload,))
    sender.start()
    received = bytearray()
    while len(received) < len(payload):
        received += client.recv(65536)
    sender.join(30)
    assert received == payload


def test_cut_closes_both_sides_now(proxy: FaultProxy, client: socket.socket, echo: Echo) -> None:
    assert proxy.cut() == 1
    with contextlib.suppress(ConnectionResetError):
        assert client.recv(1) == b""
    wait_until(lambda: echo.ends == 1, "the server's side is closed")
    wait_until(lambda: proxy.counts.open == 0, "the proxy lets the connection go")


def test_refuse_turns_new_connections_away_until_accept(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(proxy.address, timeout=10)
    client.sendall(b"still")
    assert client.recv(100) == b"still"
    proxy.accept()
    socket.create_connection(proxy.address, timeout=10).close()


def test_delay_makes_an_answer_late_by_both_ways(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.delay(200)
    before = time.monotonic()
    client.sendall(b"x")
    assert client.recv(1) == b"x"
    assert time.monotonic() - before >= 0.39


def test_a_delayed_request_arrives_although_its_sender_left(proxy: FaultProxy, echo: Echo) -> None:
    proxy.delay(300, direction="requests")
    with socket.create_connection(proxy.address, timeout=10) as connection:
        connection.sendall(b"late commit")
    assert bytes(echo.heard) == b""
    wait_until(lambda: bytes(echo.heard) == b"late commit", "the delayed request arrives")


def test_held_answers_arrive_when_the_fault_ends(
    proxy: FaultProxy, client: socket.socket, echo: Echo
) -> None:
    proxy.hold_answers()
    client.sendall(b"kept")
    wait_until(lambda: bytes(echo.heard).endswith(b"kept"), "the request arrives")
    assert is_silent(client)
    proxy.pass_on()
    assert client.recv(100) == b"kept"


def test_swallowed_bytes_reach_nobody_and_the_torn_connection_is_cut_afterwards(
    proxy: FaultProxy, client: socket.socket, echo: Echo
) -> None:
    proxy.swallow()
    client.sendall(b"gone")
    assert is_silent(client)
    assert bytes(echo.heard) == b"hello"
    proxy.pass_on()
    with contextlib.suppress(ConnectionResetError):
        assert client.recv(1) == b""


def test_cut_before_answer_lets_the_server_act_and_the_client_wonder(
    proxy: FaultProxy, client: socket.socket, echo: Echo
) -> None:
    proxy.cut_before_answer()
    client.sendall(b"commit")
    with contextlib.suppress(ConnectionResetError):
        assert client.recv(1) == b""
    assert bytes(echo.heard) == b"hellocommit"
    with socket.create_connection(proxy.address, timeout=10) as again:  # the fault happens once
        again.sendall(b"y")
        assert again.recv(1) == b"y"


def test_after_a_half_close_the_client_hears_the_end_and_is_still_heard(
    proxy: FaultProxy, client: socket.socket, echo: Echo
) -> None:
    assert proxy.half_close() == 1
    assert client.recv(1) == b""
    client.sendall(b"last words")
    wait_until(lambda: bytes(echo.heard).endswith(b"last words"), "the other direction is open")


def test_a_closed_proxy_leaves_no_thread_and_frees_its_port(echo: Echo) -> None:
    before = set(threading.enumerate())
    with FaultProxy(echo.server_address[:2]) as running:  # type: ignore[arg-type]
        connection = socket.create_connection(running.address, timeout=10)
        running.hold_answers()
        connection.sendall(b"x")
    connection.close()
    assert {t for t in set(threading.enumerate()) - before if t.name == "fault-proxy"} == set()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(running.address, timeout=10)


def test_a_fault_for_some_requests_needs_to_tell_requests_apart(proxy: FaultProxy) -> None:
    with pytest.raises(ValueError, match="kafka=True"):
        proxy.hold_answers(api_keys={0})
