"""The launcher drops Spark's archives if the same PySpark is installed, and changes nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import site
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main
from penstock.cluster.processes import python_launcher
from penstock.cluster.processes.python_launcher import make_launcher

TELL_PATH = "import os; print(os.environ['PYTHONPATH'], end='')"


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "my cache's"))
    path = make_launcher()
    assert path != sys.executable
    return path


@pytest.fixture
def other_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str) -> tuple[str, Path]:
    """Return a launcher that looks for installed packages in a folder of the test, and that folder."""
    assert launcher
    packages = tmp_path / "site packages"
    (packages / "pyspark").mkdir(parents=True)
    (packages / "pyspark" / "__init__.py").touch()
    (packages / f"pyspark-{version('pyspark')}.dist-info").mkdir()
    (packages / f"py4j-{version('py4j')}.dist-info").mkdir()
    monkeypatch.setattr(python_launcher, "_find_packages", lambda: str(packages))
    return make_launcher(), packages


def make_spark(home: Path, release: str) -> list[str]:
    """Make Spark's archives under this home; return them in the order in which Spark lists them."""
    (home / "python" / "lib").mkdir(parents=True)
    (home / "jars").mkdir()
    archives = [
        home / "python" / "lib" / "pyspark.zip",
        home / "python" / "lib" / f"py4j-{version('py4j')}-src.zip",
        home / "jars" / f"spark-core_2.13-{release}.jar",
    ]
    for archive, name in zip(archives, ("pyspark", "py4j", "org"), strict=True):
        with zipfile.ZipFile(archive, "w") as made:
            made.writestr(f"{name}/__init__.py", "" if name != "pyspark" else f"__version__ = {release!r}")
    return [str(archive) for archive in archives]


def run(
    launcher: str, *arguments: str, path: str | None = None, **given: Any
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": path} if path is not None else None
    given = {"env": environment, "capture_output": True, "text": True, "timeout": 60, **given}
    return subprocess.run([launcher, *arguments], **given)


def tell_path(launcher: str, *entries: str) -> list[str]:
    told = run(launcher, "-S", "-c", TELL_PATH, path=":".join(entries))
    assert not told.stderr
    return told.stdout.split(":")


def test_of_the_same_version_the_installed_package_is_imported(launcher: str, tmp_path: Path) -> None:
    archives = make_spark(tmp_path / "spark home", version("pyspark"))
    told = run(launcher, "-c", "import pyspark; print(pyspark.__file__)", path=":".join(archives))
    assert any(Path(each) in Path(told.stdout.strip()).parents for each in site.getsitepackages())


def test_other_entries_stay_in_their_order(launcher: str, tmp_path: Path) -> None:
    archives = make_spark(tmp_path / "spark home", version("pyspark"))
    with zipfile.ZipFile(tmp_path / "own.zip", "w") as made:
        made.writestr("own/__init__.py", "")
    own = ["/z", str(tmp_path / "own.zip"), str(tmp_path), "", "/a b/*", "/z"]
    assert tell_path(launcher, own[0], *archives, *own[1:]) == own


def test_nothing_but_sparks_archives_leaves_nothing(launcher: str, tmp_path: Path) -> None:
    archives = make_spark(tmp_path / "spark", version("pyspark"))
    assert tell_path(launcher, *archives, *archives) == [""]


@pytest.mark.parametrize("release", ["4.2.0", "4.3", "4.3.0.1", "4.3.0-SNAPSHOT", "14.3.0", "3-4.3.0"])
def test_another_version_is_left_alone(launcher: str, tmp_path: Path, release: str) -> None:
    entries = ["/own", *make_spark(tmp_path / "spark", release), "/other"]
    assert tell_path(launcher, *entries) == entries
    told = run(launcher, "-c", "import pyspark; print(pyspark.__version__)", path=":".join(entries))
    assert told.stdout.strip() == release


def _without_package(packages: Path, _home: Path) -> None:
    (packages / "pyspark" / "__init__.py").unlink()


def _without_its_version(packages: Path, _home: Path) -> None:
    (packages / f"pyspark-{version('pyspark')}.dist-info").rmdir()


def _with_two_versions(packages: Path, _home: Path) -> None:
    (packages / "pyspark-4.9.9.dist-info").mkdir()


def _upgraded_since(packages: Path, _home: Path) -> None:
    (packages / f"pyspark-{version('pyspark')}.dist-info").rename(packages / "pyspark-4.9.9.dist-info")


def _with_another_py4j(packages: Path, _home: Path) -> None:
    (packages / f"py4j-{version('py4j')}.dist-info").rename(packages / "py4j-0.1.dist-info")


def _without_a_jar(_packages: Path, home: Path) -> None:
    (home / "jars" / f"spark-core_2.13-{version('pyspark')}.jar").unlink()


def _with_two_jars(_packages: Path, home: Path) -> None:
    (home / "jars" / "spark-core_2.13-4.9.9.jar").touch()


@pytest.mark.parametrize(
    "change",
    [
        _without_package,
        _without_its_version,
        _with_two_versions,
        _upgraded_since,
        _with_another_py4j,
        _without_a_jar,
        _with_two_jars,
    ],
)
def test_where_the_version_is_not_certain_nothing_is_dropped(
    other_launcher: tuple[str, Path], tmp_path: Path, change: Callable[[Path, Path], None]
) -> None:
    launcher, packages = other_launcher
    entries = ["/own", *make_spark(tmp_path / "spark", version("pyspark")), "/other"]
    assert tell_path(launcher, *entries) == ["/own", "/other"]
    change(packages, tmp_path / "spark")
    assert tell_path(launcher, *entries) == entries


@pytest.mark.parametrize("name", ["pyspark", "py4j"])
@pytest.mark.parametrize("is_zipped", [True, False])
def test_what_the_zip_hides_stays_hidden(launcher: str, tmp_path: Path, name: str, is_zipped: bool) -> None:
    """Another PySpark behind the zip would come first if the zip were dropped."""
    hidden = tmp_path / ("deps.zip" if is_zipped else "deps")
    if is_zipped:
        with zipfile.ZipFile(hidden, "w") as made:
            made.writestr(f"{name}/__init__.py", "")
    else:
        (hidden / name).mkdir(parents=True)
        (hidden / name / "__init__.py").touch()
    entries = [*make_spark(tmp_path / "spark", version("pyspark")), str(hidden)]
    assert tell_path(launcher, *entries) == entries


def test_without_sparks_zip_nothing_is_dropped(launcher: str) -> None:
    entries = [f"/python/lib/py4j-{version('py4j')}-src.zip", "/jars/spark-core_2.13-4.3.0.jar", "/own"]
    assert tell_path(launcher, *entries) == entries


def test_two_sparks_of_which_one_is_another_are_left_alone(launcher: str, tmp_path: Path) -> None:
    entries = [*make_spark(tmp_path / "a", version("pyspark")), *make_spark(tmp_path / "b", "4.2.0")]
    assert tell_path(launcher, *entries) == entries


def test_arguments_input_and_exit_code_are_pythons(launcher: str) -> None:
    program = "import sys; print(sys.argv[1:], sys.stdin.read(), sys.executable); sys.exit(41)"
    given = ["a b", "", "*", "it's", "$HOME", "two\nlines", "-c"]
    done = run(launcher, "-c", program, *given, input="said")
    assert (done.stdout, done.returncode) == (f"{given} said {sys.executable}\n", 41)
    assert run(launcher, "-m", "no_such_module").returncode == 1


def test_the_environment_is_the_callers(launcher: str, tmp_path: Path) -> None:
    """Debian's `sh` drops names with a dot; plain names in a script change variables of the same name."""
    (tmp_path / "startup").write_text("echo started; export ENTRY=startup")
    given = {
        **dict.fromkeys(("a.b-c", "entry", "rest", "home", "jar", "jars", "info", "version"), "kept"),
        **{"BASH_FUNC_module%%": "() {  echo hi\n}", "BASH_ENV": str(tmp_path / "startup"), "ENV": "x"},
        **{"PWD": str(tmp_path), "SHLVL": "3", "LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]},
        "PYTHONPATH": ":".join(["/own", *make_spark(tmp_path / "spark", version("pyspark"))]),
    }
    program = "import os; print(ascii(dict(os.environ)))"
    seen = run(launcher, "-S", "-c", program, env=given, cwd=tmp_path).stdout
    found = {name: text for name, text in eval(seen).items() if name not in ("_", "OLDPWD")}
    assert found == {**given, "PYTHONPATH": "/own"}


def test_a_signal_reaches_python_itself(launcher: str) -> None:
    program = (
        "import os, signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        "print(os.getpid(), flush=True)\n"
        "sys.exit(signal.sigwait([signal.SIGTERM]) + 2)"
    )
    with subprocess.Popen([launcher, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = int(process.stdout.readline())
        try:
            assert told == process.pid
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 17
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(told, signal.SIGKILL)


def test_a_virtual_environment_with_a_blank_in_its_path_is_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str
) -> None:
    folder = tmp_path / "an env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    monkeypatch.setattr(sys, "executable", str(folder / "bin" / "python"))
    entered = make_launcher()
    assert entered != launcher
    assert run(entered, "-c", "import sys; print(sys.prefix)").stdout == f"{folder}\n"


def test_it_is_made_once_and_mended_if_it_is_not_whole(launcher: str) -> None:
    before = os.stat(launcher)
    assert make_launcher() == launcher
    assert os.stat(launcher).st_ino == before.st_ino
    whole = Path(launcher).read_bytes()
    Path(launcher).write_bytes(b"")
    assert make_launcher() == launcher
    assert Path(launcher).read_bytes() == whole
    assert [each.name for each in Path(launcher).parent.iterdir()] == [Path(launcher).name]


def _without_bash(monkeypatch: pytest.MonkeyPatch, _cache: Path) -> None:
    monkeypatch.setattr(python_launcher.shutil, "which", lambda name: None)


def _without_pyspark(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(python_launcher.site, "getsitepackages", lambda: [str(cache)])
    monkeypatch.setattr(python_launcher.site, "getusersitepackages", lambda: str(cache))
    monkeypatch.syspath_prepend(str(cache))


def _without_a_folder(_monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    cache.write_text("a file")


def _without_programs(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    access = os.access

    def can(path: str, mode: int) -> bool:
        return cache not in Path(path).parents and access(path, mode)

    monkeypatch.setattr(os, "access", can)


@pytest.mark.parametrize("take", [_without_bash, _without_pyspark, _without_a_folder, _without_programs])
def test_where_there_can_be_none_the_interpreter_itself_is_printed(
    take: Callable[[pytest.MonkeyPatch, Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    take(monkeypatch, tmp_path / "cache")
    assert main(["python"]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{sys.executable}\n"
    assert "PENSTOCK_CACHE" in printed.err


def test_the_command_prints_the_path_alone(launcher: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["python"]) == 0
    assert capsys.readouterr() == (f"{launcher}\n", "")
