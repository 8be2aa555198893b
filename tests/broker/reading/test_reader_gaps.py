"""Gaps in the offsets are not losses, losses are not gaps, and neither costs an extra request."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import DataLossError
from penstock.core.model import At, Bound, RangeOrder, WorkOrder
from tests.broker.reading.work_orders import offsets_of
from tests.support.kafka.client_settings import settings_of
from tests.support.kafka.topic_filling import delete_before, open_transaction, produce, send

FETCH, LIST_OFFSETS = 1, 2


def order_of(address: tuple[str, int], topic: str, start: Bound, until: Bound, **settings: Any) -> WorkOrder:
    client = ClientSettings((address,), **settings)
    return WorkOrder((RangeOrder(topic, 0, start, until),), client, ("offset",), poll_timeout_ms=20_000)


def test_a_hole_is_no_loss_but_an_aged_out_offset_is(kafka: Any, topic: Any) -> None:
    """T07, T01: markers and aborted rows at the start, middle and end of the range; then a real loss."""
    name, address = topic(1), settings_of(kafka.bootstrap).bootstrap_servers[0]
    for ends_well in (False, True, False):  # offsets 0-2 + marker 3, 4-6 + marker 7, 8-10 + marker 11
        producer = open_transaction(kafka.bootstrap)
        send(producer, name, ["row"] * 3)
        if ends_well:
            producer.commit_transaction(30)
        else:
            assert producer.flush(30) == 0
            producer.abort_transaction(30)
    committed = {"isolation_level": "read_committed"}
    assert offsets_of(order_of(address, name, At(0), At(12), **committed)) == [4, 5, 6]
    assert offsets_of(order_of(address, name, At(3), At(4), **committed)) == []
    assert offsets_of(order_of(address, name, At(7), At(12))) == [8, 9, 10]
    delete_before(kafka.bootstrap, name, 5)
    with pytest.raises(DataLossError) as caught:
        offsets_of(order_of(address, name, At(3), At(12), **committed))
    assert caught.value.condition == "OFFSET_OUT_OF_RANGE"
    assert (caught.value.facts["offset"], caught.value.facts["until"]) == (3, 5)
    assert offsets_of(order_of(address, name, At(5), At(12), **committed)) == [5, 6]


def test_reading_a_fixed_range_asks_for_no_bounds(proxied_kafka: Any, topic: Any) -> None:
    """T54, F45: the fetch answer carries the log's bounds, so no separate request for offsets is sent."""
    cluster, proxy = proxied_kafka
    name = topic(1, on=cluster)
    produce(cluster.bootstrap, name, ["x" * 1000] * 500, **{"batch.num.messages": 20})
    host, port = proxy.address
    order = order_of((host, port), name, At(0), At(500), max_partition_fetch_bytes=50_000)
    before = dict(proxy.counts.requests)
    assert offsets_of(order) == list(range(500))
    asked = {key: proxy.counts.requests[key] - before.get(key, 0) for key in (FETCH, LIST_OFFSETS)}
    assert asked[LIST_OFFSETS] == 0
    assert 10 <= asked[FETCH] <= 30, asked
