"""The connection to servers that misbehave: real sockets, with hostile or silent peers."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import BrokerError
from penstock.core.options.batch_options import parse_batch_options
from penstock.core.outages import Patience, has_stopped, hearing_stop, waiting_for_servers
from penstock.engines.source.batch_reader import BatchReader
from penstock.kafka.metadata.topic_admin import find_message_limit
from penstock.kafka.transport import connection as wire
from penstock.kafka.transport import deadlines as deadline_module
from penstock.kafka.transport.connection import Connection, Deadline
from penstock.kafka.transport.protocol_messages import MetadataRequest, error_name
from tests.support.servers.hostile_server import Answer, frame, hang_up, send_raw, serve, silence
from tests.support.waiting import wait_until

SETTINGS = ClientSettings((("127.0.0.1", 1),), socket_connection_setup_timeout_ms=5_000)


@contextmanager
def connect(port: int, config: ClientSettings = SETTINGS) -> Iterator[Connection]:
    connection = Connection(config, "127.0.0.1", port, Deadline.after_ms(5_000))
    try:
        yield connection
    finally:
        connection.close()


def call_metadata(connection: Connection, timeout_ms: int = 5_000) -> object:
    return connection.call(MetadataRequest(topics=[]), Deadline.after_ms(timeout_ms))


def error_of(answer: Answer, *, speak_kafka: bool = True, timeout_ms: int = 5_000) -> BrokerError:
    with (
        serve(answer, speak_kafka=speak_kafka) as port,
        pytest.raises(BrokerError) as caught,
        connect(port) as connection,
    ):
        call_metadata(connection, timeout_ms)
    return caught.value


def test_an_old_broker_is_asked_in_its_own_version_of_the_first_request() -> None:
    with serve(silence) as port, connect(port) as connection:
        assert connection.version_of(3, 12) == 1
        assert connection.version_of(1, 13) == 13


def test_a_version_that_the_broker_does_not_speak_is_an_error_that_names_it() -> None:
    with serve(silence) as port, connect(port) as connection:
        with pytest.raises(BrokerError) as caught:
            connection.version_of(1, 3, name="Fetch")
        assert caught.value.condition == "UNSUPPORTED_VERSION"
        assert "versions 4 to 17 of request Fetch" in str(caught.value)
        with pytest.raises(BrokerError, match="no version of request 77"):
            connection.version_of(77, 1)
        with pytest.raises(BrokerError, match="UNSUPPORTED_VERSION"):
            connection.version_of(1, 20, wanted_min=18)


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 3])
def test_an_impossible_frame_length_is_refused_before_it_is_believed(size: int) -> None:
    error = error_of(send_raw(struct.pack(">i", size)))
    assert error.condition == "MALFORMED_RESPONSE"
    assert not error.retriable


def test_a_frame_larger_than_the_limit_is_refused_without_reading_it() -> None:
    error = error_of(send_raw(struct.pack(">i", 2**31 - 1)))
    assert error.condition == "FRAME_TOO_LARGE"
    assert error.facts["size"] == 2**31 - 1


def test_the_frame_limit_follows_a_larger_fetch_setting() -> None:
    config = ClientSettings((("127.0.0.1", 1),), fetch_max_bytes=1 << 29)
    with serve(silence) as port, connect(port, config) as connection:
        assert connection.max_frame_bytes == 1 << 30


def test_a_tls_listener_met_without_tls_is_recognised() -> None:
    error = error_of(send_raw(b"\x15\x03\x03\x00\x02\x02\x50"), speak_kafka=False)
    assert error.condition == "FRAME_TOO_LARGE"
    assert "speaks TLS" in str(error)


def test_a_web_server_is_recognised() -> None:
    assert "web server" in str(error_of(send_raw(b"HTTP/1.1 400 Bad Request\r\n"), speak_kafka=False))


def test_a_broker_that_takes_a_request_and_stands_still_is_told_before_it_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The message has the request's limit, and how long the stream waits that sent it."""
    monkeypatch.setattr(wire, "TOLD_AFTER_S", 0.1)
    with waiting_for_servers(Patience(900)):
        assert error_of(silence, timeout_ms=300).condition == "BROKER_TIMEOUT"
    (told,) = caplog.messages
    assert "to Metadata" in told
    assert "request.timeout.ms" in told
    assert "The stream waits up to 15 min in all (outageTimeout)." in told
    caplog.clear()
    monkeypatch.setattr(wire, "TOLD_AFTER_S", 5.0)
    assert error_of(hang_up).condition == "BROKER_DISCONNECTED"
    assert error_of(silence, timeout_ms=50).condition == "BROKER_TIMEOUT"
    assert caplog.messages == []


def test_a_stop_is_heard_while_an_answer_is_waited_for() -> None:
    """Before the answer begins, and in the middle of it; the request itself may take a minute."""

    def begin(peer: socket.socket, request: bytes) -> None:
        peer.sendall(struct.pack(">ii", 1000, struct.unpack_from(">i", request, 4)[0]))

    for answer in (silence, begin):
        asked: list[float] = []

        def answer_and_ask(
            peer: socket.socket, request: bytes, answer: Answer = answer, asked: list[float] = asked
        ) -> None:
            asked.append(time.monotonic() - 1000)  # and the grace period is long over
            answer(peer, request)

        def find(asked: list[float] = asked) -> float | None:
            return asked[0] if asked else None

        since = time.monotonic()
        with hearing_stop(find):
            error = error_of(answer_and_ask, timeout_ms=60_000)
        assert has_stopped(error)
        assert time.monotonic() - since < 30


def test_an_answer_that_comes_after_a_look_for_a_stop_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for a stop must not end a wait without one."""
    monkeypatch.setattr(deadline_module, "LOOK_FOR_STOP_S", 0.001)
    looks: list[None] = []

    def answer(peer: socket.socket, request: bytes) -> None:
        seen = len(looks)
        wait_until(lambda: len(looks) > seen + 3, "it looks a few times")
        hang_up(peer, request)

    with hearing_stop(lambda: looks.append(None)):
        assert error_of(answer, timeout_ms=60_000).condition == "BROKER_DISCONNECTED"


@pytest.mark.parametrize("size", [300_000, 1 << 26])  # the system accepts only the first at once
def test_a_connection_that_the_system_gives_up_is_told_as_that(size: int) -> None:
    """The system's error is a timeout too.

    If it were mistaken for one slice of the wait, the end of the connection would follow, as if the broker
    had hung up.
    """
    held, is_over = threading.Event(), threading.Event()

    def take_no_more(peer: socket.socket, _request: bytes) -> None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        held.set()
        is_over.wait(60)

    def ask() -> None:
        connection.send(bytes(size), limit)
        connection.receive_size(limit)

    config = ClientSettings((("127.0.0.1", 1),), send_buffer_bytes=1 << 20)
    limit = Deadline.after_ms(60_000)
    with serve(take_no_more) as port, connect(port, config) as connection:
        try:
            connection.send(frame(1, bytes(12)), limit)
            assert held.wait(60)
            connection._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 100)
            with hearing_stop(lambda: None), pytest.raises(BrokerError, match="Connection timed out") as told:
                ask()
        finally:
            is_over.set()
    assert told.value.condition == "BROKER_DISCONNECTED"
    assert told.value.retriable
    assert "a login" not in str(told.value)


def test_an_answer_to_another_request_is_refused() -> None:
    error = error_of(send_raw(frame(999, b"\0" * 64)))
    assert error.condition == "MALFORMED_RESPONSE"
    assert "another request" in str(error)


def test_an_answer_that_cannot_be_decoded_is_refused() -> None:
    def answer(peer: socket.socket, request: bytes) -> None:
        peer.sendall(frame(struct.unpack_from(">i", request, 4)[0], b"\x7f\xff\xff\xff"))

    error = error_of(answer)
    assert error.condition == "MALFORMED_RESPONSE"
    assert "cannot be decoded" in str(error)


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=200))
def test_whatever_a_peer_answers_the_caller_gets_an_answer_or_a_broker_error(noise: bytes) -> None:
    def answer(peer: socket.socket, request: bytes) -> None:
        peer.sendall(frame(struct.unpack_from(">i", request, 4)[0], noise))

    with serve(answer) as port, connect(port) as connection:
        outcome = ""
        try:
            call_metadata(connection)
        except BrokerError as error:
            outcome = error.condition
        assert outcome in ("", "MALFORMED_RESPONSE")
        assert connection.closed == bool(outcome)


def test_a_broker_that_hangs_up_is_a_retriable_disconnect_and_closes_the_connection() -> None:
    with serve(hang_up) as port, connect(port) as connection:
        with pytest.raises(BrokerError) as caught:
            call_metadata(connection)
        assert caught.value.condition == "BROKER_DISCONNECTED"
        assert caught.value.retriable
        assert connection.closed
        assert not connection.is_alive()


def test_a_broker_that_stops_in_the_middle_of_a_frame_is_a_disconnect() -> None:
    def answer(peer: socket.socket, _request: bytes) -> None:
        peer.sendall(struct.pack(">i", 100) + b"half")
        peer.shutdown(socket.SHUT_RDWR)

    assert error_of(answer).condition == "BROKER_DISCONNECTED"


def test_silence_ends_at_the_deadline_with_the_names_of_the_request_and_the_limit() -> None:
    begun = time.monotonic()
    error = error_of(silence, timeout_ms=300)
    assert 0.25 < time.monotonic() - begun < 1.3
    assert error.condition == "BROKER_TIMEOUT"
    assert "Metadata" in str(error)
    assert "300 ms (request.timeout.ms)" in str(error)


def test_a_trickle_of_bytes_does_not_extend_the_deadline() -> None:
    def answer(peer: socket.socket, _request: bytes) -> None:
        peer.sendall(struct.pack(">i", 1_000))
        for _ in range(100):
            peer.sendall(b"x")
            time.sleep(0.05)

    begun = time.monotonic()
    assert error_of(answer, timeout_ms=300).condition == "BROKER_TIMEOUT"
    assert time.monotonic() - begun < 1.3


def test_the_request_timeout_is_kept_when_the_caller_has_more_time() -> None:
    config = ClientSettings((("127.0.0.1", 1),), request_timeout_ms=200)
    with (
        serve(silence) as port,
        connect(port, config) as connection,
        pytest.raises(BrokerError, match=r"200 ms \(request\.timeout\.ms\)"),
    ):
        call_metadata(connection, 60_000)


def test_a_silent_server_cannot_hold_the_set_up_longer_than_its_limit() -> None:
    config = ClientSettings((("127.0.0.1", 1),), socket_connection_setup_timeout_ms=200)
    with serve(silence, speak_kafka=False) as port, pytest.raises(BrokerError) as caught:
        Connection(config, "127.0.0.1", port, Deadline.after_ms(60_000))
    assert "200 ms (socket.connection.setup.timeout.ms)" in str(caught.value)


def test_a_send_that_nobody_reads_ends_at_the_deadline() -> None:
    given_up = threading.Event()

    def stop_reading(_peer: socket.socket, _request: bytes) -> None:
        given_up.wait(10)

    with serve(stop_reading) as port, connect(port) as connection:
        begun = time.monotonic()
        huge = memoryview(struct.pack(">i", 20) + bytes(1 << 26))
        with pytest.raises(BrokerError, match="BROKER_TIMEOUT"):
            connection.send(huge, Deadline.after_ms(300))
        given_up.set()
        assert time.monotonic() - begun < 1.3
        assert connection.closed


def test_frames_are_received_into_the_buffer_of_the_caller_which_grows_and_is_kept() -> None:
    bodies = iter((b"a" * 10, b"b" * 300_000, b"c" * 20))

    def answer_next(peer: socket.socket, _request: bytes) -> None:
        peer.sendall(frame(7, next(bodies)))

    with serve(answer_next) as port, connect(port) as connection:
        buffer = bytearray(64)
        question = struct.pack(">ihhih", 10, 1, 4, 7, -1)
        for letter, size in ((b"a", 10), (b"b", 300_000), (b"c", 20)):
            connection.send(question, Deadline.after_ms(5_000))
            assert connection.in_flight == 1
            received = connection.receive_into(buffer, Deadline.after_ms(5_000))
            assert received == size + 4
            assert connection.in_flight == 0
            assert bytes(buffer[4:received]) == letter * size
        assert len(buffer) == 300_004


def test_closing_twice_is_fine_and_leaves_nothing_to_use() -> None:
    with serve(silence) as port, connect(port) as connection:
        assert connection.is_alive()
        connection.close()
        connection.close()
        assert connection.closed
        with pytest.raises(BrokerError, match="BROKER_DISCONNECTED"):
            call_metadata(connection)


def test_a_refused_connection_names_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(BrokerError) as caught:
        Connection(SETTINGS, "127.0.0.1", port, Deadline.after_ms(5_000))
    assert caught.value.condition == "BROKER_UNREACHABLE"
    assert caught.value.retriable
    assert f"127.0.0.1:{port}" in str(caught.value)


def test_a_name_without_an_address_is_unreachable() -> None:
    with pytest.raises(BrokerError) as caught:
        Connection(SETTINGS, "no-such-host.invalid", 9092, Deadline.after_ms(20_000))
    assert caught.value.condition in ("BROKER_UNREACHABLE", "BROKER_TIMEOUT")
    assert "no-such-host.invalid" in str(caught.value)


def test_a_slow_name_server_cannot_hold_a_connection_past_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **named: answered.wait(10) and [])
    begun = time.monotonic()
    with pytest.raises(BrokerError, match=r"the address of slow\.example"):
        Connection(SETTINGS, "slow.example", 9092, Deadline.after_ms(200))
    assert time.monotonic() - begun < 1.2
    answered.set()


def test_an_ipv6_broker_is_reached() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(BrokerError, match="ApiVersions"):
            Connection(SETTINGS, "::1", port, Deadline.after_ms(200))


def test_error_codes_have_the_names_that_kafka_gives_them() -> None:
    assert error_name(6) == "NOT_LEADER_OR_FOLLOWER"
    assert error_name(29) == "TOPIC_AUTHORIZATION_FAILED"
    assert error_name(31_000) == "ERROR_CODE_31000"


def test_planning_asks_with_the_settings_that_were_given() -> None:
    """B138: address, name and limits of the metadata client are the options'; the server sees them."""
    asked: list[bytes] = []

    def note(_peer: socket.socket, request: bytes) -> None:
        asked.append(request)

    with serve(note) as port:
        options = {
            "kafka.bootstrap.servers": f"127.0.0.1:{port}",
            "kafka.client.id": "reports",
            "kafka.request.timeout.ms": "321",
            "kafka.default.api.timeout.ms": "400",
            "fetchOffset.numRetries": "1",
            "subscribe": "t",
        }
        reader = BatchReader(parse_batch_options(options, unique="u"))
        with pytest.raises(BrokerError, match=r"321 ms \(request\.timeout\.ms\)"):
            reader.partitions()
    assert asked
    for request in asked:
        api_key, _, _, size = struct.unpack_from(">hhih", request)
        assert (api_key, request[10 : 10 + size]) == (3, b"reports-driver")


def test_a_broker_that_cannot_tell_the_limit_of_a_topic_is_one_without_a_hint() -> None:
    """Writing does not need the answer, so a refusal of the request must not end it."""
    with serve(silence) as port:  # it does not offer DescribeConfigs
        assert find_message_limit(ClientSettings((("127.0.0.1", port),)), "t") is None
