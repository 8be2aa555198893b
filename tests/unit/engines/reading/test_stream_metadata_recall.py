"""What a stream does with topics that come from its metadata cache (`partition.metadata.cache.ttl.ms`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from penstock.core.errors import DataLossError
from penstock.core.model import LogView, TopicView
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.options.stream_options import parse_stream_options
from penstock.engines.reading.stream_watch import StreamWatch
from penstock.testing.memory_log import MemoryLog
from tests.support.micro_batches import MemorySource


class RememberingSource(MemorySource):
    """Counts the requests for topics; its recalling views return the topics as learned last."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.asked = 0
        self.learned: dict[str, TopicView] = {}

    def open_view(self) -> LogView:
        return self._open(recalls=False)

    def open_recalling_view(self) -> LogView:
        return self._open(recalls=True)

    def _open(self, *, recalls: bool) -> LogView:
        source, view = self, super().open_view()

        class View:
            def describe(self, names: Collection[str]) -> Mapping[str, TopicView]:
                if recalls and all(name in source.learned for name in names):
                    return {name: source.learned[name] for name in names}
                source.asked += 1
                found = view.describe(names)
                source.learned |= found
                return found

            def __getattr__(self, name: str) -> Any:
                return getattr(view, name)

        return View()  # type: ignore[return-value]


def start(fail: str) -> tuple[RememberingSource, StreamWatch, StreamPosition]:
    """Return a stream that has read two rows and remembers its topic, with its source and position."""
    source = RememberingSource(MemoryLog())
    source.log.create_topic("t", 2)
    given = {"kafka.bootstrap.servers": "b:9092", "subscribe": "t", "startingOffsets": "earliest"}
    given |= {"fetchOffset.retryIntervalMs": "0", "failOnDataLoss": fail}
    options = parse_stream_options(given, unique="u")
    watch = StreamWatch(options, source, recall_view=source.open_recalling_view)
    write(source, 2)
    end = watch.find_end(watch.resolve_start(), take_all=True)
    return source, watch, end


def write(source: RememberingSource, count: int) -> None:
    for number in range(count):
        source.log.append("t", 0, value=b"%d" % number)


def test_triggers_that_find_nothing_new_ask_for_ends_alone() -> None:
    """B136: even after a batch, and while one partition is still empty."""
    source, watch, end = start("true")
    for _ in range(3):
        source.asked = 0
        assert watch.find_end(end, take_all=True) is end
        assert source.asked == 0
        write(source, 1)
        end = watch.find_end(end, take_all=True)
        assert source.asked == 1


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_recreated_topic_fails_the_query_however_long_it_is(rows: int) -> None:
    """A batch planned for the remembered id would find nothing, and report existing rows as lost."""
    source, watch, end = start("true")
    source.log.delete_topic("t")
    source.log.create_topic("t", 2)
    write(source, rows)
    if rows == 2:  # as long as what was read, so it is noticed with the next row
        assert watch.find_end(end, take_all=True) is end
        write(source, 1)
    with pytest.raises(DataLossError, match="TOPIC_RECREATED"):
        watch.find_end(end, take_all=True)


def test_a_longer_recreated_topic_is_read_from_its_beginning_at_once() -> None:
    source, watch, end = start("false")
    source.log.delete_topic("t")
    source.log.create_topic("t", 2)
    write(source, 3)
    then = watch.find_end(end, take_all=True)
    new = source.log.describe()["t"].topic_id
    assert then.topic_ids == {"t": new}
    assert sorted(then.starts.values()) == [0, 0]
    assert sorted(then.offsets.values()) == [0, 3]
