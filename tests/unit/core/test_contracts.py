"""User-defined offset stores and sinks: a missing part is an error at the start, not a silent gap."""

from __future__ import annotations

import re
from functools import partial
from importlib import import_module
from typing import Any

import pytest

from penstock.core.errors import OffsetStoreError, OptionError
from penstock.core.model import TopicPartition
from penstock.core.offsets.offset_store_contract import Change, Moved, OffsetStore, demand_offset_store
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.sinks.sink_contract import Sink, SinkWriter, demand_contract
from penstock.stores.offsets.memory_store import MemoryOffsetStore


class Forgetful(OffsetStore):
    """A store whose author has misspelt `save`."""

    def load(self, stream: str) -> None: ...

    def list_streams(self) -> list[str]: ...

    def change(self, stream: str, change: Any) -> None: ...

    def list_changes(self, stream: str) -> list[Any]: ...

    def store(self, stream: str, position: Any) -> None: ...


class Silent(SinkWriter):
    """A writer that does not say how far its results go."""

    def write(self, results: Any, before: Any, end: Any) -> Any: ...

    def close(self) -> None: ...


class Closed(Sink):
    """A sink that cannot be opened."""


@pytest.mark.parametrize(
    ("kind", "missing"), [(Forgetful, "save"), (Silent, "position"), (Closed, "open")], ids=str
)
def test_a_store_or_sink_without_a_required_part_cannot_be_made(kind: type, missing: str) -> None:
    with pytest.raises(TypeError, match=missing):
        kind()


@pytest.mark.parametrize("contract", [OffsetStore, Sink, SinkWriter])
def test_the_advice_names_a_public_place_of_the_contract(contract: Any) -> None:
    demand: Any = (
        demand_offset_store if contract is OffsetStore else partial(demand_contract, contract=contract)
    )
    with pytest.raises(OptionError) as refused:
        demand({})
    (name,) = re.findall(r"inherit from `([\w.]+)`", str(refused.value))
    module, _, name = name.rpartition(".")
    assert module in ("penstock.direct", "penstock.sinks")
    assert name in import_module(module).__all__
    assert getattr(import_module(module), name) is contract


def test_a_store_that_lacks_the_contract_is_refused_with_advice() -> None:
    with pytest.raises(OptionError, match=r"\[OFFSET_STORE_INVALID\] A dict cannot keep offsets.*inherit"):
        demand_offset_store({})  # type: ignore[arg-type]
    assert demand_offset_store(store := MemoryOffsetStore()) is store


def test_a_store_that_says_nothing_of_itself_can_be_looked_at_and_moved_by_the_terminal() -> None:
    store = MemoryOffsetStore()
    before, after = (StreamPosition({TopicPartition("t", 0): offset}) for offset in (9, 5))
    store.save("s", before)
    change = Change(1, "ann", "rewind", before, after)
    assert (store.preview("s", change), store.load("s")) == (Moved({}), before)
    assert (store.move("s", change), store.load("s")) == (Moved({}), after)
    assert (store.list_warnings("s"), store.suggest_place("s"), store.label) == ([], "", "")
    assert (store.find_file_sink(), store.place, store.keeps_results) == (None, None, False)
    with pytest.raises(OptionError, match=r"NO_BATCHES_KEPT.*the memory of this process"):
        store.load_batch("s", 1)
    with pytest.raises(OffsetStoreError, match="OFFSETS_MOVED"):
        store.preview("s", change)


@pytest.mark.parametrize("contract", [Sink, SinkWriter])
def test_a_sink_that_lacks_the_contract_is_refused_with_advice(contract: Any) -> None:
    with pytest.raises(OptionError, match=rf"\[SINK_INVALID\] A str is not a {contract.__name__}.*inherit"):
        demand_contract("table", contract)
