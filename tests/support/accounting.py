"""Accounts for every test (planned, executed, skipped) and for every process that the tests started.

Rule: a green run says how much it ran. In CI, and whenever `--planned-floor` is given, a run fails when a
test was skipped, when a planned test did not run, when fewer were planned than the committed floor, or when a
process that the tests started is still there. Why not trust the exit code alone: a file that fails to be
collected, a marker that deselects too much and a skip all look green.

With `--durations-to=FILE` it also writes how many seconds each test and each fixture setup took.

Example of the last lines of a run:

    planned 212, executed 212, skipped 0 (deselected 3)
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import settings

#: A test may skip for one reason only: data that a fresh clone does not have.
EXCUSED_SKIP = "../shared/data"

settings.register_profile("proof", max_examples=100_000, deadline=None, print_blob=True)
settings.register_profile("everyday", deadline=None, print_blob=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--planned-floor",
        metavar="FILE",
        help="fail unless at least as many tests are planned as this file says, and all of them run",
    )
    parser.addoption(
        "--leftover-deadline-s",
        type=float,
        default=15.0,
        metavar="SECONDS",
        help="how long processes that the tests started may take to end",
    )
    parser.addoption(
        "--durations-to", metavar="FILE", help="write the seconds of every test and fixture to this file"
    )


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile(os.environ.get("PENSTOCK_HYPOTHESIS_PROFILE", "everyday"))
    config.pluginmanager.register(TestAccount(config), "penstock-account")
    if config.getoption("--durations-to"):
        config.pluginmanager.register(TestTimes(Path(config.getoption("--durations-to"))), "penstock-times")


class TestAccount:
    """Counts what pytest plans and does, and judges it at the end."""

    __test__ = False

    def __init__(self, config: pytest.Config) -> None:
        floor_file = config.getoption("--planned-floor")
        self.floor = int(Path(floor_file).read_text().split()[0]) if floor_file else None
        self.leftover_deadline_s: float = config.getoption("--leftover-deadline-s")
        self.strict = self.floor is not None or os.environ.get("CI") == "true"
        self.planned: set[str] = set()
        self.executed: set[str] = set()
        self.skipped: dict[str, str] = {}
        self.deselected = 0
        self.complaints: list[str] = []
        # Every process that is started after this inherits the variable, even one that becomes a daemon. The
        # name is unique so that a pytest inside a test adds its own and keeps ours.
        self.session_variable = f"PENSTOCK_TEST_SESSION_{uuid.uuid4().hex}"
        os.environ[self.session_variable] = "1"

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self.deselected += len(items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.planned = {item.nodeid for item in session.items}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self.skipped[report.nodeid] = str(report.longrepr)
        elif report.when == "call" or report.failed:
            self.executed.add(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        yield
        if session.config.option.collectonly:
            return
        self.complaints = [*self._judge_counts(), *self._judge_processes()]
        if self.complaints and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(
            f"planned {len(self.planned)}, executed {len(self.executed)}, "
            f"skipped {len(self.skipped)} (deselected {self.deselected})"
        )
        for complaint in self.complaints:
            terminalreporter.write_line(f"ACCOUNT: {complaint}", red=True)

    def _judge_counts(self) -> Iterator[str]:
        if not self.strict:
            return
        for nodeid, reason in self.skipped.items():
            if EXCUSED_SKIP not in reason:
                yield f"{nodeid} was skipped: {reason}"
        missing = self.planned - self.executed - self.skipped.keys()
        if missing:
            yield f"{len(missing)} planned tests did not run, first {sorted(missing)[0]}"
        if self.floor is not None and len(self.planned) < self.floor:
            yield f"{len(self.planned)} tests planned, the committed floor is {self.floor}"

    def _judge_processes(self) -> Iterator[str]:
        deadline = time.monotonic() + self.leftover_deadline_s
        while (leftovers := find_processes_of(self.session_variable)) and time.monotonic() < deadline:
            time.sleep(0.1)  # a process that was told to end may still be shutting down
        for pid, command in leftovers.items():
            yield f"process {pid} is still running: {command[:160]}"


class TestTimes:
    """Writes the seconds of each test (including its fixtures) and of each fixture setup, as JSON.

    The seconds of a fixture exclude those of the fixtures that it requests by name. `processor` says how long
    each test kept a processor busy, directly and through programs that it started and that have ended.
    """

    __test__ = False

    def __init__(self, file: Path) -> None:
        self.file = file
        self.tests: dict[str, float] = {}
        self.processor: dict[str, float] = {}
        self.fixtures: list[tuple[str, str, float]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[object]:
        began = sum(os.times()[:4])
        try:
            return (yield)
        finally:
            self.processor[item.nodeid] = round(sum(os.times()[:4]) - began, 2)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tests[report.nodeid] = round(self.tests.get(report.nodeid, 0.0) + report.duration, 3)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        began = time.perf_counter()
        try:
            return (yield)
        finally:
            seconds = round(time.perf_counter() - began, 3)
            self.fixtures.append((fixturedef.argname, request.node.nodeid, seconds))

    def pytest_sessionfinish(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        told = {"tests": self.tests, "processor": self.processor, "fixtures": self.fixtures}
        self.file.write_text(json.dumps(told, indent=1))


def find_processes_of(session_variable: str) -> dict[int, str]:
    """Return the living processes that came from this one: pid to command line.

    A started program is known by the variable it inherited, even when its parent is gone. A fork that started
    no program has our old environment, but is our child.
    """
    marker = f"{session_variable}=1".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            inherited = marker in (folder / "environ").read_bytes().split(b"\0")
            if state != "Z" and (inherited or int(parent) == os.getpid()):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                found[int(folder.name)] = command
        except OSError:
            continue  # ended meanwhile, or somebody else's
    found.pop(os.getpid(), None)
    return found
