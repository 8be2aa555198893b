"""Simulated attackers: one generator for each class, with several tools and paces.

Rule: an attacker has one label, and all its requests are of its class. Its identity, its requests and its
pace follow from the dice alone. Loud ones name their tool and hurry; quiet ones look like a browser and wait.
Some come from one address, some from a whole /24 or /64, and some share only the form of their requests. The
answers are what this site would give: mostly 404 and 403, sometimes 200, which is what they hope for.

    attackers = SimulatedAttackers(pool, site, dice)
    events = attackers.attack("brute_force", Situation(3.0, seconds_left=57.0, rate=5000), clients, dice)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from penstock.apps.accesslog.simulation.attack_payloads import COUNTED, make_agent_payloads, make_requests
from penstock.apps.accesslog.simulation.honest_visitors import Site, make_agents
from penstock.apps.accesslog.simulation.simulated_requests import (
    NO_TEXT,
    ClientTable,
    EventRows,
    Floats,
    Numbers,
    TextPool,
    make_events,
    pick_latencies,
)

#: How often each class attacks, against the others.
CLASSES = {
    "agent_switching": 2,
    "bad_agent": 4,
    "brute_force": 6,
    "cms_probe": 8,
    "command_injection": 4,
    "cve_probe": 6,
    "distributed_scan": 4,
    "enumeration": 3,
    "file_inclusion": 4,
    "flood": 3,
    "form_spam": 3,
    "java_injection": 4,
    "path_traversal": 5,
    "php_injection": 3,
    "probing": 6,
    "protocol_abuse": 5,
    "proxy_abuse": 5,
    "scanner": 4,
    "secret_file": 8,
    "sql_injection": 6,
    "template_injection": 3,
    "web_shell": 5,
    "xss": 5,
}
LABELS = ("", *CLASSES)

#: Tools that scan, as they name themselves.
_TOOLS = (
    "Mozilla/5.00 (Nikto/2.5.0) (Evasions:None) (Test:000003)",
    "sqlmap/1.8.4#stable (https://sqlmap.org)",
    "Nuclei - Open-source project (github.com/projectdiscovery/nuclei)",
    "gobuster/3.6",
    "WPScan v3.8.25 (https://wpscan.com/wordpress-security-scanner)",
    "Mozilla/5.0 zgrab/0.x",
    "masscan/1.3 (https://github.com/robertdavidgraham/masscan)",
    "Fuzz Faster U Fool v2.1.0-dev",
    "DirBuster-1.0-RC1 (http://www.owasp.org/index.php/Category:OWASP_DirBuster_Project)",
    "Mozilla/5.0 (compatible; Nmap Scripting Engine; https://nmap.org/book/nse.html)",
)
#: Libraries that honest programs use, too.
_LIBRARIES = ("python-requests/2.31.0", "Go-http-client/1.1", "curl/8.4.0", "Wget/1.21.4", "libwww-perl/6.72")


def _flood_rate(rate: float) -> float:
    """Return the requests per second of one address that floods a site with this load."""
    return float(np.clip(rate * 0.03, 40.0, 250.0))


def mean_flood(rate: float) -> float:
    """Return a flood's mean number of lines: 5.5 s of one address or, in 2 of 5, of 18 at a sixth each."""
    return _flood_rate(rate) * 5.5 * (0.6 + 0.4 * 18.5 / 6)


@dataclass(frozen=True, slots=True)
class Situation:
    """When an attack begins, how much of the simulation is left then, and how busy the site is."""

    second: float
    seconds_left: float
    rate: float


class SimulatedAttackers:
    """All classes of attackers of one site."""

    def __init__(self, pool: TextPool, site: Site, dice: np.random.Generator) -> None:
        self._requests = {
            name: pool.add_all(make_requests(name, dice))
            for name in CLASSES
            if name not in ("agent_switching", "bad_agent", "distributed_scan", "scanner")
        }
        self._pages = site.pages
        self._browsers = site.browsers
        self._many_agents = pool.add_all(make_agents(dice, 200))
        self._tools = pool.add_all([each.encode() for each in _TOOLS])
        self._libraries = pool.add_all([each.encode() for each in _LIBRARIES])
        self._evil_agents = pool.add_all(make_agent_payloads())
        self._spam_links = pool.add_all([b"https://www.example.org/contact", b"https://cheap-pills.example/"])
        self._home = pool.add(b"GET / HTTP/1.1")
        self._post_home = pool.add(b"POST / HTTP/1.1")

    def attack(self, name: str, now: Situation, clients: ClientTable, dice: np.random.Generator) -> EventRows:
        """Return one campaign of this class, from its first to its last request."""
        makers: dict[str, Callable[[Situation, ClientTable, np.random.Generator], EventRows]] = {
            "agent_switching": self._switch_agents,
            "bad_agent": self._come_with_a_tool,
            "brute_force": self._guess_passwords,
            "distributed_scan": self._scan_together,
            "enumeration": self._count_up,
            "flood": self._flood,
            "form_spam": self._spam,
            "java_injection": self._inject_java,
            "protocol_abuse": self._speak_oddly,
            "scanner": self._scan,
        }
        if name in makers:
            return makers[name](now, clients, dice)
        return self._probe(name, now, clients, dice)

    # --- parts ----------------------------------------------------------------------------------------

    def _one(self, name: str, clients: ClientTable, dice: np.random.Generator) -> Numbers:
        return clients.add(1, dice, label=LABELS.index(name), v6_share=0.1)

    def _pick_agent(self, dice: np.random.Generator, loud: float = 0.3) -> int:
        """Return an agent: a tool that names itself, a library, none at all, or a browser."""
        kind = dice.random()
        if kind < loud:
            return int(dice.choice(self._tools))
        if kind < loud + 0.25:
            return int(dice.choice(self._libraries))
        return NO_TEXT if kind < loud + 0.35 else int(dice.choice(self._browsers))

    def _pace(self, count: int, per_second: float, now: Situation, dice: np.random.Generator) -> Floats:
        """Return the times of this many requests, if possible none after the end of the simulation."""
        gaps = dice.exponential(1.0 / per_second, count)
        moments = np.cumsum(gaps) - gaps[:1]
        most = max(now.seconds_left - 1.0, 0.5)
        return now.second + (moments * (most / moments[-1]) if count and moments[-1] > most else moments)

    def _make(
        self,
        begin: Floats,
        client: Numbers | int,
        request: Numbers | int,
        dice: np.random.Generator,
        *,
        agent: Numbers | int,
        statuses: tuple[int, ...] = (404, 404, 404, 403, 400),
        referrer: Numbers | int = NO_TEXT,
    ) -> EventRows:
        count = begin.size
        status = dice.choice(np.array(statuses), count)
        return make_events(
            count,
            begin=begin,
            client=client,
            request=request,
            referrer=referrer,
            agent=agent,
            size=np.where(status == 200, dice.integers(2_000, 40_000, count), dice.integers(180, 520, count)),
            latency_us=pick_latencies(count, dice, 3_000.0),
            status=status,
        )

    def _draw(self, name: str, count: int, dice: np.random.Generator) -> Numbers:
        pool = self._requests[name]
        return dice.choice(pool, count, replace=count > pool.size)

    # --- classes --------------------------------------------------------------------------------------

    def _probe(self, name: str, now: Situation, clients: ClientTable, dice: np.random.Generator) -> EventRows:
        """Try a few or many payloads of one class, from one address, quickly or slowly."""
        most = {"probing": 140, "sql_injection": 60, "proxy_abuse": 8, "cms_probe": 18}.get(name, 16)
        least = 25 if name == "probing" else 1
        count = int(dice.integers(least, most))
        statuses: tuple[int, ...] = (404, 404, 404, 403)
        if name in ("sql_injection", "xss", "command_injection", "php_injection", "template_injection"):
            statuses = (200, 200, 404, 403, 500)
        elif name == "proxy_abuse":
            statuses = (400, 405, 404, 200)
        return self._make(
            self._pace(count, float(dice.choice([0.5, 2.0, 12.0])), now, dice),
            self._one(name, clients, dice),
            self._draw(name, count, dice),
            dice,
            agent=self._pick_agent(dice, loud=0.2),
            statuses=statuses,
        )

    def _inject_java(self, now: Situation, clients: ClientTable, dice: np.random.Generator) -> EventRows:
        """Inject into the target, and often into the agent of a harmless-looking request."""
        count = int(dice.integers(1, 10))
        in_agent = dice.random(count) < 0.4
        return self._make(
            self._pace(count, 2.0, now, dice),
            self._one("java_injection", clients, dice),
            np.where(in_agent, self._home, self._draw("java_injection", count, dice)),
            dice,
            agent=np.where(in_agent, dice.choice(self._evil_agents[1:], count), self._pick_agent(dice, 0.1)),
            statuses=(200, 404, 400),
        )

    def _scan(self, now: Situation, clients: ClientTable, dice: np.random.Generator) -> EventRows:
        """Scan for everything, fast, with a tool that may or may not name itself."""
        count = int(dice.integers(80, 300))
        names = ("probing", "secret_file", "sql_injection", "xss", "path_traversal", "cve_probe", "cms_probe")
        picked = np.concatenate([self._draw(name, count // len(names) + 1, dice) for name in names])
        return self._make(
            self._pace(count, float(dice.choice([8.0, 25.0, 60.0])), now, dice),
            self._one("scanner", clients, dice),
            dice.permutation(picked)[:count],
            dice,
            agent=self._pick_agent(dice, loud=0.7),
            statuses=(404, 404, 404, 403, 400, 200, 500),
        )

    def _guess_passwords(self, now: Situation, clients: ClientTable, dice: np.random.Generator) -> EventRows:
        """Guess passwords fast, or slowly until the end; the server answers 200 as often as 401."""
        if dice.random() < 0.5:
            count, per_second = int(dice.integers(40, 180)), float(dice.uniform(4.0, 15.0))
        else:
            count = int(dice.integers(35, 70))
            per_second = min(count / max(now.seconds_left - 2.0, 1.0), 0.7)
        return self._make(
            self._pace(count, per_second, now, dice),
            self._one("brute_force", clients, dice),
            int(dice.choice(self._requests["brute_force"])),
            dice,
            agent=self._pick_agent(dice, loud=0.05),
            statuses=(200,) if dice.random() < 0.5 else (401, 401, 403),
        )

    def _flood(self, now: Situation, clients: ClientTable, dice: np.random.Generator) -> EventRows:
        """Flood from one address or from 8 to 29, each with far more requests than anyone could read."""
        sources = 1 if dice.random() < 0.6 else int(dice.integers(8, 30))
        each_per_second = _flood_rate(now.rate) / (1.0 if sources == 1 else 6.0)
        lasts_s = min(float(dice.uniform(3.0, 8.0)), max(now.seconds_left, 1.0))
        count = int(each_per_second * lasts_s) * sources
        who = clients.add(sources, dice, label=LABELS.index("flood"))
        same = dice.random() < 0.4
        return self._make(
            now.second + np.sort(dice.random(count)) * lasts_s,
            dice.choice(who, count),
            int(dice.choice([self._home, self._post_home])) if same else self._draw("flood", count, dice),
            dice,
            agent=dice.choice(self._browsers, count) if sources > 1 else self._pick_agent(dice, 0.0),
            statuses=(200, 200, 503),
        )

    def _spam(self, now: Situation, clients: ClientTable, dice: np.random.Generator) -> EventRows:
        """Spam from a script on many addresses, one that does not stop, or many that look like people.

        The script sends no referrer. Those that look like people have the agent and the referrer of people.
        """
        way = dice.choice(["script", "one", "people"], p=[0.4, 0.35, 0.25])
        sources = 1 if way == "one" else int(dice.integers(8, 20))
        posts = dice.integers(8, 40, 1) if way == "one" else dice.integers(1, 5, sources)
        who = np.repeat(clients.add(sources, dice, label=LABELS.index("form_spam")), posts)
        lasts_s = max(min(now.seconds_left * 0.8, 90.0 if way == "one" else 600.0), 1.0)
        return self._make(
            now.second + np.sort(dice.random(who.size)) * lasts_s,
            dice.permutation(who),
            int(dice.choice(self._requests["form_spam"])),
            dice,
            agent=int(dice.choice(self._browsers)),
            statuses=(200, 302, 303),
            referrer=NO_TEXT if way == "script" else int(dice.choice(self._spam_links)),
        )

    def _speak_oddly(self, now: Situation, clients: ClientTable, dice: np.random.Generator) -> EventRows:
        """Send what is not HTTP, or what nobody should request."""
        count = int(dice.integers(2, 9))
        return self._make(
            self._pace(count, 1.0, now, dice),
            self._one("protocol_abuse", clients, dice),
            self._draw("protocol_abuse", count, dice),
            dice,
            agent=NO_TEXT,
            statuses=(400, 400, 408, 501, 414),
        )

    def _come_with_a_tool(self, now: Situation, clients: ClientTable, dice: np.random.Generator) -> EventRows:
        """Request ordinary pages with an agent that nobody browses with."""
        count = int(dice.integers(3, 25))
        shell = dice.random() < 0.15
        return self._make(
            self._pace(count, float(dice.choice([0.6, 5.0])), now, dice),
            self._one("bad_agent", clients, dice),
            dice.choice(self._pages, count),
            dice,
            agent=int(self._evil_agents[0]) if shell else int(dice.choice(self._tools)),
            statuses=(200,),
        )

    def _switch_agents(self, now: Situation, clients: ClientTable, dice: np.random.Generator) -> EventRows:
        """Use another browser with each request of one address."""
        count = int(dice.integers(25, 70))
        return self._make(
            self._pace(count, float(dice.choice([3.0, 10.0])), now, dice),
            self._one("agent_switching", clients, dice),
            dice.choice(self._pages, count),
            dice,
            agent=dice.choice(self._many_agents, count, replace=False),
            statuses=(200, 200, 404),
        )

    def _scan_together(self, now: Situation, clients: ClientTable, dice: np.random.Generator) -> EventRows:
        """Spread a scan over one /24, one /64, or addresses that share only the form of their requests."""
        sources = int(dice.integers(12, 40))
        label, way = LABELS.index("distributed_scan"), int(dice.integers(0, 3))
        if way == 2:
            who = clients.add(sources, dice, label=label)
        else:
            who = clients.add_net(sources, dice, label=label, v6=way == 1)
        each = np.repeat(who, dice.integers(1, 4, sources))
        picked = [self._draw(name, each.size // 2 + 1, dice) for name in ("probing", "secret_file")]
        begin = now.second + np.sort(dice.random(each.size)) * min(max(now.seconds_left * 0.7, 1.0), 300.0)
        agent = int(dice.choice(self._libraries if way == 2 else self._browsers))
        return self._make(
            begin,
            dice.permutation(each),
            dice.permutation(np.concatenate(picked))[: each.size],
            dice,
            agent=agent,
        )

    def _count_up(self, now: Situation, clients: ClientTable, dice: np.random.Generator) -> EventRows:
        """Ask for one number after another: users, invoices, orders."""
        numbers = self._requests["enumeration"]
        count = int(dice.integers(30, 120))
        first = int(dice.integers(0, numbers.size // COUNTED)) * COUNTED + int(
            dice.integers(0, COUNTED - count)
        )
        return self._make(
            self._pace(count, float(dice.choice([2.0, 10.0])), now, dice),
            self._one("enumeration", clients, dice),
            numbers[first : first + count],
            dice,
            agent=self._pick_agent(dice, loud=0.05),
            statuses=(200, 404, 403, 301),
        )
