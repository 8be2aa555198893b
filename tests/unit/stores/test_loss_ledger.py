"""The loss ledger as a file: its layout stays readable, and a file that is not a ledger is reported."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import DataLossError, OffsetStoreError
from penstock.core.loggers import in_stream
from penstock.core.losses.loss_ranges import Loss
from penstock.core.model import At, RangeOrder, WorkOrder
from penstock.core.options.storage_addresses import parse_place
from penstock.engines.reading.loss_book import LossBook, keep_task_loss
from penstock.stores.loss_ledger import LEDGER_VERSION, RecordedLoss, open_loss_ledger

GOLDEN = Path(__file__).parents[2] / "golden" / "loss_ledger_v1.sql"
AGED = Loss(
    "START_OFFSET_RESET",
    "visits",
    0,
    5,
    800,
    bytes(range(16)),
    "Offsets [5, 800) were deleted before they were read.",
)
GONE = Loss("PARTITIONS_DELETED", "visits", 1, 7, 7)


def read_layout(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [
            row[0]
            for row in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
        ]


@pytest.fixture
def old_ledger(tmp_path: Path) -> Path:
    """Return a file as version 1 wrote it."""
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(GOLDEN.read_text())
    return path


def test_a_ledger_of_version_1_is_read_and_goes_on(old_ledger: Path) -> None:
    ledger = open_loss_ledger(old_ledger, create=False)
    assert ledger.read() == [
        RecordedLoss(AGED, 1_700_000_000_000, 1_700_000_000_000, 1, "counting visits"),
        RecordedLoss(GONE, 1_700_000_001_000, 1_700_000_002_000, 2, ""),
    ]
    ledger.record([AGED], seen_ms=1_700_000_003_000)
    assert ledger.read()[0].times == 2


def test_a_new_ledger_has_the_layout_of_its_version(old_ledger: Path, tmp_path: Path) -> None:
    open_loss_ledger(tmp_path / "new.db")
    assert LEDGER_VERSION == 1, "a new version needs a golden file of its own, beside this one"
    assert read_layout(tmp_path / "new.db") == read_layout(old_ledger)


def test_a_file_that_is_no_database_is_told_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("These are my notes, not a database. " * 100)
    for create in (True, False):
        with pytest.raises(OffsetStoreError, match="DATABASE_DAMAGED"):
            open_loss_ledger(path, create=create)
    assert path.read_text().startswith("These are my notes")


@pytest.mark.parametrize("name", ["missing/losses.db", "."])
def test_a_file_that_cannot_be_made_is_told_with_its_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(OffsetStoreError, match="DATABASE_UNREACHABLE") as caught:
        open_loss_ledger(tmp_path / name)
    assert str(tmp_path) in str(caught.value)


def test_a_path_with_odd_letters_is_only_a_path(tmp_path: Path) -> None:
    path = tmp_path / "a?mode=memory&x#y%20 z.db"
    open_loss_ledger(path).record([GONE], seen_ms=1)
    assert path.exists()
    assert [each.loss for each in open_loss_ledger(path, create=False).read()] == [GONE]


def test_a_task_on_a_host_without_the_ledgers_file_makes_no_other_one(tmp_path: Path) -> None:
    """A loss in a file that nobody reads would be forgotten, so the task fails instead."""
    place = parse_place(str(tmp_path / "losses.db"))
    order = WorkOrder((RangeOrder("t", 0, At(5), At(8)),), ClientSettings((("127.0.0.1", 9092),)), ("value",))
    met = DataLossError("DATA_LOST", "Gone.", facts={"topic": "t", "partition": 0})
    with pytest.raises(OffsetStoreError, match="DATABASE_NOT_FOUND"):
        keep_task_loss(place, order, met)
    ledger = open_loss_ledger(place)
    keep_task_loss(place, order, met)
    assert [each.loss.key for each in ledger.read()] == [("t", 0, 5, 8)]


def test_a_loss_is_recorded_with_the_stream_that_met_it(tmp_path: Path) -> None:
    """Several streams may share a ledger. The driver and its tasks know which stream they work for."""
    place = parse_place(str(tmp_path / "losses.db"))
    order = WorkOrder((RangeOrder("t", 0, At(5), At(8)),), ClientSettings((("127.0.0.1", 9092),)), ("value",))
    met = DataLossError("DATA_LOST", "Gone.", facts={"topic": "t", "partition": 0})
    ledger = open_loss_ledger(place)
    with in_stream("visits"):
        LossBook(place).keep([Loss("DATA_LOST", "t", 1, 5, 8)])
        keep_task_loss(place, order, met)
    LossBook(place).keep([Loss("DATA_LOST", "t", 2, 5, 8)])
    assert [each.stream for each in ledger.read()] == ["visits", "visits", ""]
