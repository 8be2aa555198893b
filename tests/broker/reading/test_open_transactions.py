"""An open transaction blocks committed readers: they report whose it is, and never skip it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from penstock.core.errors import BrokerError
from penstock.core.model import At, Earliest, Latest, RangeOrder, WorkOrder
from tests.broker.reading.work_orders import offsets_of
from tests.support.kafka.client_settings import settings_of
from tests.support.kafka.topic_filling import open_transaction, produce, send


def order_of(bootstrap: str, topic: str, until: At | Latest) -> WorkOrder:
    settings = settings_of(bootstrap, isolation_level="read_committed")
    wanted = RangeOrder(topic, 0, Earliest(), until)
    return WorkOrder((wanted,), settings, ("offset", "value"), poll_timeout_ms=2_000)


def test_a_reader_held_back_by_an_open_transaction_is_told_whose_it_is(
    kafka: Any, topic: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """T03: the wait ends in an error with producer and age; a read to the stable end logs the same."""
    name = topic(1)
    produce(kafka.bootstrap, name, ["before"] * 3)
    hanging = open_transaction(kafka.bootstrap)
    send(hanging, name, ["inside"] * 2)
    assert hanging.flush(30) == 0
    produce(kafka.bootstrap, name, ["after"] * 2)
    try:
        with pytest.raises(BrokerError) as caught:
            offsets_of(order_of(kafka.bootstrap, name, At(7)))
        assert caught.value.condition == "FETCH_TIMEOUT"
        assert "an open transaction of producer " in str(caught.value)
        assert "silent for " in str(caught.value)
        assert caught.value.facts["stable_end"] == 3
        with caplog.at_level(logging.WARNING, logger="penstock.kafka.reading.kafka_reader"):
            assert offsets_of(order_of(kafka.bootstrap, name, Latest())) == [0, 1, 2]
        assert "holds back everything from 3 on" in caplog.text
    finally:
        hanging.commit_transaction(30)
    assert offsets_of(order_of(kafka.bootstrap, name, At(7))) == [0, 1, 2, 3, 4, 5, 6]
