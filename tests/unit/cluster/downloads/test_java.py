"""Java is found where Spark finds it, and a missing or old one is reported in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cluster.downloads.java import find_java, read_major_version
from penstock.core.errors import ClusterError


def write_java(folder: Path, version_text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    java = folder / "java"
    java.write_text(f"#!/bin/sh\necho '{version_text}' >&2\n")
    java.chmod(0o755)
    return java


def test_an_old_java_is_named_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = write_java(tmp_path, 'openjdk version "11.0.22" 2024-01-16')
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ClusterError) as caught:
        find_java()
    assert caught.value.condition == "JAVA_TOO_OLD"
    assert f"{old} is Java 11" in str(caught.value)
    assert "17" in str(caught.value)


def test_a_missing_java_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match=r"\[JAVA_NOT_FOUND\].*no `java` on PATH"):
        find_java()


def test_java_home_wins_over_the_path_as_it_does_for_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = write_java(tmp_path / "home" / "bin", 'openjdk version "21.0.1" 2023-10-17')
    write_java(tmp_path / "path", 'openjdk version "17.0.1" 2021-10-19')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/bin")
    assert find_java() == home


def test_a_java_home_without_java_is_an_error_and_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_java(tmp_path / "path", 'openjdk version "17.0.1" 2021-10-19')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/bin")
    with pytest.raises(ClusterError, match=r"\[JAVA_NOT_FOUND\].*JAVA_HOME is"):
        find_java()


def test_a_program_that_is_no_java_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_java(tmp_path, "no runtime present")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    with pytest.raises(ClusterError, match="no runtime present"):
        find_java()


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('java version "1.8.0_402"', 8),
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('openjdk version "22-ea" 2024-03-19', 22),
        ("command not found", None),
    ],
)
def test_the_major_version_is_read_from_old_and_new_notations(text: str, major: int | None) -> None:
    assert read_major_version(text) == major
