"""Facts about a sample of log lines, read with the given format: who the clients are, for example.

Rule: a format applied to the wrong lines still gives clients, and a defence that trusts them blocks a virtual
host or a load balancer. A few thousand lines show whether a client is an address, so they are examined once,
before the first decision: nothing of this runs for each batch. This module finds facts only; `sample_checks`
draws the conclusions.

>>> line = b'shop.example 192.0.2.7 - - [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.0" 200 23'
>>> sample = take_sample(pa.array([line]), make_parser("common"))
>>> sample.without_address, sample.misplaced.example
(1, ('shop.example', '192.0.2.7'))
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.apps.accesslog.defence.allow_list import LOCAL, is_local
from penstock.apps.accesslog.events import line_events_kernel as k
from penstock.apps.accesslog.events.networks import NetworkSet, demand_network, parse_network
from penstock.apps.accesslog.first_look.ambiguous_fields import (
    MOST_LINES,
    MissingFields,
    Rival,
    find_missing,
    find_rivals,
)
from penstock.apps.accesslog.parsing.line_parser import BAD_REASONS, Lines, Parser, make_parser, take_texts
from penstock.apps.accesslog.parsing.log_formats import NAMED, PLAIN
from penstock.core.loggers import escape

#: How many lines are looked at: enough for a share of a percent, and parsed in a hundredth of a second.
SAMPLE_LINES = 5_000
#: Where lines come one by one, a look ends when it has seen this many.
ENOUGH_LINES = 200
#: The size limit of a sample: lines of the maximum length would fill the memory.
SAMPLE_BYTES = 16 << 20
_LONGEST_SHOWN = 120
_ANYBODY = ("0.0.0.0/0", "::/0")

_IPV4 = r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}"
_IPV6 = r"[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){7}|[0-9A-Fa-f:]*::[0-9A-Fa-f:.]*"
_ADDRESS = rf"(?:{_IPV4}|{_IPV6})"
#: A word that is an address, in front of all quotes and brackets.
_WORD = rf'^[^"\[]*?(?:^|[ \t,;|])(?P<address>{_ADDRESS})(?:[ \t,;|]|$)'
#: Two such words side by side.
_PAIR = rf'^[^"\[]*?(?:^|[ \t,])(?P<pair>(?P<first>{_ADDRESS}) (?P<second>{_ADDRESS})) [^"\[]*\['
#: Matches formats that have the name from identd behind the client.
_HAS_IDENTD = re.compile(r"%(?:\{c\})?[ah] %l ")
#: What proxies pass on: several addresses with commas between them, one alone in quotes, one with a name, or
#: a word behind all quotes.
_LISTED = (
    rf'(?:(?:^|[ "=\t])(?P<several>{_ADDRESS}, ?{_ADDRESS}(?:, ?{_ADDRESS})*)(?:[ "\t]|$))'
    rf'|(?:"(?P<quoted>{_ADDRESS})")'
    rf"|(?:(?i:xff|x[-_]forwarded[-_]for)[=:] ?(?P<named>{_ADDRESS}))"
    rf'|(?:"[^"]*[ \t](?P<bare>{_ADDRESS})(?:[ \t][^"]*)?$)'
)
#: A peer that sent this share of the lines with X-Forwarded-For is named, and at most this many are.
_SHARE_NAMED, _MOST_NAMED = 0.1, 5
#: The fewest lines from which a format may be refused, or a client may be said to have many of them.
LEAST_LINES = 20
#: Addresses look like proxies if this share of the lines is theirs, if this share of those has the header,
#: and if each names this many different clients. With few lines, half as many clients as lines are enough: a
#: quiet site has no more when its decisions wait no longer, and blocking its load balancer shuts out
#: everybody. A client that sends such headers itself is spared only until others have come. With fewer than
#: five clients nothing can be concluded.
_SHARE_OF_FRONTS, _LEAST_BEHIND, _LEAST_BEHIND_OF_FEW = 0.9, 10, 5
_HOST_NAME = r"^(?:[A-Za-z0-9_](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?\.)*[A-Za-z0-9-]*[A-Za-z][A-Za-z0-9-]*\.?$"


@dataclass(frozen=True, slots=True)
class Marked:
    """Lines of a sample that have something in common. `example` holds texts of the first of them."""

    lines: int = 0
    example: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """What was found in a sample. Numbers are numbers of lines, unless they are said to be of clients.

    In `misplaced` lines the client is not an address, and another word in front of the request is one. In
    `paired` lines the client is an address, and so is the word behind it, where the format has %l. In
    `unused` lines X-Forwarded-For is where the format says, and was not believed; the example is the peers
    that sent most of these, the busiest first. In `unknown` lines a list of addresses is somewhere else. In
    `behind_proxies` lines X-Forwarded-For has named the client. In `of_proxies` lines the client is a trusted
    proxy itself. `fronts` are addresses that nearly all lines come from and that pass on X-Forwarded-For of
    many clients, as unnamed proxies do. `few` are the fewest clients, from two to five, that have nearly all
    lines together and many each. `rivals` are keys of JSON lines that could be used but are not. `missing` is
    what the bad line lacks, if it is JSON.
    """

    parser: Parser
    lines: int
    parsed: int
    bad_reason: str = ""
    bad_line: str = ""
    missing: MissingFields | None = None
    clients: int = 0
    top_client: str = ""
    top_lines: int = 0
    few: Marked = Marked()
    without_address: int = 0
    named_client: str = ""
    no_name: Marked = Marked()
    misplaced: Marked = Marked()
    paired: Marked = Marked()
    unused: Marked = Marked()
    unknown: Marked = Marked()
    behind_proxies: int = 0
    of_proxies: int = 0
    fronts: tuple[str, ...] = ()
    rivals: tuple[Rival, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()


def cut_sample(values: pa.Array) -> pa.Array:
    """Return lines from all over a column, the first among them, within the limits of a sample."""
    if len(values) > SAMPLE_LINES:
        values = values.take(pa.array(np.linspace(0, len(values) - 1, SAMPLE_LINES, dtype=np.int64)))
    sizes = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
    return values.slice(0, int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), SAMPLE_BYTES, "right")))


def take_sample(values: pa.Array, parser: Parser) -> Sample:
    """Parse the lines and return what was found in them."""
    values = cut_sample(values).cast(pa.binary())
    lines = parser.parse(values)
    if not len(lines):
        return Sample(parser, len(values), 0, *_describe_bad(values, lines, parser))
    kinds, numbers = _read_clients(lines)
    names = take_texts(lines, "client")
    subjects, firsts, counts = np.unique(numbers, axis=0, return_index=True, return_counts=True)
    top = int(counts.argmax())
    without = kinds != 1
    raw = values.take(pa.array(lines.rows))
    is_plain = ~lines.is_json
    behind = _find_behind(lines)
    known = _find_known(values, parser, lines) & ~behind
    unknown, lists = _find_unknown(raw, names, is_plain & ~behind & ~known)
    if known.any():
        # Where the format has a place for the header, the parser reads it in full.
        lists = pc.if_else(pa.array(known), _take_forwarded(values, parser, lines), lists)
    trusted = NetworkSet(demand_network("trusted_proxies", each) for each in parser.trusted_proxies)
    of_proxies = [
        int(number)
        for first, number in zip(firsts.tolist(), counts.tolist(), strict=True)
        if trusted and _is_in(trusted, show(names[first].as_py()))
    ]
    return Sample(
        parser,
        len(values),
        len(lines),
        *_describe_bad(values, lines, parser),
        clients=len(subjects),
        top_client=show(names[int(firsts[top])].as_py()),
        top_lines=int(counts[top]),
        few=_find_few(names, firsts, counts),
        without_address=int(np.count_nonzero(without)),
        named_client=show(names[int(without.argmax())].as_py()) if without.any() else "",
        no_name=_mark(without & ~_match(names, _HOST_NAME), names),
        misplaced=_find_misplaced(raw, names, without & is_plain),
        paired=_find_paired(raw, lines, parser.log_format),
        unused=_find_unused(lines, known),
        unknown=_mark(unknown, lists),
        behind_proxies=int(np.count_nonzero(behind)),
        of_proxies=sum(of_proxies),
        rivals=find_rivals(raw.filter(pa.array(lines.is_json))[:MOST_LINES].to_pylist(), parser.log_format),
        fronts=_find_fronts(names, numbers, known | unknown, lists),
        fields=_list_fields(lines),
    )


def show(text: bytes | None) -> str:
    """Return a field as text for a terminal: on one line, cut where it is long."""
    shown = "-" if text is None else text.decode("utf-8", "backslashreplace")
    return escape(shown) if len(shown) <= _LONGEST_SHOWN else f"{escape(shown[:_LONGEST_SHOWN])}..."


def _describe_bad(values: pa.Array, lines: Lines, parser: Parser) -> tuple[str, str, MissingFields | None]:
    """Return why most of the bad lines are bad, the first such line, and what it lacks if it is JSON."""
    if not lines.bad_rows.size:
        return "", "", None
    reason = int(np.bincount(lines.bad_reasons).argmax())
    row = int(lines.bad_rows[int((lines.bad_reasons == reason).argmax())])
    line = values[row].as_py()
    return BAD_REASONS[reason], show(line), find_missing(line or b"", parser.log_format)


def _read_clients(lines: Lines) -> tuple[NDArray[np.int8], NDArray[np.uint64]]:
    """Return for each line whether its client is an address (1) or another text (2), and its two numbers."""
    high, low = np.empty(len(lines), np.uint64), np.empty(len(lines), np.uint64)
    kinds = np.empty(len(lines), np.int8)
    k.read_clients(lines.data, lines.starts["client"], lines.lengths["client"], high, low, kinds)
    return kinds, np.stack([high, low], axis=1)


def _find_few(names: pa.Array, firsts: NDArray[np.intp], counts: NDArray[np.intp]) -> Marked:
    """Return the fewest clients with nearly all lines, the busiest first; none if it is one, or many.

    Each must have too many lines for a visitor in a quiet hour, because load balancers share the lines.
    """
    whole = int(counts.sum())
    busiest = np.argsort(-counts, kind="stable")[:_MOST_NAMED]
    sums = np.cumsum(counts[busiest])
    number = int(np.searchsorted(sums, _SHARE_OF_FRONTS * whole, "right")) + 1
    if not 1 < number <= len(busiest) or counts[busiest[number - 1]] < max(LEAST_LINES, _SHARE_NAMED * whole):
        return Marked()
    shown = tuple(show(names[int(firsts[at])].as_py()) for at in busiest[:number])
    return Marked(int(sums[number - 1]), shown)


def _find_behind(lines: Lines) -> NDArray[np.bool_]:
    """Return where X-Forwarded-For has named the client, which then is not where the peer is."""
    found: NDArray[np.bool_] = lines.starts["client"] != lines.starts["peer"]
    return found | (lines.lengths["peer"] < 0)


def _find_known(values: pa.Array, parser: Parser, lines: Lines) -> NDArray[np.bool_]:
    """Return where X-Forwarded-For is where the format says: it names another client if all are trusted.

    Local addresses that came from a public peer were not passed on by a proxy: they are the server's own, in
    a field that only looks like the header. A list that also has a public address is the header: a client
    behind a company's proxy has a local address itself.
    """
    trusting = make_parser(parser.log_format, _ANYBODY).parse(values)
    has_list = _find_behind(trusting) & (trusting.lengths["peer"] >= 0)
    peers = take_texts(trusting, "peer")
    is_own = has_list & _are_local(take_texts(trusting, "client")) & ~_are_local(peers)
    if is_own.any():
        shown = [show(each) for each in peers.filter(pa.array(is_own)).unique().to_pylist()]
        passed = (*map(str, LOCAL), *(each for each in shown if parse_network(each) is not None))
        beyond = make_parser(parser.log_format, passed).parse(values)
        is_own &= np.isin(trusting.rows, beyond.rows[_are_local(take_texts(beyond, "client"))])
    return np.isin(lines.rows, trusting.rows[has_list & ~is_own])


def _find_misplaced(raw: pa.Array, names: pa.Array, among: NDArray[np.bool_]) -> Marked:
    found = _extract(raw, _WORD, among, "address")
    return _mark(_are_addresses(found), names, found)


def _find_paired(raw: pa.Array, lines: Lines, log_format: str) -> Marked:
    """Return the lines with two addresses where the format has the client and %l: one field too many."""
    if not _HAS_IDENTD.search(PLAIN if log_format == "auto" else NAMED.get(log_format, log_format)):
        return Marked()
    pairs = _extract(raw, _PAIR, ~lines.is_json, "pair")
    firsts = _extract(raw, _PAIR, ~lines.is_json, "first")
    is_client = pc.fill_null(pc.equal(firsts, take_texts(lines, "peer")), False)
    is_client = is_client.to_numpy(zero_copy_only=False) | (lines.lengths["peer"] < 0)
    seconds = _extract(raw, _PAIR, ~lines.is_json, "second")
    return _mark(is_client & _are_addresses(firsts) & _are_addresses(seconds), pairs)


def _find_unused(lines: Lines, known: NDArray[np.bool_]) -> Marked:
    if not known.any():
        return Marked()
    number = int(np.count_nonzero(known))
    peers = Counter(take_texts(lines, "peer").filter(pa.array(known)).to_pylist()).most_common(_MOST_NAMED)
    named = [peer for peer, count in peers if count >= _SHARE_NAMED * number] or [peers[0][0]]
    return Marked(number, tuple(show(peer) for peer in named))


def _take_forwarded(values: pa.Array, parser: Parser, lines: Lines) -> pa.Array:
    """Return the client that X-Forwarded-For would name if all were trusted; null where it names none."""
    trusting = make_parser(parser.log_format, _ANYBODY).parse(values)
    named = dict(zip(trusting.rows.tolist(), take_texts(trusting, "client").to_pylist(), strict=True))
    return pa.array([named.get(row) for row in lines.rows.tolist()], pa.binary())


def _find_fronts(
    names: pa.Array, numbers: NDArray[np.uint64], has_list: NDArray[np.bool_], lists: pa.Array
) -> tuple[str, ...]:
    """Return the addresses that look like unnamed proxies, if nearly all lines are theirs.

    A visitor can also send the header, and change it with each request. But a visitor cannot be alone: others
    have their share of the lines, unless it floods the site at the very moment of the look.
    """
    whole = len(numbers)
    _, owners, counts = np.unique(numbers, axis=0, return_inverse=True, return_counts=True)
    owners = owners.reshape(-1)
    fronts = [int(at) for at in np.flatnonzero(counts >= _SHARE_NAMED * whole)]
    if not fronts or counts[fronts].sum() < _SHARE_OF_FRONTS * whole:
        return ()
    found = []
    for at in fronts:
        own = owners == at
        passed_on = own & has_list
        if np.count_nonzero(passed_on) < _SHARE_OF_FRONTS * counts[at]:
            return ()
        least = min(_LEAST_BEHIND, max(_LEAST_BEHIND_OF_FEW, (int(counts[at]) + 1) // 2))
        if len(lists.filter(pa.array(passed_on)).unique()) < least:
            return ()
        found.append(show(names[int(own.argmax())].as_py()))
    # Local addresses are spared or blocked as such. A host name fits into neither a blocklist nor an allow
    # list.
    return tuple(each for each in found if parse_network(each) is not None and not is_local(each))


def _find_unknown(
    raw: pa.Array, names: pa.Array, among: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], pa.Array]:
    """Return the lines with addresses that proxies may have passed on, in a place that the format skips.

    A server's own address may also be logged, and those of servers behind it. These are local and do not
    count.
    """
    found = _extract(raw, _LISTED, among, "several", "quoted", "named", "bare")
    firsts = pc.struct_field(pc.extract_regex(found, rf"^(?P<first>{_ADDRESS})"), "first")
    differs = pc.fill_null(pc.not_equal(firsts, names), False).to_numpy(zero_copy_only=False)
    return differs & _are_addresses(firsts) & _choose(found, _has_public), found


def _has_public(listed: str) -> bool:
    """Return whether one of these addresses is not local."""
    found = [each.strip() for each in listed.split(",")]
    return any(parse_network(each) is not None and not is_local(each) for each in found)


def _extract(raw: pa.Array, pattern: str, among: NDArray[np.bool_], *groups: str) -> pa.Array:
    """Return the first group that has matched in each of these lines; null elsewhere."""
    if not among.any():
        return pa.nulls(len(raw), pa.binary())
    chosen = pc.if_else(pa.array(among), raw, pa.scalar(None, pa.binary()))
    matched = pc.extract_regex(chosen, pattern)
    texts = [pc.struct_field(matched, group) for group in groups]
    blank = pa.scalar(b"", pa.binary())
    return pc.coalesce(
        *(pc.if_else(pc.equal(each, blank), pa.scalar(None, pa.binary()), each) for each in texts)
    )


def _are_addresses(texts: pa.Array) -> NDArray[np.bool_]:
    return _choose(texts, lambda text: parse_network(text) is not None)


def _are_local(texts: pa.Array) -> NDArray[np.bool_]:
    return _choose(texts, is_local)


def _choose(texts: pa.Array, is_it: Callable[[str], bool]) -> NDArray[np.bool_]:
    """Return where `is_it` is true of a text; each distinct text is checked once."""
    distinct = texts.drop_null().unique().to_pylist()
    chosen = pa.array([each for each in distinct if is_it(each.decode("ascii", "replace"))], pa.binary())
    found: NDArray[np.bool_] = pc.is_in(texts, chosen).to_numpy(zero_copy_only=False)
    return found


def _match(texts: pa.Array, pattern: str) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.match_substring_regex(texts, pattern).to_numpy(zero_copy_only=False)
    return found


def _mark(where: NDArray[np.bool_], *texts: pa.Array) -> Marked:
    number = int(np.count_nonzero(where))
    first = int(where.argmax()) if number else 0
    return Marked(number, tuple(show(each[first].as_py()) for each in texts) if number else ())


def _is_in(networks: NetworkSet, text: str) -> bool:
    network = parse_network(text)
    return network is not None and networks.covers(network)


def _list_fields(lines: Lines) -> tuple[tuple[str, str], ...]:
    """Return names and texts of all fields that the first parsed line has."""

    def read(*names: str) -> list[tuple[str, str]]:
        here = [name for name in names if lines.lengths[name][0] != -2]
        return [(name, show(take_texts(lines, name)[0].as_py())) for name in here]

    at = datetime.fromtimestamp(int(lines.time_us[0]) // 1_000_000, UTC)
    fields = read("client")
    if lines.starts["client"][0] != lines.starts["peer"][0]:
        fields += read("peer")
    fields += [("time", f"{at:%Y-%m-%d %H:%M:%S} UTC"), *read("method", "target", "protocol")]
    if lines.status[0]:
        fields.append(("status", str(lines.status[0])))
    fields.append(("size", f"{lines.size[0]} bytes"))
    if lines.latency_us[0] >= 0:
        fields.append(("latency", f"{float(lines.latency_us[0]) / 1000:,} ms"))
    return (*fields, *read("user", "vhost", "referrer", "agent"))
