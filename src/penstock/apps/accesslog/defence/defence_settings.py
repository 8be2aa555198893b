"""The settings of the defence, such as the length of bans and who is never blocked, and decisions as rows.

Rules. The first ban is short (`ban_us`) and each further one is twice as long, up to a cap (`most_ban_us`).
After each quiet day (`forget_us`) the next one is a step shorter. Allowed ranges, verified crawlers, trusted
proxies, and local addresses (private, loopback, link-local) are not blocked; a decision about them is
recorded as `allowed`. A client that an operator has unbanned has a time of grace; a decision in that time is
recorded as `grace`. A decision of a rule in simulation is recorded as `simulate`.

The id of a decision is made of its subject, its rule and the line that caused it, among others. So a decision
that is made again after a crash is the same row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.apps.accesslog.defence import behaviour_fold_arrays as s
from penstock.apps.accesslog.defence.allow_list import make_ranges
from penstock.apps.accesslog.detection.rule_set import BLOCKING_POINTS, RuleSet, default_rules
from penstock.apps.accesslog.events.line_events import DEFAULT_LANES, DEFAULT_LATENESS_US
from penstock.apps.accesslog.events.networks import demand_network
from penstock.apps.accesslog.events.subjects import bounds_of

_MINUTE_US = 60_000_000
_DAY_US = 24 * 60 * _MINUTE_US

#: A decision. Times are microseconds since 1970.
DECISIONS = pa.schema(
    [
        ("decision_id", pa.string()),
        ("subject", pa.string()),
        ("kind", pa.string()),
        ("client", pa.string()),
        ("decided_at", pa.int64()),
        ("rule", pa.string()),
        ("class", pa.string()),
        ("action", pa.string()),
        ("score", pa.float64()),
        ("ban_seconds", pa.int64()),
        ("expires_at", pa.int64()),
        ("level", pa.int32()),
        ("server", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("request_index", pa.int64()),
        ("evidence", pa.string()),
    ]
)


@dataclass(frozen=True)
class DefenceSettings:
    """All settings of the fold. An instance is complete and can be sent to a worker."""

    ruleset: RuleSet
    stream: str = "accesslog"
    lanes: int = DEFAULT_LANES
    lateness_us: int = DEFAULT_LATENESS_US
    idle_after_us: int = 10_000_000
    score_half_life_us: int = 30 * _MINUTE_US
    ban_us: int = 10 * _MINUTE_US
    most_ban_us: int = 7 * _DAY_US
    forget_us: int = _DAY_US
    quiet_us: int = 10 * _MINUTE_US
    subjects_per_lane: int = 32_768
    groups_per_lane: int = 8_192
    paths_per_lane: int = 4_096
    pending_per_lane: int = 1_000_000
    allow: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    trust_crawlers: bool = True
    block_private: bool = False  # also block what `allow_list.LOCAL` holds

    @classmethod
    def default(cls, **changes: Any) -> DefenceSettings:
        """Return settings with the rules that come with Penstock."""
        return cls(**{"ruleset": default_rules(), **changes})

    @cached_property
    def allowed(self) -> tuple[Any, ...]:
        return make_ranges(
            self.allow,
            self.trusted_proxies,
            crawlers=self.trust_crawlers,
            block_private=self.block_private,
        )


class _Granted(Protocol):
    @property
    def subject(self) -> str: ...
    @property
    def until(self) -> int: ...
    @property
    def taken_at(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class OrdersInForce:
    """The networks that the operator has unbanned, as (network, from when, until when) in microseconds.

    `spared` are addresses that are allowed in addition to those of the settings, because of the first lines.
    """

    graces: tuple[tuple[str, int, int], ...] = ()
    spared: tuple[str, ...] = ()

    @classmethod
    def of(cls, orders: Iterable[_Granted], spared: tuple[str, ...] = ()) -> OrdersInForce:
        """Return what the orders that count in a batch ask for."""
        return cls(tuple((o.subject, o.taken_at, o.until) for o in orders if o.taken_at is not None), spared)


def make_limits(settings: DefenceSettings, orders: OrdersInForce) -> s.FoldLimits:
    """Return settings and orders in the form that the kernels take."""
    bounds = np.zeros((len(orders.graces), 4), np.uint64)
    times = np.zeros((len(orders.graces), 2), np.int64)
    for n, (subject, since, until) in enumerate(orders.graces):
        first, last = bounds_of(demand_network("orders", subject))
        bounds[n] = [*first, *last]
        times[n] = since, until
    if orders.spared:
        settings = replace(settings, allow=(*settings.allow, *orders.spared))
    first_high, first_low, last_high, last_low = settings.allowed
    return s.FoldLimits(
        float(settings.score_half_life_us), settings.ban_us, settings.most_ban_us, settings.forget_us,
        settings.quiet_us, float(BLOCKING_POINTS), first_high, first_low, last_high, last_low, bounds, times,
    )  # fmt: skip


def identify(
    stream: str, subject: str, client: str, rule: str, action: str, partition: int, offset: int
) -> str:
    """Return the id of a decision: the same for the same decision, whenever it is made."""
    key = "\x1f".join((stream, subject, client, rule, action, str(partition), str(offset)))
    return hashlib.sha256(key.encode()).hexdigest()[:32]
