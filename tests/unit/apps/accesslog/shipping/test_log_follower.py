"""Following log files: each line once and in order, whatever is done to the files meanwhile."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from penstock.apps.accesslog.shipping.log_file_names import family_of
from penstock.apps.accesslog.shipping.shipped_positions import FilePosition
from tests.support.accesslog.accesslog_logs import (
    Clock,
    all_closed,
    append,
    follow,
    line_of,
    lines_in,
    pack,
    read_all,
)

__all__ = ["all_closed"]


def test_lines_that_are_appended_are_read_once(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    append(log, "a", "b")
    follower = follow(tmp_path)
    assert read_all(follower) == ["a", "b"]
    append(log, "c")
    assert read_all(follower) == ["c"]
    assert read_all(follower) == []


def test_the_last_line_waits_for_its_newline(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    append(log, "whole", "beg", end="")
    follower = follow(tmp_path)
    assert read_all(follower) == ["whole"]
    append(log, "un", end="")
    assert read_all(follower) == []
    append(log)
    assert read_all(follower) == ["begun"]


def test_any_bytes_pass_unchanged(tmp_path: Path) -> None:
    (tmp_path / "access.log").write_bytes(b"\xff\xfe\x00\r\n\n\x16\x03\n")
    pieces = follow(tmp_path).read(1 << 20)
    assert [line for piece in pieces for line in piece.lines.to_pylist()] == [
        b"\xff\xfe\x00\r",
        b"",
        b"\x16\x03",
    ]


def test_a_file_that_appears_later_is_read_from_its_beginning(tmp_path: Path) -> None:
    append(tmp_path / "one-access.log", "a")
    follower = follow(tmp_path, "*access.log", from_end=True)
    assert read_all(follower) == []
    append(tmp_path / "two-access.log", "b")
    append(tmp_path / "one-access.log", "c")
    assert sorted(read_all(follower)) == ["b", "c"]


@pytest.mark.parametrize("text", ["a\nb\n", "a\nb\nunfinished"])
def test_from_the_end_means_behind_the_last_whole_line(tmp_path: Path, text: str) -> None:
    log = tmp_path / "access.log"
    log.write_text(text)
    follower = follow(tmp_path, from_end=True)
    append(log, " c")
    assert read_all(follower) == ["unfinished c" if "un" in text else " c"]


def test_a_rotated_file_is_finished_before_the_new_one_and_its_late_lines_are_read(tmp_path: Path) -> None:
    log, clock = tmp_path / "access.log", Clock()
    append(log, "a")
    follower = follow(tmp_path, clock=clock)
    assert read_all(follower) == ["a"]
    append(log, "b")
    log.rename(tmp_path / "access.log.1")
    append(log, "c")
    assert read_all(follower) == ["b", "c"]
    append(tmp_path / "access.log.1", "late")
    assert read_all(follower) == ["late"]
    append(tmp_path / "access.log.1", "no newline", end="")
    assert read_all(follower) == []
    clock.now += 31
    assert read_all(follower) == ["no newline"]
    assert [each.finished for each in follower.positions()] == [True, False]


@pytest.mark.parametrize("pattern", ["access.log", "access.log*"])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_line_that_is_written_long_after_the_rotation_is_read(
    tmp_path: Path, pattern: str, restarts: bool
) -> None:
    log, clock = tmp_path / "access.log", Clock()
    append(log, line_of(1))
    follower = follow(tmp_path, pattern, clock=clock)
    assert read_all(follower) == [line_of(1)]
    log.rename(tmp_path / "access.log.1")
    append(log, line_of(2))
    assert read_all(follower) == [line_of(2)]
    for number in (3, 5):
        clock.now += 31
        assert read_all(follower) == []
        assert [each.finished for each in follower.positions()] == [True, False]
        append(tmp_path / "access.log.1", line_of(number))
        append(log, line_of(number + 1))
        if restarts:
            follower = follow(tmp_path, pattern, clock=clock, positions=follower.positions())
        assert read_all(follower) == [line_of(number), line_of(number + 1)]


def test_a_finished_file_whose_bytes_are_others_now_is_not_read_on(tmp_path: Path) -> None:
    log, clock = tmp_path / "access.log", Clock()
    append(log, line_of(1))
    follower = follow(tmp_path, clock=clock)
    read_all(follower)
    log.rename(tmp_path / "access.log.1")
    append(log, line_of(2))
    read_all(follower)
    clock.now += 31
    read_all(follower)
    (tmp_path / "access.log.1").write_text(f"{line_of(7)}\n{line_of(8)}\n")
    assert read_all(follower) == []


def test_a_deleted_file_is_read_to_its_end(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    append(log, "a")
    follower = follow(tmp_path)
    append(log, "b")
    log.unlink()
    append(log, "c")
    assert read_all(follower) == ["a", "b", "c"]


def test_a_file_that_was_emptied_is_read_anew(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    append(log, line_of(1), line_of(2))
    follower = follow(tmp_path)
    assert len(read_all(follower)) == 2
    os.truncate(log, 0)
    append(log, line_of(3))
    assert read_all(follower) == [line_of(3)]


def test_a_file_that_grew_beyond_the_old_position_after_it_was_emptied_is_known_as_new(
    tmp_path: Path,
) -> None:
    """Its size alone does not show it: the bytes that were read are compared."""
    log = tmp_path / "access.log"
    append(log, "# the same first line of every log")
    follower = follow(tmp_path)
    append(log, line_of(1))
    assert read_all(follower)[1:] == [line_of(1)]
    os.truncate(log, 0)
    append(log, "# the same first line of every log", line_of(2), line_of(3), line_of(4))
    assert read_all(follower)[1:] == [line_of(2), line_of(3), line_of(4)]


@pytest.mark.parametrize("pattern", ["access.log", "access.log*"])
@pytest.mark.parametrize("restarts", [False, True])
def test_the_copy_of_copytruncate_is_read_to_its_end_first(
    tmp_path: Path, pattern: str, restarts: bool
) -> None:
    log = tmp_path / "access.log"
    append(log, line_of(1))
    follower = follow(tmp_path, pattern)
    assert read_all(follower) == [line_of(1)]
    append(log, line_of(2), line_of(3))
    shutil.copy(log, tmp_path / "access.log.1")
    if restarts:
        follower = follow(tmp_path, pattern, positions=follower.positions())
    os.truncate(log, 0)
    append(log, line_of(4), line_of(5), line_of(6))
    assert read_all(follower) == [line_of(number) for number in range(2, 7)]


def test_a_copy_that_is_being_written_is_not_read_as_a_new_file(tmp_path: Path) -> None:
    log, copy, clock = tmp_path / "access.log", tmp_path / "access.log.1", Clock()
    append(log, *map(line_of, range(100)))
    follower = follow(tmp_path, "access.log*", clock=clock)
    assert len(read_all(follower)) == 100
    half = log.read_bytes()[:3000]
    copy.write_bytes(half)
    assert read_all(follower) == []
    clock.now += 1
    copy.write_bytes(log.read_bytes())
    clock.now += 1.5
    assert read_all(follower) == []
    clock.now += 5
    assert read_all(follower) == []


def test_a_log_whose_live_file_has_a_date_in_its_name_is_read_while_it_is_written(tmp_path: Path) -> None:
    """With names as from `rotatelogs`, all files look rotated, and the last one is in use."""
    follower, found = follow(tmp_path, "access-*.log"), []
    for day in ("20260130", "20260131", "20260201"):
        for _ in range(3):
            append(tmp_path / f"access-{day}.log", line_of(len(found)))
            found += read_all(follower)
    assert found == [line_of(number) for number in range(9)]


def test_packed_history_is_read_once_when_asked_and_in_order(tmp_path: Path) -> None:
    log, clock = tmp_path / "access.log", Clock()
    for number, name in enumerate(["access.log.3", "access.log.2", "access.log.1", "access.log"]):
        append(tmp_path / name, line_of(2 * number), line_of(2 * number + 1))
        os.utime(tmp_path / name, ns=(number * 10**9, number * 10**9))
    pack(tmp_path / "access.log.3")
    pack(tmp_path / "access.log.2")
    assert read_all(follow(tmp_path)) == [line_of(6), line_of(7)]
    follower = follow(tmp_path, history=True, clock=clock)
    assert read_all(follower, 100) == [line_of(number) for number in range(8)]
    follower = follow(tmp_path, history=True, clock=clock, positions=follower.positions())
    assert read_all(follower) == []
    clock.now += 60
    assert read_all(follower) == []
    pack(tmp_path / "access.log.1")
    clock.now += 60
    append(log, line_of(8))
    assert read_all(follower) == [line_of(8)]
    clock.now += 60
    assert read_all(follower) == []


def test_a_packed_file_that_is_cut_off_gives_what_is_whole(tmp_path: Path) -> None:
    clock = Clock()
    append(tmp_path / "old.log", *map(line_of, range(5000)))
    packed = pack(tmp_path / "old.log")
    packed.write_bytes(packed.read_bytes()[:-2000])
    follower = follow(tmp_path, "old.log.gz", clock=clock)
    found = read_all(follower)
    assert 0 < len(found) < 5000
    clock.now += 60
    found += read_all(follower)
    assert found[:-1] == [line_of(number) for number in range(len(found) - 1)]


def test_two_rotations_while_nobody_looked_lose_nothing(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    append(log, line_of(0))
    follower = follow(tmp_path)
    assert read_all(follower) == [line_of(0)]
    append(log, line_of(1))
    log.rename(tmp_path / "access.log.2")
    append(log, line_of(2))
    pack(tmp_path / "access.log.2")
    log.rename(tmp_path / "access.log.1")
    append(log, line_of(3))
    expected = [line_of(1), line_of(2), line_of(3)]
    assert read_all(follow(tmp_path, positions=follower.positions())) == expected
    assert read_all(follower) == expected


def test_a_position_whose_file_is_gone_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = tmp_path / "access.log"
    append(log, line_of(1))
    gone = FilePosition(str(log), 1, 2, 60, "00", 60, "00")
    follower = follow(tmp_path, positions=[gone])
    assert read_all(follower) == [line_of(1)]
    assert follower.lost == [gone]
    assert "behind byte 60" in caplog.text


def test_a_very_long_line_is_cut_and_marked_and_the_next_one_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    follower = follow(tmp_path, longest_line=100, chunk_bytes=300)
    append(log, "first", "x" * 1000, end="")
    pieces = follower.read(1 << 20)
    assert lines_in(pieces) == ["first", "x" * 100]
    assert [piece.cut_rows.tolist() for piece in pieces] == [[], [0]]
    assert follower.positions()[0].skipping
    again = follow(tmp_path, positions=follower.positions(), longest_line=100, chunk_bytes=300)
    append(log, "y" * 500, "next", "z" * 101, "w" * 100)
    for each in (follower, again):
        pieces = each.read(1 << 20)
        assert lines_in(pieces) == ["next", "z" * 100, "w" * 100]
        cut = [piece.lines[row].as_py() for piece in pieces for row in piece.cut_rows.tolist()]
        assert cut == [b"z" * 100]


def test_rotated_names_belong_to_one_family() -> None:
    names = [
        "access.log",
        "access.log.1",
        "access.log.12.gz",
        "access.log-20260131",
        "access.log-20260131.gz",
    ]
    names += ["access.log.2026-01-31", "access.log-20260131-10", "access.log.1769817600"]
    assert {family_of(f"/logs/{name}") for name in names} == {("/logs", "access.log")}
    for name in ("access-20260131.log", "access.2026-01-31.log"):
        assert family_of(f"/logs/{name}") == ("/logs", "access.log")
    assert family_of("/logs/web-1.log") == ("/logs", "web-1.log")
    assert family_of("/other/access.log") != family_of("/logs/access.log")
