"""Measures the data plane alone: fetching without decoding, and fetching with decoding, in one process.

    python -m bench.wire

`fetch` receives the answers into the reused buffer and reads batch headers only; `read` makes Arrow batches
of all columns. The peer is librdkafka through confluent-kafka's `consume()`, values counted and dropped.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from bench.read import PACKAGES
from bench.sampling import describe_machine, print_ratios, save, take_turns
from bench.topics import Load, fill, settings_of
from penstock.cli.shared.progress_bar import ProgressBar
from penstock.cluster import LocalKafka
from penstock.core.model import COLUMNS, At, RangeOrder, WorkOrder
from penstock.kafka.reading.kafka_reader import KafkaReader
from penstock.kafka.reading.partition_fetcher import PartitionFetcher, ReceiveBuffer
from penstock.kafka.records.record_decoder import RecordDecoder

LOAD = Load("wire", 3_000_000, 100, partitions=1)
PLAIN = tuple(name for name in COLUMNS if name != "headers")


def fetch_only(bootstrap: str) -> int:
    """Fetch everything without decoding it, and return the bytes received."""
    position, until = 0, LOAD.records
    wanted = RangeOrder(LOAD.name, 0, At(position), At(until))
    order = WorkOrder((wanted,), settings_of(bootstrap), PLAIN)
    fetcher = PartitionFetcher(order, wanted, ReceiveBuffer())
    decoder = RecordDecoder(LOAD.name, 0, PLAIN)
    received = 0
    while position < until:
        fetched = fetcher.fetch(position, until)
        assert fetched is not None
        received += fetched.records.size
        decoder.open(fetched.records)
        assert decoder.next_offset is not None
        position = decoder.next_offset
        if position < until:
            fetcher.ask(position)
    fetcher.release()
    return received


def read_all(bootstrap: str) -> int:
    wanted = RangeOrder(LOAD.name, 0, At(0), At(LOAD.records))
    order = WorkOrder((wanted,), settings_of(bootstrap), PLAIN)
    return sum(batch.num_rows for batch in KafkaReader().read(order))


def consume_all(bootstrap: str) -> int:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(LOAD.name, 0, 0)])
    rows, deadline = 0, time.monotonic() + 120
    while rows < LOAD.records and time.monotonic() < deadline:
        rows += sum(message.error() is None for message in consumer.consume(10_000, 1.0))
    consumer.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--save", type=Path)
    arguments = parser.parse_args()
    machine = describe_machine((*PACKAGES, "confluent-kafka"))
    for name, value in machine.items():
        print(f"{name:<14} {value}")
    with LocalKafka(heap_mb=1024, progress=ProgressBar("Fetching Kafka")) as kafka:
        fill(kafka.bootstrap, LOAD)
        received = fetch_only(kafka.bootstrap)
        assert read_all(kafka.bootstrap) == consume_all(kafka.bootstrap) == LOAD.records
        sides = {
            "read": lambda: read_all(kafka.bootstrap),
            "fetch": lambda: fetch_only(kafka.bootstrap),
            "librdkafka": lambda: consume_all(kafka.bootstrap),
        }
        samples = take_turns(sides, runs=arguments.runs)
    print_ratios(
        f"one partition, {LOAD.records} records, {received / 1e6:.0f} MB on the wire", samples, "read", {}
    )
    print(f"  fetch  {received / samples['fetch'].median / 1e9:.2f} GB/s")
    print(
        f"  read   {received / samples['read'].median / 1e9:.2f} GB/s, "
        f"{LOAD.records / samples['read'].median / 1e6:.2f} M records/s"
    )
    if arguments.save:
        save(arguments.save, machine, {name: each.seconds for name, each in samples.items()})


if __name__ == "__main__":
    main()
