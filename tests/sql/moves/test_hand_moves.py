"""What a sink's ledger reports as moves by hand: a person's moves, but not a program's own at its start."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from penstock.core.errors import SinkError
from penstock.core.offsets.offset_store_contract import SEEK, Change
from penstock.stores.offsets.sink_ledger_store import SinkOffsetStore
from penstock.stores.sql.ledger.writer_rows import find_hand_move
from tests.sql.databases import OwnDatabase
from tests.sql.sinks import at, make_numbers, make_sink


@pytest.mark.parametrize(("verb", "is_by_hand"), [("rewind", True), (SEEK, False)])
def test_a_programs_own_seek_is_not_told_as_a_move_by_hand(
    tmp_path: Path, verb: str, is_by_hand: bool
) -> None:
    """Neither `why` nor the program that the seek has fenced reports it as a move by hand."""
    database = OwnDatabase(f"sqlite://{tmp_path}/own.db")
    sink = make_sink(database.url)
    with closing(sink.open("s")) as writer:
        writer.write(make_numbers(at(0), at(5)), at(0), at(5))
        SinkOffsetStore(sink.place).change("s", Change(1_000, "host/7", verb, at(5), at(2)))
        found = find_hand_move(sink.place, "s")
        assert (found is not None and found.verb == verb) == is_by_hand
        with pytest.raises(SinkError, match="WRITER_FENCED") as fenced:
            writer.write(make_numbers(at(5), at(6)), at(5), at(6))
    assert ("moved by hand" in str(fenced.value)) == is_by_hand
