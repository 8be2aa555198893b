"""Blocklists in the formats of the programs that enforce them: packet filters, Apache, nginx, and others.

Rule: a file is made from numbers and from text of this source code. Rules and classes, which come from rule
files, appear only where a format has quoting (CSV and JSON). A packet filter's entry carries the seconds it
has left, so it expires even if nothing removes it. Such a file is correct at the moment it is made, and must
be loaded then. Each file replaces what was loaded before it, in one step.

What a format cannot express is left out and counted, never approximated. Apache's map holds addresses, not
networks, so a network of up to 256 addresses is written out there, and a larger one, such as any IPv6 /64, is
left out.

>>> from penstock.apps.accesslog.events.networks import demand_network
>>> ban = Ban(demand_network("x", "192.0.2.7"), 600_000_000, "d1", "sqli.union", "sql_injection")
>>> render("nginx", [ban], cursor=1, now_us=0).content.decode().splitlines()[-1]
'deny 192.0.2.7;'
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from penstock.apps.accesslog.blocking.blocklist_changes import Delta
from penstock.apps.accesslog.blocking.blocklists import Ban, make_disjoint
from penstock.apps.accesslog.events.networks import Network
from penstock.core.errors import OptionError

JSON_VERSION = 1
#: The longest timeout that both packet filters accept. Longer bans are renewed by the next file.
LONGEST_TIMEOUT_S = 2_147_483
#: Larger networks are not written out address by address.
LARGEST_EXPANDED = 256
_ON_A_LINE = 8
#: This number must never change: an existing set cannot be created again with another one.
_MOST_ELEMENTS = 1_048_576
_FORMULA_STARTS = ("=", "+", "-", "@")
#: How many rendered entries are cached: each change rewrites a list, and most of it stays the same.
_REMEMBERED = 1 << 17
_quote = json.encoder.encode_basestring_ascii


@dataclass(frozen=True, slots=True)
class Rendered:
    """A blocklist rendered as bytes. `left_out` counts the bans that the format cannot express."""

    content: bytes
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class ListFormat:
    """A format of blocklists. With `has_timeouts`, it holds seconds from now, so each file differs."""

    name: str
    file_name: str
    what: str
    render: Callable[[Sequence[Ban], int, int], Rendered]
    has_timeouts: bool = False


def render(name: str, bans: Sequence[Ban], *, cursor: int, now_us: int) -> Rendered:
    """Return the list in one of `FORMATS`, without expired bans. `bans` must have passed the gate."""
    return find_format(name).render([ban for ban in bans if ban.expires_at_us > now_us], cursor, now_us)


def find_format(name: str) -> ListFormat:
    found = FORMATS.get(name)
    if found is None:
        raise OptionError(
            "FORMAT_UNKNOWN",
            f"There is no blocklist format {name[:40]!r}.",
            hint=f"Formats are {', '.join(FORMATS)}.",
            facts={"formats": list(FORMATS)},
        )
    return found


def show_time(time_us: int) -> str:
    """Return a time in UTC, to the second; the end of the year 9999 stands for all later times."""
    return _show_seconds(min(max(time_us // 1_000_000, 0), 253_402_300_799))


@lru_cache(4096)  # bans of one batch end together
def _show_seconds(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache(_REMEMBERED)
def show_network(network: Network) -> str:
    return str(network)


def neutralise(text: str) -> str:
    """Return the text so that no spreadsheet reads it as a formula, and no terminal as a command."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


# --- for programs and people ------------------------------------------------------------------------------


def _render_text(bans: Sequence[Ban], _cursor: int, _now_us: int) -> Rendered:
    return _join([show_network(ban.network) for ban in bans])


def _render_csv(bans: Sequence[Ban], _cursor: int, _now_us: int) -> Rendered:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["network", "expires_at", "class", "rule", "decision_id"])
    for ban in bans:
        words = (neutralise(each) for each in (ban.attack, ban.rule, ban.decision_id))
        rows.writerow([show_network(ban.network), show_time(ban.expires_at_us), *words])
    return Rendered(text.getvalue().encode("utf-8", "backslashreplace"))


def _render_json(bans: Sequence[Ban], cursor: int, _now_us: int) -> Rendered:
    return Rendered(write_json(Delta(cursor, tuple(bans), (), True)))


def write_json(delta: Delta) -> bytes:
    """Return a delta, or a whole list, as one JSON object in ASCII."""
    head = {"version": JSON_VERSION, "cursor": delta.cursor, "complete": delta.is_complete}
    added = ", ".join(map(_write_ban, delta.added))
    removed = json.dumps([str(network) for network in delta.removed])
    return f'{json.dumps(head)[:-1]}, "added": [{added}], "removed": {removed}}}\n'.encode("ascii")


@lru_cache(_REMEMBERED)
def _write_ban(ban: Ban) -> str:
    """Return one entry as JSON. Why not `dumps`: for many small objects it takes twice as long."""
    return (
        f'{{"network": {_quote(show_network(ban.network))}, "expires_at": "{show_time(ban.expires_at_us)}", '
        f'"expires_at_us": {ban.expires_at_us:d}, "class": {_quote(ban.attack)}, "rule": {_quote(ban.rule)}, '
        f'"decision_id": {_quote(ban.decision_id)}}}'
    )


# --- packet filters ---------------------------------------------------------------------------------------


def _seconds_left(ban: Ban, now_us: int) -> int:
    return min(max(-((now_us - ban.expires_at_us) // 1_000_000), 1), LONGEST_TIMEOUT_S)


def _render_nftables(bans: Sequence[Ban], cursor: int, now_us: int) -> Rendered:
    """Return sets in a table of their own. They block nothing until one of the operator's rules uses them."""
    lines = [*_head(cursor, now_us, "load with: nft -f FILE"), "add table inet penstock"]
    apart = make_disjoint(bans)
    for version in (4, 6):
        name = f"blocked{version}"
        kind = f"ipv{version}_addr"
        lines.append(f"add set inet penstock {name} {{ type {kind}; flags interval, timeout; }}")
        lines.append(f"flush set inet penstock {name}")
        elements = [
            f"{show_network(ban.network)} timeout {_seconds_left(ban, now_us)}s"
            for ban in apart
            if ban.network.version == version
        ]
        lines += [
            f"add element inet penstock {name} {{ {', '.join(elements[at : at + _ON_A_LINE])} }}"
            for at in range(0, len(elements), _ON_A_LINE)
        ]
    return _join(lines)


def _render_ipset(bans: Sequence[Ban], cursor: int, now_us: int) -> Rendered:
    """Return commands that fill a new set and swap it in, so there is no moment without a set."""
    lines = _head(cursor, now_us, "load with: ipset restore < FILE")
    left_out = 0
    for version, family in ((4, "inet"), (6, "inet6")):
        mine = [ban for ban in bans if ban.network.version == version]
        left_out += max(len(mine) - _MOST_ELEMENTS, 0)
        for name in (f"penstock{version}", f"penstock{version}-new"):
            lines.append(f"create {name} hash:net family {family} maxelem {_MOST_ELEMENTS} timeout 0 -exist")
        lines.append(f"flush penstock{version}-new")
        for ban in mine[:_MOST_ELEMENTS]:
            seconds = _seconds_left(ban, now_us)
            lines.append(f"add penstock{version}-new {show_network(ban.network)} timeout {seconds} -exist")
        lines.append(f"swap penstock{version} penstock{version}-new")
        lines.append(f"destroy penstock{version}-new")
    return Rendered(_join(lines).content, left_out)


# --- web servers ------------------------------------------------------------------------------------------


def _render_apache(bans: Sequence[Ban], _cursor: int, _now_us: int) -> Rendered:
    lines = [
        '# Made by penstock. Include it in a <Location>, <Directory> or <VirtualHost>\'s <Location "/">.'
    ]
    lines += ["<RequireAll>", "    Require all granted"]
    texts = [show_network(ban.network) for ban in bans]
    lines += [
        f"    Require not ip {' '.join(texts[at : at + _ON_A_LINE])}"
        for at in range(0, len(texts), _ON_A_LINE)
    ]
    return _join([*lines, "</RequireAll>"])


def _render_apache_map(bans: Sequence[Ban], _cursor: int, _now_us: int) -> Rendered:
    lines: dict[str, None] = {}
    left_out = 0
    for ban in bans:
        network = ban.network
        if network.size > LARGEST_EXPANDED:
            left_out += 1
            continue
        for number in range(network.first, network.first + network.size):
            lines[f"{network._replace(first=number, prefix=network.bits)} blocked"] = None
    rendered = _join(["# Made by penstock, for RewriteMap ... txt:", *lines])
    return Rendered(rendered.content, left_out)


def _render_nginx(bans: Sequence[Ban], _cursor: int, _now_us: int) -> Rendered:
    head = "# Made by penstock. Include it in http, server or location."
    return _join([head, *(f"deny {show_network(ban.network)};" for ban in bans)])


def _render_nginx_geo(bans: Sequence[Ban], _cursor: int, _now_us: int) -> Rendered:
    head = ["# Made by penstock. Include it in http; then: if ($penstock_blocked) { return 403; }"]
    entries = [f"    {show_network(ban.network)} 1;" for ban in bans]
    return _join([*head, "geo $penstock_blocked {", "    default 0;", *entries, "}"])


def _head(cursor: int, now_us: int, how: str) -> list[str]:
    return [f"# Made by penstock at {show_time(now_us)}, cursor {cursor}; {how}"]


def _join(lines: Sequence[str]) -> Rendered:
    return Rendered("\n".join([*lines, ""]).encode("ascii"))


FORMATS: Mapping[str, ListFormat] = {
    each.name: each
    for each in (
        ListFormat("text", "blocklist.txt", "one address or network on each line", _render_text),
        ListFormat("csv", "blocklist.csv", "with end, class, rule and decision", _render_csv),
        ListFormat("json", "blocklist.json", "for programs, with a cursor", _render_json),
        ListFormat("nftables", "blocklist.nft", "sets with timeouts", _render_nftables, has_timeouts=True),
        ListFormat("ipset", "blocklist.ipset", "sets with timeouts", _render_ipset, has_timeouts=True),
        ListFormat("apache", "blocklist.apache.conf", "Require not ip, in RequireAll", _render_apache),
        ListFormat("apache-map", "blocklist.apache-map.txt", "addresses for RewriteMap", _render_apache_map),
        ListFormat("nginx", "blocklist.nginx.conf", "deny", _render_nginx),
        ListFormat("nginx-geo", "blocklist.nginx-geo.conf", "a geo block", _render_nginx_geo),
    )
}
