"""The clients that a report's decisions concern, one row each: what was done, and until when.

Rule: a client with several decisions is blocked until the last of its bans ends, which need not be that of
the newest decision; its class is the one of that ban, as in the list (`rank_ban`). The list takes precedence
over the decisions, since an order may have unbanned a client, and no list holds a host name.

>>> first = Decided(1.0, "192.0.2.7", "client", "r", "xss", "block", 10.0, 900.0, 1)
>>> second = Decided(2.0, "192.0.2.7", "client", "r", "flood", "block", 10.0, 600.0, 9)
>>> [(each.action, each.until_s, each.decisions) for each in list_attackers([first, second])]
[('block', 900.0, 2)]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.apps.accesslog.blocking.blocklists import Ban, can_be_listed, rank_ban
from penstock.apps.accesslog.events.networks import Network, demand_network
from penstock.apps.accesslog.reporting.report_data import Decided

UNLISTED = "named, not in any list"
LET_GO = "block, then let go"


@dataclass(frozen=True, slots=True)
class Attacker:
    """A row of the table. `until_s` is the end of the ban; None if there is no ban, or no longer one."""

    who: str
    of_class: str
    action: str
    decisions: int
    until_s: float | None


def count_blocked(decisions: Iterable[Decided]) -> tuple[int, int]:
    """Return how many clients were blocked, and how many were named by a rule but fit into no list."""
    named = {each.who for each in decisions if each.action == "block"}
    listed = sum(map(can_be_listed, named))
    return listed, len(named) - listed


def list_attackers(
    decisions: Sequence[Decided],
    bans: Sequence[Ban] | None = None,
    made_at_s: float = 0.0,
    most: int | None = None,
) -> list[Attacker]:
    """Return the rows, most decisions first. `bans` is the list at `made_at_s`; None if it is unknown."""
    rows: dict[str, Decided] = {}
    counts = Counter(each.who for each in decisions)
    for each in decisions:
        rows[each.who] = max(rows.get(each.who, each), each, key=_rank)
    order = sorted(rows.values(), key=lambda each: (-counts[each.who], -each.score, each.who))
    ends = None if bans is None else {ban.network: ban.expires_at_us / 1e6 for ban in bans}
    attackers = []
    for each in order[:most]:
        action, until_s = each.action, each.until_s
        if action == "block" and not can_be_listed(each.who):
            action, until_s = UNLISTED, None
        elif action == "block" and ends is not None:
            end_s = _find_end(ends, each.who)
            if end_s is not None:
                until_s = end_s
            elif until_s and until_s > made_at_s:
                action, until_s = LET_GO, None
        attackers.append(Attacker(each.who, each.of_class, action, counts[each.who], until_s))
    return attackers


def _find_end(ends: Mapping[Network, float], client: str) -> float | None:
    """Return when the list unblocks a client; if the list holds the client in parts, the last end counts."""
    network = demand_network("client", client)
    if network in ends:
        return ends[network]
    return max((end for listed, end in ends.items() if listed.overlaps(network)), default=None)


def _rank(decision: Decided) -> tuple[bool, tuple[float, float, str]]:
    """Return a decision's rank among those about its client: bans, as in the list, above all others."""
    if decision.action == "block":
        return True, rank_ban(decision.until_s or 0.0, decision.at_s)
    return False, (decision.at_s, 0.0, "")
