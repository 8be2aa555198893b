"""Topics as an operator sees them: leaders, replicas, replicas in sync, changed settings.

Rule: everything shown is asked for now, from one broker, in one request for all topics; no cached data is
mixed in. Why not use the map that reading uses (`cluster_map`): it keeps only leaders, and for minutes.

    describe_topics(settings, ["orders"])[0].partitions[0].in_sync
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import BrokerError
from penstock.core.model import At, RangeOrder, TopicPartition, WorkOrder
from penstock.kafka.metadata.broker_errors import LEADER_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION, refusal
from penstock.kafka.metadata.routing import routing_for
from penstock.kafka.metadata.topic_admin import read_topic_configs
from penstock.kafka.reading.kafka_log_view import KafkaLogView
from penstock.kafka.reading.kafka_reader import KafkaReader
from penstock.kafka.transport.deadlines import Deadline
from penstock.kafka.transport.protocol_messages import MetadataRequest

_LOOKED_AT = 100  # offsets to inspect at the end of each partition
_BUILT_IN_DEFAULT = 5  # Kafka's number for "never set"


@dataclass(frozen=True, slots=True)
class PartitionReplicas:
    """One partition's replicas. `leader` is None while there is none."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicDetails:
    """One topic. `configs` are those set explicitly, on the topic or for the broker; secret ones are None."""

    name: str
    topic_id: bytes | None
    internal: bool
    partitions: tuple[PartitionReplicas, ...]
    configs: Mapping[str, str | None]

    @property
    def replication_factor(self) -> int:
        """Return the number of replicas of the first partition; others may be under reassignment."""
        return len(self.partitions[0].replicas) if self.partitions else 0


def describe_topics(settings: ClientSettings, names: Collection[str]) -> list[TopicDetails]:
    """Return the named topics, sorted by name; raise if one does not exist."""
    deadline = Deadline.of_call(settings)
    wanted = sorted(set(names))

    def build() -> Any:
        entries = [MetadataRequest.MetadataRequestTopic(name=name) for name in wanted]
        return MetadataRequest(topics=entries, allow_auto_topic_creation=False)

    response, broker = routing_for(settings).call_any(build, deadline)
    found = {topic.name: topic for topic in response.topics}
    missing = [name for name in wanted if found[name].error_code == UNKNOWN_TOPIC_OR_PARTITION]
    if missing:
        raise BrokerError(
            "UNKNOWN_TOPIC",
            f"The brokers know no topic named {', '.join(missing)}.",
            hint="Correct the name (case matters), create it, or allow this user to describe it.",
            facts={"missing": missing},
        )
    for name in wanted:
        if found[name].error_code not in (0, LEADER_NOT_AVAILABLE):
            raise refusal(found[name].error_code, "Metadata", broker, f"topic {name}")
    configs = read_topic_configs(settings, wanted, deadline)
    return [_read_topic(found[name], configs[name]) for name in wanted]


def has_keys(settings: ClientSettings, topic: str) -> bool:
    """Return whether any of the last records of the topic's partitions has a key."""
    view = KafkaLogView(settings)
    partitions = [TopicPartition(topic, number) for number in view.describe([topic])[topic].partitions]
    starts, ends = view.earliest(partitions), view.latest(partitions)
    ranges = tuple(
        RangeOrder(topic, each.partition, At(max(starts[each], ends[each] - _LOOKED_AT)), At(ends[each]))
        for each in partitions
        if starts[each] < ends[each]
    )
    order = WorkOrder(ranges, settings, ("key",), fail_on_data_loss=False)
    return any(batch.column("key").null_count < batch.num_rows for batch in KafkaReader().read(order))


def _read_topic(topic: Any, configs: Collection[Any]) -> TopicDetails:
    partitions = tuple(
        PartitionReplicas(
            part.partition_index,
            part.leader_id if part.leader_id >= 0 else None,
            tuple(part.replica_nodes),
            tuple(part.isr_nodes),
        )
        for part in sorted(topic.partitions, key=lambda part: int(part.partition_index))
    )
    topic_id = topic.topic_id.bytes if topic.topic_id else None
    changed = {
        config.name: config.value
        for config in sorted(configs, key=lambda each: str(each.name))
        if config.config_source != _BUILT_IN_DEFAULT
    }
    return TopicDetails(topic.name, topic_id, bool(topic.is_internal), partitions, changed)
