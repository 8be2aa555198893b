"""The last commit of a stream that commits asynchronously: one wait, and one warning after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.core.client.client_settings import ClientSettings
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.engines.direct.offset_keeper import Keeper
from penstock.stores.offsets.kafka_store import KafkaOffsetStore
from tests.support.servers.hostile_server import serve, silence

LIMIT_MS = 300


class NotingStore(KafkaOffsetStore):
    """A store that records how often it was flushed, and for how long."""

    def __init__(self, client: ClientSettings) -> None:
        super().__init__(client, group="s", timeout_ms=LIMIT_MS)
        self.limits_s: list[float] = []

    def flush(self, timeout_s: float) -> bool:
        self.limits_s.append(timeout_s)
        return super().flush(timeout_s)


@pytest.fixture
def store() -> Iterator[NotingStore]:
    """Return a store whose broker accepts requests and never answers."""
    with serve(silence) as port:
        yield NotingStore(ClientSettings((("127.0.0.1", port),)))


def end_stream(store: NotingStore, *, is_owner: bool) -> None:
    keeper = Keeper(store, "s", is_owner=is_owner)
    keeper.keep_later(StreamPosition({TopicPartition("t", 0): 5}), (), None)
    keeper.flush(0.1)
    keeper.close()


def list_last_words(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each for each in caplog.messages if "The last position" in each]


def test_a_store_of_the_streams_own_is_waited_for_once_and_told_once(
    store: NotingStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The wait is as long as a commit may take: after an earlier warning the commit might still succeed."""
    end_stream(store, is_owner=True)
    assert store.limits_s == [LIMIT_MS / 1000]
    (told,) = list_last_words(caplog)
    assert "group s in 0.3 s" in told


def test_a_store_of_the_users_is_waited_for_and_left_open(
    store: NotingStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Its owner may close it, which retries the commit; the warning allows for that."""
    end_stream(store, is_owner=False)
    assert store.limits_s == [0.1]
    (told,) = list_last_words(caplog)
    assert "not committed after 0.1 s. Unless its store still commits it" in told
    store.close()
