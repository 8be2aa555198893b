"""Waits for a database that was reached before and is away: a restart, or a fail-over to another host.

Rule: wait only for a connection, never for an answer. What was sent before the connection broke may have
been done, and only the caller knows how to find out. A database that was never reached is not waited for: its
address may be wrong, and the user should learn that at once. A direct stream waits in its own loop, where it
can be asked to stop, so here it waits only for a moment.

    connection = wait_out(place, lambda: connect(place, writes=True), RECONNECT_TIMEOUT_S)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from penstock.core.errors import OffsetStoreError
from penstock.core.loggers import get_logger
from penstock.core.options.storage_addresses import Place
from penstock.core.outages import DATABASE_AWAY, TOLD_AFTER_S, TOLD_EVERY_S, find_patience, write_span
from penstock.stores.sql.connections.database_errors import translate_errors
from penstock.stores.waiting_messages import repeating

#: How long a database that was reached may be away, or may take no writes: a restart, a fail-over.
RECONNECT_TIMEOUT_S = 30.0
RECONNECT_PAUSE_S = 0.2

log = get_logger(__name__)

Opened = TypeVar("Opened")


def find_wait_s() -> float:
    """Return how long a step waits for a database that is away. A stream with a loop of its own waits only
    briefly here, because it tries again."""
    patience = find_patience()
    return TOLD_AFTER_S if patience is not None and patience.limit_s else RECONNECT_TIMEOUT_S


def wait_out(place: Place, connect: Callable[[], Opened], wait_s: float) -> Opened:
    """Return what `connect` returns; while the database is away, call it again until the time is up."""
    begun = time.monotonic()
    is_told = False
    while True:
        try:
            with translate_errors(place):
                return connect()
        except OffsetStoreError as error:
            waited_s = time.monotonic() - begun
            if not is_away(error) or waited_s >= wait_s:
                raise
            if not is_told and waited_s >= TOLD_AFTER_S:
                is_told = True
                log.warning("Waiting for %s, up to %s: %s", place, write_span(wait_s), error)
        time.sleep(RECONNECT_PAUSE_S)


def warn_of_silence(place: Place, *, may_lock: bool = False) -> AbstractContextManager[None]:
    """Return a context that logs a warning when an answer takes long, and again later: a frozen server
    accepts statements, and is given up after two minutes. `may_lock` says that the cause may also be another
    session's lock, for which no stream waits longer than usual."""
    begun = time.monotonic()

    def tell() -> None:
        patience = find_patience()
        more = "" if patience is None else f" {patience}"
        if may_lock:
            more = " If it is there, another session holds a lock (`penstock why` names it)."
        log.warning("%s has not answered for %.0f s.%s", place, time.monotonic() - begun, more)

    return repeating(tell, TOLD_AFTER_S, TOLD_EVERY_S)


def is_away(error: OffsetStoreError) -> bool:
    """Return whether another connection, to this host or the next one, may succeed."""
    return error.retriable and error.condition in DATABASE_AWAY
