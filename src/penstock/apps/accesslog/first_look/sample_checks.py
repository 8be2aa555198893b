"""Conclusions from a sample of lines: why a format is refused, and which warnings come before a command acts.

Rules: a format is refused if it makes every later answer wrong (no line fits, or most clients are not
clients), and only if enough lines show it: one empty line, or the first health check, proves nothing. A
costly doubt becomes a warning that says what to do. Nothing here reads lines; `line_samples` does.

    for finding in check_sample(take_sample(values, parser)):
        ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from penstock.apps.accesslog.defence.allow_list import is_local
from penstock.apps.accesslog.events.networks import parse_network
from penstock.apps.accesslog.first_look.ambiguous_fields import MissingFields, Rival
from penstock.apps.accesslog.first_look.line_samples import LEAST_LINES, Sample
from penstock.apps.accesslog.parsing.log_formats import has_forwarded, logs_host_names
from penstock.core.errors import OptionError
from penstock.core.loggers import escape
from penstock.core.prose import choose, join

#: What concerns one line in ten is reported.
_SHARE_TOLD = 0.1
_NAMES = "Name the format with --log-format: common, combined, nginx, json, or your own LogFormat."


@dataclass(frozen=True, slots=True)
class FormatFinding:
    """A finding about a sample, as an error. If `is_fatal`, it is raised; otherwise it is a warning."""

    error: OptionError
    is_fatal: bool = False

    @property
    def condition(self) -> str:
        return self.error.condition


def check_sample(sample: Sample, *, is_whole: bool = False) -> list[FormatFinding]:
    """Return what is doubtful, or only what is fatal, if anything is: other facts mean nothing then.

    A few lines prove nothing, unless `is_whole` says that there are no others.
    """
    if not sample.lines:
        return []
    if sample.parsed:
        checks = (
            _check_fit,
            _check_names,
            _check_rivals,
            _check_front,
            _check_proxies,
            _check_unnamed,
            _check_share,
        )
        found = [finding for check in checks for finding in check(sample)]
    else:
        found = [_find_nothing(sample)]
    if not is_whole and (sample.parsed or sample.lines) < LEAST_LINES:
        return [replace(finding, is_fatal=False) for finding in found]
    return [finding for finding in found if finding.is_fatal] or found


def describe_sample(sample: Sample) -> Iterator[str]:
    """Yield the first line field by field, and a sentence about the clients."""
    if not sample.parsed:
        return
    yield f"The first line, read with --log-format {sample.parser.log_format}:"
    width = max(len(name) for name, _ in sample.fields)
    for name, text in sample.fields:
        yield f"  {name:<{width}}  {text}"
    for each in filter(_is_told, sample.rivals):
        yield (
            f"Not used: {escape(each.other)}; the {each.field} is {escape(each.used)} "
            f"(--log-format 'json {each.field}={escape(each.other)}' chooses the other)."
        )
    bad = sample.lines - sample.parsed
    yield (
        f"Looked at {_count(sample.lines, 'line')}: {bad:,} not parsed, {_count(sample.clients, 'client')}, "
        f"{_share(sample.without_address, sample.parsed)} of lines without an address."
    )


def _find_nothing(sample: Sample) -> FormatFinding:
    hint = _NAMES if sample.missing is None else _name_keys(sample.missing)
    return FormatFinding(
        OptionError(
            "NOTHING_PARSED",
            f"0 of {_count(sample.lines, 'line')} could be parsed (--log-format {sample.parser.log_format}): "
            f"{sample.bad_reason}, as in `{sample.bad_line}`.",
            hint=hint,
        ),
        is_fatal=True,
    )


def _name_keys(missing: MissingFields) -> str:
    """Return a hint: which keys a JSON line lacks, which it has, and how to say what they are."""
    looked_for = " ".join(
        f"The {field} is looked for as {', '.join(keys)}." for field, keys in missing.fields
    )
    has = ", ".join(map(escape, missing.keys)) or "none"
    fields = [field for field, _ in missing.fields]
    chosen = " ".join(f"{field}=KEY" for field in fields)
    if not fields:
        return f"The line has the keys {has}. Are the values what their fields need, such as a time?"
    return (
        f"{looked_for} This line has the keys {has}. Say which is which: --log-format 'json {chosen}'. "
        "Other fields are chosen in the same way: target, method, status, size, agent."
    )


def _check_fit(sample: Sample) -> Iterator[FormatFinding]:
    bad = sample.lines - sample.parsed
    if bad >= _SHARE_TOLD * sample.lines:
        yield FormatFinding(
            OptionError(
                "LINES_NOT_PARSED",
                f"{_share(bad, sample.lines)} of {_count(sample.lines, 'line')} do not fit "
                f"--log-format {sample.parser.log_format}: {sample.bad_reason}, as in `{sample.bad_line}`.",
                hint="They become dead letters and are not judged. "
                + (
                    "Is this the format of all your servers?"
                    if sample.missing is None
                    else _name_keys(sample.missing)
                ),
            )
        )


def _check_names(sample: Sample) -> Iterator[FormatFinding]:
    """Report clients that are not addresses: from the wrong column, of an unknown kind, or host names."""
    without, log_format = sample.without_address, sample.parser.log_format
    told = f"{_share(without, sample.parsed)} of the lines have a client that is not an address"
    if sample.misplaced.lines >= _SHARE_TOLD * sample.parsed:
        client, address = sample.misplaced.example
        yield FormatFinding(
            OptionError(
                "CLIENT_IS_NO_ADDRESS",
                f"{told}: `{client}` with --log-format {log_format}, while `{address}` stands behind it in "
                "the same line.",
                hint="Name the format of these lines with --log-format: vhost_combined, or your own "
                """LogFormat, such as '%v %h %l %u %t "%r" %>s %b' for a virtual host in front.""",
            ),
            is_fatal=2 * sample.misplaced.lines > sample.parsed,
        )
    elif 2 * sample.no_name.lines > sample.parsed:
        yield FormatFinding(
            OptionError(
                "CLIENT_IS_NO_ADDRESS",
                f"{told}, and not the name of a host either: `{sample.no_name.example[0]}` "
                f"with --log-format {log_format}.",
                hint=f"{_NAMES} It must say where the client stands: %h, %a or $remote_addr.",
            ),
            is_fatal=True,
        )
    elif 2 * without > sample.parsed and not logs_host_names(log_format):
        yield FormatFinding(
            OptionError(
                "CLIENT_IS_NO_ADDRESS",
                f"{told}: `{sample.named_client}`. The format {log_format} logs addresses only.",
                hint=_NAMES,
            ),
            is_fatal=True,
        )
    elif without >= _SHARE_TOLD * sample.parsed:
        yield FormatFinding(
            OptionError(
                "CLIENT_IS_NO_ADDRESS",
                f"{told}: `{sample.named_client}`. Rules judge such clients, and no blocklist can hold them.",
                hint="Log addresses: `HostnameLookups Off`, or %a in place of %h.",
            )
        )


def _check_rivals(sample: Sample) -> Iterator[FormatFinding]:
    """Report two fields of JSON lines that could both be the client, with different values."""
    rivals = [each for each in sample.rivals if each.field == "client" and _is_told(each)]
    if rivals:
        others = [f"`{escape(each.other)}`" for each in rivals[:3]]
        first = rivals[0]
        yield FormatFinding(
            OptionError(
                "SEVERAL_CLIENT_FIELDS",
                f"The client is taken from `{escape(first.used)}`; {join(others)} "
                f"{choose(others, 'is there as well,', 'are there as well, the first of them')} with another "
                f"value in {_share(first.lines, first.whole)} of the JSON lines looked at, and "
                f"{choose(others, 'is', 'are')} not used.",
                hint=f"If {choose(others, 'that', 'the first')} is the client, say --log-format 'json "
                f"client={escape(first.other)}'; to silence this warning, --log-format 'json "
                f"client={escape(first.used)}'.",
            )
        )


def _is_told(rival: Rival) -> bool:
    return rival.lines >= max(1, _SHARE_TOLD * rival.whole)


def _check_front(sample: Sample) -> Iterator[FormatFinding]:
    """Report two addresses in front where the format has one: only the user knows which is the client."""
    pairs, log_format = sample.paired, sample.parser.log_format
    if pairs.lines >= max(1, _SHARE_TOLD * sample.parsed):
        yield FormatFinding(
            OptionError(
                "TWO_ADDRESSES_IN_FRONT",
                f"{_share(pairs.lines, sample.parsed)} of the lines have two addresses in front, such as "
                f"`{pairs.example[0]}`. --log-format {log_format} has only one field for them there, so the "
                "first is used as the client, whoever it is.",
                hint="There is one field more in front than the format has: write your own LogFormat with "
                """--log-format. If the server's own address is first: '%A %h %l %u %t "%r" %>s %b'; if """
                """X-Forwarded-For is first: '%{X-Forwarded-For}i %h %l %u %t "%r" %>s %b', and name your """
                "proxies with --trusted-proxy.",
            ),
            is_fatal=2 * (pairs.lines + sample.misplaced.lines) > sample.parsed,
        )


def _check_proxies(sample: Sample) -> Iterator[FormatFinding]:
    parsed, unused, unknown = sample.parsed, sample.unused, sample.unknown
    proxies = ", ".join(sample.parser.trusted_proxies)
    if unused.lines >= max(1, _SHARE_TOLD * parsed):
        yield FormatFinding(
            OptionError(
                "FORWARDED_FOR_UNUSED",
                f"X-Forwarded-For is in {_share(unused.lines, parsed)} of the lines and is not used: they "
                f"count for the address that connected, mostly {', '.join(unused.example)}, and not for the "
                "clients behind it.",
                hint=f"If that is your proxy or load balancer, say {_trust(unused.example)}.",
            )
        )
    elif unknown.lines >= max(1, _SHARE_TOLD * parsed):
        yield FormatFinding(
            OptionError(
                "FORWARDED_FOR_UNUSED",
                f"{_share(unknown.lines, parsed)} of the lines hold what looks like X-Forwarded-For "
                f"(`{unknown.example[0]}`), and --log-format {sample.parser.log_format} does not read it "
                "there.",
                hint="If these are the clients, write your LogFormat with %{X-Forwarded-For}i (nginx: "
                "$http_x_forwarded_for) in that place, and name your proxies with --trusted-proxy.",
            )
        )
    elif proxies and not sample.behind_proxies:
        has_place = has_forwarded(sample.parser.log_format)
        why = "was found in none of the lines" if has_place else "has no place in the format"
        lines = _share(sample.of_proxies, parsed)
        yield FormatFinding(
            OptionError(
                "FORWARDED_FOR_MISSING",
                f"--trusted-proxy names {proxies}, but X-Forwarded-For {why} "
                f"(--log-format {sample.parser.log_format}). {lines} of the lines are the proxy's own, and "
                "whoever is behind it is not found.",
                hint="Log the header (%{X-Forwarded-For}i, $http_x_forwarded_for) and name the format with "
                "--log-format. If your server logs the client itself (mod_remoteip, realip), change nothing.",
            )
        )


def _check_unnamed(sample: Sample) -> Iterator[FormatFinding]:
    """Report addresses that look like proxies: a rule would block them with all who are behind them."""
    fronts = sample.fronts
    if fronts:
        yield FormatFinding(
            OptionError(
                "PROXY_NOT_NAMED",
                f"{', '.join(fronts)}: nearly all lines, with X-Forwarded-For of many clients, as from a "
                "load balancer. `run` and `replay` spare such addresses, and so whoever is behind them.",
                hint=f"If that is right, say {_trust(fronts)}, so that the clients are judged; if it is an "
                "attacker that sends this header, say --block-unnamed-proxy.",
            )
        )


def _check_share(sample: Sample) -> Iterator[FormatFinding]:
    """Report one client with most lines, or a few with nearly all, unless they are known proxies."""
    if 2 * sample.top_lines <= sample.parsed:
        yield from _check_few(sample)
        return
    if sample.parsed < LEAST_LINES:
        return
    if sample.of_proxies >= sample.top_lines:
        return
    client = sample.top_client
    spared, attacks = "", "leave it to the rules"
    if client in sample.fronts:
        spared, attacks = " It looks like a proxy and is spared.", "say --block-unnamed-proxy"
    elif is_local(client):
        spared = " Its address is a local one, which is spared by default, and so is whoever is behind it."
        attacks = "say --block-private"
    hint = (
        f"If it is a proxy or load balancer, log X-Forwarded-For and say --trusted-proxy {client}; if it is "
        f"one of yours, say --allow {client}; if it attacks, {attacks}."
    )
    if parse_network(client) is None:
        spared = (
            " It is not an address: no list can hold it, and neither --trusted-proxy nor --allow takes it."
        )
        hint = (
            "Log addresses (`HostnameLookups Off`, or %a in place of %h). Then name this one by its address: "
            "with --trusted-proxy if it is a proxy, and log X-Forwarded-For; with --allow if it is one of "
            "yours."
        )
    yield FormatFinding(
        OptionError(
            "ONE_CLIENT_HAS_MOST_LINES",
            f"{client} has {_share(sample.top_lines, sample.parsed)} of the {_count(sample.parsed, 'line')} "
            f"looked at.{spared}",
            hint=hint,
        )
    )


def _check_few(sample: Sample) -> Iterator[FormatFinding]:
    """Report a few clients with nearly all lines, as behind several load balancers."""
    few = sample.few.example
    if not few or sample.of_proxies >= sample.few.lines or set(few) <= set(sample.fronts):
        return
    spared, attack = "", "leave it to the rules"
    if local := [each for each in few if is_local(each)]:
        spared = (
            f" {join(local)} {choose(local, 'is a local address', 'are local addresses')}, spared by default "
            f"with whoever is behind {choose(local, 'it', 'them')}."
        )
        attack = "say --block-private"
    allowed = " ".join(f"--allow {each}" for each in few if parse_network(each) is not None)
    yours = f"if they are yours, say {allowed}; " if allowed else ""
    yield FormatFinding(
        OptionError(
            "FEW_CLIENTS_HAVE_MOST_LINES",
            f"{join(few)} have {_share(sample.few.lines, sample.parsed)} of the "
            f"{_count(sample.parsed, 'line')} looked at.{spared}",
            hint=f"If they are proxies or load balancers, log X-Forwarded-For and say {_trust(few)}; {yours}"
            f"if they attack, {attack}.",
        )
    )


def _trust(proxies: Iterable[str]) -> str:
    """Return the options that name these as proxies; host names are not accepted, so name their addresses."""
    proxies = list(proxies)
    named = [f"--trusted-proxy {each}" for each in proxies if parse_network(each) is not None]
    hosts = [each for each in proxies if parse_network(each) is None]
    if hosts:
        named.append(
            f"--trusted-proxy with the address of {', '.join(hosts)}, and log addresses "
            "(`HostnameLookups Off`, or %a in place of %h)"
        )
    return " ".join(named)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _share(part: int, whole: int) -> str:
    """Return a share that is never rounded to none or to all."""
    if not part or part == whole:
        return "100%" if part else "0%"
    return f"{min(max(100 * part / whole, 0.1), 99.9):.3g}%"
