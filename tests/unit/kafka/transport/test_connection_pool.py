"""The pool's bookkeeping, over real sockets to a small server."""

from __future__ import annotations

import os
import signal
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from penstock.core.client.client_settings import ClientSettings, SaslSettings, Secret
from penstock.core.errors import BrokerError
from penstock.kafka.transport.connection import Connection, Deadline
from penstock.kafka.transport.connection_pool import POOL, ConnectionPool
from tests.support.servers.hostile_server import serve, silence

SETTINGS = ClientSettings((("127.0.0.1", 1),))
HOST = "127.0.0.1"


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def port() -> Iterator[int]:
    with serve(silence) as number:
        yield number


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pool(clock: Clock) -> Iterator[ConnectionPool]:
    pool = ConnectionPool(capacity=6, clock=clock)
    yield pool
    pool.close()


def borrow(pool: ConnectionPool, port: int, settings: ClientSettings = SETTINGS) -> Connection:
    return pool.borrow(settings, HOST, port, Deadline.after_ms(5_000))


def test_a_connection_that_was_given_back_is_lent_again(pool: ConnectionPool, port: int) -> None:
    """B159, F40: the same broker and credentials reuse the connection."""
    first = borrow(pool, port)
    pool.give_back(first)
    assert borrow(pool, port) is first
    pool.discard(first)


def test_a_lent_connection_is_not_lent_twice(pool: ConnectionPool, port: int) -> None:
    """F40: two borrowers never share one connection, so no answer meets the wrong request."""
    first, second = borrow(pool, port), borrow(pool, port)
    assert first is not second
    assert len(pool._lent) == 2
    pool.give_back(first)
    pool.give_back(second)
    assert len(pool._lent) == 0
    assert len(pool._idle) == 2


def test_renewed_credentials_get_a_connection_of_their_own(pool: ConnectionPool, port: int) -> None:
    """B160: a changed login is another key, although host and user are the same."""
    # The settings carry a login that PLAINTEXT does not use: only the key matters here.
    old = replace(SETTINGS, sasl=SaslSettings("PLAIN", "alice", Secret("old")))
    new = replace(SETTINGS, sasl=SaslSettings("PLAIN", "alice", Secret("new")))
    first = borrow(pool, port, old)
    pool.give_back(first)
    second = borrow(pool, port, new)
    assert second is not first
    pool.give_back(second)
    assert borrow(pool, port, old) is first
    pool.discard(first)


def test_another_consumer_group_shares_the_connections(pool: ConnectionPool, port: int) -> None:
    """Group names like Spark's differ in every query: as part of the key they would prevent all reuse."""
    first = borrow(pool, port, replace(SETTINGS, group_id="a"))
    pool.give_back(first)
    patient = replace(SETTINGS, group_id="b", request_timeout_ms=77)
    assert borrow(pool, port, patient) is first
    assert first.settings.request_timeout_ms == 77
    pool.discard(first)


def test_at_most_three_idle_connections_are_kept_for_one_key(pool: ConnectionPool, port: int) -> None:
    """B169: the fourth one that comes back is closed."""
    lent = [borrow(pool, port) for _ in range(4)]
    for connection in lent:
        pool.give_back(connection)
    assert len(pool._idle) == 3
    assert [connection.closed for connection in lent] == [False, False, False, True]


def test_many_keys_have_their_own_connections(pool: ConnectionPool, port: int) -> None:
    """B170: what comes back for one key is lent only for this key."""
    settings = [replace(SETTINGS, client_id=f"client-{number}") for number in range(5)]
    lent = [borrow(pool, port, one) for one in settings]
    for connection in lent:
        pool.give_back(connection)
    assert [borrow(pool, port, one) for one in settings] == lent
    for connection in lent:
        pool.discard(connection)


def test_a_borrower_over_the_limit_is_served_at_once(pool: ConnectionPool, port: int) -> None:
    """B171: the limit is soft; a connection that is returned over it is closed."""
    lent = [borrow(pool, port) for _ in range(9)]
    assert len(pool._lent) == 9
    for connection in lent:
        pool.give_back(connection)
    assert len(pool._idle) <= 3
    assert len(pool._lent) == 0


def test_over_the_limit_idle_connections_are_closed_first_and_the_oldest_before_others(
    pool: ConnectionPool, port: int
) -> None:
    """B172: unused connections make room."""
    idle = [borrow(pool, port, replace(SETTINGS, client_id=name)) for name in ("a", "b", "c")]
    for connection in idle:
        pool.give_back(connection)
    busy = [borrow(pool, port) for _ in range(4)]
    assert [connection.closed for connection in idle] == [True, False, False]
    for connection in busy:
        pool.discard(connection)


def test_connections_that_were_idle_too_long_are_closed_at_the_next_use_of_the_pool(
    pool: ConnectionPool, port: int, clock: Clock
) -> None:
    """B173: without a thread; any borrow or return checks all keys."""
    old = borrow(pool, port, replace(SETTINGS, connections_max_idle_ms=10_000))
    pool.give_back(old)
    clock.now += 9.9
    young = borrow(pool, port, replace(SETTINGS, client_id="other"))
    assert not old.closed
    clock.now += 0.2
    pool.give_back(young)
    assert old.closed
    assert not young.closed
    assert len(pool._idle) == 1


def test_a_connection_with_a_question_on_its_way_is_closed_instead_of_kept(
    pool: ConnectionPool, port: int
) -> None:
    """F40, B158: its next bytes answer another request."""
    connection = borrow(pool, port)
    connection.send(struct.pack(">ihhih", 10, 3, 0, 9, -1), Deadline.after_ms(5_000))
    pool.give_back(connection)
    assert connection.closed
    assert len(pool._idle) == 0


def test_a_connection_that_failed_is_never_lent_again(pool: ConnectionPool, port: int) -> None:
    """B158: what broke under one task is not given to its retry."""
    deadline = Deadline.after_ms(5_000)
    with pytest.raises(ValueError, match="broke"), pool.lend(SETTINGS, HOST, port, deadline) as broken:
        raise ValueError("broke")
    assert broken.closed
    assert len(pool._idle) == 0
    with pool.lend(SETTINGS, HOST, port, deadline) as sound:
        assert sound is not broken
    assert len(pool._idle) == 1


def test_a_repeated_task_can_ask_for_a_connection_nobody_used(pool: ConnectionPool, port: int) -> None:
    """B158: `fresh` closes the idle connections to this broker and opens a new one."""
    used = borrow(pool, port)
    pool.give_back(used)
    fresh = pool.borrow(SETTINGS, HOST, port, Deadline.after_ms(5_000), fresh=True)
    assert fresh is not used
    assert used.closed
    pool.discard(fresh)


def test_a_connection_that_the_broker_closed_meanwhile_is_not_lent(pool: ConnectionPool) -> None:
    with serve(silence) as port:
        connection = borrow(pool, port)
        pool.give_back(connection)
    with pytest.raises(BrokerError, match="BROKER_UNREACHABLE"):
        borrow(pool, port)  # it tried to open a new one, because the idle one was found dead
    assert connection.closed


def test_a_login_that_is_about_to_end_is_not_lent(pool: ConnectionPool, port: int, clock: Clock) -> None:
    first = borrow(pool, port)
    first.login_expires_at = clock.now + 5
    pool.give_back(first)
    assert borrow(pool, port) is first
    pool.give_back(first)
    clock.now += 6
    second = borrow(pool, port)
    assert second is not first
    assert first.closed
    pool.discard(second)


def test_a_borrower_that_vanished_is_not_counted_for_ever(pool: ConnectionPool, port: int) -> None:
    connection = borrow(pool, port)
    connection.close()
    del connection
    assert len(pool._lent) == 0


def test_many_threads_never_hold_the_same_connection(pool: ConnectionPool, port: int) -> None:
    held: set[int] = set()
    lock = threading.Lock()
    clashes: list[int] = []

    def work() -> None:
        for _ in range(25):
            with pool.lend(SETTINGS, HOST, port, Deadline.after_ms(20_000)) as connection:
                with lock:
                    if id(connection) in held:
                        clashes.append(id(connection))
                    held.add(id(connection))
                with lock:
                    held.discard(id(connection))

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clashes == []
    assert len(pool._lent) == 0


def test_a_forked_child_lets_go_of_the_connections_and_the_parent_keeps_them(port: int) -> None:
    connection = POOL.borrow(SETTINGS, HOST, port, Deadline.after_ms(5_000))
    POOL.give_back(connection)
    before = len(POOL._idle)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a child that hangs must not be left behind
        os._exit(0 if len(POOL._idle) == 0 and connection.closed else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert len(POOL._idle) == before
    assert connection.is_alive()
    assert POOL.borrow(SETTINGS, HOST, port, Deadline.after_ms(5_000)) is connection
    POOL.discard(connection)


@pytest.mark.usefixtures("port")
def test_a_fork_while_another_thread_holds_the_pool_does_not_block_the_child() -> None:
    with POOL._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # a child that hangs must not be left behind
            os._exit(0 if len(POOL._idle) == 0 else 1)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
