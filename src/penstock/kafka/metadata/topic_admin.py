"""Creates, enlarges and deletes topics, and reads their settings.

Rule: each function returns once every broker shows the change, or raises with the broker's own
reason: a topic that "was created" but cannot be described yet has made many a test unreliable.
Why so small: administration has its own tools; what reads and writes data should hold few rights.

    create_topic(settings, "orders", partitions=4)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import BrokerError
from penstock.kafka.metadata.broker_errors import refusal
from penstock.kafka.metadata.routing import routing_for
from penstock.kafka.transport.deadlines import Deadline
from penstock.kafka.transport.protocol_messages import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    MetadataRequest,
)
from penstock.kafka.transport.retries import Attempts

_TOPIC = 2  # Kafka's number for "this resource is a topic"


def create_topic(
    settings: ClientSettings,
    name: str,
    *,
    partitions: int = 1,
    replication_factor: int | None = 1,
    configs: Mapping[str, str] | None = None,
) -> None:
    """Create a topic and wait until every partition has a leader.

    `replication_factor=None` leaves it to the brokers' default.
    """
    topic = CreateTopicsRequest.CreatableTopic

    def build() -> Any:
        return CreateTopicsRequest(
            topics=[
                topic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=-1 if replication_factor is None else replication_factor,
                    assignments=[],
                    configs=[
                        topic.CreatableTopicConfig(name=key, value=value)
                        for key, value in (configs or {}).items()
                    ],
                )
            ],
            timeout_ms=settings.request_timeout_ms,
            validate_only=False,
        )

    deadline = Deadline.of_call(settings)
    response, broker = routing_for(settings).call_controller(
        build, deadline, lambda response: int(response.topics[0].error_code)
    )
    answer = response.topics[0]
    if answer.error_code:
        raise refusal(answer.error_code, "CreateTopics", broker, f"topic {name}", answer.error_message)
    _wait_everywhere(settings, name, partitions, deadline)


def delete_topic(settings: ClientSettings, name: str) -> None:
    """Delete a topic and wait until the metadata no longer has it."""

    def build() -> Any:
        state = DeleteTopicsRequest.DeleteTopicState(name=name)
        return DeleteTopicsRequest(topics=[state], topic_names=[name], timeout_ms=settings.request_timeout_ms)

    deadline = Deadline.of_call(settings)
    routing = routing_for(settings)
    response, broker = routing.call_controller(build, deadline)
    answer = response.responses[0]
    if answer.error_code:
        message = getattr(answer, "error_message", None)
        raise refusal(answer.error_code, "DeleteTopics", broker, f"topic {name}", message)
    _wait_everywhere(settings, name, 0, deadline)


def create_partitions(settings: ClientSettings, name: str, count: int) -> None:
    """Raise a topic's number of partitions to `count` and wait until they have leaders."""

    def build() -> Any:
        topic = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
        return CreatePartitionsRequest(
            topics=[topic], timeout_ms=settings.request_timeout_ms, validate_only=False
        )

    deadline = Deadline.of_call(settings)
    response, broker = routing_for(settings).call_controller(
        build, deadline, lambda response: int(response.results[0].error_code)
    )
    answer = response.results[0]
    if answer.error_code:
        raise refusal(answer.error_code, "CreatePartitions", broker, f"topic {name}", answer.error_message)
    _wait_everywhere(settings, name, count, deadline)


def describe_topic_configs(
    settings: ClientSettings, name: str, deadline: Deadline | None = None
) -> Mapping[str, str | None]:
    """Return all settings of a topic; secret ones have no value."""
    found = read_topic_configs(settings, [name], deadline or Deadline.of_call(settings))
    return {config.name: config.value for config in found[name]}


def read_topic_configs(
    settings: ClientSettings, names: Collection[str], deadline: Deadline
) -> dict[str, list[Any]]:
    """Return all settings of some topics, each as a broker reports it: name, value, source."""

    def build() -> Any:
        resource = DescribeConfigsRequest.DescribeConfigsResource
        return DescribeConfigsRequest(
            resources=[
                resource(resource_type=_TOPIC, resource_name=name, configuration_keys=None) for name in names
            ]
        )

    response, broker = routing_for(settings).call_any(build, deadline)
    for answer in response.results:
        if answer.error_code:
            topic = f"topic {answer.resource_name}"
            raise refusal(answer.error_code, "DescribeConfigs", broker, topic, answer.error_message)
    return {answer.resource_name: answer.configs for answer in response.results}


def find_message_limit(settings: ClientSettings, name: str, deadline: Deadline | None = None) -> int | None:
    """Return the largest batch that a topic takes, in bytes; None where the brokers refuse to say.

    Raise on a failure that may pass. The limit is not needed to write, so a writer goes on without it.
    """
    try:
        limit = describe_topic_configs(settings, name, deadline).get("max.message.bytes")
    except BrokerError as error:
        if error.retriable:
            raise
        return None  # no right to ask, or the broker does not know the request
    return None if limit is None else int(limit)


def _wait_everywhere(settings: ClientSettings, name: str, partitions: int, deadline: Deadline) -> None:
    """Wait until every broker shows that many partitions with leaders: they learn of a change one by one."""
    routing = routing_for(settings)
    attempts = Attempts(deadline, f"all brokers to show topic {name}", settings.retry_backoff_ms)
    for _ in attempts:
        with attempts.forgiving():
            if all(
                _count_led(routing.call(_metadata_of(name), *address, deadline)) == partitions
                for address in routing.brokers(deadline).values()
            ):
                routing.describe(name, deadline)  # also replaces what this process remembers of the name
                return
    raise attempts.given_up()


def _metadata_of(name: str) -> Any:
    topic = MetadataRequest.MetadataRequestTopic(name=name)
    return MetadataRequest(topics=[topic], allow_auto_topic_creation=False)


def _count_led(response: Any) -> int:
    return sum(part.leader_id >= 0 for topic in response.topics for part in topic.partitions)


def topic_exists(settings: ClientSettings, name: str) -> bool:
    return routing_for(settings).describe(name, Deadline.of_call(settings)) is not None
