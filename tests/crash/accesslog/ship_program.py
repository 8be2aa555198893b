"""A shipper in a separate process, to be killed at a step.

    python -m tests.crash.accesslog.ship_program order.json

It is the real shipper with a gate before and after each step of a transaction. Its transactions are small, so
that there are many of them.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pyarrow as pa

from penstock.apps.accesslog.shipping.log_follower import Piece
from penstock.apps.accesslog.shipping.shipped_positions import ShipState
from penstock.apps.accesslog.shipping.shipper import Shipper, ShipSettings
from tests.crash.gates import pass_gate
from tests.crash.programs import Order
from tests.support.kafka.client_settings import settings_of

#: The steps of a transaction, in order. The first position of a life is its mark.
STEPS = ("take over", "read", "lines", "position", "end")


@dataclass(frozen=True)
class ShipOrder(Order):
    bootstrap: str
    topic: str
    log: str


class GatedShipper(Shipper):
    def _take_over(self) -> None:
        pass_gate("take over", "before")
        super()._take_over()
        pass_gate("take over", "after")

    def _read(self) -> list[Piece]:
        pass_gate("read", "before")
        found = super()._read()
        pass_gate("read", "after")
        return found

    def _write_lines(self, records: pa.RecordBatch) -> None:
        pass_gate("lines", "before")
        super()._write_lines(records)
        pass_gate("lines", "after")

    def _write_position(self, before: ShipState, state: ShipState) -> None:
        pass_gate("position", "before")
        super()._write_position(before, state)
        pass_gate("position", "after")

    def _end(self) -> None:
        pass_gate("end", "before")
        super()._end()
        pass_gate("end", "after")


def main(order: ShipOrder) -> None:
    settings = ShipSettings(
        (order.log,),
        order.topic,
        "web1",
        positions_topic=f"{order.topic}-positions",
        once=True,
        longest_line=200,
        chunk_bytes=1_000,
        transaction_bytes=3_000,
    )
    GatedShipper(settings_of(order.bootstrap), settings).run(threading.Event())


if __name__ == "__main__":
    main(ShipOrder.read_argument())
