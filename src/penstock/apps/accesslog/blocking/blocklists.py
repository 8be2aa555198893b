"""The bans that are in force at a moment, made from the decisions and orders in the database.

Rules: a ban counts until it expires, if it was enforced (not simulated) and no order of the operator has
undone it. Whatever the decision says, some addresses are never listed: those on allow lists, trusted proxies,
verified crawlers, private networks (unless the operator asks to block them), and what nobody may block
(loopback, multicast, a network too wide to be one attacker). Such an address is cut out of a blocked network;
the rest stays blocked. Host names and fingerprints are not addresses, so no list has them. If the clients of
a network were counted together, only those that took part are listed: their neighbours have done nothing.

    bans = Database(place).run(lambda session: read_bans(session, now_us=now_us))
    listed = Gate.of(allow=["198.51.100.0/24"], trusted_proxies=["192.0.2.1"]).apply(bans)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from penstock.apps.accesslog.defence.allow_list import LOCAL, NEVER_BLOCKED, list_crawlers
from penstock.apps.accesslog.events.networks import Network, NetworkSet, demand_network, parse_network
from penstock.apps.accesslog.stream.operator_orders import SCHEMA, read_orders
from penstock.apps.accesslog.stream.table_names import DECISIONS, ORDERS
from penstock.core.errors import OffsetStoreError
from penstock.stores.sql.connections.sql_sessions import Session

#: The widest networks that a list may hold: a mistake must not shut out a country.
_WIDEST_PREFIX = {4: 16, 6: 48}
_NEVER_BLOCKED = NetworkSet(NEVER_BLOCKED)
_REMEMBERED_TEXTS = 1 << 17
_BAN_COLUMNS = ("decision_id", "subject", "kind", "client", "decided_at", "expires_at", "rule", "class")


#: First and last addresses of ranges that do not overlap, in order.
AddressSpans = tuple[list[int], list[int]]


class Ban(NamedTuple):
    """One entry of a blocklist. It ends automatically at `expires_at_us`."""

    network: Network
    expires_at_us: int
    decision_id: str
    rule: str
    attack: str


@dataclass(frozen=True, slots=True)
class Spared:
    """An order: nothing in `network` is blocked by decisions made before `until_us`."""

    network: Network
    until_us: int


@dataclass(frozen=True, slots=True)
class Gate:
    """The last filter before a list: the networks that it must not have, indexed once for all lists."""

    allowed: tuple[Network, ...] = ()
    _index: NetworkSet = field(default_factory=NetworkSet, compare=False, repr=False)
    _spans: Mapping[int, AddressSpans] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        *,
        allow: Iterable[str] = (),
        trusted_proxies: Iterable[str] = (),
        trust_crawlers: bool = True,
        block_private: bool = False,
    ) -> Gate:
        """Return the gate for an operator's settings; raise NETWORK_INVALID if a text is not a network."""
        allowed = [demand_network("allow", each) for each in allow]
        allowed += [demand_network("trusted proxies", each) for each in trusted_proxies]
        allowed += [network for _, network in list_crawlers()] if trust_crawlers else []
        allowed += () if block_private else LOCAL
        distinct = tuple(sorted(set(allowed)))
        return cls(distinct, NetworkSet(distinct), {each: find_spans(distinct, each) for each in (4, 6)})

    def apply(self, bans: Iterable[Ban]) -> list[Ban]:
        """Return what may be listed of these ordered bans, without those inside one that ends no sooner."""
        bans = list(bans)
        touched = [at for at, ban in enumerate(bans) if self._touches(ban.network)] if self._index else []
        if not touched:  # the usual list
            return bans
        pieces = [
            bans[at]._replace(network=left)
            for at in touched
            for left in self._index.subtract_from(bans[at].network)
        ]
        whole = set(touched)
        return drop_covered([*(ban for at, ban in enumerate(bans) if at not in whole), *pieces])

    def _touches(self, network: Network) -> bool:
        """Return the same as the index, but by one lookup of a number: this runs for each entry of a list."""
        version, first, prefix = network
        starts, ends = self._spans[version]
        at = bisect_right(starts, first)
        if at and ends[at - 1] >= first:
            return True
        is_address = prefix == (32 if version == 4 else 128)
        return not is_address and at < len(starts) and starts[at] <= network.last


def find_spans(networks: Iterable[Network], version: int) -> AddressSpans:
    """Return the first and last addresses of a version's networks, in order; overlapping ones are joined."""
    starts: list[int] = []
    ends: list[int] = []
    for each in sorted(each for each in networks if each.version == version):
        # Of two networks that overlap one contains the other, and the wider one comes first.
        if ends and each.first <= ends[-1]:
            continue
        starts.append(each.first)
        ends.append(each.last)
    return starts, ends


def read_bans(session: Session, *, now_us: int) -> list[Ban]:
    """Return the bans in force at a moment, from the decisions and orders in the database."""
    demand_decisions(session)
    name, mark = session.grammar.name, session.grammar.mark
    rows = session.execute(
        f"SELECT {', '.join(map(name, _BAN_COLUMNS))} FROM {name(DECISIONS)} "
        f"WHERE {name('action')} = {mark} AND {name('expires_at')} > {mark}",
        ["block", now_us],
    )
    return make_bans(rows, read_spared(session))


def demand_decisions(session: Session) -> None:
    """Raise an error if there is no table of decisions."""
    if not session.has_table(DECISIONS):
        raise OffsetStoreError(
            "DECISIONS_NOT_FOUND",
            f"There is no table {DECISIONS} at {session.place}.",
            hint="Check the place: it must be the database that `penstock accesslog run` writes to.",
            facts={"place": str(session.place), "table": DECISIONS},
        )


def read_spared(session: Session) -> list[Spared]:
    """Return all orders that spare an address or network; orders about host names affect only rules."""
    if not session.has_table(ORDERS):
        return []
    name = session.grammar.name
    rows = session.execute(f"SELECT {', '.join(map(name, SCHEMA.names))} FROM {name(ORDERS)}")
    standing = [each for each in read_orders(rows) if not each.withdraws and each.withdrawn_at is None]
    found = [(parse_network(each.subject), each.until) for each in standing]
    return [Spared(network, int(until)) for network, until in found if network is not None]


def make_bans(rows: Sequence[Sequence[Any]], orders: Sequence[Spared]) -> list[Ban]:
    """Return the bans of these decisions, less what orders have undone; `rank_ban` picks one per network."""
    spared = NetworkSet(order.network for order in orders)
    has_spared = bool(spared)
    latest: dict[Network, tuple[tuple[float, float, str], Ban]] = {}
    for decision_id, subject, kind, client, decided_at, expires_at, rule, attack in rows:
        # Each client of a network or fingerprint that took part has a decision of its own. Its neighbours
        # have done nothing.
        pieces = _find_blockable(subject if kind == "client" else client)
        if has_spared and any(map(spared.touches, pieces)):
            undone = NetworkSet(order.network for order in orders if order.until_us > decided_at)
            pieces = tuple(left for piece in pieces for left in undone.subtract_from(piece))
        rank = rank_ban(int(expires_at), int(decided_at), str(decision_id))
        for piece in pieces:
            known = latest.get(piece)
            if known is None or known[0] < rank:
                ban = Ban(piece, int(expires_at), str(decision_id), str(rule or ""), str(attack or ""))
                latest[piece] = rank, ban
    return drop_covered(ban for _, ban in latest.values())


def rank_ban(expires_at: float, decided_at: float, decision_id: str = "") -> tuple[float, float, str]:
    """Return the sort key of a client's bans: the client is shown with the largest one and its class.

    That is the ban that ends last. Of several that end together, it is the one decided first, because what is
    found while a ban runs does not prolong it.

    >>> max([(600, 2, "later"), (600, 1, "first"), (500, 0, "short")], key=lambda each: rank_ban(*each))
    (600, 1, 'first')
    """
    return expires_at, -decided_at, decision_id


def can_be_listed(client: str) -> bool:
    """Return whether a list can hold this client at all. No list can hold a host name.

    >>> [can_be_listed(each) for each in ("192.0.2.7", "2001:db8::/64", "a.example", "127.0.0.1")]
    [True, True, False, False]
    """
    return bool(_find_blockable(client))


# In a flood, the same hundred thousand texts are looked up after each commit.
@lru_cache(_REMEMBERED_TEXTS)
def _find_blockable(text: str) -> tuple[Network, ...]:
    """Return what may be blocked of a subject; nothing if it is not an address, or is too wide."""
    network = parse_network(text or "")
    if network is None or network.prefix < _WIDEST_PREFIX[network.version]:
        return ()
    return tuple(_NEVER_BLOCKED.subtract_from(network))


def drop_covered(bans: Iterable[Ban]) -> list[Ban]:
    """Return the bans in order of address, without those inside a network blocked at least as long."""
    bans = sorted(bans)
    if are_apart(bans):
        return bans  # the usual list, in a tenth of the time
    kept: list[Ban] = []
    outer: list[Ban] = []
    for ban in sorted(bans, key=lambda ban: (ban.network, -ban.expires_at_us, ban.decision_id)):
        while outer and not outer[-1].network.contains(ban.network):
            outer.pop()
        # Networks further out end sooner, so the innermost one is enough.
        if outer and outer[-1].expires_at_us >= ban.expires_at_us:
            continue
        outer.append(ban)
        kept.append(ban)
    return kept


def are_apart(bans: Sequence[Ban]) -> bool:
    """Return whether no two of these ordered bans have an address in common."""
    version_before, last = 0, -1
    for ban in bans:
        version, first, prefix = ban[0]
        if first <= last and version == version_before:
            return False
        version_before = version
        last = first | ((1 << ((32 if version == 4 else 128) - prefix)) - 1)
    return True


def make_disjoint(bans: Iterable[Ban]) -> list[Ban]:
    """Return the bans without overlap, for sets that allow none: inner networks are cut out of outer ones."""
    bans = sorted(bans)
    if are_apart(bans):
        return bans
    bans = drop_covered(bans)
    inner: dict[Network, list[Network]] = {}
    outer: list[Network] = []
    for network in sorted(ban.network for ban in bans):
        while outer and not outer[-1].contains(network):
            outer.pop()
        if outer:
            inner.setdefault(outer[-1], []).append(network)
        outer.append(network)
    apart = []
    for ban in bans:
        holes = inner.get(ban.network)
        pieces = NetworkSet(holes).subtract_from(ban.network) if holes else [ban.network]
        apart += [ban._replace(network=piece) for piece in pieces]
    return sorted(apart)
