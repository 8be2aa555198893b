"""A report as one HTML file: charts and tables, nothing to fetch, nothing that runs.

Rules: every text that does not come from this source code goes through `show_text` and is escaped, in texts
and in attributes. The page's policy (CSP) allows its one style sheet, by hash, and nothing else: no script,
no image, no inline style, no form, no base. So even a text that got through could do no harm. Why not a
template engine and a chart library: a page that loads them shows nothing on a machine without a network, and
a page that contains them is a megabyte of other people's scripts.

>>> page = write_report(ReportData(title="<script>"))
>>> "<script>" in page, page.startswith("<!doctype html>")
(False, True)
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from statistics import median
from typing import Any

from penstock.apps.accesslog.monitoring.alert_events import describe
from penstock.apps.accesslog.reporting.attacker_rows import count_blocked, list_attackers
from penstock.apps.accesslog.reporting.report_data import (
    Decided,
    Load,
    MinuteSummary,
    ReportData,
    TopText,
    cut_to_period,
    find_period,
)
from penstock.apps.accesslog.reporting.report_style import STYLE
from penstock.apps.accesslog.reporting.svg_charts import (
    Band,
    Layer,
    draw_bar,
    draw_lines,
    draw_stack,
    show_bytes,
    show_count,
    show_micros,
    show_text,
)

_WIDE, _NARROW = (1080, 250, 270), (400, 220, 90)  # width, height, points
_STATUS = (("1xx", "s1"), ("2xx", "s2"), ("3xx", "s3"), ("4xx", "s4"), ("5xx", "s5"))
_STATUS_ORDER = (1, 2, 0, 3, 4)  # errors on top
_KIND_TITLES = {"url": "URLs", "client": "Clients", "agent": "Agents", "referrer": "Referrers"}
_ALERT_TITLES = {
    "rate_spike": "Spike",
    "rate_drop": "Drop",
    "error_jump": "Errors",
    "latency_jump": "Latency",
}
_CLASS_LOOKS = ("c1", "c2", "c3", "c4", "c5", "c6", "c7")
_MOST_ROWS = 15
_Size = tuple[int, int, int]
_Span = tuple[float, float]
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400)


def write_report(data: ReportData) -> str:
    """Return the whole page."""
    data = cut_to_period(data)
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer"><meta name="color-scheme" content="light dark">',
        f"<title>{_text(data.title)}</title><style>{STYLE}</style></head><body><main>",
        *_write_head(data),
        *_write_load(data),
        *_write_alerts(data),
        *_write_defence(data),
        *_write_tops(data),
        *_write_checks(data),
        "</main></body></html>\n",
    ]
    return "".join(parts)


def _text(text: object, length: int = 160) -> str:
    return escape(show_text(str(text), length))


# --- the head ----------------------------------------------------------------------------------------------


def _write_head(data: ReportData) -> Iterator[str]:
    made = "" if data.made_at is None else f" · made {_moment(data.made_at.timestamp())}"
    period = "no lines yet"
    if span := find_period(data):
        period = f"{_moment(span[0])} to {_moment(span[1])} UTC"
    yield f"<header><h1>{_text(data.title)}</h1><p>{period}{made}"
    yield f"<br>{_text(data.source)}</p></header>" if data.source else "</p></header>"
    yield '<section class="tiles">'
    for name, value, note, look in _list_tiles(data):
        yield f'<div class="tile {look}"><span>{name}</span><b>{_text(value)}</b><i>{_text(note)}</i></div>'
    yield "</section>"


def _list_tiles(data: ReportData) -> Iterator[tuple[str, str, str, str]]:
    requests = sum(each.requests for each in data.load)
    if data.load:
        length = data.load[-1].begin_s + data.load[-1].length_s - data.load[0].begin_s
        peak = max(each.peak for each in data.load)
        errors = sum(each.errors for each in data.load)
        sent = sum(each.bytes for each in data.load)
        yield "Requests", show_count(requests), f"{show_count(requests / length)} /s on average", ""
        yield "Busiest second", show_count(peak), "requests", ""
        yield "Bytes sent", show_bytes(sent), f"{show_bytes(sent / length)}/s", ""
        share = errors / requests if requests else 0.0
        shown = f"{share:.2%}" if requests else "-"
        yield "Errors (5xx)", shown, f"{show_count(errors)} requests", "bad" if share > 0.02 else ""
    known = [each.p95_us for each in data.minutes if each.p95_us is not None]
    if known:
        yield "Latency p95", show_micros(median(known)), "median of the minutes", ""
    if data.minutes:
        yield "Clients", show_count(max(each.clients for each in data.minutes)), "in the busiest minute", ""
    opened = sum(each["closed_at"] is None for each in data.alerts)
    yield "Alerts", str(len(data.alerts)), f"{opened} open", "bad" if opened else ""
    blocked, unlisted = count_blocked(data.decisions)
    now = "" if data.blocked_now is None else f"; {show_count(data.blocked_now)} in the list now"
    yield "Blocked", show_count(blocked), f"clients in this period{now}", "good" if blocked else ""
    if unlisted:
        yield "Not blocked", show_count(unlisted), "named by a rule, not in any list (names of hosts)", "bad"
    if data.blocked_share is not None:
        look = "good" if data.blocked_share >= 0.9 else ""
        yield "Attack requests blocked", f"{data.blocked_share:.1%}", "after the first decision", look


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%d %b %Y %H:%M:%S")


# --- load --------------------------------------------------------------------------------------------------


def _write_load(data: ReportData) -> Iterator[str]:
    if not data.load:
        return
    span = find_period(data) or (0.0, 1.0)
    bands = _mark_alerts(data.alerts, span[1])
    yield _card("Requests per second", "by status class; the thin line is the busiest second", "wide")
    yield _legend(
        [(name, look) for name, look in _STATUS if any(load.status[int(name[0]) - 1] for load in data.load)]
    )
    yield _draw_both(lambda size: _draw_load(data.load, bands, span, size))
    yield "</section>"
    latencies = [each for each in data.minutes if each.p50_us is not None]
    if latencies:
        jumps = [each for each in bands if each.look == "latency_jump"]
        yield _card("Latency", "per minute, on a logarithmic scale", "wide")
        yield _legend([("p50", "l1"), ("p95", "l2"), ("p99", "l3")])
        yield _draw_both(lambda size: _draw_latency(data.minutes, jumps, span, size))
        yield "</section>"
    yield _card("Bytes per second", "sent to clients", "half")
    yield _draw_both(lambda size: _draw_bytes(data.load, span, size))
    yield "</section>"
    if data.minutes:
        yield _card("Clients", "distinct clients in each minute", "half")
        yield _draw_both(lambda size: _draw_clients(data.minutes, span, size))
        yield "</section>"


def _draw_both(draw: Any) -> str:
    """Return a chart for a desktop and one for a phone; the style sheet shows one of them."""
    return f'<div class="desk">{draw(_WIDE)}</div><div class="phone">{draw(_NARROW)}</div>'


def _gather(load: Sequence[Load], most: int) -> tuple[float, list[Load]]:
    """Return a step, and the load in stretches of that length: about `most`, quiet ones included."""
    begin, end = load[0].begin_s, load[-1].begin_s + load[-1].length_s
    shortest = max((end - begin) / most, load[0].length_s)
    step = float(next((each for each in _STEPS_S if each >= shortest), -(-shortest // 86400) * 86400))
    first = begin // step * step
    found: dict[int, list[Load]] = defaultdict(list)
    for each in load:
        found[int((each.begin_s - first) // step)].append(each)
    merged = []
    for at in range(int((end - first - 1e-6) // step) + 1):
        some = found.get(at, [])
        status = [sum(each.status[group] for each in some) for group in range(5)]
        merged.append(
            Load(
                first + at * step,
                step,
                sum(each.requests for each in some),
                sum(each.bytes for each in some),
                (status[0], status[1], status[2], status[3], status[4]),
                sum(each.errors for each in some),
                max((each.peak for each in some), default=0),
            )
        )
    return step, merged


def _draw_load(load: Sequence[Load], bands: Sequence[Band], span: _Span, size: _Size) -> str:
    step, merged = _gather(load, size[2])
    layers = [
        Layer(_STATUS[at][0], _STATUS[at][1], [each.status[at] / step for each in merged])
        for at in _STATUS_ORDER
    ]
    rest = [max(0.0, (each.requests - sum(each.status)) / step) for each in merged]
    layers.append(Layer("no status", "s1", rest))
    peaks = [float(each.peak) for each in merged] if step > 1 and any(each.peak for each in merged) else None
    return draw_stack(
        [each.begin_s for each in merged],
        layers,
        width=size[0],
        height=size[1],
        step_s=step,
        bands=bands,
        peaks=peaks,
        unit=" requests/s",
        span=span,
    )


def _draw_bytes(load: Sequence[Load], span: _Span, size: _Size) -> str:
    step, merged = _gather(load, size[2] // 2)
    return draw_stack(
        [each.begin_s for each in merged],
        [Layer("sent", "s2", [each.bytes / step for each in merged])],
        width=size[0] // 2 if size is _WIDE else size[0],
        height=size[1] - 40,
        step_s=step,
        show=show_bytes,
        unit="/s",
        span=span,
    )


def _draw_latency(minutes: Sequence[MinuteSummary], bands: Sequence[Band], span: _Span, size: _Size) -> str:
    thinned = _thin(minutes, size[2])
    step = 60.0 * max(1, -(-len(minutes) // size[2]))
    layers = [
        Layer("p50", "l1", [each.p50_us for each in thinned]),
        Layer("p95", "l2", [each.p95_us for each in thinned]),
        Layer("p99", "l3", [each.p99_us for each in thinned]),
    ]
    times = [each.begin_s for each in thinned]
    return draw_lines(
        times,
        layers,
        width=size[0],
        height=size[1] - 20,
        step_s=step,
        bands=bands,
        show=show_micros,
        span=span,
    )


def _draw_clients(minutes: Sequence[MinuteSummary], span: _Span, size: _Size) -> str:
    thinned = _thin(minutes, size[2] // 2)
    step = 60.0 * max(1, -(-len(minutes) // (size[2] // 2)))
    return draw_stack(
        [each.begin_s for each in thinned],
        [Layer("clients", "s3", [each.clients for each in thinned])],
        width=size[0] // 2 if size is _WIDE else size[0],
        height=size[1] - 40,
        step_s=step,
        span=span,
    )


def _thin(minutes: Sequence[MinuteSummary], most: int) -> list[MinuteSummary]:
    """Return at most this many minutes, each the worst of several by p95: percentiles do not add up."""
    step = max(1, -(-len(minutes) // most))
    groups = [minutes[at : at + step] for at in range(0, len(minutes), step)]
    worst = [max(each, key=lambda minute: (minute.p95_us or 0, minute.clients)) for each in groups]
    return [
        MinuteSummary(group[0].begin_s, max(m.clients for m in group), w.p50_us, w.p95_us, w.p99_us)
        for group, w in zip(groups, worst, strict=True)
    ]


def _mark_alerts(alerts: Sequence[dict[str, Any]], end_s: float) -> list[Band]:
    return [
        Band(
            each["opened_at"].timestamp(),
            end_s if each["closed_at"] is None else each["closed_at"].timestamp(),
            each["kind"] if each["kind"] in _ALERT_TITLES else "other",
            show_text(describe(each, closed=False)),
        )
        for each in alerts
    ]


def _write_alerts(data: ReportData) -> Iterator[str]:
    if not data.alerts:
        return
    yield _card("Alerts", f"{len(data.alerts)} in this period, the latest first", "wide")
    yield _table_head("kind", "opened (UTC)", "lasted", "what")
    for each in reversed(data.alerts[-_MOST_ROWS:]):
        kind = each["kind"] if each["kind"] in _ALERT_TITLES else "other"
        lasted = "open"
        if each["closed_at"] is not None:
            lasted = f"{round((each['closed_at'] - each['opened_at']).total_seconds()):,} s"
        yield _row(
            ("", f'<span class="tag {kind}">{_ALERT_TITLES.get(kind, "Other")}</span>'),
            ("moment", _moment(each["opened_at"].timestamp())),
            ("moment", lasted),
            ("text", _text(describe(each, closed=False))),
        )
    yield "</table></div></section>"


# --- defence -----------------------------------------------------------------------------------------------


def _write_defence(data: ReportData) -> Iterator[str]:
    if data.decisions:
        classes = [name for name, _ in Counter(each.of_class for each in data.decisions).most_common()]
        looks = dict(zip(classes[:6], _CLASS_LOOKS, strict=False))
        yield _card("Decisions over time", "by class of attack", "wide")
        shown = [(name.replace("_", " "), look) for name, look in looks.items()]
        yield _legend([*shown, *([("others", "c7")] if len(classes) > 6 else [])])
        yield _draw_both(lambda size: _draw_decisions(data, looks, size))
        yield "</section>"
        yield from _write_classes(data)
        yield from _write_attackers(data)
    yield from _write_scores(data)


def _draw_decisions(data: ReportData, looks: dict[str, str], size: _Size) -> str:
    begin, end = span = find_period(data) or (0.0, 1.0)
    shortest = max((end - begin) / (size[2] // 3), 1)
    step = float(next((each for each in _STEPS_S if each >= shortest), -(-shortest // 86400) * 86400))
    first = begin // step * step
    times = [first + at * step for at in range(int((end - first - 1e-6) // step) + 1)]
    counts: dict[str, list[float]] = {name: [0.0] * len(times) for name in [*looks, ""]}
    for each in data.decisions:
        row = counts[each.of_class if each.of_class in looks else ""]
        row[min(int((each.at_s - first) // step), len(times) - 1)] += 1
    layers = [Layer(show_text(name), look, counts[name]) for name, look in looks.items()]
    layers.append(Layer("others", "c7", counts[""]))
    return draw_stack(
        times, layers, width=size[0], height=size[1] - 40, step_s=step, unit=" decisions", span=span
    )


def _write_classes(data: ReportData) -> Iterator[str]:
    by_class: dict[str, list[Decided]] = defaultdict(list)
    for each in data.decisions:
        by_class[each.of_class].append(each)
    most = max(map(len, by_class.values()))
    yield _card("Classes of attacks", "decisions, and the request that caused them", "half")
    yield _table_head("class", "", ">decisions", ">request, median")
    for name, found in sorted(by_class.items(), key=lambda item: (-len(item[1]), item[0]))[:_MOST_ROWS]:
        index = median(each.request_index for each in found)
        yield _row(
            ("", _text(name.replace("_", " "))),
            ("barcell", draw_bar(len(found) / most, "c1")),
            ("number", f"{len(found):,}"),
            ("number", show_count(index)),
        )
    yield "</table></div></section>"


def _write_attackers(data: ReportData) -> Iterator[str]:
    """Return the table by client; for a network or fingerprint, the clients that took part are the rows."""
    number = len({each.who for each in data.decisions})
    yield _card("Attackers", f"{number:,} in this period, those with most decisions first", "half")
    yield _table_head("who", "class", "action", ">decisions", ">until (UTC)")
    made_at_s = 0.0 if data.made_at is None else data.made_at.timestamp()
    for each in list_attackers(data.decisions, data.bans, made_at_s, _MOST_ROWS):
        until = "-"
        if each.until_s:
            until = datetime.fromtimestamp(each.until_s, UTC).strftime("%d %b %H:%M")
        yield _row(
            ("code", _text(each.who, 60)),
            ("", _text(each.of_class.replace("_", " "))),
            ("", _text(each.action)),
            ("number", f"{each.decisions:,}"),
            ("number", until),
        )
    yield "</table></div></section>"


def _write_scores(data: ReportData) -> Iterator[str]:
    if not data.scores:
        return
    attackers, found = sum(s.attackers for s in data.scores), sum(s.found for s in data.scores)
    benign = "" if data.benign_hit is None else f"; benign clients hit: {data.benign_hit:,}"
    yield _card("Against the truth", f"{found:,} of {attackers:,} attackers found{benign}", "wide")
    has_blocked = any(each.blocked_share is not None for each in data.scores)
    names = ("class", "", ">found", ">requests to detect, median", ">time to detect, median")
    yield _table_head(*names, *([">blocked"] if has_blocked else []))
    for each in sorted(data.scores, key=lambda score: score.of_class):
        share = each.found / each.attackers if each.attackers else 0.0
        requests, seconds, blocked = each.requests_to_detect, each.seconds_to_detect, each.blocked_share
        cells = [
            ("", _text(each.of_class.replace("_", " "))),
            ("barcell", draw_bar(share, "good")),
            ("number", f"{each.found:,} of {each.attackers:,}"),
            ("number", "-" if requests is None else show_count(requests)),
            ("number", "-" if seconds is None else f"{seconds:,.1f} s"),
        ]
        if has_blocked:
            cells.append(("number", "-" if blocked is None else f"{blocked:.1%}"))
        yield _row(*cells)
    yield "</table></div></section>"


# --- tables ------------------------------------------------------------------------------------------------


def _write_tops(data: ReportData) -> Iterator[str]:
    if len(data.servers) > 1:
        yield from _write_texts("Servers", data.servers)
    for kind, rows in data.tops.items():
        if rows:
            yield from _write_texts(_KIND_TITLES.get(kind, "Others"), rows)


def _write_texts(title: str, rows: Sequence[TopText]) -> Iterator[str]:
    most = max(each.hits for each in rows) or 1
    yield _card(title, "the first ten of each minute, added up", "half")
    yield _table_head("", ">requests", ">bytes")
    for each in rows:
        yield _row(
            ("code text", (_text(each.text) or "-") + draw_bar(each.hits / most, "s2")),
            ("number", show_count(each.hits)),
            ("number", show_bytes(each.bytes)),
        )
    yield "</table></div></section>"


def _write_checks(data: ReportData) -> Iterator[str]:
    if not data.checks:
        return
    good = sum(each.is_good for each in data.checks)
    yield _card("Audit", f"{good} of {len(data.checks)} checks passed", "wide")
    yield '<ul class="checks">'
    for each in data.checks:
        look, mark = ("good", "✓") if each.is_good else ("bad", "✗")
        yield f'<li class="{look}"><b>{mark}</b> {_text(each.what)}<i>{_text(each.detail)}</i></li>'
    yield "</ul></section>"


def _card(title: str, note: str, look: str) -> str:
    return f'<section class="card {look}"><h2>{_text(title)}</h2><p class="note">{_text(note)}</p>'


def _legend(names: Sequence[tuple[str, str]]) -> str:
    shown = "".join(
        f'<span><svg class="key" viewBox="0 0 10 10" aria-hidden="true"><rect class="{look}" '
        f'width="10" height="10" rx="2"/></svg>{_text(name)}</span>'
        for name, look in names
    )
    return f'<p class="legend">{shown}</p>'


def _table_head(*names: str) -> str:
    """Return the head of a table; columns that begin with > hold numbers."""
    cells = (
        f'<th class="number">{name[1:]}</th>' if name[:1] == ">" else f"<th>{name}</th>" for name in names
    )
    return f'<div class="scroll"><table><tr>{"".join(cells)}</tr>'


def _row(*cells: tuple[str, str]) -> str:
    """Return a row of a table from classes and contents, which are HTML already."""
    return f"<tr>{''.join(f'<td class={chr(34)}{look}{chr(34)}>{html}</td>' for look, html in cells)}</tr>"
