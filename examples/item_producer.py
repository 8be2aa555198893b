"""Sends the actions of items to a topic, one after the other, and prints where each went.

    penstock topics create test --partitions 3
    python item_producer.py --bootstrap-server localhost:9092 --rounds 2

The key is the item, because what happens to one item must stay whole and in order: a key always goes to the
same partition, and a partition keeps its order. With three partitions item1 goes to 1, item2 to 0, item3 to
2. That holds while the number of partitions stays as it is: after partitions were added, an item goes on in
another partition, and its older actions stay where they were.

Each send is awaited before the next. That gives a strict order and a known offset, but costs throughput: a
producer that must not wait hands over many records and looks at the answers later. The program runs until its
rounds are done, or SIGINT (Ctrl-C) or SIGTERM comes, and closes its producer either way.
"""

from __future__ import annotations

import argparse
import signal
import threading

from kafka import KafkaProducer
from kafka.serializer import DefaultSerializer

ITEMS = (1, 2, 3)
ACTIONS = (1, 2, 3)
ACKNOWLEDGED_WITHIN_S = 30


def send_round(producer: KafkaProducer, topic: str, stopped: threading.Event) -> None:
    """Send each action of every item, so that every item gets its first action before any gets its second."""
    for action in ACTIONS:
        for item in ITEMS:
            if stopped.is_set():
                return
            key, value = f"item{item}", f"action{action}"
            placed = producer.send(topic, key=key, value=value).get(ACKNOWLEDGED_WITHIN_S)
            print(f"{key} {value} partition: {placed.partition}, offset: {placed.offset}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bootstrap-server", default="localhost:9092", help="brokers, separated by commas")
    parser.add_argument("--topic", default="test")
    parser.add_argument("--rounds", type=int, default=None, help="end after this many (default: never)")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two rounds (default 0)")
    arguments = parser.parse_args()

    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    producer = KafkaProducer(
        bootstrap_servers=arguments.bootstrap_server.split(","),
        key_serializer=DefaultSerializer(),  # text
        value_serializer=DefaultSerializer(),
        acks="all",
    )
    try:
        done = 0
        while not stopped.is_set() and done != arguments.rounds:
            if done:
                stopped.wait(arguments.pause)
            send_round(producer, arguments.topic, stopped)
            done += 1
    finally:
        producer.close()
    print("closed", flush=True)


if __name__ == "__main__":
    main()
