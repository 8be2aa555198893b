"""The honest traffic of a simulated site: visitors with sessions, apps, feed readers, monitors and crawlers.

Rule: what is simulated looks like what servers log. A visit is a page with its assets, then another page the
first one links to, with the first as its referrer; caches answer 304, old links 404, some visitors mistype
their password, whole offices share an address. Crawlers come from the networks that their operators publish,
read robots.txt and follow old links. Visits are drawn once as templates; a simulation copies them by the
thousand.

    site = Site(pool, dice)
    events = site.begin_visits(40, second=12.0, clients=clients, dice=dice)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from penstock.apps.accesslog.simulation.simulated_requests import (
    LONGEST_REQUEST_US,
    NO_TEXT,
    ClientTable,
    EventRows,
    Numbers,
    TextPool,
    make_events,
    pick_latencies,
)

_TEMPLATES = 600
#: No visit lasts longer, so a simulation knows how long before its first second visits may have begun.
LONGEST_VISIT_S = 45.0
_HOME = "https://www.example.org"
_THINGS = (
    *("lamp", "chair", "shelf", "teapot", "clock", "kettle", "rug", "vase"),
    *("basket", "stool", "mirror", "blanket", "candle", "tray", "jar", "bench"),
)
_KINDS = (
    *("oak", "linen", "copper", "walnut", "wool", "glass", "brass", "cotton"),
    *("slate", "bamboo", "cork", "enamel"),
)
_TOPICS = (
    *(
        "caring-for-wood",
        "winter-light",
        "small-kitchens",
        "colour-notes",
        "workshop-visit",
        "repair-day",
        "reading-corner",
    ),
)
_WEBKIT = "AppleWebKit/537.36 (KHTML, like Gecko)"
_SAFARI = "AppleWebKit/605.1.15 (KHTML, like Gecko) Version/{b}.{c}"
_BROWSERS = (
    f"Mozilla/5.0 (Windows NT 10.0; Win64; x64) {_WEBKIT} Chrome/{{a}}.0.0.0 Safari/537.36",
    f"Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) {_SAFARI} Safari/605.1.15",
    "Mozilla/5.0 (X11; Linux x86_64; rv:{a}.0) Gecko/20100101 Firefox/{a}.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:{a}.0) Gecko/20100101 Firefox/{a}.0",
    f"Mozilla/5.0 (iPhone; CPU iPhone OS {{b}}_{{c}} like Mac OS X) {_SAFARI} Mobile/15E148 Safari/604.1",
    f"Mozilla/5.0 (Linux; Android 1{{c}}; K) {_WEBKIT} Chrome/{{a}}.0.0.0 Mobile Safari/537.36",
    f"Mozilla/5.0 (Windows NT 10.0; Win64; x64) {_WEBKIT} Chrome/{{a}}.0.0.0 Safari/537.36 Edg/{{a}}.0.0.0",
)
_APPS = (
    "ExampleShop/4.{c}.1 (Android 14) okhttp/4.12.0",
    "ExampleShop/5.{c} CFNetwork/1496.0.7 Darwin/23.5.0",
)
_READERS = (
    "NetNewsWire (RSS Reader; https://netnewswire.com/)",
    "Feedly/1.0 (+http://www.feedly.com/fetcher.html)",
)
_MONITOR = "Mozilla/5.0+(compatible; UptimeRobot/2.0; http://www.uptimerobot.com/)"
#: Crawlers: agent, and addresses in networks their operators publish (the last two publish none).
_CRAWLERS = (
    ("Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)", 0x42F94201, 4),
    ("Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; bingbot/2.0; +http://www.bing.com/bingbot.htm)"
     " Chrome/116.0.1938.76 Safari/537.36", 0x284DA705, 3),
    ("Mozilla/5.0 (compatible; AhrefsBot/7.0; +http://ahrefs.com/robot/)", 0x36240A21, 2),
    ("Mozilla/5.0 (compatible; SemrushBot/7~bl; +http://www.semrush.com/bot.html)", 0x55D01A3C, 2),
)  # fmt: skip
_LINKS = (
    "https://www.google.com/",
    "https://www.bing.com/",
    "https://duckduckgo.com/",
    "https://news.example.net/a",
)


def make_agents(dice: np.random.Generator, count: int = 60) -> list[bytes]:
    """Return the user agents of common browsers, in many versions."""
    shapes = dice.integers(0, len(_BROWSERS), count).tolist()
    numbers = dice.integers(0, 12, (count, 2)).tolist()
    return [
        _BROWSERS[shape].format(a=118 + a, b=15 + a % 4, c=c % 6).encode()
        for shape, (a, c) in zip(shapes, numbers, strict=True)
    ]


def visitors_at(second: float, day_s: float) -> float:
    """Return how many visitors come at this second of a day, relative to other times: few at night."""
    angle = 2 * math.pi * (second % day_s) / day_s
    return 1.0 - 0.55 * math.cos(angle - 0.6) + 0.12 * math.sin(2 * angle)


@dataclass(slots=True)
class _Drawing:
    """A template while it is drawn: what is requested, when, and how it is answered."""

    rows: list[tuple[float, int, int, int, int, float]]
    at: float = 0.0

    def ask(
        self, request: int, referrer: int, status: int, size: int, median_us: float, after_s: float
    ) -> None:
        self.at = min(self.at + after_s, LONGEST_VISIT_S)
        self.rows.append((self.at, request, referrer, status, size, median_us))


class Site:
    """Pages, assets and visits of one shop with a journal."""

    def __init__(self, pool: TextPool, dice: np.random.Generator) -> None:
        self._pool = pool
        self.browsers = pool.add_all(make_agents(dice))
        self._apps = pool.add_all([each.format(c=n).encode() for n in range(4) for each in _APPS])
        self._readers = pool.add_all([each.encode() for each in _READERS])
        self._paths = self._make_paths(dice)
        self.pages = pool.add_all([_get(path) for path in self._paths])
        self._page_sizes = dice.integers(6_000, 60_000, len(self._paths))
        self._page_links = pool.add_all([f"{_HOME}{path}".encode() for path in self._paths])
        self._links = pool.add_all([each.encode() for each in _LINKS])
        assets = ["/static/css/main.css", "/static/css/shop.css", "/static/js/app.js", "/static/js/vendor.js"]
        assets += [f"/static/img/{thing}-{kind}.webp" for thing in _THINGS for kind in _KINDS[:6]]
        assets += ["/static/fonts/text.woff2", "/favicon.ico", "/static/img/logo.svg"]
        self._assets = pool.add_all([_get(path) for path in assets])
        self._asset_sizes = dice.integers(900, 180_000, len(assets))
        self._old = pool.add_all([_get(f"/journal/2019/{each}.html") for each in _TOPICS])
        self._old_image = pool.add(_get("/static/img/banner-old.gif"))
        self._robots = pool.add(_get("/robots.txt"))
        self._feed = pool.add(_get("/journal/feed.xml"))
        self._health = pool.add(_get("/health"))
        self._api = pool.add_all(
            [_get(f"/api/v1/{each}") for each in ("items?limit=20", "cart", "stock", "me")]
        )
        self._posts = {
            each: pool.add(f"POST {each} HTTP/1.1".encode()) for each in ("/login", "/cart", "/contact")
        }
        self._draw_templates(dice)
        self._crawlers: Numbers = np.zeros(0, np.int64)
        self._crawler_agents: Numbers = np.zeros(0, np.int64)
        self._monitors: Numbers = np.zeros(0, np.int64)

    def _make_paths(self, dice: np.random.Generator) -> list[str]:
        paths = [
            "/",
            "/products",
            "/journal",
            "/about",
            "/contact",
            "/cart",
            "/login",
            "/delivery",
            "/imprint",
        ]
        paths += [f"/products/{kind}-{thing}" for thing in _THINGS for kind in _KINDS]
        paths += [f"/products?page={n}&sort={way}" for n in range(1, 9) for way in ("price", "new")]
        paths += [f"/journal/{topic}" for topic in _TOPICS]
        words = dice.integers(0, [len(_KINDS), len(_THINGS)], (40, 2)).tolist()
        paths += [f"/search?q={_KINDS[a]}+{_THINGS[b]}" for a, b in words]
        return paths

    # --- templates ------------------------------------------------------------------------------------

    def _draw_templates(self, dice: np.random.Generator) -> None:
        kinds = ("reader", "shopper", "app", "feed")
        chosen = dice.choice(len(kinds), _TEMPLATES, p=[0.62, 0.2, 0.12, 0.06])
        drawings = [getattr(self, f"_draw_{kinds[kind]}")(dice).rows for kind in chosen.tolist()]
        self._template_kinds = chosen
        self._lengths = np.array([len(rows) for rows in drawings], np.int64)
        self._firsts = np.concatenate([[0], np.cumsum(self._lengths)[:-1]])
        table = [row for rows in drawings for row in rows]
        self._offsets = np.array([row[0] for row in table])
        self._rows = make_events(
            len(table),
            begin=self._offsets,
            request=[row[1] for row in table],
            referrer=[row[2] for row in table],
            status=[row[3] for row in table],
            size=[row[4] for row in table],
        )
        self._medians = np.array([row[5] for row in table])
        self.mean_length = float(self._lengths.mean())

    def _ask_page(self, drawing: _Drawing, dice: np.random.Generator, referrer: int, cached: bool) -> int:
        """Ask for a page and its parts; return the number of the page's address, as a referrer."""
        # A few pages are requested often, most of them rarely.
        page = min(int(dice.pareto(0.9) * 3), len(self._paths) - 1)
        size = int(self._page_sizes[page])
        status = 200 if dice.random() < 0.985 else int(dice.choice([301, 404, 500, 503]))
        drawing.ask(int(self.pages[page]), referrer, status, size, 60_000.0, 0.0)
        link = int(self._page_links[page])
        for asset in dice.integers(0, self._assets.size, int(dice.integers(2, 9))).tolist():
            fresh = not cached and dice.random() < 0.9
            size = int(self._asset_sizes[asset]) if fresh else 0
            drawing.ask(
                int(self._assets[asset]), link, 200 if fresh else 304, size, 1_500.0, dice.random() * 0.2
            )
        if dice.random() < 0.02:
            drawing.ask(self._old_image, link, 404, 310, 900.0, 0.05)
        return link

    def _draw_reader(self, dice: np.random.Generator) -> _Drawing:
        drawing = _Drawing([])
        referrer = int(dice.choice(self._links)) if dice.random() < 0.5 else NO_TEXT
        cached = bool(dice.random() < 0.3)
        if dice.random() < 0.03:
            drawing.ask(int(dice.choice(self._old)), referrer, 404, 5_200, 30_000.0, 0.0)
        for number in range(int(dice.integers(1, 6))):
            drawing.at += 0.0 if number == 0 else float(dice.uniform(1.5, 9.0))
            referrer = self._ask_page(drawing, dice, referrer, cached or number > 0)
        return drawing

    def _draw_shopper(self, dice: np.random.Generator) -> _Drawing:
        drawing = self._draw_reader(dice)
        link = int(self._page_links[0])
        tries = 1 + int(dice.random() < 0.15) + int(dice.random() < 0.05)
        for number in range(tries):  # people mistype their password
            done = number == tries - 1
            drawing.ask(self._posts["/login"], link, 302 if done else 401, 420, 180_000.0, dice.uniform(2, 6))
        for _ in range(int(dice.integers(1, 4))):
            drawing.ask(self._posts["/cart"], link, 200, 900, 90_000.0, dice.uniform(1, 4))
        if dice.random() < 0.1:
            drawing.ask(self._posts["/contact"], link, 302, 350, 120_000.0, dice.uniform(3, 8))
        return drawing

    def _draw_app(self, dice: np.random.Generator) -> _Drawing:
        drawing = _Drawing([])
        for number in dice.integers(0, self._api.size, int(dice.integers(8, 40))).tolist():
            size = int(dice.integers(200, 9_000))
            drawing.ask(int(self._api[number]), NO_TEXT, 200, size, 12_000.0, float(dice.exponential(0.6)))
        return drawing

    def _draw_feed(self, dice: np.random.Generator) -> _Drawing:
        drawing = _Drawing([])
        fresh = dice.random() < 0.2
        drawing.ask(self._feed, NO_TEXT, 200 if fresh else 304, 21_000 if fresh else 0, 4_000.0, 0.0)
        return drawing

    # --- events ---------------------------------------------------------------------------------------

    def begin_visits(
        self, count: int, second: float, clients: ClientTable, dice: np.random.Generator
    ) -> EventRows:
        """Return the requests of this many visits that begin within this second."""
        template = dice.integers(0, self._lengths.size, count)
        visitors = self._choose_visitors(self._template_kinds[template], clients, dice)
        lengths = self._lengths[template]
        visit = np.repeat(np.arange(count), lengths)
        within = np.arange(visit.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        row = self._firsts[template][visit] + within
        events = self._rows[row]
        begin = second + dice.random(count)
        pace = dice.uniform(0.6, 1.4, count)
        events["begin"] = begin[visit] + np.minimum(self._offsets[row] * pace[visit], LONGEST_VISIT_S)
        events["client"] = visitors[visit]
        events["agent"] = clients.agents[visitors][visit]
        dynamic = self._medians[row] > 10_000
        jitter = np.where(dynamic & (events["size"] > 1000), dice.uniform(0.9, 1.1, row.size), 1.0)
        events["size"] = events["size"] * jitter
        latency_us = pick_latencies(row.size, dice, 1.0e3) * self._medians[row] / 1.0e3
        events["latency_us"] = np.minimum(latency_us, LONGEST_REQUEST_US)
        return events

    def _choose_visitors(self, kinds: Numbers, clients: ClientTable, dice: np.random.Generator) -> Numbers:
        visitors = clients.add(kinds.size, dice)
        agents = np.where(
            kinds == 2,
            dice.choice(self._apps, kinds.size),
            np.where(
                kinds == 3, dice.choice(self._readers, kinds.size), dice.choice(self.browsers, kinds.size)
            ),
        )
        clients.agents[visitors] = agents
        # A tenth shares the address of another visit of the same second: an office, a family, a provider.
        shared = np.flatnonzero((dice.random(kinds.size) < 0.1) & (kinds < 2))
        visitors[shared] = visitors[np.maximum(shared - 1, 0)]
        return visitors

    def crawl(self, second: int, rate: float, clients: ClientTable, dice: np.random.Generator) -> EventRows:
        """Return the requests of crawlers and monitors within this second."""
        if not self._crawlers.size:
            self._invite_crawlers(clients, dice)
        count = int(dice.poisson(rate))
        who = dice.integers(0, self._crawlers.size, count)
        page = dice.integers(0, self.pages.size, count)
        old = dice.random(count) < 0.03
        request = np.where(old, dice.choice(self._old, count), self.pages[page])
        if count and second % 30 == 0:
            request[0] = self._robots
        crawled = make_events(
            count,
            begin=second + dice.random(count),
            client=self._crawlers[who],
            request=request,
            referrer=NO_TEXT,
            agent=self._crawler_agents[who],
            size=np.where(old, 5_200, self._page_sizes[page]),
            latency_us=pick_latencies(count, dice, 50_000.0),
            status=np.where(old, 404, 200),
        )
        due = self._monitors[(second + np.arange(self._monitors.size) * 4) % 10 == 0]
        monitored = make_events(
            due.size,
            begin=second + dice.random(due.size),
            client=due,
            request=self._health,
            agent=clients.agents[due],
            size=2,
            latency_us=pick_latencies(due.size, dice, 900.0),
            status=200,
        )
        return np.concatenate([crawled, monitored])

    def _invite_crawlers(self, clients: ClientTable, dice: np.random.Generator) -> None:
        addresses = [base + number for _, base, count in _CRAWLERS for number in range(count)]
        self._crawlers = clients.add_known(addresses)
        names = [agent.encode() for agent, _, count in _CRAWLERS for _ in range(count)]
        self._crawler_agents = self._pool.add_all(names)
        clients.agents[self._crawlers] = self._crawler_agents
        self._monitors = clients.add(3, dice, v6_share=0.0)
        clients.agents[self._monitors] = self._pool.add(_MONITOR.encode())


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1".encode()
