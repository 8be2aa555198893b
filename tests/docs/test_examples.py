"""Every example in the documentation runs, in docstrings and on pages."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.driver_jvm import DriverJvm

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
COMMANDS = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
#: The address that the pages show; the test puts the test cluster's in its place.
SHOWN_BOOTSTRAP = "localhost:9092"


def find_module_names() -> list[str]:
    names = []
    for path in sorted(SOURCES.rglob("*.py")):
        parts = path.relative_to(SOURCES).with_suffix("").parts
        if ">>>" in path.read_text():
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def find_blocks() -> list[object]:
    return [
        pytest.param(path, block[1], id=f"{path.relative_to(ROOT).as_posix()}:{block.start()}")
        for path in PAGES
        for block in BLOCK.finditer(path.read_text())
    ]


def find_filling_commands(page: str) -> list[str]:
    """Return the lines of a page's shell blocks that create and fill topics for its programs."""
    lines = [line for block in COMMANDS.finditer(page) for line in block[1].splitlines()]
    return [line for line in lines if re.search(r"(^|\| )penstock (topics create|produce) ", line)]


def run_filling_commands(page: str, bootstrap: str) -> None:
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for line in find_filling_commands(page):
        command = ["sh", "-c", f"{line} --bootstrap-server {bootstrap}"]
        outcome = subprocess.run(
            command, env={**os.environ, "PATH": beside}, capture_output=True, text=True, timeout=120
        )
        assert outcome.returncode == 0, outcome.stderr


def run_block(source: str, jvm: DriverJvm) -> None:
    """Run a block as a reader does, and again if the first run left something that a second one would find.

    A block that leaves nothing and sends to a new topic cannot find traces of its past; see the test of that
    below.
    """
    folder = jvm.clear()
    for example in (ROOT / "examples").glob("*.py"):
        shutil.copy(example, folder)  # the pages tell a reader to put the modules they use beside the program
    program = folder / "example.py"
    program.write_text(source)
    before = set(folder.iterdir())
    jvm.run([sys.executable, str(program)])
    left = {path.name for path in set(folder.iterdir()) - before} - {"__pycache__", "spark-warehouse"}
    if left:
        jvm.run([sys.executable, str(program)])


@pytest.mark.parametrize("name", find_module_names())
def test_the_examples_in_a_docstring_run(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(name), raise_on_error=False)
    assert outcome.attempted > 0
    assert outcome.failed == 0


@pytest.fixture(scope="module")
def quickstart_bootstrap() -> Iterator[str]:
    """Start a broker configured as by `penstock cluster up`, which the pages tell a reader to start."""
    from penstock.cluster import LocalKafka
    from penstock.cluster.kafka.detached_cluster import QUICKSTART

    with LocalKafka(broker_settings=QUICKSTART) as cluster:
        yield cluster.bootstrap


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("page", "source"), find_blocks())
def test_a_python_block_of_a_page_runs_against_kafka(
    page: Path, source: str, quickstart_bootstrap: str, driver_jvm: DriverJvm
) -> None:
    run_filling_commands(page.read_text(), quickstart_bootstrap)
    run_block(source.replace(SHOWN_BOOTSTRAP, quickstart_bootstrap), driver_jvm)


def test_the_programs_of_readme_read_what_its_command_sends() -> None:
    page = (ROOT / "README.md").read_text()
    created, filled = find_filling_commands(page)
    topic = shlex.split(filled.rpartition("|")[2])[2]
    assert shlex.split(created)[3] == topic
    programs = BLOCK.findall(page)
    assert len(programs) == 2
    assert [each for each in programs if f'.option("subscribe", "{topic}")' not in each] == []


def test_a_block_that_sends_sends_to_a_new_topic_each_time() -> None:
    """Running a page's program twice must not show the results twice."""
    blocks = [(path.name, block[1]) for path in PAGES for block in BLOCK.finditer(path.read_text())]
    sending = [(name, source) for name, source in blocks if ".send(" in source or ".append(" in source]
    assert len(sending) > 5
    assert [name for name, source in sending if "time.time_ns()" not in source] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_links_only_to_files_that_exist(path: Path) -> None:
    links = LINK.findall(path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_every_file_the_tour_names_exists() -> None:
    """A path is relative to src/penstock, to the application's folder, or to the repository."""
    text = (ROOT / "docs" / "tour.md").read_text()
    places = [SOURCES / "penstock", SOURCES / "penstock" / "apps" / "accesslog", ROOT]
    named = set(re.findall(r"`([\w/]+\.py)`", text))
    assert [name for name in sorted(named) if not any((place / name).exists() for place in places)] == []
    rooms = ("core", "kafka", "formats", "stores", "engines", "apps", "cluster", "testing", "kernels")
    named_rooms = {name.partition("/")[0] for name in named} | set(re.findall(r"`(\w+)/", text))
    assert [room for room in rooms if room not in named_rooms] == []


def test_every_part_of_the_application_is_on_the_tour() -> None:
    text = (ROOT / "docs" / "tour.md").read_text()
    parts = [each.parent.name for each in (SOURCES / "penstock" / "apps" / "accesslog").glob("*/__init__.py")]
    assert len(parts) > 10
    assert [part for part in parts if f"`{part}/" not in text] == []


def test_the_makefile_lists_every_target_it_has() -> None:
    text = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert targets
    outcome = subprocess.run(["make", "-s", "-C", ROOT], capture_output=True, text=True, timeout=60)
    listed = set(re.findall(r"^  make (\w+)", outcome.stdout, re.MULTILINE))
    assert listed == set(targets[1].split())
