"""The options that all commands share: which Kafka a command talks to, and how.

Rule: the same settings in the same words everywhere: Kafka's own names, from a properties file as Kafka's
tools take it, or one by one. The last one wins: file, `--set`, `--bootstrap-server`. Without an address the
running cluster of `penstock cluster up` is used, and if there is none, that is an error: no command guesses
`localhost:9092`, where an unrelated broker may listen.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from penstock.cli.shared.option_texts import read_file, resolve
from penstock.cli.shared.terminal import complain
from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import BrokerError, OptionError
from penstock.core.options.option_values import INT32_MAX, parse_integer

#: Settings of Java's consumer and producer for which a command has its own option.
_OWN_OPTIONS = {
    "auto.offset.reset": "Say `--from-beginning`, `--offset` or `--from-time` to `penstock consume`.",
    "enable.auto.commit": "`penstock consume` commits what it has printed when it is given a `--group`.",
}
_SERVERS = "bootstrap.servers"
LIMIT = "default.api.timeout.ms"
#: How long a read-only command waits for brokers that do not answer, unless default.api.timeout.ms is set: to
#: a person, a minute without output is a hang.
LOOK_TIMEOUT_MS = 10_000
#: The title of these options in a help text.
TITLE = "which Kafka"


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    shared = parser.add_argument_group(TITLE)
    shared.add_argument(
        "--bootstrap-server",
        metavar="HOST:PORT",
        default=None,
        help="one broker is enough, several are separated by commas (default: the running local cluster)",
    )
    shared.add_argument(
        "--command-config",
        metavar="FILE",
        type=Path,
        default=None,
        help="a properties file with Kafka's client settings",
    )
    shared.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="one of Kafka's client settings; ${env:NAME} and ${file:/path} keep a secret off this line",
    )


def add_json_argument(parser: argparse.ArgumentParser, what: str = "one JSON object") -> None:
    parser.add_argument("--json", action="store_true", help=f"for programs: {what}")


def parse_pair(option: str, text: str) -> tuple[str, str]:
    """Return the name and value of `name=value`, for an option that may be given several times."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        # The setting may be a secret, so the part after the sign is not shown.
        shown = name.strip() if not equals else "=..." if option == "--set" else text
        raise OptionError(
            "PAIR_EXPECTED",
            f"{option} is given `{shown}`, which is not NAME=VALUE.",
            hint="Write the name, an equals sign and the value, without spaces around the sign.",
            facts={"option": option},
        )
    return name.strip(), value


def parse_partition_number(text: str) -> int:
    """Return the number of a partition, for an argument of a command."""
    try:
        return parse_integer(text, least=0, most=INT32_MAX)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not {error}") from None


def gather_settings(arguments: argparse.Namespace) -> dict[str, str]:
    """Return texts by Kafka's names, from the file, `--set` and `--bootstrap-server`, references resolved."""
    from penstock.core.client.properties_file import parse_properties
    from penstock.core.options.secret_references import read_option_file

    texts: dict[str, str] = {}
    if arguments.command_config is not None:
        texts |= parse_properties(
            read_option_file("--command-config", str(arguments.command_config), read_file)
        )
    for pair in arguments.set:
        name, value = parse_pair("--set", pair)
        texts[name.removeprefix("kafka.")] = value
    if arguments.bootstrap_server is not None:
        texts[_SERVERS] = arguments.bootstrap_server
    for name in texts.keys() & _OWN_OPTIONS.keys():
        raise OptionError(
            "SETTING_HAS_OWN_OPTION",
            f"The setting {name} has no place here.",
            hint=f"Leave it out. {_OWN_OPTIONS[name]}",
            facts={"setting": name},
        )
    if _SERVERS not in texts:
        texts[_SERVERS] = _find_local_cluster()
    return {name: resolve(name, text) for name, text in texts.items()}


def read_settings(texts: dict[str, str]) -> ClientSettings:
    """Return the parsed settings; report those without effect on stderr."""
    from penstock.core.client.java_settings import parse_client

    parsed = parse_client(texts, read_file=read_file)
    for warning in parsed.warnings:
        complain(f"Warning: {warning}")
    return parsed.settings


def connect(arguments: argparse.Namespace) -> ClientSettings:
    return read_settings(gather_settings(arguments))


def connect_to_look(arguments: argparse.Namespace) -> ClientSettings:
    """Return the settings for a command that changes nothing, which waits less long."""
    texts = gather_settings(arguments)
    settings = read_settings(texts)
    return settings if LIMIT in texts else replace(settings, default_api_timeout_ms=LOOK_TIMEOUT_MS)


def demand_topic(client: ClientSettings, topic: str) -> None:
    """Raise UNKNOWN_TOPIC unless the brokers know the topic."""
    from penstock.kafka.metadata.topic_admin import topic_exists

    if not topic_exists(client, topic):
        raise BrokerError(
            "UNKNOWN_TOPIC",
            f"The brokers know no topic named {topic}.",
            hint=f"Correct the name (case matters), or run `penstock topics create {topic}`.",
            facts={"missing": [topic]},
        )


def _find_local_cluster() -> str:
    from penstock.cluster.kafka.detached_cluster import find_all

    alive = {cluster.name: cluster.bootstrap for cluster in find_all() if cluster.is_alive}
    if "default" in alive:
        if len(alive) > 1:
            others = ", ".join(f"{name} at {where}" for name, where in alive.items() if name != "default")
            complain(
                f"Using the local cluster default at {alive['default']}. Also running: {others} "
                "(--bootstrap-server chooses)."
            )
        return alive["default"]
    if len(alive) == 1:
        return next(iter(alive.values()))
    known = (
        f"These local clusters run: {', '.join(f'{k} at {v}' for k, v in alive.items())}. " if alive else ""
    )
    raise OptionError(
        "NO_BOOTSTRAP_SERVER",
        "No broker is named, and " + ("several local clusters run." if alive else "no local cluster runs."),
        hint=f"{known}Say --bootstrap-server HOST:PORT, or start one with `penstock cluster up`.",
        facts={"clusters": sorted(alive)},
    )
