"""What the verbs say about a log before they act on it: wrong formats, proxies, and who is spared."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.apps.accesslog.defence.defence_settings import DefenceSettings, OrdersInForce
from penstock.apps.accesslog.first_look import topic_samples
from penstock.apps.accesslog.first_look.ambiguous_fields import find_rivals
from penstock.apps.accesslog.first_look.first_lines import LONGEST_HOLD_S, FirstLines
from penstock.apps.accesslog.first_look.line_samples import SAMPLE_LINES, Sample, cut_sample, take_sample
from penstock.apps.accesslog.first_look.sample_checks import check_sample, describe_sample
from penstock.apps.accesslog.parsing.line_parser import make_parser
from penstock.cli import main
from penstock.cli.accesslog.first_look_messages import FirstLook
from penstock.cli.commands.accesslog import run_pipeline
from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import OptionError
from tests.support.accesslog.fed_engine import FedEngine

REST = '- - [10/Oct/2000:13:55:{:02d} +0000] "GET {} HTTP/1.1" 404 23 "-" "curl/8.0"'
VHOST_FIRST = '%v %h %l %u %t "%r" %>s %b'


def write_log(*lines: str) -> str:
    Path("access.log").write_text("".join(f"{line}\n" for line in lines))
    return "access.log"


def write_lines(head: str, tail: str = "", path: str = "/.env", count: int = 40) -> list[str]:
    """Return lines of many clients; `{}` in head or tail is the client's number."""
    return [f"{head.format(n)} {REST.format(n % 60, path)}{tail.format(n)}" for n in range(1, count + 1)]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def replay(log: str, *more: str) -> int:
    return main(["accesslog", "replay", log, "--decisions", "found.csv", *more])


def find_conditions(lines: list[str], log_format: str = "auto", *proxies: str) -> list[tuple[str, bool]]:
    values = pa.array([line.encode() for line in lines], pa.binary())
    sample = take_sample(values, make_parser(log_format, proxies))
    return [(each.condition, each.is_fatal) for each in check_sample(sample)]


# --- the load balancer ------------------------------------------------------------------------------------


def test_a_load_balancer_is_not_blocked_and_is_named_before_anything_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = write_log(*write_lines("10.0.0.5", ' "203.0.113.{}"'), *write_lines("203.0.113.200", count=1))
    assert replay(log) == 0
    told = capsys.readouterr().err
    assert "10.0.0.5" not in Path("found.csv").read_text()
    assert "203.0.113.200" in Path("found.csv").read_text()
    assert "WARNING [FORWARDED_FOR_UNUSED] X-Forwarded-For is in 97.6% of the lines and is not used" in told
    assert "say --trusted-proxy 10.0.0.5" in told
    assert "WARNING [ONE_CLIENT_HAS_MOST_LINES] 10.0.0.5 has 97.6% of the 41 lines" in told
    assert told.index("WARNING") < told.index("41 lines, 0 of them not parsed")
    assert "1 client spared that a rule wanted blocked: 10.0.0.5 (a local address)." in told
    assert replay(log, "--trusted-proxy", "10.0.0.5") == 0
    told = capsys.readouterr().err
    assert "WARNING" not in told
    assert "41 clients, 0% of lines without an address" in told
    blocked = {line.partition(",")[0] for line in Path("found.csv").read_text().splitlines()[1:]}
    assert blocked == {"203.0.113.200", *(f"203.0.113.{n}" for n in range(1, 41))}


def test_a_public_load_balancer_is_spared_unless_that_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for tail in (' "203.0.113.{}"', " xff=203.0.113.{}"):  # in its proper place, and elsewhere
        log = write_log(*write_lines("198.51.100.5", tail), *write_lines("203.0.113.200", count=1))
        assert replay(log) == 0
        told = capsys.readouterr().err
        found = Path("found.csv").read_text()
        assert "198.51.100.5" not in found
        assert "203.0.113.200" in found
        assert (
            "WARNING [PROXY_NOT_NAMED] 198.51.100.5: nearly all lines, with X-Forwarded-For of many" in told
        )
        assert "say --trusted-proxy 198.51.100.5, so that" in told
        assert told.index("PROXY_NOT_NAMED") < told.index("41 lines, 0 of them not parsed")
        assert "1 client spared that a rule wanted blocked: 198.51.100.5" in told
        assert replay(log, "--block-unnamed-proxy") == 0
        told = capsys.readouterr().err
        assert "198.51.100.5," in Path("found.csv").read_text()
        assert "PROXY_NOT_NAMED" not in told
        assert "FORWARDED_FOR_UNUSED" in told


@pytest.mark.parametrize(
    "lines",
    [
        write_lines("198.51.100.5"),  # a flood without the header
        write_lines("198.51.100.5", ' "203.0.113.9"'),  # with one address in it
        [*write_lines("198.51.100.5", ' "203.0.113.{}"'), *write_lines("203.0.113.{}", count=5)],  # not alone
        [*write_lines("198.51.100.5", ' "203.0.113.{}"', count=35), *write_lines("198.51.100.5", count=5)],
        write_lines("198.51.100.5", ' "203.0.113.{}"', count=4),  # too few to tell
        write_lines("198.51.100.5", ' "203.0.113.{}"', count=5) * 3,  # five clients in fifteen lines
    ],
)
def test_who_sends_the_header_himself_is_not_spared(lines: list[str]) -> None:
    values = pa.array([line.encode() for line in lines], pa.binary())
    assert take_sample(values, make_parser("auto")).fronts == ()
    assert replay(write_log(*lines)) == 0
    assert "198.51.100.5," in Path("found.csv").read_text()


def test_a_local_load_balancer_is_blocked_if_local_addresses_are_to_be() -> None:
    log = write_log(*write_lines("10.0.0.5", ' "203.0.113.{}"'))
    assert replay(log, "--block-private") == 0
    assert "10.0.0.5," in Path("found.csv").read_text()


def test_a_pipeline_spares_what_the_first_lines_say() -> None:
    """The addresses travel with the orders of a batch, because a look may end after the first batches."""
    lines = pa.array([line.encode() for line in write_lines("198.51.100.5")], pa.binary())
    for spared, action in (((), "block"), (("198.51.100.5",), "allowed")):
        engine = FedEngine(DefenceSettings.default(), partitions=[0])
        made = engine.feed({0: lines}, orders=OrdersInForce(spared=spared)).to_pylist()
        assert {each["action"] for each in made} == {action}


@pytest.mark.parametrize("log_format", ["auto", "combined"])
def test_lists_that_begin_with_a_local_address_are_lists_of_a_proxy(log_format: str) -> None:
    """A client behind a company's proxy has such an address; the public one after it shows who it is."""
    lines = write_lines("198.51.100.5", ' "10.1.1.{0}, 203.0.113.{0}"') + write_lines(
        "198.51.100.5", ' "203.0.113.{}"'
    )
    sample = take_sample(write_values(*lines), make_parser(log_format))
    assert sample.fronts == ("198.51.100.5",)
    told = [str(each.error) for each in check_sample(sample)]
    assert any("FORWARDED_FOR_UNUSED" in each and "100% of the lines" in each for each in told), told


def test_several_load_balancers_are_spared_together() -> None:
    lines = [line for n in (5, 6) for line in write_lines(f"198.51.100.{n}", ' "203.0.113.{}"')]
    values = pa.array([line.encode() for line in lines], pa.binary())
    assert take_sample(values, make_parser("auto")).fronts == ("198.51.100.5", "198.51.100.6")


def test_several_addresses_with_nearly_all_lines_are_named() -> None:
    """Load balancers that do not pass clients on must be reported too, however many share the lines."""

    def find(*counts: int, more: int = 0) -> list[str]:
        lines = [
            line for n, count in enumerate(counts) for line in write_lines(f"198.51.100.{n}", count=count)
        ]
        values = write_values(*lines, *write_lines("203.0.113.{}", count=more))
        return [str(each.error) for each in check_sample(take_sample(values, make_parser()))]

    (told,) = find(40, 40)
    assert told.startswith(
        "[FEW_CLIENTS_HAVE_MOST_LINES] 198.51.100.0 and 198.51.100.1 have 100% of the 80 lines looked at."
    )
    assert "--trusted-proxy 198.51.100.0 --trusted-proxy 198.51.100.1" in told
    assert "98% of the 102 lines" in find(20, 20, 20, 20, 20, more=2)[0]
    for counts, more in (((20, 19), 0), ((20,) * 6, 0), ((40, 40), 10), ((10, 10), 0)):
        told = [each for each in find(*counts, more=more) if "FEW_CLIENTS" in each]
        assert not told
    assert find_conditions(
        [line for n in (1, 2) for line in write_lines(f"10.0.0.{n}")], "auto", "10.0.0.0/8"
    ) == [("FORWARDED_FOR_MISSING", False)]


@pytest.mark.parametrize("key", ["cf_connecting_ip", "True-Client-IP", "http_x_real_ip", "CF-Connecting-IP"])
def test_json_lines_of_edges_name_the_client(key: str) -> None:
    line = (
        '{{"time": "2026-02-01T10:00:00Z", "remote_addr": "198.51.100.{}", "{}": "203.0.113.{}", "uri": "/"}}'
    )
    lines = [line.format(n % 3, key, n) for n in range(90)]
    assert find_conditions(lines)[0][0] == "FORWARDED_FOR_UNUSED"
    sample = take_sample(write_values(*lines), make_parser("json"))
    assert sample.fronts == ("198.51.100.0", "198.51.100.1", "198.51.100.2")
    assert take_sample(write_values(*lines), make_parser("json", ("198.51.100.0/24",))).clients == 90


def test_who_floods_at_the_start_of_a_run_is_not_spared(capsys: pytest.CaptureFixture[str]) -> None:
    """The newest lines of a topic come from one client that floods it; the oldest ones do not."""
    flood, before = (
        pa.array([line.encode() for line in lines], pa.binary())
        for lines in (write_lines("198.51.100.5", ' "203.0.113.{}"'), write_lines("203.0.113.{}"))
    )
    for earlier, expected in ((before, ()), (flood, ("198.51.100.5",))):
        look = FirstLook(make_parser("auto"), read_earlier=lambda lines=earlier: lines)
        look(flood)
        assert look.fronts == expected
        assert ("PROXY_NOT_NAMED" in capsys.readouterr().err) is bool(expected)


def test_a_local_address_is_blocked_if_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    log = write_log(*write_lines("10.0.0.5"))
    assert replay(log, "--block-private") == 0
    assert "10.0.0.5," in Path("found.csv").read_text()
    assert "spared that" not in capsys.readouterr().err


def test_a_score_says_how_to_judge_local_attackers(capsys: pytest.CaptureFixture[str]) -> None:
    log = write_log(*write_lines("10.0.0.5"))
    Path("labels.csv").write_text("client,label,class\n10.0.0.5,attack,secret_file\n")
    score = ["accesslog", "score", "found.csv", "labels.csv", log]
    assert replay(log) == 0
    assert main(score) == 0
    assert "1 labelled attacker not blocked with a local address" in capsys.readouterr().err
    assert replay(log, "--block-private") == 0
    capsys.readouterr()
    assert main(score) == 0
    told = capsys.readouterr()
    assert "labelled attacker" not in told.err
    assert "1 of 1" in told.out


def test_a_score_finds_the_clients_behind_a_proxy(capsys: pytest.CaptureFixture[str]) -> None:
    log = write_log(*write_lines("10.0.0.5", ' "203.0.113.{}"'))
    Path("labels.csv").write_text("client,label,class\n203.0.113.7,attack,secret_file\n")
    proxy = ("--trusted-proxy", "10.0.0.5")
    assert replay(log, *proxy) == 0
    score = ["accesslog", "score", "found.csv", "labels.csv", log]
    assert main([*score, *proxy]) == 0
    assert "1 of 1" in capsys.readouterr().out
    assert main(score) == 1
    assert "FORWARDED_FOR_UNUSED" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("head", "tail", "log_format"),
    [
        ("10.0.0.5", ' "203.0.113.{}"', "combined"),
        ("10.0.0.5", ' 0.005 "203.0.113.{}, 10.0.0.8"', "auto"),
        ("10.0.0.5", " xff=203.0.113.{}", "auto"),
        ("10.0.0.5", ' 17 "2001:db8::{}"', "combined"),
        ("10.0.0.5", " 203.0.113.{}", "auto"),
        ("10.0.0.5", " 203.0.113.{} 0.004", "combined"),
        ("10.0.0.5", " 0.004 2001:db8::{}", "auto"),
    ],
)
def test_a_list_of_addresses_that_the_format_skips_is_told(head: str, tail: str, log_format: str) -> None:
    lines = write_lines(head, tail)
    for proxies in ((), ("10.0.0.5",)):
        assert ("FORWARDED_FOR_UNUSED", False) in find_conditions(lines, log_format, *proxies)


@pytest.mark.parametrize(
    "tail",
    [
        ' "10.0.0.9"',  # a server's own address
        ' "10.0.0.9:8080, 10.0.0.10:8080"',  # upstreams
        ' "https://192.0.2.1/"',
        ' "-"',
        " 0.005 1.2.3",
        " 10.0.0.9",
        " 198.51.100.9:8080 0.005",
    ],
)
def test_other_addresses_in_a_line_are_no_list_of_a_proxy(tail: str) -> None:
    assert find_conditions(write_lines("203.0.113.{}", tail)) == []


def test_each_of_several_load_balancers_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for n in (5, 6) for line in write_lines(f"198.51.100.{n}", ' "203.0.113.{}"', "/")]
    assert replay(write_log(*lines, *write_lines("198.51.100.77", ' "192.0.2.7"', count=1))) == 0
    told = capsys.readouterr().err
    assert "mostly 198.51.100.5, 198.51.100.6, and not" in told
    assert "say --trusted-proxy 198.51.100.5 --trusted-proxy 198.51.100.6." in told


def test_a_few_headers_that_strangers_have_sent_are_not_told() -> None:
    lines = write_lines("203.0.113.{}", ' "-"') + write_lines("192.0.2.{}", ' "198.51.100.7"', count=4)
    assert find_conditions(lines) == []
    assert ("FORWARDED_FOR_UNUSED", False) in find_conditions(lines * 2 + lines[-4:] * 3)


@pytest.mark.parametrize("log_format", ["auto", "combined"])
def test_a_trusted_proxy_without_the_header_is_told(log_format: str) -> None:
    """It is not an error: a server may log the client itself, and the proxy must still never be blocked."""
    lines = write_lines("10.0.0.5") + write_lines("203.0.113.{}", count=5)
    assert find_conditions(lines, log_format, "10.0.0.5") == [("FORWARDED_FOR_MISSING", False)]


def test_a_client_has_most_of_the_lines_only_among_enough_of_them() -> None:
    assert find_conditions(write_lines("192.0.2.1", count=19)) == []
    assert find_conditions(write_lines("192.0.2.1", count=20)) == [("ONE_CLIENT_HAS_MOST_LINES", False)]
    half = write_lines("192.0.2.1", count=20) + write_lines("203.0.113.{}", count=20)
    assert find_conditions(half) == []


# --- the format -------------------------------------------------------------------------------------------


def test_a_virtual_host_is_not_taken_for_the_client(capsys: pytest.CaptureFixture[str]) -> None:
    log = write_log(*write_lines("shop.example 203.0.113.{}"))
    for wrong in ("combined", "common", '%h %l %u %t "%r" %>s %b'):
        assert replay(log, "--log-format", wrong) == 1
        told = capsys.readouterr().err
        assert "[CLIENT_IS_NO_ADDRESS] 100% of the lines have a client that is not an address" in told
        assert "`shop.example`" in told
        assert "`203.0.113.1` stands behind it" in told
        assert "vhost_combined" in told
        assert not Path("found.csv").exists()
    assert replay(log, "--log-format", VHOST_FIRST) == 0
    assert "203.0.113.7," in Path("found.csv").read_text()


@pytest.mark.parametrize("log_format", ["auto", "combined", "common", '%h %l %u %t "%r" %>s %b'])
@pytest.mark.parametrize(
    ("head", "right"),
    [
        ("198.51.100.8 203.0.113.{}", '%A %h %l %u %t "%r" %>s %b'),
        ("203.0.113.{} 198.51.100.8", '%{X-Forwarded-For}i %h %l %u %t "%r" %>s %b'),
    ],
)
def test_an_address_in_front_of_the_client_is_not_taken_for_it(
    head: str, right: str, log_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(*write_lines(head))
    assert replay(log, "--log-format", log_format) == 1
    told = capsys.readouterr().err
    assert "[TWO_ADDRESSES_IN_FRONT] 100% of the lines have two addresses in front" in told
    assert f"`{head.format(1)}`" in told
    assert f"'{right}'" in told
    assert not Path("found.csv").exists()
    assert replay(log, "--log-format", right, "--trusted-proxy", "198.51.100.8") == 0
    assert "203.0.113.7," in Path("found.csv").read_text()


@pytest.mark.parametrize(
    ("head", "log_format", "expected"),
    [
        ("shop.example:443 198.51.100.8 203.0.113.{}", "vhost_combined", [("TWO_ADDRESSES_IN_FRONT", True)]),
        ("198.51.100.8:443 203.0.113.{}", "vhost_combined", []),
        ("198.51.100.8:443 203.0.113.{}", "auto", []),
        ("198.51.100.8 203.0.113.{}", VHOST_FIRST, []),
        ("203.0.113.{} 198.51.100.8", '%h %A %l %u %t "%r" %>s %b', []),
        ("192.0.2.1, 203.0.113.{} 198.51.100.8", "auto", [("TWO_ADDRESSES_IN_FRONT", True)]),
        ("192.0.2.1, 203.0.113.{}", "auto", []),
    ],
)
def test_two_addresses_in_front_are_told_where_the_format_has_one(
    head: str, log_format: str, expected: list[tuple[str, bool]]
) -> None:
    assert find_conditions(write_lines(head), log_format) == expected


@pytest.mark.parametrize(
    ("head", "log_format", "expected"),
    [
        ("web1 shop.example 203.0.113.{}", "auto", [("CLIENT_IS_NO_ADDRESS", True)]),
        ("web1 2001:db8::{}", "combined", [("CLIENT_IS_NO_ADDRESS", True)]),
        ("{}", "combined", [("CLIENT_IS_NO_ADDRESS", True)]),  # a number, without any address
        ("host{}.example", "combined", [("CLIENT_IS_NO_ADDRESS", False)]),  # HostnameLookups On
        ("host{}.example", "auto", [("CLIENT_IS_NO_ADDRESS", False)]),
        ("host{}.example", '%a %l %u %t "%r" %>s %b', [("CLIENT_IS_NO_ADDRESS", True)]),
        ("unix:", "nginx", [("CLIENT_IS_NO_ADDRESS", True)]),
        ("203.0.113.{}", "nginx", []),
        ("2001:db8:{}::1", "combined", []),
        ("shop.example:443 203.0.113.{}", "vhost_combined", []),
    ],
)
def test_clients_are_addresses_or_names_of_hosts_where_the_format_logs_such(
    head: str, log_format: str, expected: list[tuple[str, bool]]
) -> None:
    assert find_conditions(write_lines(head), log_format) == expected


def test_a_log_with_some_names_of_hosts_is_parsed_and_the_share_is_told() -> None:
    lines = write_lines("203.0.113.{}", count=90) + write_lines("host{}.example", count=10)
    sample = take_sample(pa.array([line.encode() for line in lines]), make_parser())
    assert (sample.parsed, sample.clients, sample.without_address) == (100, 100, 10)
    assert [each.is_fatal for each in check_sample(sample)] == [False]
    assert list(describe_sample(sample))[-1] == (
        "Looked at 100 lines: 0 not parsed, 100 clients, 10% of lines without an address."
    )


def test_the_first_line_is_shown_field_by_field(capsys: pytest.CaptureFixture[str]) -> None:
    mine = '%v|%a|%{X-Forwarded-For}i|%{%Y-%m-%dT%H:%M:%S%z}t|%m|%U%q|%>s|%B|%D|"%{User-Agent}i"'
    lines = [
        f'shop.example|10.0.0.5|203.0.113.{n}|2026-02-01T10:00:00+0000|GET|/a?b=1|200|512|1500|"x\x1b[31m"'
        for n in range(30)
    ]
    assert replay(write_log(*lines), "--log-format", mine, "--trusted-proxy", "10.0.0.0/8") == 0
    told = capsys.readouterr().err.splitlines()
    begin = told.index(f"The first line, read with --log-format {mine}:")
    assert [line.split(maxsplit=1) for line in told[begin + 1 : begin + 11]] == [
        ["client", "203.0.113.0"],
        ["peer", "10.0.0.5"],
        ["time", "2026-02-01 10:00:00 UTC"],
        ["method", "GET"],
        ["target", "/a?b=1"],
        ["status", "200"],
        ["size", "512 bytes"],
        ["latency", "1.5 ms"],
        ["vhost", "shop.example"],
        ["agent", "x\\x1b[31m"],
    ]
    assert told[begin + 11] == (
        "Looked at 30 lines: 0 not parsed, 30 clients, 0% of lines without an address."
    )


def test_a_format_that_fits_few_lines_is_told_and_one_that_fits_none_is_refused() -> None:
    lines = write_lines("203.0.113.{}", count=10)
    assert find_conditions([*lines, *["nonsense"] * 30]) == [("LINES_NOT_PARSED", False)]
    assert find_conditions(["nonsense"] * 30) == [("NOTHING_PARSED", True)]
    assert find_conditions(lines * 2, "json") == [("NOTHING_PARSED", True)]
    assert find_conditions([]) == []


def test_json_lines_are_looked_at_by_their_fields() -> None:
    line = '{{"time":"2026-02-01T10:00:00Z","remote_addr":"{}","uri":"/","x_forwarded_for":"203.0.113.{}"}}'
    lines = [line.format("10.0.0.5", n) for n in range(30)]
    for log_format in ("json", "auto"):
        assert find_conditions(lines, log_format)[0] == ("FORWARDED_FOR_UNUSED", False)
        assert find_conditions(lines, log_format, "10.0.0.5") == []


# --- the look itself --------------------------------------------------------------------------------------


def test_two_clients_in_a_json_line_are_told_with_how_to_choose(capsys: pytest.CaptureFixture[str]) -> None:
    """`ip` comes first and is used; only someone who knows the table of names by heart would expect that."""
    line = '{{"time":{},"ip":"10.1.1.{}","source_ip":"203.0.113.{}","uri":"/.env","status":404,"bytes":1}}'
    log = write_log(*(line.format(1_760_000_000 + n, n, n) for n in range(1, 41)))
    assert replay(log, "--log-format", "json") == 0
    told = capsys.readouterr().err
    assert (
        "WARNING [SEVERAL_CLIENT_FIELDS] The client is taken from `ip`; `source_ip` is there as well" in told
    )
    assert "say --log-format 'json client=source_ip'" in told
    assert "Not used: source_ip; the client is ip" in told
    assert told.index("SEVERAL_CLIENT_FIELDS") < told.index("40 lines, 0 of them not parsed")
    assert "203.0.113." not in Path("found.csv").read_text()
    for chosen, is_named in (("source_ip", True), ("ip", False)):
        assert replay(log, "--log-format", f"json client={chosen}") == 0
        told = capsys.readouterr().err
        assert "SEVERAL_CLIENT_FIELDS" not in told
        assert "Not used" not in told
        assert ("203.0.113.7," in Path("found.csv").read_text()) is is_named
    assert replay(log, "--log-format", "json client:ip") == 1
    assert "[LOG_FORMAT_INVALID]" in capsys.readouterr().err


def test_several_other_clients_in_a_json_line_are_told_in_the_plural() -> None:
    line = '{{"time":17600000{0},"ip":"10.1.1.{0}","source_ip":"192.0.2.{0}","client_ip":"203.0.113.{0}",'
    line += '"uri":"/","status":200,"bytes":1}}'
    lines = [line.format(n).encode() for n in range(10, 50)]
    (found,) = check_sample(take_sample(pa.array(lines, pa.binary()), make_parser("json")))
    first, second = (each.other for each in find_rivals(lines))
    told = f"`{first}` and `{second}` are there as well, the first of them with another value in "
    assert told in str(found.error)
    assert f"and are not used. If the first is the client, say --log-format 'json client={first}'" in str(
        found.error
    )


def test_fields_that_agree_or_are_written_in_two_ways_are_not_told() -> None:
    both = b'{"remote_addr":"192.0.2.1","client_ip":"192.0.2.1","time_local":"01/Feb/2026:10:00:00 +0000",'
    both += b'"msec":1769940000.1,"request_uri":"/a?b","uri":"/a","status":200}'
    assert find_rivals([both, b"nonsense", b'{"a":', b"[]"]) == ()
    other = both.replace(b'"client_ip":"192.0.2.1"', b'"nginx":{"request":{"client_ip":["192.0.2.2"]}}')
    [rival] = find_rivals([other, both])
    assert (rival.used, rival.other, rival.lines, rival.whole) == ("remote_addr", "request.client_ip", 1, 2)


def test_a_sample_is_small_has_the_first_line_and_is_from_all_over() -> None:
    values = pa.array([str(n).encode() for n in range(100_000)])
    sample = cut_sample(values).to_pylist()
    assert len(sample) == SAMPLE_LINES
    assert (sample[0], sample[-1]) == (b"0", b"99999")
    long = cut_sample(pa.array([b"x" * (1 << 20)] * 100))
    assert 1 <= len(long) <= 16


def test_a_look_waits_for_lines_and_looks_once(capsys: pytest.CaptureFixture[str]) -> None:
    look = FirstLook(make_parser("combined"))
    assert not look(pa.array([], pa.binary()))
    good = pa.array([line.encode() for line in write_lines("203.0.113.{}")])
    bad = pa.array([line.encode() for line in write_lines("shop.example 203.0.113.{}")])
    with pytest.raises(OptionError, match="CLIENT_IS_NO_ADDRESS"):
        look(bad)
    assert not look(good)
    assert look(pa.concat_arrays([good] * 5))
    assert look(bad)
    told = capsys.readouterr().err
    assert told.count("The first line") == told.count("Looked at 200 lines") == 1


def test_a_format_that_was_used_before_is_not_refused_after_a_restart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    look = FirstLook(make_parser("combined"), is_known=True)
    for _ in range(2):
        look(pa.array([b"nonsense"] * 25))
    assert capsys.readouterr().err.count("WARNING [NOTHING_PARSED] 0 of 25 lines") == 1


def test_hostile_lines_are_no_trouble() -> None:
    lines = [b"\xff\xfe \x00", b"", b'"', b"::: - - [", b'1.2.3.4, \xff [10/Oct/2000:13:55:36 +0000] "']
    lines.append(b'\xff\xff - - [10/Oct/2000:13:55:36 +0000] "GET / HTTP/1.1" 200 5 "1::2::3" "9.9.9.999"')
    sample = take_sample(pa.array([*lines, None]), make_parser())
    assert isinstance(sample, Sample)
    assert sample.lines == 7
    assert isinstance(check_sample(sample), list)


# --- few lines --------------------------------------------------------------------------------------------


def write_values(*lines: str) -> pa.Array:
    return pa.array([line.encode() for line in lines], pa.binary())


def write_balancer(count: int) -> list[str]:
    return write_lines("198.51.100.5", ' "203.0.113.{}"', count=count)


def test_a_look_is_not_spent_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    health, balancer = write_lines("127.0.0.1", ' "-"', "/health", count=1), write_balancer(240)
    look = FirstLook(make_parser(), has_more=True)
    assert not look(write_values(*health))
    assert "WARNING" not in capsys.readouterr().err
    assert not look(write_values(*health, *balancer[:30]))
    assert look(write_values(*health, *balancer))
    told = capsys.readouterr().err
    assert told.count("WARNING [FORWARDED_FOR_UNUSED] X-Forwarded-For is in 96.8% of the lines") == 1
    assert told.count("[FORWARDED_FOR_UNUSED]") == told.count("[ONE_CLIENT_HAS_MOST_LINES]") == 1
    assert "Looked at 241 lines: 0 not parsed, 2 clients" in told


@pytest.mark.parametrize(
    ("lines", "log_format", "condition"),
    [
        ([""], "combined", "NOTHING_PARSED"),
        (write_lines("unix:", ' "-"', count=1), "nginx", "CLIENT_IS_NO_ADDRESS"),
    ],
)
def test_nothing_is_refused_below_twenty_lines_unless_they_are_all(
    lines: list[str], log_format: str, condition: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert find_conditions(lines * 19, log_format)[0] == (condition, False)
    assert find_conditions(lines * 20, log_format)[0] == (condition, True)
    look = FirstLook(make_parser(log_format), has_more=True)
    assert not look(write_values(*lines * 19))
    assert "WARNING" not in capsys.readouterr().err
    with pytest.raises(OptionError, match=condition):
        look(write_values(*lines * 20))
    with pytest.raises(OptionError, match=condition):
        FirstLook(make_parser(log_format), is_whole=True)(write_values(*lines))


def test_one_parsed_line_among_many_others_refuses_nothing() -> None:
    lines = [*["nonsense"] * 30, *write_lines("unix:", ' "-"', count=1)]
    assert find_conditions(lines, "nginx") == [("LINES_NOT_PARSED", False), ("CLIENT_IS_NO_ADDRESS", False)]


def test_a_small_file_is_refused_since_no_other_lines_will_come(capsys: pytest.CaptureFixture[str]) -> None:
    log = write_log(*write_lines("shop.example 203.0.113.{}", count=3))
    assert replay(log, "--log-format", "common") == 1
    told = capsys.readouterr().err
    assert "\n[CLIENT_IS_NO_ADDRESS] 100% of the lines" in told
    assert "WARNING" not in told


def test_lines_are_gathered_over_batches_and_decisions_wait_until_enough_were_seen() -> None:
    shown: list[int] = []

    def look(values: pa.Array, *, is_due: bool = False) -> bool:
        assert not is_due
        shown.append(len(values))
        return len(values) >= 40

    first = FirstLines(look, clock=lambda: 0.0)
    assert not first.must_wait(is_waited_for=False)
    first.show(7, lambda: write_values())
    first.show(8, lambda: write_values(*write_balancer(1)))
    assert first.must_wait(is_waited_for=True)
    for _attempt in range(3):
        first.show(9, lambda: write_values(*write_balancer(30)))
    assert first.must_wait(is_waited_for=True)
    first.show(10, lambda: write_values(*write_balancer(10)))
    assert not first.must_wait(is_waited_for=True)
    first.show(11, lambda: pytest.fail("enough was seen"))
    assert (shown, first.is_seen) == ([1, 31, 31, 31, 41], True)


def test_decisions_about_few_lines_wait_for_a_minute_and_the_look_goes_on() -> None:
    seconds, shown = 1_000.0, list[int]()

    def look(values: pa.Array, *, is_due: bool = False) -> bool:
        shown.append(-len(values) if is_due else len(values))
        return False

    first = FirstLines(look, clock=lambda: seconds)
    assert not first.must_wait(is_waited_for=False)
    seconds = 2_000.0
    first.show(1, lambda: write_values(*write_balancer(1)))
    assert first.must_wait(is_waited_for=True)
    seconds += LONGEST_HOLD_S - 1
    assert first.must_wait(is_waited_for=True)
    seconds += 1
    for _batch in range(2):
        assert not first.must_wait(is_waited_for=True)
    first.show(2, lambda: write_values(*write_balancer(3)))
    assert not first.must_wait(is_waited_for=True)
    assert (shown, first.is_seen) == ([1, -1, 4], False)


def hold_out(look: FirstLook, *lines: str) -> None:
    """Let decisions about these lines wait until the waiting time is over."""
    seconds = 0.0
    first = FirstLines(look, clock=lambda: seconds)
    first.show(1, lambda: write_values(*lines))
    assert first.must_wait(is_waited_for=True)
    seconds = LONGEST_HOLD_S
    assert not first.must_wait(is_waited_for=True)


def test_few_lines_are_judged_when_decisions_wait_no_longer(capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise the first line of an attack on a quiet site silently blocks its load balancer."""
    look = FirstLook(make_parser(), has_more=True)
    look(write_values(*write_balancer(15)))
    assert "WARNING" not in capsys.readouterr().err
    hold_out(look, *write_balancer(15))
    told = capsys.readouterr().err
    assert look.fronts == ("198.51.100.5",)
    assert told.count("WARNING [PROXY_NOT_NAMED] 198.51.100.5: ") == 1
    assert told.count("WARNING [FORWARDED_FOR_UNUSED] X-Forwarded-For is in 100% of the lines") == 1
    look(write_values(*write_balancer(16)))
    assert "WARNING" not in capsys.readouterr().err


def test_few_lines_refuse_nothing_when_decisions_wait_no_longer(capsys: pytest.CaptureFixture[str]) -> None:
    hold_out(FirstLook(make_parser("combined"), has_more=True), *["nonsense"] * 19)
    assert "WARNING [NOTHING_PARSED] 0 of 19 lines" in capsys.readouterr().err


def test_a_look_at_fewer_lines_than_before_forgets_no_proxy(capsys: pytest.CaptureFixture[str]) -> None:
    """A restarted run looks at its topic first, and then gets batches with a line or two."""
    look = FirstLook(make_parser(), is_known=True, has_more=True)
    look(write_values(*write_balancer(40)))
    look(write_values(*write_balancer(1)))
    assert look.fronts == ("198.51.100.5",)
    waiting = FirstLook(make_parser(), has_more=True)
    waiting(write_values(*write_balancer(15)))
    capsys.readouterr()
    first = FirstLines(waiting, hold_s=0.0)
    # Lines of an earlier run are waiting, and no batch has brought any.
    assert not first.must_wait(is_waited_for=True)
    assert "PROXY_NOT_NAMED" in capsys.readouterr().err


def test_warnings_of_a_run_have_the_time_and_the_stream(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Someone who reads what a run wrote over days needs to know when, and which of several runs it was."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    lines = write_values(*write_balancer(40))
    monkeypatch.setattr(run_pipeline, "reach_topic", lambda _: ClientSettings((("127.0.0.1", 9),)))
    monkeypatch.setattr(run_pipeline, "prepare_tables", stop)
    monkeypatch.setattr(topic_samples, "read_newest", lambda *_: lines)
    monkeypatch.setattr(topic_samples, "read_oldest", lambda *_: lines)
    arguments = argparse.ArgumentParser()
    run_pipeline.add_arguments(arguments)
    where = ["--bootstrap-server", "127.0.0.1:9", "--database", "results.db"]
    with pytest.raises(KeyboardInterrupt):
        run_pipeline.run(arguments.parse_args([*where, "--topic", "lines", "--name", "shop"]))
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 3
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ shop: WARNING \[", line) for line in told)


# --- what strangers write ---------------------------------------------------------------------------------


def test_a_line_break_in_a_record_forges_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    forged = "2026-11-18T00:00:00Z INFO nobody is blocked"
    record = f"junk\n{forged}\u2028{forged}"
    look = FirstLook(make_parser(), is_known=True)
    look(write_values(*[record] * 30))
    look(write_values(*[record] * 30, *write_lines("203.0.113.{}", f' "\n{forged}"')))
    told = capsys.readouterr().err
    assert "[NOTHING_PARSED]" in told
    assert "[LINES_NOT_PARSED]" in told
    assert f"junk\\x0a{forged}\\u2028" in told
    assert not [line for line in told.splitlines() if line.startswith(forged)]
    with pytest.raises(OptionError) as refused:
        FirstLook(make_parser())(write_values(*[record] * 30))
    assert len(str(refused.value).splitlines()) == 1
