"""List, create, describe, widen and delete topics.

penstock topics list
penstock topics create test --partitions 3 --replication-factor 2
penstock topics create daily --partitions 3 --config retention.ms=86400000
penstock topics describe test
penstock topics widen test --partitions 6       a key may then go to another partition than before
penstock topics delete test --yes
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from penstock.cli.shared.kafka_arguments import (
    add_connection_arguments,
    add_json_argument,
    connect,
    connect_to_look,
    parse_pair,
)
from penstock.cli.shared.terminal import complain, escape, say
from penstock.cli.shared.text_tables import align
from penstock.core.errors import BrokerError, OptionError

if TYPE_CHECKING:
    from penstock.kafka.console.topic_details import TopicDetails

JSON_VERSION = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="list|create|describe|widen|delete", required=True)
    listing = verbs.add_parser("list", help="show the names of all topics")
    listing.add_argument("--internal", action="store_true", help="Kafka's own topics, too")
    create = verbs.add_parser("create", help="create a topic and wait until every partition has a leader")
    create.add_argument("topic")
    create.add_argument("--partitions", type=int, default=1, help="how many partitions (default 1)")
    create.add_argument(
        "--replication-factor", type=int, default=None, help="copies of each (default: the brokers' own)"
    )
    create.add_argument(
        "--config", action="append", default=[], metavar="NAME=VALUE", help="a setting of the topic"
    )
    create.add_argument("--if-not-exists", action="store_true", help="an existing topic is not an error")
    describe = verbs.add_parser("describe", help="show settings, leaders, replicas and replicas in sync")
    describe.add_argument("topics", nargs="+", metavar="TOPIC")
    widen = verbs.add_parser("widen", help="give a topic more partitions; there is no way back")
    widen.add_argument("topic")
    widen.add_argument("--partitions", type=int, required=True, help="how many it has afterwards")
    widen.add_argument(
        "--yes", action="store_true", help="even if its records have keys, which may then move"
    )
    delete = verbs.add_parser("delete", help="delete a topic with everything in it")
    delete.add_argument("topic")
    delete.add_argument("--yes", action="store_true", help="really; without it nothing is deleted")
    for verb in (listing, create, describe, widen, delete):
        add_json_argument(verb)
        add_connection_arguments(verb)


def run(arguments: argparse.Namespace) -> int:
    verbs = {"list": _list, "create": _create, "describe": _describe, "widen": _widen, "delete": _delete}
    return verbs[arguments.verb](arguments)


def _list(arguments: argparse.Namespace) -> int:
    from penstock.kafka.reading.kafka_log_view import KafkaLogView

    found = KafkaLogView(connect_to_look(arguments)).topics().values()
    shown = [topic for topic in found if arguments.internal or not topic.internal]
    if arguments.json:
        rows = [
            {"topic": topic.name, "partitions": len(topic.partitions), "internal": topic.internal}
            for topic in shown
        ]
        say(json.dumps({"version": JSON_VERSION, "topics": rows}, indent=1))
    else:
        for topic in shown:
            say(escape(topic.name))
    return 0


def _create(arguments: argparse.Namespace) -> int:
    _check_counts(arguments)
    configs = dict(parse_pair("--config", pair) for pair in arguments.config)
    settings = connect(arguments)
    from penstock.kafka.metadata.topic_admin import create_topic

    created = True
    try:
        create_topic(
            settings,
            arguments.topic,
            partitions=arguments.partitions,
            replication_factor=arguments.replication_factor,
            configs=configs,
        )
    except BrokerError as error:
        if error.condition != "TOPIC_ALREADY_EXISTS" or not arguments.if_not_exists:
            raise
        created = False
    if arguments.json:
        say(json.dumps({"version": JSON_VERSION, "topic": arguments.topic, "created": created}))
    elif created:
        say(f"Created topic {escape(arguments.topic)}.")
    else:
        say(f"Topic {escape(arguments.topic)} already exists; nothing was changed.")
    return 0


def _check_counts(arguments: argparse.Namespace) -> None:
    for option, count in (
        ("--partitions", arguments.partitions),
        ("--replication-factor", arguments.replication_factor),
    ):
        if count is not None and count < 1:
            # Below 1 Kafka uses the broker's default, so nobody would know what is created.
            raise OptionError(
                "COUNT_BELOW_ONE",
                f"{option} is {count}.",
                hint="Give a number, 1 or greater.",
                facts={"option": option, "count": count},
            )


def _describe(arguments: argparse.Namespace) -> int:
    from penstock.kafka.console.topic_details import describe_topics

    found = describe_topics(connect_to_look(arguments), arguments.topics)
    if arguments.json:
        say(json.dumps({"version": JSON_VERSION, "topics": [_to_json(topic) for topic in found]}, indent=1))
        return 0
    for topic in found:
        for line in _describe_one(topic):
            say(line)
    return 0


def _describe_one(topic: TopicDetails) -> list[str]:
    configs = ",".join(f"{name}={'***' if value is None else value}" for name, value in topic.configs.items())
    head = (
        f"Topic: {escape(topic.name)}  Partitions: {len(topic.partitions)}  "
        f"Replication factor: {topic.replication_factor}  Configs: {escape(configs) or '-'}"
    )
    rows = [
        (
            f"{each.partition}",
            "none" if each.leader is None else f"{each.leader}",
            ",".join(map(str, each.replicas)),
            ",".join(map(str, each.in_sync)) or "none",
        )
        for each in topic.partitions
    ]
    table = align(("partition", "leader", "replicas", "in sync"), rows, right={0})
    return [head, *(f"  {line}" for line in table)]


def _to_json(topic: TopicDetails) -> dict[str, object]:
    return {
        "topic": topic.name,
        "topic_id": None if topic.topic_id is None else topic.topic_id.hex(),
        "internal": topic.internal,
        "replication_factor": topic.replication_factor,
        "configs": dict(topic.configs),
        "partitions": [
            {
                "partition": each.partition,
                "leader": each.leader,
                "replicas": list(each.replicas),
                "in_sync": list(each.in_sync),
            }
            for each in topic.partitions
        ],
    }


def _widen(arguments: argparse.Namespace) -> int:
    from penstock.cli.shared.compilation_progress import DECODING, showing_compilation
    from penstock.kafka.console.topic_details import describe_topics, has_keys
    from penstock.kafka.metadata.topic_admin import create_partitions

    settings = connect(arguments)
    (before,) = describe_topics(settings, [arguments.topic])
    with showing_compilation(DECODING):
        keyed = has_keys(settings, arguments.topic)
    if keyed and not arguments.yes:
        raise OptionError(
            "KEYS_WOULD_MOVE",
            f"Records of topic {arguments.topic} have keys. With {arguments.partitions} partitions, not "
            f"{len(before.partitions)}, a key may go to another partition, and its order ends.",
            hint="Say --yes if no reader needs that order, or move to a new topic with more partitions.",
            facts={"topic": arguments.topic, "partitions": len(before.partitions)},
        )
    create_partitions(settings, arguments.topic, arguments.partitions)
    if keyed:
        complain("Warning: keys may now go to other partitions than before.")
    if arguments.json:
        say(
            json.dumps(
                {"version": JSON_VERSION, "topic": arguments.topic, "partitions": arguments.partitions}
            )
        )
    else:
        say(f"Topic {escape(arguments.topic)} has {arguments.partitions} partitions now.")
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    if not arguments.yes:
        raise OptionError(
            "NOT_CONFIRMED",
            f"Topic {arguments.topic} was not deleted: its records would be lost forever.",
            hint="Say --yes if you mean it.",
            facts={"topic": arguments.topic},
        )
    from penstock.kafka.metadata.topic_admin import delete_topic

    delete_topic(connect(arguments), arguments.topic)
    if arguments.json:
        say(json.dumps({"version": JSON_VERSION, "topic": arguments.topic, "deleted": True}))
    else:
        say(f"Deleted topic {escape(arguments.topic)}.")
    return 0
