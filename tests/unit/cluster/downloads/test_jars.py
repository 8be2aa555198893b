"""Jars are fetched once, completely or not at all, by however many processes at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.downloads import jars
from penstock.cluster.downloads.jars import MANIFEST, cache_folder, fetch_jars
from penstock.core.errors import ClusterError
from tests.support.stopped_lock_holder import hold_lock

TINY = "org.slf4j:slf4j-api:2.0.17"
JAR = "slf4j-api-2.0.17.jar"

FETCH = f"""
import sys
from penstock.cluster.downloads.jars import fetch_jars
print(fetch_jars("tiny", ["{TINY}"]))
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("PENSTOCK_CACHE", str(folder))
    return folder


@pytest.fixture
def fake_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a `java` whose Ivy writes half a jar, notes that in a file, and then does as the test says."""
    script = tmp_path / "bin" / "java"
    script.parent.mkdir()
    script.write_text(
        textwrap.dedent(f"""\
        #!/bin/sh
        if [ "$1" = -version ]; then echo 'openjdk version "17.0.1"' >&2; exit 0; fi
        for word; do case "$word" in */[[]artifact*) folder="${{word%/*}}";; esac; done
        printf half > "$folder/{JAR}"
        echo "$$" > "{tmp_path}/fetching"
        printf '\\tfound org.slf4j#slf4j-api;2.0.17 in public\\n'
        . "{tmp_path}/then"
        """)
    )
    script.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    return tmp_path


@pytest.mark.usefixtures("cache")
def test_two_processes_fetching_at_once_make_one_complete_folder() -> None:
    both = [
        subprocess.Popen([sys.executable, "-c", FETCH], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    answers = [process.communicate(timeout=240)[0].strip() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert answers[0] == answers[1]
    folder = Path(answers[0])
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["coordinates"] == [TINY]
    assert {path.name for path in folder.iterdir()} == {JAR, MANIFEST}
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == [folder.name]


def test_a_killed_fetch_leaves_nothing_that_looks_usable(cache: Path, fake_java: Path) -> None:
    (fake_java / "then").write_text("exec sleep 600\n")
    fetching = subprocess.Popen([sys.executable, "-c", FETCH])
    deadline = time.monotonic() + 60
    while not (fake_java / "fetching").exists() or not (fake_java / "fetching").read_text().strip():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    ivy = int((fake_java / "fetching").read_text())
    fetching.kill()
    fetching.wait(30)
    while is_running(ivy):  # the fetch's own child ends with it
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert [path for path in (cache / "jars").iterdir() if not path.name.startswith(".")] == []

    (fake_java / "then").write_text("printf ' whole' >> \"$folder/slf4j-api-2.0.17.jar\"\n")
    folder = fetch_jars("tiny", [TINY])
    assert (folder / JAR).read_text() == "half whole"
    assert sorted(path.name for path in (cache / "jars").iterdir()) == [".lock", folder.name]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"


@pytest.mark.usefixtures("cache")
def test_a_complete_folder_is_not_fetched_again(fake_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fake_java / "then").write_text("")
    first = fetch_jars("tiny", [TINY])
    monkeypatch.setenv("PATH", "/nowhere")  # a second fetch would find no Java
    assert fetch_jars("tiny", [TINY]) == first


@pytest.mark.usefixtures("cache")
def test_a_folder_that_lost_a_jar_is_fetched_anew(fake_java: Path) -> None:
    (fake_java / "then").write_text("")
    folder = fetch_jars("tiny", [TINY])
    (folder / JAR).unlink()
    assert fetch_jars("tiny", [TINY]) == folder
    assert (folder / JAR).exists()


def test_a_jar_with_another_checksum_is_refused_and_not_kept(cache: Path, fake_java: Path) -> None:
    """S35: downloads are checked by SHA-512."""
    (fake_java / "then").write_text("")
    with pytest.raises(ClusterError, match=rf"\[CHECKSUM_MISMATCH\].*{JAR}"):
        fetch_jars("tiny", [TINY], sha512={JAR: "0" * 128})
    assert [path.name for path in (cache / "jars").iterdir()] == [".lock"]


@pytest.mark.usefixtures("cache")
def test_a_failed_fetch_shows_the_end_of_what_was_said(fake_java: Path) -> None:
    (fake_java / "then").write_text("echo 'UNRESOLVED DEPENDENCY: not found'\nexit 1\n")
    with pytest.raises(ClusterError) as caught:
        fetch_jars("tiny", [TINY])
    assert caught.value.condition == "FETCH_FAILED"
    assert "UNRESOLVED DEPENDENCY: not found" in str(caught.value)


@pytest.mark.usefixtures("cache")
def test_progress_counts_up_to_the_expected_total(fake_java: Path) -> None:
    (fake_java / "then").write_text("")
    seen: list[tuple[int, int | None, str]] = []
    fetch_jars("tiny", [TINY], lambda *told: seen.append(told), expected_jars=1)
    assert seen == [(0, 2, "asking where the jars are"), (1, 2, "slf4j-api 2.0.17"), (1, 1, "complete")]


def test_the_megabytes_of_a_big_jar_are_told_while_it_comes(cache: Path, fake_java: Path) -> None:
    """Ivy prints one line before and one after; in between there may be minutes."""
    part = cache / "ivy" / "org.slf4j" / "slf4j-api" / "jars" / f"{JAR}.part"
    part.parent.mkdir(parents=True)
    with part.open("wb") as file:
        file.truncate(7_300_000)
    (fake_java / "then").write_text(f"while [ -e {part} ]; do printf .; sleep 0.1; done\n")
    seen: list[tuple[int, int | None, str]] = []

    def tell(*told: Any) -> None:
        seen.append(told)
        if told[0] == 7:
            part.unlink()

    fetch_jars("tiny", [TINY], tell, expected_mb=20)
    assert seen[0] == (0, 20, "asking where the jars are")
    assert (7, 20, "slf4j-api (counted in MB)") in seen
    assert seen[-1] == (1, 1, "complete")


def test_who_waits_for_the_fetch_of_another_process_is_told_so(
    cache: Path, fake_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fake_java / "then").write_text("")
    monkeypatch.setattr(jars, "CACHE_PATIENCE_S", 0.1)
    seen: list[tuple[int, int | None, str]] = []
    with hold_lock(cache / "jars" / ".lock"), pytest.raises(ClusterError, match="CACHE_BUSY"):
        fetch_jars("tiny", [TINY], lambda *told: seen.append(told))
    assert seen == [(0, None, "waiting for another process to finish its download")]


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file"))
    with pytest.raises(ClusterError, match=rf"\[CACHE_NOT_WRITABLE\].*{tmp_path}/file"):
        fetch_jars("tiny", [TINY])


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("text", ["kafka", "a:b", "a:b:c:d", "a:b:../c", "a:-b c:1", ""])
def test_what_is_no_coordinate_is_refused(text: str) -> None:
    with pytest.raises(ClusterError, match="BAD_COORDINATE"):
        fetch_jars("x", [text])


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("PENSTOCK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "penstock"


def test_a_fetch_that_is_interrupted_ends_its_child(cache: Path, fake_java: Path) -> None:
    (fake_java / "then").write_text("echo next\nexec sleep 600\n")

    def interrupt(done: int, _total: int | None, _item: str) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_jars("tiny", [TINY], interrupt)
    assert [path.name for path in (cache / "jars").iterdir()] == [".lock"]
    assert not is_running(int((fake_java / "fetching").read_text()))


@pytest.mark.parametrize(
    ("limit", "then", "why"),
    [
        pytest.param("FETCH_SILENCE_S", "exec sleep 600", "said nothing for 0.5 s", id="silent"),
        pytest.param(
            "FETCH_TOTAL_S", "while printf .; do sleep 0.1; done", "not done after 0.5 s", id="slow"
        ),
        pytest.param(
            "FETCH_TOTAL_S", "exec >/dev/null 2>&1 sleep 600", "not ended after 0.5 s", id="silent and deaf"
        ),
    ],
)
def test_a_fetch_that_does_not_end_is_given_up_and_ended(
    cache: Path, fake_java: Path, monkeypatch: pytest.MonkeyPatch, limit: str, then: str, why: str
) -> None:
    """Ivy may hang on a network that neither answers nor closes."""
    monkeypatch.setattr(jars, limit, 0.5)
    (fake_java / "then").write_text(f"{then}\n")
    with pytest.raises(ClusterError) as caught:
        fetch_jars("tiny", [TINY])
    assert caught.value.condition == "FETCH_STALLED"
    assert why in caught.value.what
    assert "found org.slf4j#slf4j-api;2.0.17" in caught.value.what
    assert [path.name for path in (cache / "jars").iterdir()] == [".lock"]
    assert not is_running(int((fake_java / "fetching").read_text()))


@pytest.mark.usefixtures("cache")
def test_dots_without_a_line_end_are_a_sign_of_life(fake_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A big jar on a slow network: three seconds of dots with a silence limit of two."""
    monkeypatch.setattr(jars, "FETCH_SILENCE_S", 2.0)
    (fake_java / "then").write_text("for i in 1 2 3 4 5 6 7 8 9 10; do printf .; sleep 0.3; done\n")
    assert (fetch_jars("tiny", [TINY]) / JAR).exists()


def test_a_fetch_behind_a_stopped_one_is_an_error_and_not_a_wait_for_ever(
    cache: Path, fake_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process is stopped while it holds the cache's lock."""
    (fake_java / "then").write_text("")
    monkeypatch.setattr(jars, "CACHE_PATIENCE_S", 0.3)
    with (
        hold_lock(cache / "jars" / ".lock"),
        pytest.raises(ClusterError, match=r"^\[CACHE_BUSY\].*0\.3 s") as caught,
    ):
        fetch_jars("tiny", [TINY])
    assert caught.value.retriable
    assert (fetch_jars("tiny", [TINY]) / JAR).exists()
