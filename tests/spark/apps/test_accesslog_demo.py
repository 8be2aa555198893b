"""The whole application in one command, as `make run` starts it when there is no interactive terminal."""

from __future__ import annotations

import contextlib
import csv
import os
import pty
import select
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.apps.accesslog.evaluation.decision_scoring import unify
from penstock.cli import main
from penstock.cli.commands.accesslog.demo import prepare_folder
from tests.support.waiting import wait_until

TIMEOUT_S = 280


@pytest.mark.spark
@pytest.mark.kafka
def test_the_demo_accounts_for_every_line_finds_attackers_and_leaves_a_report(tmp_path: Path) -> None:
    """H11: log files of several servers, shippers, Kafka, Spark, SQL, blocklists; it ends on its own."""
    out = tmp_path / "demo"
    command = ["accesslog", "demo", "--seconds=8", "--rate=400", "--servers=2", f"--out={out}"]
    outcome = subprocess.run(
        [sys.executable, "-m", "penstock.cli", *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    told, _, compared = outcome.stdout.partition("Every line accounted for:")[2].partition(
        "Decisions against"
    )
    assert told.count("  yes  ") == 5, outcome.stdout
    assert "0 of " in compared.partition(" honest clients blocked")[0].splitlines()[-1]
    assert " NO" not in compared, "goals of real logs are not for simulated ones"
    with sqlite3.connect(out / "results.db") as database:
        ((lines,),) = database.execute("SELECT SUM(lines) FROM accesslog_counts")
        blocked = {
            client for (client,) in database.execute("SELECT DISTINCT client FROM accesslog_decisions")
        }
    assert lines == sum(log.read_bytes().count(b"\n") for log in (out / "logs").glob("*.log")) > 1_000
    with (out / "truth.csv").open(newline="") as truth:
        attackers = {unify(row["client"]) for row in csv.DictReader(truth) if row["label"] == "attack"}
    assert len(blocked & attackers) > 5
    assert blocked <= attackers, "an honest client was blocked"
    assert "<svg" in (out / "report.html").read_text()
    assert any((out / "blocklists").iterdir())


def read_until(terminal: int, wanted: bytes, read: bytes = b"") -> bytes:
    """Return what a program writes to its terminal until `wanted` appears, or until it ends."""
    deadline = time.monotonic() + TIMEOUT_S
    while not wanted or wanted not in read:
        assert select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))[0], read.decode()
        try:
            read += os.read(terminal, 65_536)
        except OSError:  # no process has the other end open any more
            return read
    return read


@pytest.mark.spark
@pytest.mark.kafka
def test_ctrl_c_at_a_terminal_ends_the_demo_with_its_truth_and_a_report(tmp_path: Path) -> None:
    """Pressed as soon as numbers are shown, when the simulator and the shippers may have no handlers yet."""
    out = tmp_path / "demo"
    command = [sys.executable, "-m", "penstock.cli", "accesslog", "demo", "--rate=200", f"--out={out}"]
    child, terminal = pty.fork()
    if child == 0:
        os.execv(command[0], command)
    try:
        read = read_until(terminal, b" lines/s, lag ")
        os.write(terminal, b"\x03")  # the terminal sends it to all its foreground processes
        read = read_until(terminal, b"", read)
        _, status = os.waitpid(child, 0)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    finally:
        os.close(terminal)
    told = read.decode()
    assert os.waitstatus_to_exitcode(status) == 0, told
    assert told.count("  yes  ") == 5, told
    with sqlite3.connect(out / "results.db") as database:
        ((lines,),) = database.execute("SELECT COALESCE(SUM(lines), 0) FROM accesslog_counts")
    report = (out / "report.html").read_text()
    # The first numbers may belong to a batch before the first line.
    assert ("<svg" in report) == ("no lines yet" not in report) == (lines > 0), (lines, told)
    assert (out / "truth.csv").read_text().startswith("client,label,class")
    assert "left no truth" not in told


@pytest.mark.parametrize("name", ["diary.txt", "results.db", "logs/web1.log"])
def test_the_demo_takes_no_folder_that_it_has_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Not even one whose files have the names of its own: the guide calls a real database results.db."""
    mine = tmp_path / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    for out in (tmp_path, mine):
        assert main(["accesslog", "demo", f"--out={out}"]) == 1
        assert "[FOLDER_NOT_EMPTY]" in capsys.readouterr().err
    assert mine.read_text() == "mine"


def test_the_demo_replaces_its_own_files_and_leaves_others(tmp_path: Path) -> None:
    folder = prepare_folder(tmp_path / "demo")
    for name in (
        "results.db",
        "truth.csv",
        "logs/web1.log",
        "logs/old/web0.log",
        "blocklists/a",
        "diary.txt",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("earlier")
    prepare_folder(folder)
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert left == {"diary.txt", "made-by-the-demo.txt"}


def list_processes(mark: str) -> dict[int, str]:
    """Return the processes that have this text in their environment, with their command lines."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            if mark.encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.parametrize(
    ("moment", "number"),
    [
        pytest.param("penstock-kafka", signal.SIGTERM, id="Kafka, SIGTERM"),
        pytest.param("penstock-kafka", signal.SIGINT, id="Kafka, SIGINT"),
        pytest.param("SparkSubmit", signal.SIGTERM, id="Spark, SIGTERM"),
        pytest.param("accesslog simulate", signal.SIGTERM, id="servers, SIGTERM"),
    ],
)
def test_a_signal_while_the_demo_starts_leaves_no_process_and_no_folder(
    tmp_path: Path, moment: str, number: signal.Signals
) -> None:
    """It comes as soon as Kafka's folder exists, as soon as Spark is started, as soon as the servers are."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = ["accesslog", "demo", "--seconds=60", "--rate=100", "--servers=1", f"--out={tmp_path / 'demo'}"]
    demo = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    try:
        mark = f"TMPDIR={temporary}"
        wait_until(
            lambda: any(
                moment in each for each in (*map(str, temporary.iterdir()), *list_processes(mark).values())
            ),
            f"{moment} is there",
            TIMEOUT_S,
        )
        demo.send_signal(number)
        told, _ = demo.communicate(timeout=120)
    finally:
        demo.kill()
        demo.wait()
    # The servers may already be writing. In that case it stops them and reports.
    assert demo.returncode == 128 + number or (moment == "accesslog simulate" and "Report:" in told), told
    assert "Traceback" not in told
    wait_until(lambda: not list_processes(mark), "all processes have ended", 60)
    assert list(temporary.glob("penstock-*")) == []
