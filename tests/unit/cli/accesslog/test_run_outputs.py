"""What follows the results of a run: only committed results go out, and no failure is forgotten."""

from __future__ import annotations

import shutil
import socket
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.apps.accesslog.blocking.blocklist_files import BlocklistWriter
from penstock.apps.accesslog.blocking.blocklists import Gate
from penstock.apps.accesslog.stream.pipeline import BatchNews
from penstock.cli.accesslog import run_outputs
from penstock.cli.accesslog.live_numbers import Display
from penstock.cli.accesslog.run_outputs import (
    Output,
    finish,
    list_troubles,
    make_blocklist_output,
    make_topic,
    make_topic_output,
)
from penstock.core.client.client_settings import ClientSettings
from penstock.core.errors import SinkError
from penstock.core.loggers import in_stream
from penstock.core.options.storage_addresses import Place
from tests.support.accesslog.decisions_database import NOW_US, decide, make_database, make_news


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return make_database(tmp_path / "results.db")


def test_an_output_looks_at_the_whole_database_at_first_after_a_repeated_batch_and_after_a_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[bool] = []

    def act(news: BatchNews | None) -> None:
        seen.append(news is None)
        if len(seen) in (4, 5):
            raise SinkError("AWAY", "It is away.", hint="Wait.")

    output = Output("topic", act)
    with in_stream("shop"):
        for attempts in (1, 1, 2, 1, 1, 1, 1):
            output.follow(make_news(attempts))
    #                first, -, repeated, fails, fails again, made good, -
    assert seen == [True, False, True, False, True, True, False]
    told = [line.partition(" ") for line in capsys.readouterr().err.splitlines()]
    assert [line for _, _, line in told] == [
        "shop: [AWAY] It is away. Wait.",
        "shop: The topic: up to date again.",
    ]
    assert all(datetime.fromisoformat(moment).tzinfo is not None for moment, _, _ in told)


def test_a_blocklist_that_cannot_be_written_any_more_is_in_the_live_line_and_in_the_exit_code(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = tmp_path / "lists"
    output = make_blocklist_output(
        BlocklistWriter(place, lists, Gate.of(), ("text",), clock_us=lambda: NOW_US)
    )
    moments = iter(range(0, 1000, 10))
    pipeline: Any = SimpleNamespace(measure_lag=lambda: 0)
    display = Display(
        pipeline, lambda *, has_news=False: 0, lambda: list_troubles([output]), clock=lambda: next(moments)
    )
    decide(place, "192.0.2.1")
    output.follow(make_news())
    assert finish([output]) == 0
    shutil.rmtree(lists)
    lists.write_text("no folder")
    decide(place, "192.0.2.2")
    for _ in range(3):
        output.follow(make_news())  # without decisions of its own: what was missed stays missed
    display.show(make_news())
    assert finish([output]) == 1
    told = capsys.readouterr()
    assert told.out.startswith("blocklists not up to date [BLOCKLIST_NOT_WRITTEN]; ")
    assert told.err.count("[BLOCKLIST_NOT_WRITTEN] The blocklist") == 1
    assert "The run ends with blocklists not up to date" in told.err
    lists.unlink()
    assert finish([output]) == 0
    assert (lists / "blocklist.txt").read_text().count("192.0.2.") == 2


def test_a_blocklist_that_somebody_removed_is_there_again_after_the_next_batch(
    place: Place, tmp_path: Path
) -> None:
    lists = tmp_path / "lists"
    output = make_blocklist_output(
        BlocklistWriter(place, lists, Gate.of(), ("text", "json"), clock_us=lambda: NOW_US)
    )
    decide(place, "192.0.2.1")
    output.follow(make_news())
    written = (lists / "blocklist.txt").read_bytes()
    for remove in (lambda: shutil.rmtree(lists), lambda: (lists / "blocklist.txt").unlink()):
        remove()
        output.follow(make_news())
        assert (lists / "blocklist.txt").read_bytes() == written


def test_brokers_that_are_away_are_waited_for_no_longer_than_a_run_can_afford(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After SIGTERM, waiting as long as a producer does by default would get a service killed."""
    monkeypatch.setattr(run_outputs, "TOPIC_PATIENCE_MS", 200)
    decide(place, "192.0.2.1")
    with socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))  # nobody listens
        topic = make_topic(place, ClientSettings((refusing.getsockname(),)), "decisions")
        output = make_topic_output(topic)
        output.follow(make_news())
        assert finish([output]) == 1
    told = capsys.readouterr().err
    assert "200 ms" in told
    assert "The run ends with decisions topic not up to date [" in told


def test_news_of_a_batch_tell_whether_it_was_tried_again() -> None:
    news = make_news()
    assert not news.was_repeated
    assert replace(news, report=replace(news.report, attempts=2)).was_repeated


def test_a_list_that_an_earlier_run_has_left_is_told_and_not_touched(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody keeps it up to date, and a firewall may still load it."""
    folder = tmp_path / "lists"
    folder.mkdir()
    for name in ("blocklist.nft", "blocklist.txt", "blocklist.csv", "mine.txt"):
        (folder / name).write_text("as it was")
    settings: Any = SimpleNamespace(place=place, gate=Gate.of())
    for formats, left in (([], ["blocklist.csv", "blocklist.nft"]), (["nftables", "text", "csv"], [])):
        arguments: Any = SimpleNamespace(blocklist_dir=str(folder), blocklist_format=formats)
        with ExitStack() as stack, in_stream("shop"):
            assert run_outputs._open_blocklists(stack, arguments, settings) is not None
        told = capsys.readouterr().err.splitlines()
        assert [line.split(" ")[4] for line in told] == [str(folder / name) for name in left]
        assert all("WARNING [BLOCKLIST_LEFT]" in line for line in told)
    assert (folder / "blocklist.nft").read_text() == "as it was"
