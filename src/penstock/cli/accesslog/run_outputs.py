"""The outputs of a run: blocklists, the topic of decisions, a webhook.

Rule: the database is the truth, and outputs follow it. Nothing goes out before its batch is known to be
committed. An output that fails is retried after each batch. Meanwhile the live line names it, and a run that
ends before the output has caught up exits with 1. An output sends later what it has missed: after a failure,
after the first batch of a run, and after a batch that took more than one attempt, it compares itself with the
whole database instead of trusting what the batch brought.

    output = make_blocklist_output(writer)
    pipeline.add_listener(output.follow)
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.shared.kafka_arguments import connect
from penstock.cli.shared.option_texts import resolve
from penstock.cli.shared.terminal import complain_dated, escape
from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from penstock.apps.accesslog.blocking.blocklist_files import BlocklistWriter
    from penstock.apps.accesslog.blocking.decisions_topic import DecisionsTopic
    from penstock.apps.accesslog.monitoring.alert_delivery import AlertSender
    from penstock.apps.accesslog.stream.pipeline import BatchNews
    from penstock.apps.accesslog.stream.pipeline_settings import PipelineSettings
    from penstock.core.client.client_settings import ClientSettings
    from penstock.core.options.storage_addresses import Place

#: How long unreachable brokers hold up a batch, or the end of a run: less than a service is given to stop.
TOPIC_PATIENCE_MS = 15_000
#: Brings an output up to date. It gets None if it must compare itself with the whole database.
Act = Callable[["BatchNews | None"], object]


class Output:
    """One output. `trouble` is the condition that it failed with, None while it is up to date."""

    def __init__(self, name: str, act: Act, conclude: Callable[[], object] | None = None) -> None:
        self.name = name
        self.trouble: str | None = None
        self._act = act
        self._conclude = conclude
        self._told = ""
        self._is_behind = True  # an earlier run may have committed what it could no longer send

    def follow(self, news: BatchNews) -> None:
        """Act on a batch that is committed. A failure is reported once, and the next batch tries again."""
        news_or_all = None if self._is_behind or news.was_repeated else news
        self._run(lambda: self._act(news_or_all))

    def finish(self) -> None:
        """Retry what has failed, once, and wait for what is in flight. No batch follows after this."""
        if self.trouble is not None:
            self._run(lambda: self._act(None))
        if self._conclude is not None:
            self._run(self._conclude)

    def _run(self, step: Callable[[], object]) -> None:
        self._is_behind = True
        try:
            step()
        except PenstockError as error:
            self.trouble = error.condition
            if str(error) != self._told:
                complain_dated(str(error))
            self._told = str(error)
            return
        if self.trouble is not None:
            complain_dated(f"The {self.name}: up to date again.")
        self.trouble, self._told, self._is_behind = None, "", False


def list_troubles(outputs: Sequence[Output]) -> list[str]:
    """Return a few words for each output that is behind."""
    return [f"{each.name} not up to date [{each.trouble}]" for each in outputs if each.trouble is not None]


def finish(outputs: Sequence[Output]) -> int:
    """Retry what has failed, once, and return the exit code: 1 if an output is still behind, else 0."""
    for each in outputs:
        each.finish()
    for words in list_troubles(outputs):
        complain_dated(f"The run ends with {words}; the next one brings it up to date.")
    return 1 if list_troubles(outputs) else 0


def open_outputs(stack: ExitStack, arguments: argparse.Namespace, settings: PipelineSettings) -> list[Output]:
    """Return the requested outputs. One that cannot work at all is an error now."""
    found = (
        open_one(stack, arguments, settings) for open_one in (_open_blocklists, _open_topic, _open_webhook)
    )
    return [each for each in found if each is not None]


def _open_blocklists(
    _stack: ExitStack, arguments: argparse.Namespace, settings: PipelineSettings
) -> Output | None:
    if arguments.blocklist_dir is None:
        return None
    from penstock.apps.accesslog.blocking.blocklist_files import BlocklistWriter, demand_place

    formats = tuple(arguments.blocklist_format) or ("text", "json")
    demand_place(Path(arguments.blocklist_dir))
    writer = BlocklistWriter(settings.place, arguments.blocklist_dir, settings.gate, formats)
    for sentence in _describe_left(Path(arguments.blocklist_dir), formats):
        complain_dated(sentence)
    return make_blocklist_output(writer)


def _describe_left(folder: Path, formats: Sequence[str]) -> Iterator[str]:
    """Yield a warning for each list of an earlier run that this one does not write."""
    from penstock.apps.accesslog.blocking.blocklist_formats import FORMATS

    for name, each in FORMATS.items():
        if name not in formats and (folder / each.file_name).exists():
            path = escape(str(folder / each.file_name))
            yield (
                f"WARNING [BLOCKLIST_LEFT] {path} is from an earlier run, and this one does not keep it up "
                f"to date. Add --blocklist-format {name}, or remove the file and "
                "whatever loads it."
            )


def make_blocklist_output(writer: BlocklistWriter) -> Output:
    """Return an output that keeps the writer's files up to date."""

    def act(news: BatchNews | None) -> None:
        writer.refresh(has_new_decisions=news is None or bool(news.decisions.num_rows))

    return Output("blocklists", act)


def _open_topic(stack: ExitStack, arguments: argparse.Namespace, settings: PipelineSettings) -> Output | None:
    if arguments.decisions_topic is None:
        return None
    client = replace(connect(arguments), client_id="penstock-decisions")
    topic = stack.enter_context(closing(make_topic(settings.place, client, arguments.decisions_topic)))
    topic.demand_topic()
    topic.send()  # what an earlier run has stored but not sent
    return make_topic_output(topic)


def make_topic(place: Place, client: ClientSettings, name: str) -> DecisionsTopic:
    """Return a sender of decisions that waits no longer for brokers than a run can afford."""
    from penstock.apps.accesslog.blocking.decisions_topic import DecisionsTopic

    return DecisionsTopic(place, client, name, patience_ms=TOPIC_PATIENCE_MS)


def make_topic_output(topic: DecisionsTopic) -> Output:
    """Return an output that sends decisions to their topic."""

    def act(news: BatchNews | None) -> None:
        if news is None:
            topic.send()
        elif news.decisions.num_rows:
            topic.send_these(news.decisions)

    return Output("decisions topic", act)


def _open_webhook(
    stack: ExitStack, arguments: argparse.Namespace, settings: PipelineSettings
) -> Output | None:
    if arguments.webhook is None:
        return None
    from penstock.apps.accesslog.monitoring.alert_delivery import AlertSender
    from penstock.apps.accesslog.monitoring.alert_webhook import Webhook

    webhook = Webhook(resolve("--webhook", arguments.webhook))
    sender = stack.enter_context(closing(AlertSender(settings.place, webhook)))
    sender.send()
    return make_webhook_output(sender)


def make_webhook_output(sender: AlertSender) -> Output:
    """Return an output that hands alerts to the sender."""

    def act(news: BatchNews | None) -> None:
        sender.send(has_new_alerts=news is None or bool(news.alerts.num_rows))

        sender.check()

    return Output("webhook", act, sender.finish)
