"""Following log files in trouble: absent for a while, half copied, packed too early, or with holes."""

from __future__ import annotations

import gzip
import io
import os
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock.apps.accesslog.shipping import followed_files
from penstock.apps.accesslog.shipping.followed_files import HEAD_BYTES, find_again, is_gone
from penstock.apps.accesslog.shipping.log_file_names import Listing
from penstock.apps.accesslog.shipping.log_follower import LogFollower
from penstock.apps.accesslog.shipping.shipped_positions import FilePosition
from tests.support.accesslog.accesslog_logs import Clock, all_closed, append, follow, line_of, pack, read_all

__all__ = ["all_closed"]

MANY = [line_of(number) for number in range(100)]


def put_into_future(path: Path) -> None:
    """Date a file an hour from now: only the test's clock shows that it is complete, its time does not."""
    when = path.stat().st_mtime_ns + 3600 * 10**9
    os.utime(path, ns=(when, when))


# --- away for a while -------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["access.log", "access.log*"])
def test_a_folder_that_is_away_at_a_restart_costs_nothing(tmp_path: Path, pattern: str) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    append(folder / "access.log", *MANY)
    follower = follow(folder, pattern)
    assert read_all(follower) == MANY
    folder.rename(tmp_path / "away")
    follower = follow(folder, pattern, positions=follower.positions())
    assert read_all(follower) == []
    follower = follow(folder, pattern, positions=follower.positions())
    (tmp_path / "away").rename(folder)
    append(folder / "access.log", "more")
    again = follow(folder, pattern, positions=follower.positions())
    assert read_all(follower) == ["more"]
    assert read_all(again) == ["more"]
    assert follower.lost == again.lost == []


def test_a_rotated_file_that_may_not_be_read_now_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The superuser may read everything, so the test refuses access where files are opened."""
    log, clock = tmp_path / "access.log", Clock()
    append(log, *MANY)
    follower = follow(tmp_path)
    assert read_all(follower) == MANY
    append(log, "rest")
    log.rename(tmp_path / "access.log.1")
    append(log, "new")
    real = followed_files.LogFile

    def refuse(path: str) -> Any:
        if path.endswith(".1"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(followed_files, "LogFile", refuse)
    follower = follow(tmp_path, positions=follower.positions(), clock=clock)
    assert read_all(follower) == ["new"]
    follower = follow(tmp_path, positions=follower.positions(), clock=clock)
    assert read_all(follower) == []
    monkeypatch.setattr(followed_files, "LogFile", real)
    clock.now += 5
    assert read_all(follower) == ["rest"]
    assert follower.lost == []


def test_a_file_that_may_be_read_again_is_read_on_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "access.log"
    append(log, *MANY)
    follower = follow(tmp_path)
    assert read_all(follower) == MANY
    with monkeypatch.context() as refusing:
        refusing.setattr(followed_files, "LogFile", refuse_to_open)
        follower = follow(tmp_path, positions=follower.positions())
        assert read_all(follower) == []
    append(log, "more")
    assert read_all(follower) == ["more"]


def refuse_to_open(path: str) -> Any:
    raise PermissionError(13, "Permission denied", path)


def test_a_file_that_is_renamed_while_it_is_looked_for_is_not_given_up(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    append(log, *MANY)
    follower = follow(tmp_path)
    read_all(follower)
    (position,) = follower.positions()
    log.rename(tmp_path / "access.log.1")
    append(log, "new")
    listing = Listing()
    assert len(listing.list_relatives(str(log))) == 2
    (tmp_path / "access.log.1").rename(tmp_path / "access.log.2")
    log.rename(tmp_path / "access.log.1")
    append(log, "newer")
    assert find_again(position, listing) is None
    assert not is_gone(position, listing)


def test_two_positions_do_not_read_one_file_twice(tmp_path: Path) -> None:
    append(tmp_path / "access.log", *MANY)
    follower = follow(tmp_path)
    read_all(follower)
    (position,) = follower.positions()
    copy = replace(position, inode=position.inode + 10**6, number=position.number + 1)
    append(tmp_path / "access.log", "more")
    assert read_all(follow(tmp_path, positions=(position, copy))) == ["more"]


def test_a_file_is_given_up_when_its_name_is_another_ones_and_no_relative_is_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "access.log"
    append(log, *MANY)
    follower = follow(tmp_path)
    read_all(follower)
    log.unlink()
    waiting = follow(tmp_path, positions=follower.positions())
    assert read_all(waiting) == []
    assert waiting.lost == []
    append(log, "another")
    assert read_all(waiting) == ["another"]
    assert [each.path for each in waiting.lost] == [str(log)]
    assert "behind byte" in caplog.text
    assert len(waiting.positions()) == 1


def test_a_file_that_is_not_named_any_more_is_left_alone_until_it_is(tmp_path: Path) -> None:
    one, two, clock = tmp_path / "one.log", tmp_path / "two.log", Clock()
    append(one, *MANY[:10])
    append(two, *MANY[10:20])
    follower = follow(tmp_path, "one.log")
    assert read_all(follower) == MANY[:10]
    append(one, "late")
    other = follow(tmp_path, "two.log", positions=follower.positions(), clock=clock)
    assert read_all(other) == MANY[10:20]
    one.rename(tmp_path / "one.log.1")
    clock.now += 60
    assert read_all(other) == []
    again = follow(tmp_path, "*.log", positions=other.positions())
    assert read_all(again) == ["late"]


@pytest.mark.parametrize("pattern", ["*.log", "**/*.log", "one*", "one.log"])
@pytest.mark.parametrize("name", ["one.log.1", "one.log.2.gz"])
def test_a_rotated_file_belongs_to_the_pattern_of_its_log(tmp_path: Path, pattern: str, name: str) -> None:
    """It is all that is left of the log, and the pattern does not match its name."""
    append(tmp_path / "one.log", *MANY)
    follower = follow(tmp_path, pattern)
    read_all(follower)
    append(tmp_path / "one.log", "rest")
    (tmp_path / "one.log").rename(tmp_path / name.removesuffix(".gz"))
    if name.endswith(".gz"):
        pack(tmp_path / "one.log.2")
    assert read_all(follow(tmp_path, pattern, positions=follower.positions())) == ["rest"]


# --- copies -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("begun", [b"", b"10.1.2.0 - -"])
def test_a_copy_that_is_met_nearly_empty_is_not_read_as_a_new_file(
    tmp_path: Path, restarts: bool, waits: bool, begun: bytes
) -> None:
    log, copy, clock = tmp_path / "access.log", tmp_path / "access.log.1", Clock()
    append(log, *MANY)
    follower = follow(tmp_path, "access.log*", clock=clock)
    assert read_all(follower) == MANY
    copy.write_bytes(begun)
    put_into_future(copy)
    if restarts:
        follower = follow(tmp_path, "access.log*", clock=clock, positions=follower.positions())
    assert read_all(follower) == []
    if waits:  # so long that it counts as complete
        clock.now += 5
        assert read_all(follower) == []
    shutil.copy(log, copy)
    assert read_all(follower) == []
    os.truncate(log, 0)
    append(log, "a", "b")
    assert read_all(follower) == ["a", "b"]
    clock.now += 60
    assert read_all(follower) == []


def test_a_copy_that_passed_for_whole_and_is_filled_while_nobody_looks_is_no_new_file(tmp_path: Path) -> None:
    log, copy, clock = tmp_path / "access.log", tmp_path / "access.log.1", Clock()
    append(log, *MANY)
    follower = follow(tmp_path, "access.log*", clock=clock)
    assert read_all(follower) == MANY
    copy.touch()
    clock.now += 5
    assert read_all(follower) == []
    clock.now += 5
    assert read_all(follower) == []
    append(log, "rest")
    shutil.copy(log, copy)
    os.truncate(log, 0)
    append(log, "new")
    assert read_all(follower) == ["rest", "new"]


def test_a_copy_of_short_lines_is_compared_before_the_first_of_them_is_read(tmp_path: Path) -> None:
    log, copy, clock = tmp_path / "access.log", tmp_path / "access.log.1", Clock()
    short = [f"line {number}" for number in range(100)]
    append(log, *short)
    follower = follow(tmp_path, "access.log*", clock=clock)
    assert read_all(follower) == short
    copy.write_bytes(log.read_bytes()[:20])
    put_into_future(copy)
    assert read_all(follower) == []
    copy.write_bytes(log.read_bytes())
    assert read_all(follower) == []
    clock.now += 60
    assert read_all(follower) == []


def test_a_copy_of_a_finished_file_is_not_read_while_it_is_written(tmp_path: Path) -> None:
    log, clock = tmp_path / "access.log", Clock()
    append(log, *MANY)
    follower = follow(tmp_path, "access.log*", clock=clock, quiet_s=0.0)
    assert read_all(follower) == MANY
    log.rename(tmp_path / "access.log.1")
    append(log, "new")
    assert read_all(follower) == ["new"]
    whole = (tmp_path / "access.log.1").read_bytes()
    for size in (3000, 4500, len(whole)):
        (tmp_path / "access.log.2").write_bytes(whole[:size])
        assert read_all(follower) == []
        clock.now += 10


class Emptying(LogFollower):
    """A rotation that empties the log after the log was looked at, but before its copy is."""

    emptied: ClassVar[list[Path]] = []

    def _find_between(self, *about: Any) -> Any:
        while self.emptied:
            os.truncate(self.emptied.pop(), 0)
        return super()._find_between(*about)


def test_a_copy_whose_original_is_emptied_before_they_are_compared_is_known(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    append(log, *MANY)
    follower = Emptying([f"{log}*"], quiet_s=30.0, clock=Clock())
    try:
        assert read_all(follower) == MANY
        append(log, "rest")
        shutil.copy(log, tmp_path / "access.log.1")
        Emptying.emptied.append(log)
        assert read_all(follower) + read_all(follower) == ["rest"]
        append(log, "new")
        assert read_all(follower) == ["new"]
    finally:
        follower.close()


@pytest.mark.parametrize("size", [0, 10, 25])
def test_a_file_that_is_packed_at_once_is_not_read_twice(tmp_path: Path, size: int) -> None:
    """The new log and the first bytes of the packed one are seen together."""
    log, clock = tmp_path / "access.log", Clock()
    append(log, *MANY)
    follower = follow(tmp_path, clock=clock)
    assert read_all(follower) == MANY
    whole = gzip.compress(log.read_bytes())
    log.rename(tmp_path / "access.log.1")
    append(log, "new")
    packed = tmp_path / "access.log.1.gz"
    packed.write_bytes(whole[:size])
    put_into_future(packed)
    assert read_all(follower) == ["new"]
    packed.write_bytes(whole)
    put_into_future(packed)
    (tmp_path / "access.log.1").unlink()
    for _ in range(3):
        assert read_all(follower) == []
        clock.now += 20


def test_a_packed_file_that_nobody_has_seen_before_is_read_when_it_is_there(tmp_path: Path) -> None:
    """It was written, rotated and packed between two looks, and the second look came too early."""
    log, packed, clock = tmp_path / "access.log", tmp_path / "access.log.1.gz", Clock()
    append(log, *MANY[:10])
    follower = follow(tmp_path, clock=clock)
    assert read_all(follower) == MANY[:10]
    log.rename(tmp_path / "access.log.2")
    append(tmp_path / "between", *MANY[10:20])
    whole = gzip.compress((tmp_path / "between").read_bytes())
    packed.write_bytes(whole[:12])
    put_into_future(packed)
    append(log, *MANY[20:30])
    assert read_all(follower) == MANY[20:30]
    packed.write_bytes(whole)
    put_into_future(packed)
    assert read_all(follower) == MANY[10:20]
    clock.now += 60
    assert read_all(follower) == []


def test_days_that_begin_with_the_same_long_header_are_all_read(tmp_path: Path) -> None:
    follower, found, written = follow(tmp_path, "access-*.log", quiet_s=0.0), [], []
    header = "#Fields: " + "x" * (HEAD_BYTES + 100)
    for day in ("20260130", "20260131", "20260201"):
        append(tmp_path / f"access-{day}.log", header)
        written.append(header)
        for _ in range(3):
            written.append(line_of(len(written)))
            append(tmp_path / f"access-{day}.log", written[-1])
            found += read_all(follower)
    assert found == written
    pack(tmp_path / "access-20260130.log")
    again = follow(tmp_path, "access-*.log*", history=True, positions=follower.positions())
    assert read_all(again) == []


def test_a_finished_file_that_was_renamed_into_another_log_and_grew_is_read_on(tmp_path: Path) -> None:
    one, two = tmp_path / "one.log", tmp_path / "two.log"
    append(one, *MANY[:10])
    append(two, *MANY[10:20])
    follower = follow(tmp_path, "*.log", quiet_s=0.0)
    assert len(read_all(follower)) == 20
    for log in (one, two):
        log.rename(log.with_suffix(".log.1"))
        append(log, "new")
    assert read_all(follower) == ["new", "new"]
    (tmp_path / "one.log.1").rename(tmp_path / "two.log.2")
    append(tmp_path / "two.log.2", "late")
    assert read_all(follower) == ["late"]


# --- the end of a file, and holes -------------------------------------------------------------------------


class LateWriter(LogFollower):
    """A server that writes its last lines at the moment when its file is judged to be complete."""

    late: ClassVar[list[tuple[Path, bytes]]] = []

    def _is_over(self, tracked: Any) -> bool:
        over = super()._is_over(tracked)
        if over and self.late:
            path, data = self.late.pop()
            with path.open("ab") as file:
                file.write(data)
        return over


@pytest.mark.parametrize("late", ["one\ntwo\n", "\n", "one\ntwo", "x" * 500 + "\nnext\n"])
def test_lines_that_are_written_while_a_file_is_finished_are_whole(tmp_path: Path, late: str) -> None:
    log = tmp_path / "access.log"
    append(log, "first", "beg", end="")
    follower = LateWriter([str(log)], quiet_s=0.0, longest_line=100)
    try:
        assert read_all(follower) == ["first"]
        log.rename(tmp_path / "access.log.1")
        append(log, "new")
        LateWriter.late = [(tmp_path / "access.log.1", late.encode())]
        found = read_all(follower)
    finally:
        follower.close()
    expected = [each[:100] for each in ("beg" + late).removesuffix("\n").split("\n")]
    assert found == [*expected, "new"]


@pytest.mark.parametrize("chunk_bytes", [300, 1 << 20])
@pytest.mark.parametrize("lines", [1, 4, 100])
def test_a_writer_that_does_not_append_leaves_a_hole_and_no_line_is_lost(
    tmp_path: Path, chunk_bytes: int, lines: int
) -> None:
    log = tmp_path / "access.log"
    with log.open("wb", buffering=0) as server:
        server.write("".join(f"{line}\n" for line in MANY[:lines]).encode())
        follower = follow(tmp_path, chunk_bytes=chunk_bytes, longest_line=200)
        assert read_all(follower) == MANY[:lines]
        shutil.copy(log, tmp_path / "access.log.1")
        os.truncate(log, 0)
        server.write(b"after\nthe hole\n")
        assert read_all(follower) == ["after", "the hole"]
        again = follow(tmp_path, positions=follower.positions())
        server.write(b"more\n")
        assert read_all(follower) == read_all(again) == ["more"]


def test_a_hole_that_was_met_before_there_is_text_behind_it_is_left_out_too(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_bytes(bytes(1000))
    follower = follow(tmp_path, chunk_bytes=300, longest_line=200)
    assert read_all(follower) == []
    append(log, "text")
    again = follow(tmp_path, chunk_bytes=300, longest_line=200, positions=follower.positions())
    assert read_all(follower) == read_all(again) == ["text"]


@pytest.mark.parametrize("unread", ["", "begun"])
def test_an_emptied_file_is_told_as_a_loss_where_something_was_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, unread: str
) -> None:
    log = tmp_path / "access.log"
    append(log, *MANY)
    append(log, unread, end="")
    follower = follow(tmp_path)
    read_all(follower)
    os.truncate(log, 0)
    read_all(follower)
    assert ("was emptied" in caplog.text) == bool(unread)


# --- how much is done -------------------------------------------------------------------------------------


def test_a_packed_file_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk begins after the last whole line of the previous one, so nothing is read again."""
    dice = random.Random(1)
    lines = [f"{dice.getrandbits(200):x}" for _ in range(20_000)]
    append(tmp_path / "old.log", *lines)
    pack(tmp_path / "old.log")
    taken = Counter[str]()

    class Counting(io.FileIO):
        def readinto(self, buffer: Any) -> int:
            size = super().readinto(buffer) or 0
            taken["bytes"] += size
            return size

        def read(self, size: int = -1) -> bytes:
            data = super().read(size) or b""
            taken["bytes"] += len(data)
            return data

    monkeypatch.setattr(followed_files, "open", lambda path, *_, **__: Counting(path), raising=False)
    follower = follow(tmp_path, "old.log.gz", chunk_bytes=10_000, longest_line=200)
    assert read_all(follower, 50_000) == lines
    size = (tmp_path / "old.log.gz").stat().st_size
    assert size <= taken["bytes"] < 2 * size


@pytest.mark.parametrize("history", [False, True])
def test_an_idle_look_grows_with_the_number_of_files_and_no_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, history: bool
) -> None:
    steps = Counter[str]()
    for name in ("stat", "scandir", "listdir", "fstat"):
        real = getattr(os, name)

        def count(*arguments: Any, real: Any = real, name: str = name, **more: Any) -> Any:
            steps[name] += 1
            return real(*arguments, **more)

        monkeypatch.setattr(os, name, count)
    identity = FilePosition.identity.fget  # type: ignore[attr-defined]

    def count_identity(position: FilePosition) -> Any:
        steps["identity"] += 1
        return identity(position)

    monkeypatch.setattr(FilePosition, "identity", property(count_identity))
    done = []
    for files in (50, 200):
        folder = tmp_path / str(files)
        folder.mkdir()
        for number in range(files):
            append(folder / f"{number}.access.log", line_of(number))
        follower = follow(folder, "*.log", history=history)
        assert len(read_all(follower)) == files
        steps.clear()
        assert follower.read(1 << 20) == []
        done.append(dict(steps))
    few, many = done
    for name in ("stat", "fstat", "identity"):
        assert many[name] <= 5 * few[name]
    assert few["stat"] <= 2 * 50
    folders = [each.get("scandir", 0) + each.get("listdir", 0) for each in done]
    assert max(folders) <= 4
