"""Blocklist files: complete at every moment, rewritten when the list changes, and left alone otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.apps.accesslog.blocking import blocklist_formats
from penstock.apps.accesslog.blocking.blocklist_files import BlocklistWriter, demand_place, write_whole
from penstock.apps.accesslog.blocking.blocklists import Gate
from penstock.apps.accesslog.stream.operator_orders import place_order
from penstock.core.errors import OptionError, SinkError
from penstock.core.options.storage_addresses import Place
from tests.support.accesslog.decisions_database import (
    NOW_US,
    SECOND_US,
    add_decisions,
    decide,
    make_decision,
)

#: Writes a new file over an old one, and is killed before line 1, 2, 3, ... of what it executes there. After
#: each kill it prints what the file holds: o for the old content, n for the new content, anything else for
#: half.
KILLED_AT_EVERY_LINE = """
import os, signal, sys
from pathlib import Path
from penstock.apps.accesslog.blocking import blocklist_files
from penstock.stores import durable_files

path, old, new = Path(sys.argv[1]), b"old\\n" * 300_000, b"new\\n" * 300_000

def kill_before(line):
    left = line
    def look(frame, event, argument):
        nonlocal left
        if frame.f_code.co_filename not in (blocklist_files.__file__, durable_files.__file__):
            return None
        left -= event == "line"
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return look
    sys.settrace(look)

for line in range(1, 200):
    for left in path.parent.glob(".*"):
        left.unlink()
    blocklist_files.write_whole(path, old)
    child = os.fork()
    if child == 0:
        kill_before(line)
        blocklist_files.write_whole(path, new)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print({old: "o", new: "n"}.get(path.read_bytes(), "half"), end="")
    if not os.WIFSIGNALED(status):
        break
"""


class Clock:
    def __init__(self) -> None:
        self.now_us = NOW_US

    def __call__(self) -> int:
        return self.now_us


def read_times(folder: Path) -> dict[str, int]:
    return {each.name: each.stat().st_mtime_ns for each in folder.iterdir()}


def test_whoever_is_killed_at_any_step_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "lists" / "blocklist.txt"
    outcome = subprocess.run(
        [sys.executable, "-c", KILLED_AT_EVERY_LINE, str(path)], capture_output=True, text=True, timeout=120
    )
    assert outcome.returncode == 0, outcome.stderr
    states = outcome.stdout
    assert set(states) == {"o", "n"}
    assert "no" not in states, "once the new file is there, it stays"
    assert states.count("o") > 10
    assert states.count("n") > 3, "some die between the renaming and the end"


def test_what_a_killed_writer_left_is_removed_when_it_is_old(tmp_path: Path) -> None:
    path = tmp_path / "blocklist.txt"
    old, fresh, other = (
        tmp_path / name
        for name in (
            ".blocklist.txt.1.penstock-new",
            ".blocklist.txt.2.penstock-new",
            ".other.txt.1.penstock-new",
        )
    )
    for each in (old, fresh, other):
        each.write_bytes(b"half")
    os.utime(old, (1, 1))
    os.utime(other, (1, 1))
    assert write_whole(path, b"x\n")
    assert sorted(tmp_path.iterdir()) == sorted([path, fresh, other])


def test_a_link_in_the_place_of_the_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    """Otherwise anyone who can create links there could have any file overwritten."""
    precious, path = tmp_path / "precious", tmp_path / "blocklist.txt"
    precious.write_text("precious")
    path.symlink_to(precious)
    assert write_whole(path, b"x\n")
    assert precious.read_text() == "precious"
    assert path.read_bytes() == b"x\n"
    assert not path.is_symlink()


def test_a_web_server_may_read_the_file_and_nobody_else_may_write_it(tmp_path: Path) -> None:
    write_whole(tmp_path / "blocklist.txt", b"x\n")
    assert (tmp_path / "blocklist.txt").stat().st_mode & 0o022 == 0


def test_a_folder_that_cannot_be_written_is_told_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match=r"BLOCKLIST_NOT_WRITTEN.*file/blocklist.txt.*its folder is a file"):
        write_whole(tmp_path / "file" / "blocklist.txt", b"")


def test_a_place_is_tried_before_there_is_a_list(tmp_path: Path) -> None:
    demand_place(tmp_path / "new" / "lists")
    assert list((tmp_path / "new" / "lists").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match="BLOCKLIST_NOT_WRITTEN"):
        demand_place(tmp_path / "file")


def test_files_follow_decisions_orders_and_the_clock(place: Place, tmp_path: Path) -> None:
    clock, folder = Clock(), tmp_path / "lists"
    writer = BlocklistWriter(
        place, folder, Gate.of(allow=["192.0.2.9"]), ("text", "nftables"), clock_us=clock
    )
    decide(place, "192.0.2.1")
    decide(place, "192.0.2.2", seconds=900)
    decide(place, "192.0.2.9")

    def read() -> list[str]:
        listed = (folder / "blocklist.txt").read_text().split()
        assert all(f"{each} timeout" in (folder / "blocklist.nft").read_text() for each in listed)
        return listed

    assert writer.refresh() is True
    assert read() == ["192.0.2.1", "192.0.2.2"]
    clock.now_us += 600 * SECOND_US
    assert writer.refresh(has_new_decisions=False) is True, "a ban has ended"
    assert read() == ["192.0.2.2"]
    place_order(place, "192.0.2.2", now_us=clock.now_us, grace_us=SECOND_US)
    assert writer.refresh(has_new_decisions=False) is True, "somebody was let go"
    assert read() == []
    decide(place, "192.0.2.3", seconds=7200)
    assert writer.refresh() is True
    assert read() == ["192.0.2.3"]


def test_nothing_is_written_when_nothing_has_changed(place: Place, tmp_path: Path) -> None:
    clock, folder = Clock(), tmp_path / "lists"
    writer = BlocklistWriter(place, folder, Gate.of(), ("text", "json", "nftables", "apache"), clock_us=clock)
    decide(place, "192.0.2.1")
    writer.refresh()
    times = read_times(folder)
    assert len(times) == 4
    for has_new_decisions in (False, True):
        clock.now_us += SECOND_US
        assert writer.refresh(has_new_decisions=has_new_decisions) is False
    decide(place, "192.0.2.7", action="simulate")
    assert writer.refresh() is False
    assert read_times(folder) == times


def test_after_a_restart_only_what_tells_seconds_is_written_again(place: Place, tmp_path: Path) -> None:
    """Seconds count from the moment of writing; a file without seconds is still true."""
    clock, folder = Clock(), tmp_path / "lists"
    decide(place, "192.0.2.1")
    BlocklistWriter(place, folder, Gate.of(), ("text", "nftables"), clock_us=clock).refresh()
    before = read_times(folder)
    clock.now_us += 60 * SECOND_US
    BlocklistWriter(place, folder, Gate.of(), ("text", "nftables"), clock_us=clock).refresh()
    after = read_times(folder)
    assert after["blocklist.txt"] == before["blocklist.txt"]
    assert "192.0.2.1 timeout 540s" in (folder / "blocklist.nft").read_text()


def test_a_refresh_that_failed_is_made_up_for_by_the_next(place: Place, tmp_path: Path) -> None:
    clock, folder = Clock(), tmp_path / "lists"
    writer = BlocklistWriter(place, folder, Gate.of(), ("text",), clock_us=clock)
    decide(place, "192.0.2.1")
    folder.write_text("in the way")
    with pytest.raises(SinkError, match="BLOCKLIST_NOT_WRITTEN"):
        writer.refresh()
    folder.unlink()
    assert writer.refresh(has_new_decisions=False) is True
    assert (folder / "blocklist.txt").read_text() == "192.0.2.1\n"


def test_wrong_formats_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="FORMAT_UNKNOWN"):
        BlocklistWriter(tmp_path / "x.db", tmp_path, Gate.of(), ("hosts.deny",))


def test_of_a_long_list_only_what_is_new_is_put_into_words(place: Place, tmp_path: Path) -> None:
    """Each change of a list rewrites all of it, and in a flood a long list changes every second."""
    lists = tmp_path / "lists"
    words = (blocklist_formats.show_network, blocklist_formats._write_ban)
    for each in words:
        each.cache_clear()
    writer = BlocklistWriter(place, lists, Gate.of(), ("json", "text", "nftables"), clock_us=Clock())
    add_decisions(place, [make_decision(f"198.51.{n >> 8}.{n & 255}") for n in range(1000)])
    writer.refresh()
    before = [each.cache_info().misses for each in words]
    decide(place, "192.0.2.1")
    decide(place, "2001:db8:1:2::/64")
    assert writer.refresh()
    after = [each.cache_info().misses for each in words]
    assert [late - early for early, late in zip(before, after, strict=True)] == [2, 2]
    told = json.loads((lists / "blocklist.json").read_bytes())
    assert len(told["added"]) == 1002
    assert (lists / "blocklist.txt").read_text().splitlines() == [each["network"] for each in told["added"]]
