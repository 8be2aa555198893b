"""The versions of the libraries, however installed: by pip, with a platform's PySpark, or from a zip."""

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pyspark
import pytest

import penstock
from penstock.core.errors import VersionError
from penstock.core.versions import SUPPORTED, check_versions, find_version

SITE = Path(sysconfig.get_path("purelib"))
SOURCES = Path(penstock.__file__).parents[1]
SPARK = Path(pyspark.__file__).parent

#: What Spark asks a source at `load()`, and which PySpark answered.
LOAD = """
import json, pyspark
from pyspark_penstock import DefaultSource
options = {"kafka.bootstrap.servers": "b:9092", "subscribe": "t"}
print(json.dumps([DefaultSource(options).schema(), pyspark.__file__]))
"""


@pytest.fixture(params=["zip", "folder"])
def platform_paths(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Return the import path of a process whose PySpark comes from SPARK_HOME, without any pip record."""
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for entry in SITE.iterdir():
        if not entry.name.startswith("pyspark") and not entry.name.endswith((".dist-info", ".pth")):
            (libraries / entry.name).symlink_to(entry)
    zips = sorted((SPARK / "python" / "lib").glob("*.zip"))
    assert [each.name.partition("-")[0] for each in zips] == ["py4j", "pyspark.zip"]
    if request.param == "zip":
        return [str(libraries), *map(str, zips)]
    home = tmp_path / "spark" / "python"
    home.mkdir(parents=True)
    (home / "pyspark").symlink_to(SPARK)
    return [str(libraries), str(home), str(zips[0])]


def run_apart(code: str, paths: list[str], **environ: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process that sees only these import paths of ours."""
    return subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def pack(bundle: Path, endings: Mapping[str, str] | None = None) -> Path:
    """Pack our sources into a zip, some with a text added at their end."""
    with zipfile.ZipFile(bundle, "w") as writer:
        for path in sorted(SOURCES.rglob("*.py")):
            name = path.relative_to(SOURCES).as_posix()
            writer.writestr(name, path.read_text() + (endings or {}).get(name, ""))
    return bundle


def test_a_platform_may_bring_pyspark_without_pip_knowing(platform_paths: list[str]) -> None:
    """On YARN, in Spark's images and with SPARK_HOME, PySpark can be imported but has no pip record."""
    done = run_apart(LOAD, [str(SOURCES), *platform_paths])
    assert done.returncode == 0, done.stderr
    schema, origin = json.loads(done.stdout)
    assert schema.startswith("key binary")
    assert str(SITE) not in origin or ".zip" in origin


def test_penstock_may_itself_come_from_a_zip(platform_paths: list[str], tmp_path: Path) -> None:
    """With `--py-files penstock.zip`, our own package has no pip record either."""
    bundle = pack(tmp_path / "penstock.zip")
    done = run_apart(LOAD, [str(bundle), *platform_paths])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0].startswith("key binary")


STAMPS = """
import json
from penstock.kernels.source_stamp import stamp_sources
kernels = (
    "formats.json.json_kernel",
    "apps.accesslog.detection.rule_matching_kernel",
    "kafka.records.record_decoding_kernel",
)
print(json.dumps([stamp_sources(f"penstock.{name}") for name in kernels]))
"""


def test_kernels_of_a_zip_are_stamped_with_the_sources_in_it(tmp_path: Path) -> None:
    """Compiled kernels are cached between processes; those of an older zip must not run for a newer one."""
    bundle = tmp_path / "penstock.zip"
    changed = [
        "penstock/formats/columns/column_builder.py",
        "penstock/apps/accesslog/texts/text_grouping_kernel.py",
        "penstock/kernels/compilation.py",
    ]

    def read_stamps(ending: str, only: str = "") -> list[str]:
        pack(bundle, {name: ending for name in changed if name.startswith(only)})
        done = run_apart(STAMPS, [str(bundle), str(SITE)])
        assert done.returncode == 0, done.stderr
        stamps: list[str] = json.loads(done.stdout)
        return stamps

    first, second = read_stamps(""), read_stamps("# other\n")
    assert all(old != new for old, new in zip(first, second, strict=True))
    assert read_stamps("") == first
    others = read_stamps("# other\n", only="penstock/formats")
    assert [old != new for old, new in zip(first, others, strict=True)] == [True, False, False]


def test_a_platforms_jars_are_found_in_its_home(platform_paths: list[str]) -> None:
    """A PySpark in a zip has no folder of jars beside it; SPARK_HOME has them."""
    code = "from penstock.cluster.downloads.java import find_spark_home; print(find_spark_home())"
    done = run_apart(code, [str(SOURCES), *platform_paths], SPARK_HOME=str(SPARK))
    assert done.returncode == 0, done.stderr
    assert list((Path(done.stdout.strip()) / "jars").glob("spark-core*.jar"))


@pytest.mark.parametrize("library", SUPPORTED)
def test_a_library_that_cannot_be_imported_is_named(library: str) -> None:
    def find(name: str) -> str:
        if name == library:
            raise ModuleNotFoundError(name)
        return find_version(name)

    with pytest.raises(VersionError, match=rf"\[LIBRARY_MISSING\] {library} is not installed.*pip install"):
        check_versions(find)


def test_the_pyspark_that_runs_counts_and_not_the_one_that_pip_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A platform's PySpark may come before an installed one on the import path."""
    monkeypatch.setattr(pyspark, "__version__", "3.5.1")
    with pytest.raises(VersionError, match=r"\[LIBRARY_VERSION\] pyspark 3\.5\.1 .*pyspark>=4\.3,<4\.4"):
        check_versions()
