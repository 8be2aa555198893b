"""`penstock topics` against a real broker."""

from __future__ import annotations

import secrets
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from penstock.kafka.records.murmur2_kernel import partition_of_keys
from penstock.kernels.byte_columns import byte_column
from tests.support.console import Run, read_json
from tests.support.kafka.topic_filling import commit_offsets, produce


def test_a_topic_is_created_listed_described_and_deleted(kafka: Any, penstock: Run) -> None:
    """A6, A8, A20, I31, I32: with explicit counts and settings, which another client sees unchanged."""
    name = f"test-{secrets.token_hex(4)}"
    configs = {"segment.bytes": "104857600", "cleanup.policy": "compact", "compression.type": "producer"}
    pairs = [part for key, value in configs.items() for part in ("--config", f"{key}={value}")]
    created = penstock("topics", "create", name, "--partitions", "3", "--replication-factor", "1", *pairs)
    assert created == f"Created topic {name}.\n"

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    found = admin.list_topics(name, timeout=30).topics[name]
    assert {number: len(each.replicas) for number, each in found.partitions.items()} == {0: 1, 1: 1, 2: 1}
    resource = ConfigResource(ResourceType.TOPIC, name)
    kept = admin.describe_configs([resource])[resource].result(timeout=30)
    assert {key: kept[key].value for key in configs} == configs

    assert name in penstock("topics", "list").splitlines()
    head, *table = penstock("topics", "describe", name).splitlines()
    assert head.startswith(f"Topic: {name}  Partitions: 3  Replication factor: 1  Configs: ")
    assert set(head.partition("Configs: ")[2].split(",")) >= {
        f"{key}={value}" for key, value in configs.items()
    }
    assert [line.split() for line in table[1:]] == [[str(number), "1", "1", "1"] for number in range(3)]

    refused = penstock("topics", "delete", name, code=1)
    assert refused.startswith("[NOT_CONFIRMED] ")
    assert name in penstock("topics", "list").splitlines()
    assert penstock("topics", "delete", name, "--yes") == f"Deleted topic {name}.\n"
    assert name not in penstock("topics", "list").splitlines()
    assert penstock("topics", "delete", name, "--yes", code=1).startswith("[UNKNOWN_TOPIC_OR_PARTITION] ")
    assert penstock("topics", "describe", name, code=1).startswith("[UNKNOWN_TOPIC] ")


def test_a_topic_that_is_there_is_an_error_unless_that_is_allowed(penstock: Run, topic: Any) -> None:
    name = topic(2)
    assert penstock("topics", "create", name, code=1).startswith("[TOPIC_ALREADY_EXISTS] ")
    assert "nothing was changed" in penstock("topics", "create", name, "--if-not-exists", "--partitions", "7")
    (described,) = read_json(penstock("topics", "describe", name, "--json"))["topics"]
    assert len(described["partitions"]) == 2


@pytest.mark.parametrize(
    ("arguments", "condition"),
    [
        (["bad name"], "INVALID_TOPIC_EXCEPTION"),
        (["t", "--replication-factor", "3"], "INVALID_REPLICATION_FACTOR"),
        (["t", "--replication-factor", "0"], "COUNT_BELOW_ONE"),
        (["t", "--partitions", "-1"], "COUNT_BELOW_ONE"),
        (["t", "--config", "retention.ms"], "PAIR_EXPECTED"),
        (["t", "--config", "retention.ms=soon"], "INVALID_CONFIG"),
    ],
)
def test_what_cannot_be_created_is_said(penstock: Run, arguments: list[str], condition: str) -> None:
    assert penstock("topics", "create", *arguments, code=1).startswith(f"[{condition}] ")


def test_kafkas_own_topics_are_listed_only_on_request(kafka: Any, penstock: Run, topic: Any) -> None:
    """A17, A18: `__consumer_offsets` appears with the first commit, compacted, in 50 partitions."""
    commit_offsets(kafka.bootstrap, f"g-{secrets.token_hex(4)}", topic(), 0)
    assert "__consumer_offsets" not in penstock("topics", "list").splitlines()
    assert "__consumer_offsets" in penstock("topics", "list", "--internal").splitlines()
    listed = read_json(penstock("topics", "list", "--internal", "--json"))["topics"]
    assert {"topic": "__consumer_offsets", "partitions": 50, "internal": True} in listed
    (described,) = read_json(penstock("topics", "describe", "__consumer_offsets", "--json"))["topics"]
    assert described["internal"]
    assert (
        described["configs"].items()
        >= {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": "104857600",
        }.items()
    )


def test_a_topic_with_keys_is_not_widened_in_passing(kafka: Any, penstock: Run, topic: Any) -> None:
    """B7: a key stays in its partition only while their number is the same; item3 moves from 2 to another."""
    keyed, keyless = topic(3), topic(3)
    item3 = byte_column(pa.array([b"item3"]))
    assert [int(partition_of_keys(item3, count)[0]) for count in (3, 4)] == [2, 1]
    produce(kafka.bootstrap, keyed, [b"action1"], partition=2, key=b"item3")
    produce(kafka.bootstrap, keyless, [b"greeting"], partition=2)
    assert penstock("topics", "widen", keyed, "--partitions", "4", code=1).startswith("[KEYS_WOULD_MOVE] ")
    assert "has 4 partitions now" in penstock("topics", "widen", keyless, "--partitions", "4")
    assert penstock("topics", "widen", keyless, "--partitions", "2", code=1).startswith(
        "[INVALID_PARTITIONS] "
    )
    assert "has 4 partitions now" in penstock("topics", "widen", keyed, "--partitions", "4", "--yes")
    described = read_json(penstock("topics", "describe", keyed, keyless, "--json"))["topics"]
    assert [len(each["partitions"]) for each in described] == [4, 4]
