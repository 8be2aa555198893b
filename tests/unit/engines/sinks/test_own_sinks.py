"""User-defined sinks, as an engine opens them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.errors import OptionError
from penstock.engines.sinks import open_sink
from penstock.sinks import Sink


class HalfWriter:
    """A writer that lacks methods because it does not inherit; it holds the stream until it is closed."""

    position = None
    is_closed = False

    def write(self, results: Any, before: Any, end: Any) -> Any: ...

    def close(self) -> None:
        self.is_closed = True


class HalfSink(Sink):
    def __init__(self) -> None:
        self.writer = HalfWriter()

    def open(self, stream: str) -> Any:
        return self.writer


def test_a_refused_writer_is_closed() -> None:
    """It may hold a lock or a connection, and no stream begins that would close it."""
    sink = HalfSink()
    with pytest.raises(OptionError, match=r"SINK_INVALID.*inherit from `penstock\.sinks\.SinkWriter`"):
        open_sink(sink, "s", None)  # type: ignore[arg-type]
    assert sink.writer.is_closed


def test_what_is_no_writer_at_all_is_refused_with_the_same_words() -> None:
    sink = HalfSink()
    sink.writer = None  # type: ignore[assignment]
    with pytest.raises(OptionError, match="SINK_INVALID"):
        open_sink(sink, "s", None)  # type: ignore[arg-type]
