"""Explains why clients that a rule wanted blocked were spared, and what can be done about it.

Rule: every client's cause is named, and advice is given only if it has not been followed yet. Operators who
have named their proxy and are told to name it would rightly doubt the program. Where several causes apply,
what the operator has said comes before what is spared by default.

>>> Sparing(trusted_proxies=("10.0.0.0/8",)).describe(["10.1.1.1"]).partition(". ")[0]
'1 client spared that a rule wanted blocked: 10.1.1.1 (a trusted proxy)'
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from penstock.apps.accesslog.defence.allow_list import LOCAL, list_crawlers
from penstock.apps.accesslog.events.networks import Network, NetworkSet, parse_network
from penstock.cli.shared.terminal import count

if TYPE_CHECKING:
    from penstock.apps.accesslog.defence.defence_settings import DefenceSettings
    from penstock.apps.accesslog.stream.pipeline_settings import PipelineSettings

_MOST_SHOWN = 3
_TRUSTED, _ALLOWED, _UNNAMED, _CRAWLER, _LOCAL = (
    "trusted proxy",
    "allowed",
    "unnamed proxy",
    "crawler",
    "local address",
)
_RESERVED = "reserved"
#: The words for a cause: for one client, and for several.
_WORDS = {
    _TRUSTED: ("a trusted proxy", "trusted proxies"),
    _ALLOWED: ("allowed", "allowed"),
    _UNNAMED: ("looks like a proxy that was not named", "look like proxies that were not named"),
    _CRAWLER: ("a search engine's address", "addresses of search engines"),
    _LOCAL: ("a local address", "local addresses"),
    _RESERVED: ("an address that nobody may block", "addresses that nobody may block"),
}


@dataclass(frozen=True, slots=True)
class Sparing:
    """What spares clients. `fronts` holds addresses that look like proxies and were not named as such."""

    allow: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    trust_crawlers: bool = True
    block_private: bool = False
    fronts: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: PipelineSettings | DefenceSettings, fronts: tuple[str, ...] = ()) -> Self:
        """Return what the settings of a run or replay spare."""
        return cls(
            settings.allow,
            settings.trusted_proxies,
            settings.trust_crawlers,
            settings.block_private,
            fronts,
        )

    def describe(self, clients: Sequence[str]) -> str:
        """Return sentences about spared clients that rules want blocked: who, why, what to do."""
        groups = self._group(clients)
        told = "; ".join(
            f"{_name(some)} ({_count_of(cause, len(some))})" for cause, some in groups.items() if some
        )
        whole = f"{count(len(clients), 'client')} spared that a rule wanted blocked: {told}."
        return " ".join([whole, *self._advise(groups)])

    def _group(self, clients: Iterable[str]) -> dict[str, list[str]]:
        """Return the clients by cause. If no other cause applies, it is an address that nobody may block."""
        causes = {
            _TRUSTED: _gather(self.trusted_proxies),
            _ALLOWED: _gather(self.allow),
            _UNNAMED: _gather(self.fronts),
            _CRAWLER: NetworkSet(network for _, network in list_crawlers()) if self.trust_crawlers else None,
            _LOCAL: None if self.block_private else NetworkSet(LOCAL),
        }
        groups: dict[str, list[str]] = {cause: [] for cause in _WORDS}
        for client in clients:
            network = parse_network(client)
            groups[_find_cause(causes, network)].append(client)
        return groups

    def _advise(self, groups: dict[str, list[str]]) -> Iterable[str]:
        if groups[_TRUSTED]:
            yield (
                "Lines of a trusted proxy that name no other client count for the proxy: to have the clients "
                "behind it judged, log X-Forwarded-For and name the format with --log-format."
            )
        if unnamed := groups[_UNNAMED]:
            named = " ".join(f"--trusted-proxy {each}" for each in unnamed[:_MOST_SHOWN])
            yield (
                f"If that is your proxy, say {named}, so that the clients behind it are judged; if it "
                "attacks, say --block-unnamed-proxy."
            )
        if local := groups[_LOCAL]:
            yield (
                f"If {' or '.join(local[:_MOST_SHOWN])} is a proxy, say --trusted-proxy with its address; to "
                "block local addresses as well, say --block-private."
            )
        if groups[_CRAWLER]:
            yield "To block search engines as well, say --distrust-crawlers."


def _gather(texts: Iterable[str]) -> NetworkSet:
    return NetworkSet(network for text in texts if (network := parse_network(text.strip())) is not None)


def _find_cause(causes: dict[str, NetworkSet | None], network: Network | None) -> str:
    if network is None:
        return _RESERVED
    found = (cause for cause, networks in causes.items() if networks and networks.touches(network))
    return next(found, _RESERVED)


def _name(clients: Sequence[str]) -> str:
    more = ", ..." if len(clients) > _MOST_SHOWN else ""
    return ", ".join(clients[:_MOST_SHOWN]) + more


def _count_of(cause: str, number: int) -> str:
    one, several = _WORDS[cause]
    return one if number == 1 else f"{number} {several}"
