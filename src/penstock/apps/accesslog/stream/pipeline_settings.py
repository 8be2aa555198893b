"""The settings of the pipeline, checked before anything starts.

Rule: a wrong setting is a one-sentence error when the settings are made, not a failed task an hour later. The
settings are complete: the same ones on the same log lead to the same decisions.

>>> PipelineSettings("log", "results.db", {"bootstrap.servers": "b:9092"}, lateness="2s").lateness_us
2000000
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from penstock.apps.accesslog.blocking.blocklists import Gate
from penstock.apps.accesslog.defence.defence_settings import DefenceSettings
from penstock.apps.accesslog.detection.rule_set import RuleSet, default_rules
from penstock.apps.accesslog.events.networks import demand_network
from penstock.apps.accesslog.monitoring.load_counting import MonitorSettings
from penstock.apps.accesslog.parsing.line_parser import make_parser
from penstock.apps.accesslog.stream.line_stage import Tools
from penstock.core.client.client_settings import ClientSettings
from penstock.core.client.java_settings import parse_client
from penstock.core.errors import OptionError
from penstock.core.offsets.offset_store_contract import check_stream_name
from penstock.core.options.option_table import invalid
from penstock.core.options.option_values import parse_duration_ms
from penstock.core.options.secret_references import resolve_reference
from penstock.core.options.storage_addresses import GivenPlace, Place, as_place

ISOLATION = "isolation.level"
STARTS = ("earliest", "latest")
_MOST_LANES = 1024


@dataclass(frozen=True)
class PipelineSettings:
    """The settings of a pipeline.

    `kafka` holds Kafka's own settings. A partition that is read to its end and had no line for `idle_after`
    is not waited for; None means to wait forever. `most_lines` bounds a batch. `rules` are files or folders
    to use instead of the rules that come with Penstock. `name` is the stream's name in the database.
    `outage_timeout` is how long to wait for unreachable brokers or an unreachable database. `block_private`
    also blocks private, loopback and link-local addresses.
    """

    topic: str
    database: GivenPlace = field(repr=False)  # may hold a password
    kafka: Mapping[str, str] = field(repr=False)
    name: str = "accesslog"
    log_format: str = "auto"
    interval: str = "1s"
    lateness: str = "1s"
    idle_after: str | None = "5s"
    start: str = "earliest"
    trusted_proxies: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    trust_crawlers: bool = True
    block_private: bool = False
    rules: tuple[str | Path, ...] = ()
    lanes: int = 16
    most_lines: int = 2_000_000
    monitoring: MonitorSettings = field(default_factory=MonitorSettings)
    outage_timeout: str = "15m"

    def __post_init__(self) -> None:
        for key in ("trusted_proxies", "allow", "rules"):
            given = getattr(self, key)
            object.__setattr__(self, key, (given,) if isinstance(given, str | Path) else tuple(given))
        check_stream_name(self.name)
        if not self.topic.strip() or "," in self.topic:
            raise invalid("topic", self.topic, "the name of one topic")
        if self.start not in STARTS:
            raise invalid("start", self.start, " or ".join(f"`{each}`" for each in STARTS))
        for key, most in (("lanes", _MOST_LANES), ("most_lines", 1 << 31)):
            number = getattr(self, key)
            if not isinstance(number, int) or not 1 <= number <= most:
                raise invalid(key, str(number), f"a whole number from 1 to {most}")
        for each in (*self.trusted_proxies, *self.allow):
            demand_network("allow" if each in self.allow else "trusted_proxies", each)
        if self.kafka.get(ISOLATION, "read_committed") != "read_committed":
            raise OptionError(
                "OPTION_CONFLICT",
                f"`{ISOLATION}` is {self.kafka[ISOLATION]!r}; the pipeline reads committed lines only.",
                hint="Leave it out: lines of an aborted transaction must not be counted.",
                facts={"option": ISOLATION},
            )
        _read_duration_us("outage_timeout", self.outage_timeout)
        _ = self.place, self.lateness_us, self.idle_after_us, self.tools

    @cached_property
    def place(self) -> Place:
        return as_place(self.database)

    @cached_property
    def lateness_us(self) -> int:
        return _read_duration_us("lateness", self.lateness)

    @cached_property
    def idle_after_us(self) -> int | None:
        return None if self.idle_after is None else _read_duration_us("idle_after", self.idle_after)

    @cached_property
    def consumer(self) -> dict[str, str]:
        """Return Kafka's settings for the stream."""
        return {**self.kafka, ISOLATION: "read_committed", "auto.offset.reset": self.start}

    @property
    def client(self) -> ClientSettings:
        """Return the settings of the driver's own client, with references to secrets resolved."""

        def read_file(path: str) -> str:
            return Path(path).read_text(encoding="utf-8")

        texts = {
            key: resolve_reference(key, text, environ=os.environ, read_file=read_file)
            for key, text in self.consumer.items()
            if key != "auto.offset.reset"
        }
        return parse_client(texts, read_file=read_file).settings

    @cached_property
    def gate(self) -> Gate:
        """Return what keeps spared addresses out of the blocklists."""
        return Gate.of(
            allow=self.allow,
            trusted_proxies=self.trusted_proxies,
            trust_crawlers=self.trust_crawlers,
            block_private=self.block_private,
        )

    @cached_property
    def tools(self) -> Tools:
        """Return what the stages work with."""
        defence = DefenceSettings(
            RuleSet.load(*self.rules) if self.rules else default_rules(),
            stream=self.name,
            lanes=self.lanes,
            lateness_us=self.lateness_us,
            allow=self.allow,
            trusted_proxies=self.trusted_proxies,
            trust_crawlers=self.trust_crawlers,
            block_private=self.block_private,
        )
        parser = make_parser(self.log_format, self.trusted_proxies)
        return Tools(self.topic, parser, defence, self.monitoring)


def _read_duration_us(key: str, text: str) -> int:
    try:
        return parse_duration_ms(text) * 1000
    except ValueError as error:
        raise invalid(key, text, str(error)) from None
