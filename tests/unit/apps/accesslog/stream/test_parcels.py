"""What travels between the stages of a batch, lines that cannot be parsed, and operator orders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.apps.accesslog.stream.dead_letter_rows import KEPT_BYTES, make_dead_letters
from penstock.apps.accesslog.stream.operator_orders import Order, list_orders, place_order, take_orders
from penstock.apps.accesslog.stream.parcels import PARCELS, make_parcel, pack, read_parcels, unpack
from penstock.core.errors import OffsetStoreError, OptionError
from penstock.core.options.storage_addresses import parse_place


def test_a_parcel_brings_its_columns_without_copying_them() -> None:
    rows = pa.table({"n": [1, 2, 3], "text": ["a", None, "c"]})
    packed = pack(rows)
    parcel = make_parcel("events", 7, packed, part=2)
    assert parcel.schema == PARCELS
    assert parcel.column("payload").buffers()[2].address == packed.address
    (found,) = read_parcels(parcel)
    assert (found.kind, found.lane, found.part) == ("events", 7, 2)
    assert found.payload is not None
    assert unpack(found.payload).equals(rows)


def test_a_parcel_may_have_nothing_in_it() -> None:
    (found,) = read_parcels(make_parcel("state", 0, None))
    assert found.payload is None


def test_a_slice_of_parcels_is_read_like_the_whole() -> None:
    table = pa.Table.from_batches([make_parcel("a", n, pack(pa.table({"n": [n]}))) for n in range(4)])
    payloads = [each.payload for each in read_parcels(table.slice(1, 2))]
    assert [unpack(each)["n"].to_pylist() for each in payloads if each is not None] == [[1], [2]]


def test_a_dead_letter_has_its_record_its_reason_and_at_most_so_much_of_its_line() -> None:
    values = pa.array([b"fine", b"x" * (KEPT_BYTES + 5), None, b"\xff\x00"])
    letters = make_dead_letters(
        values,
        np.array([1, 2, 3], np.int32),
        pa.array(["no time", "no line", "no quote"]),
        topic="log",
        partition=4,
        offsets=np.array([10, 11, 13, 17]),
    )
    assert letters.to_pylist() == [
        {"reason": "no time", "length": KEPT_BYTES + 5, "line": b"x" * KEPT_BYTES, **name_record(11)},
        {"reason": "no line", "length": None, "line": None, **name_record(13)},
        {"reason": "no quote", "length": 2, "line": b"\xff\x00", **name_record(17)},
    ]


def name_record(offset: int) -> dict[str, object]:
    return {"penstock_topic": "log", "penstock_partition": 4, "penstock_offset": offset}


def test_from_when_on_an_order_counts_is_decided_by_the_first_batch_that_sees_it() -> None:
    """The log may be behind the operator's clock, or ahead of it; a later batch uses what was decided."""
    early, late, over = (
        Order(name, "192.0.2.7", ordered_at, until, "")
        for name, ordered_at, until in (("early", 100, 900), ("late", 700, 900), ("over", 100, 400))
    )
    counting, taken = take_orders([early, late, over], watermark_us=500)
    assert [(each.order_id, each.taken_at) for each in counting] == [("early", 500), ("late", 700)]
    assert [each.order_id for each in taken] == ["early", "late", "over"]
    again, more = take_orders(counting, watermark_us=800)
    assert again == counting
    assert more == []


def test_an_order_is_about_an_address_or_a_network_and_needs_its_table(tmp_path: Path) -> None:
    place = parse_place(str(tmp_path / "other.db"))
    with pytest.raises(OptionError, match="NETWORK_INVALID"):
        place_order(place, "'; drop table", now_us=1, grace_us=1)
    for act in (lambda: place_order(place, "192.0.2.7", now_us=1, grace_us=1), lambda: list_orders(place)):
        with pytest.raises(OffsetStoreError, match="`penstock accesslog run` makes it") as refused:
            act()
        assert refused.value.condition == "DATABASE_NOT_FOUND"
    assert list(tmp_path.iterdir()) == [], "a wrong path has left a file"
    (tmp_path / "other.db").touch()
    with pytest.raises(OffsetStoreError, match="ORDERS_NOT_FOUND"):
        place_order(place, "192.0.2.0/24", now_us=1, grace_us=1)
    with pytest.raises(OffsetStoreError, match="ORDERS_NOT_FOUND"):
        list_orders(place)
