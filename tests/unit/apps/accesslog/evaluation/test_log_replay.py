"""Replay of whole files (plain, compressed, several at once), and the place of a line among its client's."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from penstock.apps.accesslog.defence.defence_settings import DefenceSettings
from penstock.apps.accesslog.evaluation.log_replay import replay
from penstock.apps.accesslog.first_look.log_blocks import open_log, read_blocks
from penstock.apps.accesslog.shipping.log_follower import LONGEST_LINE_BYTES
from penstock.cli import main
from penstock.core.errors import OptionError
from tests.support.accesslog.fed_engine import FedEngine

SETTINGS = DefenceSettings.default()


def write_line(client: str, seconds: int, request: str, status: int = 200) -> str:
    at = datetime.fromtimestamp(1_700_000_000 + seconds, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
    return f'{client} - - [{at}] "{request} HTTP/1.1" {status} 12 "-" "Mozilla/5.0"\n'


def write_attack(client: str, first: int, posts: int = 12) -> list[tuple[int, str]]:
    lines = [(first, write_line(client, first, "GET /wp-login.php"))]
    return lines + [
        (first + 1 + n, write_line(client, first + 1 + n, "POST /wp-login.php")) for n in range(posts)
    ]


def join(*parts: list[tuple[int, str]]) -> str:
    return "".join(
        line for _, line in sorted((each for part in parts for each in part), key=lambda one: one[0])
    )


QUIET = [(n * 3, write_line("198.51.100.7", n * 3, f"GET /page-{n}")) for n in range(60)]


def test_lines_are_cut_where_they_end() -> None:
    (block,) = read_blocks(io.BytesIO(b"a\n\nbc\r\nd\n"), 100)
    assert block.to_pylist() == [b"a", b"", b"bc\r", b"d"]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_blocks_of_any_size_give_the_same_lines(size: int) -> None:
    text = b"first\nsecond line\n\nlast"
    lines = [line for block in read_blocks(io.BytesIO(text), size) for line in block.to_pylist()]
    assert lines == text.split(b"\n")


@pytest.mark.parametrize("size", [300, 5000, 1 << 20])
def test_a_client_is_found_at_the_same_line_whatever_the_blocks_are(tmp_path: Path, size: int) -> None:
    log = tmp_path / "access.log"
    log.write_text(join(QUIET, write_attack("192.0.2.9", 30)))
    found = replay([log], SETTINGS, block_bytes=size)
    assert [(row["client"], row["rule"], row["request_index"]) for row in found.rows] == [
        ("192.0.2.9", "brute-force.fast", 9)
    ]
    assert found.counters["lines"] == 73


def test_the_index_counts_all_lines_of_a_client_also_when_it_was_forgotten(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    early = [(0, write_line("192.0.2.9", 0, "GET /"))]
    log.write_text(join(early, write_attack("192.0.2.9", 90_000)))
    assert [row["request_index"] for row in replay([log], SETTINGS).rows] == [10]


def test_several_files_are_one_log_in_the_order_of_their_times(tmp_path: Path) -> None:
    attack = write_attack("192.0.2.9", 30, 20)
    files = [tmp_path / "a.log", tmp_path / "b.log.gz"]
    files[0].write_text(join(QUIET, attack[::2]))
    with gzip.open(files[1], "wt") as packed:
        packed.write(join(attack[1::2]))
    whole = tmp_path / "whole.log"
    whole.write_text(join(QUIET, attack))
    both, one = replay(files, SETTINGS, block_bytes=400), replay([whole], SETTINGS)
    places = [[(row["decided_at"], row["request_index"]) for row in each.rows] for each in (both, one)]
    assert places[0] == places[1] != []
    assert both.counters["lines"] == one.counters["lines"]


@pytest.mark.parametrize("order", [("web1", "web2"), ("web2", "web1")])
def test_lines_of_one_second_are_taken_as_a_pipeline_takes_them(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    """Two servers, one second, two rules that block at once: which rule is reported depends on the order."""
    lines = {
        "web1": write_line("192.0.2.9", 5, "GET /.env", 404),
        "web2": write_line("192.0.2.9", 5, "GET /?id=1%27+union+select+1,2,password+from+users--+"),
    }
    for name, line in lines.items():
        (tmp_path / f"{name}.log.1").write_text(line)
    engine = FedEngine(SETTINGS, partitions=[0])
    values = pa.array([line.strip().encode() for line in lines.values()], pa.binary())
    first = engine.feed({0: values}, servers={0: pa.array(list(lines), pa.string())})
    decided = [*first.to_pylist(), *engine.finish().to_pylist()]
    expected = {row["rule"]: len(json.loads(row["evidence"])) for row in decided}
    found = replay([tmp_path / f"{name}.log.1" for name in order], SETTINGS)
    assert {row["rule"]: len(json.loads(row["evidence"])) for row in found.rows} == expected
    assert sorted(expected.values()) == [1, 2]  # the second has both lines as evidence


def test_clients_that_a_fingerprint_brings_down_are_counted_up_to_that_moment(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    posts = [(n * 20, write_line(f"192.0.{n}.9", n * 20, "POST /contact", 303)) for n in range(6)]
    other = [(n * 7 + 1, write_line("192.0.0.9", n * 7 + 1, "GET /contact")) for n in range(30)]
    log.write_text(join(posts, other))
    rows = {row["client"]: row for row in replay([log], SETTINGS).rows}
    assert set(rows) == {f"192.0.{n}.9" for n in range(6)}
    assert rows["192.0.0.9"]["request_index"] == 1 + sum(at <= 60 for at, _ in other)
    assert rows["192.0.5.9"]["request_index"] == 1


def test_a_line_without_end_is_kept_up_to_the_longest_a_line_may_be() -> None:
    text = b"x" * 5_000_000 + b"\nnext\n" + b"y" * 3_000_000
    blocks = list(read_blocks(io.BytesIO(text), 1 << 18))
    sizes = [len(each.as_py()) for block in blocks for each in block]
    assert sizes == [LONGEST_LINE_BYTES, 4, LONGEST_LINE_BYTES]


@pytest.mark.parametrize(
    "client",
    ["127.0.0.1", "::1", "10.0.0.5", "172.31.0.1", "192.168.1.1", "169.254.0.9", "100.64.0.1", "fd00::7",
     "fe80::1", "fe80::1%eth0", "[fe80::1%25eth-0.1]:443", "::ffff:10.0.0.5"],
)  # fmt: skip
def test_a_replay_spares_local_addresses_as_a_pipeline_does_unless_it_is_asked(
    tmp_path: Path, client: str
) -> None:
    log = tmp_path / "access.log"
    log.write_text(write_line(client, 5, "GET /?f=../../../etc/passwd"))
    assert [row["action"] for row in replay([log], SETTINGS).rows] == ["allowed"]
    engine = FedEngine(SETTINGS, partitions=[0])
    made = engine.feed({0: pa.array([log.read_bytes().strip()], pa.binary())})
    assert [*made["action"].to_pylist(), *engine.finish()["action"].to_pylist()] == ["allowed"]
    asked = replace(SETTINGS, block_private=True)
    assert [row["action"] for row in replay([log], asked).rows] == ["block"]


@pytest.mark.parametrize("client", ["0.0.0.1", "224.0.0.1", "ff02::1"])
def test_what_is_no_address_of_anybody_is_spared_whatever_was_asked(tmp_path: Path, client: str) -> None:
    log = tmp_path / "access.log"
    log.write_text(write_line(client, 5, "GET /?f=../../../etc/passwd"))
    asked = replace(SETTINGS, block_private=True)
    assert [row["action"] for row in replay([log], asked).rows] == ["allowed"]


def test_a_log_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="LOG_UNREADABLE"), open_log(tmp_path / "none.log"):
        pass


@pytest.mark.parametrize(
    ("packed", "program"),
    [(bz2.compress(b"x"), "bzip2"), (lzma.compress(b"x"), "xz"), (b"\x28\xb5\x2f\xfd\x00", "zstd")],
)
def test_a_log_that_is_packed_otherwise_is_told_how_to_give_it(
    tmp_path: Path, packed: bytes, program: str
) -> None:
    log = tmp_path / "access.log"
    log.write_bytes(packed)
    with pytest.raises(OptionError, match=f"LOG_UNREADABLE.*packed with {program}.*{program} -dc"):
        replay([log], SETTINGS)


@pytest.mark.parametrize("damage", ["cut off", "flipped"])
def test_a_damaged_packed_log_is_told(tmp_path: Path, damage: str) -> None:
    log = tmp_path / "access.log.gz"
    packed = bytearray(gzip.compress(join(QUIET).encode()))
    packed[60] ^= 0xFF
    log.write_bytes(packed if damage == "flipped" else packed[: len(packed) // 2])
    with pytest.raises(OptionError, match="LOG_UNREADABLE"):
        replay([log], SETTINGS)


def test_the_command_writes_the_decisions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, out = tmp_path / "access.log", tmp_path / "out.csv"
    log.write_text(join(QUIET, write_attack("192.0.2.9", 30)))
    assert main(["accesslog", "replay", str(log), "--decisions", str(out)]) == 0
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [
        {"client": "192.0.2.9", "decided_at": "2023-11-14T22:13:58Z", "request_index": "9",
         "rule": "brute-force.fast", "class": "brute_force", "action": "block"}
    ]  # fmt: skip
    assert "73 lines, 0 of them not parsed, 0 out of order" in capsys.readouterr().err


@pytest.mark.usefixtures("tmp_path")
def test_the_command_reads_its_input_and_spares_whom_it_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = join(QUIET, write_attack("192.0.2.9", 30)).encode()
    arguments = ["accesslog", "replay", "-", "--decisions", "-", "--allow", "192.0.2.0/24"]
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text)))
    assert main(arguments) == 0
    assert "192.0.2.9" not in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text)))
    assert main([*arguments, "--all-actions"]) == 0
    assert ",allowed" in capsys.readouterr().out
