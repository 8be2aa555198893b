"""Who is blocked at a moment: the decisions in the database, less what has ended, was undone or may not be.

Rules: a ban counts while its time runs, if it was enforced (not simulated) and no order of the operator's
undid it. Whatever the decision says, a last gate follows: allow lists, trusted proxies, verified crawlers,
private networks (unless asked for), and what nobody may block (loopback, multicast, a network too wide to be
one attacker). An address that may not be blocked is cut out of a blocked network; the rest stays blocked.
Host names and fingerprints are no addresses and are in no list. Of a network whose clients were counted
together, only those that took part are listed: their neighbours have done nothing.

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


#: First and last addresses of ranges that do not touch, in order.
AddressSpans = tuple[list[int], list[int]]


class Ban(NamedTuple):
    """One line of a blocklist. `expires_at_us`: when it ends by itself."""

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
    """The last one before a list: what is never in it. It keeps what all lists of one place share."""

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
        """Return the gate that an operator described; raise NETWORK_INVALID for what is no network."""
        allowed = [demand_network("allow", each) for each in allow]
        allowed += [demand_network("trusted proxies", each) for each in trusted_proxies]
        allowed += [network for _, network in list_crawlers()] if trust_crawlers else []
        allowed += () if block_private else LOCAL
        distinct = tuple(sorted(set(allowed)))
        return cls(distinct, NetworkSet(distinct), {each: find_spans(distinct, each) for each in (4, 6)})

    def apply(self, bans: Iterable[Ban]) -> list[Ban]:
        """Return those of these ordered bans that may be listed; none lies in one that ends no sooner."""
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
        """Return the same as the index, by numbers and one lookup: it is asked for each entry of a list."""
        version, first, prefix = network
        starts, ends = self._spans[version]
        at = bisect_right(starts, first)
        if at and ends[at - 1] >= first:
            return True
        is_address = prefix == (32 if version == 4 else 128)
        return not is_address and at < len(starts) and starts[at] <= network.last


def find_spans(networks: Iterable[Network], version: int) -> AddressSpans:
    """Return where the networks of a version begin and end, in order; those that overlap are joined."""
    starts: list[int] = []
    ends: list[int] = []
    for each in sorted(each for each in networks if each.version == version):
        if ends and each.first <= ends[-1]:
            continue  # inside: networks do not overlap by halves, and the wider one comes first
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
    """Return all orders that spare an address or network; orders about host names concern rules alone."""
    if not session.has_table(ORDERS):
        return []
    name = session.grammar.name
    rows = session.execute(f"SELECT {', '.join(map(name, SCHEMA.names))} FROM {name(ORDERS)}")
    standing = [each for each in read_orders(rows) if not each.withdraws and each.withdrawn_at is None]
    found = [(parse_network(each.subject), each.until) for each in standing]
    return [Spared(network, int(until)) for network, until in found if network is not None]


def make_bans(rows: Sequence[Sequence[Any]], orders: Sequence[Spared]) -> list[Ban]:
    """Return bans from rows of decisions, less what orders have undone; each network once, by `rank_ban`."""
    spared = NetworkSet(order.network for order in orders)
    has_spared = bool(spared)
    latest: dict[Network, tuple[tuple[float, float, str], Ban]] = {}
    for decision_id, subject, kind, client, decided_at, expires_at, rule, attack in rows:
        # Each client of a network or fingerprint that took part has its decision; its neighbours have done
        # nothing.
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
    """Return what orders the bans of one client: it is shown with the largest one, and with its class.

    That is the ban that ends last; of several that end together the one decided first: what is found while a
    ban runs does not prolong it.

    >>> max([(600, 2, "later"), (600, 1, "first"), (500, 0, "short")], key=lambda each: rank_ban(*each))
    (600, 1, 'first')
    """
    return expires_at, -decided_at, decision_id


def can_be_listed(client: str) -> bool:
    """Return whether a list can hold this client at all: a name of a host is no address, and is in none.

    >>> [can_be_listed(each) for each in ("192.0.2.7", "2001:db8::/64", "a.example", "127.0.0.1")]
    [True, True, False, False]
    """
    return bool(_find_blockable(client))


@lru_cache(_REMEMBERED_TEXTS)  # the same hundred thousand are asked for after each commit of a flood
def _find_blockable(text: str) -> tuple[Network, ...]:
    """Return what may be blocked of a subject; nothing, if it is not an address."""
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
        if outer and outer[-1].expires_at_us >= ban.expires_at_us:  # what is further out ends sooner
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
    """Return the same bans without overlap, for sets that allow none: outer networks lose inner ones."""
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
