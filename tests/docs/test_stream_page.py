"""The page on how a stream runs is true: its classes exist, and its lists of names are complete."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from penstock.core.losses import stream_loss_errors
from penstock.engines.source.batch_reader import BatchReader
from penstock.engines.source.data_source import PenstockDataSource
from penstock.engines.source.stream_reader import StreamReader

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "streams.md").read_text()

HISTORY = (
    "RelationProvider",
    "DataSourceRegister",
    "BaseRelation",
    "StreamSourceProvider",
    "StreamSinkProvider",
    "TableProvider",
    "JDBC",
    "2.3",
    "2.4",
    "3.0",
    "six roles",
)


@pytest.mark.parametrize("name", HISTORY)
def test_the_page_tells_how_the_interfaces_came_about(name: str) -> None:
    """F7: it names every one of the older interfaces, and says why one provider has so many roles."""
    assert name in PAGE


def test_every_module_and_class_that_the_page_names_exists() -> None:
    """F11, F12: it says what a capability is, and that batch and micro-batch are its only forms."""
    named = re.findall(r"`((?:core|kafka)\.[a-z_.]+)(?:\.([A-Z]\w+))?`", PAGE)
    assert len(named) >= 6
    for module, owner in named:
        loaded = importlib.import_module(f"penstock.{module}")
        assert not owner or hasattr(loaded, owner)
    assert issubclass(PenstockDataSource, DataSource)
    assert issubclass(BatchReader, DataSourceReader)
    assert issubclass(StreamReader, DataSourceStreamReader)
    for method in ("reader", "streamReader", "writer", "streamWriter"):
        assert f"`{method}" in PAGE
        assert method in vars(PenstockDataSource)
    assert "toContinuousStream" in PAGE
    assert "Continuous mode" in PAGE


def test_the_page_names_every_loss_condition() -> None:
    source = Path(str(stream_loss_errors.__file__)).read_text()
    conditions = set(re.findall(r'"([A-Z]+(?:_[A-Z]+)+)"', source))
    assert len(conditions) >= 6
    assert {each for each in conditions if f"`{each}`" not in PAGE} == set()


def test_the_full_reader_is_used_so_that_the_driver_holds_no_rows() -> None:
    """T50: Spark's simple reader keeps the rows of each batch in the driver."""
    assert "simpleStreamReader" not in vars(PenstockDataSource)
    assert "streamReader" in vars(PenstockDataSource)
    assert not hasattr(StreamReader, "readBetweenOffsets")
