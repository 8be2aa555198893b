"""Advice that can be followed and has not been followed yet: who is spared, names, JSON keys."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.apps.accesslog.first_look.ambiguous_fields import find_missing
from penstock.apps.accesslog.first_look.line_samples import take_sample
from penstock.apps.accesslog.first_look.sample_checks import check_sample, describe_sample
from penstock.apps.accesslog.parsing.line_parser import make_parser
from penstock.cli import main
from penstock.cli.accesslog.spared_clients import Sparing

LINE = '{} - - [10/Oct/2000:13:55:{:02d} +0000] "GET /.env HTTP/1.1" 404 23 "-" "curl/8.0"{}'


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def replay(lines: list[str], *more: str) -> int:
    Path("access.log").write_text("".join(f"{line}\n" for line in lines))
    return main(["accesslog", "replay", "access.log", "--decisions", "found.csv", *more])


def write_lines(client: str, tail: str = "", count: int = 40) -> list[str]:
    return [LINE.format(client, n, tail.format(n)) for n in range(count)]


# --- who is spared ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["--trusted-proxy", "10.1.1.1"], "a trusted proxy"),
        (["--trusted-proxy", "10.0.0.0/8", "--block-private"], "a trusted proxy"),
        (["--allow", "10.1.1.0/24"], "allowed"),
        (["--allow", "10.1.1.0/24", "--block-private"], "allowed"),
        ([], "a local address"),
    ],
)
def test_who_is_spared_is_told_with_the_cause_and_without_advice_that_was_followed(
    arguments: list[str], cause: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(write_lines("10.1.1.1"), *arguments) == 0
    [told] = [line for line in capsys.readouterr().err.splitlines() if " spared that " in line]
    assert told.startswith(f"1 client spared that a rule wanted blocked: 10.1.1.1 ({cause}).")
    advises = cause == "a local address"
    assert ("say --trusted-proxy" in told) is advises
    assert ("say --block-private" in told) is advises
    assert ("log X-Forwarded-For" in told) is (cause == "a trusted proxy")


def test_a_proxy_that_was_not_named_is_spared_as_one_and_a_crawler_as_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert replay(write_lines("198.51.100.5", ' "203.0.113.{}"')) == 0
    told = capsys.readouterr().err
    assert (
        "198.51.100.5 (looks like a proxy that was not named). If that is your proxy, say --trusted" in told
    )
    assert told.rstrip().endswith("if it attacks, say --block-unnamed-proxy.")
    assert replay([*write_lines("66.249.64.1", count=3), *write_lines("192.0.2.1", count=3)]) == 0
    told = capsys.readouterr().err
    assert "66.249.64.1 (a search engine's address). To block search engines as well, say --distrust" in told


def test_each_cause_has_its_clients_and_a_few_of_many_are_named() -> None:
    sparing = Sparing(allow=("192.0.2.0/25", "2001:db8::7"), trusted_proxies=("10.0.0.1",))
    clients = ["10.0.0.1", "10.0.0.5", "192.0.2.9", *(f"192.168.0.{n}" for n in range(4)), "2001:db8::/64"]
    told = sparing.describe([*clients, "224.0.0.1"])
    assert told.startswith(
        "9 clients spared that a rule wanted blocked: 10.0.0.1 (a trusted proxy); 192.0.2.9, 2001:db8::/64 "
        "(2 allowed); 10.0.0.5, 192.168.0.0, 192.168.0.1, ... (5 local addresses); 224.0.0.1 (an address "
        "that nobody may block). "
    )
    assert Sparing(allow=("192.0.2.9",)).describe(["192.0.2.9"]).endswith(": 192.0.2.9 (allowed).")


# --- names of hosts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", ["", ' "203.0.113.{}"'])
def test_advice_about_a_client_that_is_a_name_can_be_followed(
    tail: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither option takes a name, and a name that looks like a proxy is no reason to stop."""
    assert replay(write_lines("lb.example", tail)) == 0
    told = capsys.readouterr().err
    assert (
        "[ONE_CLIENT_HAS_MOST_LINES] lb.example has 100% of the 40 lines looked at. It is not an add" in told
    )
    assert ("[FORWARDED_FOR_UNUSED]" in told) is bool(tail)
    assert "HostnameLookups Off" in told
    for option in ("--trusted-proxy", "--allow"):
        assert f"{option} lb.example" not in told
        assert replay(write_lines("lb.example"), option, "lb.example") == 1
        assert "neither an address nor a network" in capsys.readouterr().err
    assert replay(write_lines("192.0.2.1")) == 0
    assert "say --trusted-proxy 192.0.2.1; if it is one of yours, say --allow 192.0.2.1;" in (
        capsys.readouterr().err
    )


# --- keys of JSON -----------------------------------------------------------------------------------------

OWN_KEYS = '{{"when":{},"visitor":"203.0.113.{}","verb":"GET","path":"/.env","code":404}}'


@pytest.mark.parametrize("log_format", ["json", "auto"])
def test_json_with_keys_of_its_own_is_refused_with_the_words_that_make_it_work(
    log_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [OWN_KEYS.format(1_760_000_000 + n, n) for n in range(40)]
    assert replay(lines, "--log-format", log_format) == 1
    told = capsys.readouterr().err
    assert "[NOTHING_PARSED] 0 of 40 lines" in told
    assert "Name the format with --log-format" not in told
    assert "The client is looked for as remote_addr, remote_ip, client_ip, " in told
    assert "The time is looked for as time, timestamp, " in told
    assert "This line has the keys when, visitor, verb, path, code." in told
    [advised] = re.findall(r"--log-format '(json client=KEY time=KEY)'", told)
    chosen = advised.replace("client=KEY", "client=visitor").replace("time=KEY", "time=when")
    assert replay(lines, *shlex.split(f"--log-format '{chosen}'")) == 0
    assert "203.0.113.7," in Path("found.csv").read_text()


def test_of_a_json_line_only_what_it_lacks_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [OWN_KEYS.format(1_760_000_000 + n, n) for n in range(40)]
    for known, chosen in (("visitor", "json client=visitor"), ("srcIp", "json")):
        assert replay([line.replace("visitor", known) for line in lines], "--log-format", chosen) == 1
        told = capsys.readouterr().err
        assert "The client is looked for" not in told
        assert "The time is looked for as time, timestamp, ts, time_iso8601, time_local. This line" in told
        assert f"This line has the keys when, {known}, " in told
        assert "--log-format 'json time=KEY'" in told
    assert replay([line.replace("when", "time") for line in lines], "--log-format", "json client=ip") == 1
    told = capsys.readouterr().err
    assert "The client is looked for as ip. This line has the keys time, visitor, " in told
    assert replay(['{"time":"soon","ip":"192.0.2.1","uri":"/"}'] * 3, "--log-format", "json") == 1
    told = capsys.readouterr().err
    assert "The line has the keys time, ip, uri. Are the values what their fields need" in told
    assert replay(write_lines("192.0.2.1"), "--log-format", "json") == 1
    assert "Name the format with --log-format: common, combined, nginx, json" in capsys.readouterr().err
    good = '{{"time":{},"ip":"192.0.2.{}","uri":"/"}}'
    assert replay([*(good.format(1_760_000_000 + n, n) for n in range(40)), *lines[:20]]) == 0
    told = capsys.readouterr().err
    assert "[LINES_NOT_PARSED] 33.3% of 60 lines" in told
    assert "They become dead letters and are not judged. The client is looked for as " in told


def test_a_second_client_in_a_few_json_lines_is_not_told() -> None:
    one = b'{"time":1760000000,"remote_addr":"192.0.2.1","uri":"/"}'
    two = b'{"time":1760000000,"remote_addr":"192.0.2.1","client_ip":"192.0.2.2","uri":"/"}'
    for others, is_told in ((2, False), (5, True)):
        values = pa.array([two] * others + [one] * (40 - others), pa.binary())
        sample = take_sample(values, make_parser("json"))
        found = [each.condition for each in check_sample(sample)]
        assert ("SEVERAL_CLIENT_FIELDS" in found) is is_told
        assert any(line.startswith("Not used: client_ip") for line in describe_sample(sample)) is is_told


def test_a_key_that_is_chosen_keeps_the_unit_that_its_name_says() -> None:
    line = b'{"time":1760000000,"ip":"192.0.2.1","uri":"/","latency_us":1500,"request_time":9,"lasted":1500}'
    for chosen, expected_us in (
        (" latency=request_time", 9_000_000),
        (" latency=latency_us", 1_500),
        (" latency=lasted", 1_500_000),
    ):
        lines = make_parser(f"json{chosen}").parse(pa.array([line], pa.binary()))
        assert lines.latency_us.tolist() == [expected_us]


def test_a_json_line_that_names_its_client_by_the_header_lacks_none() -> None:
    missing = find_missing(b'{"when": 1, "xff": "192.0.2.1"}')
    assert missing is not None
    assert [field for field, _ in missing.fields] == ["time"]
