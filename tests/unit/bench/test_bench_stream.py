"""The arithmetic of the stream benchmarks: what they write, count, judge and draw."""

from __future__ import annotations

import os
from xml.etree import ElementTree

import numpy as np
import pytest

from bench.plot import Chart, Column, Line, choose_ticks, draw_page
from bench.stream_backpressure import PHASES, Batch, Run, count_until_settled, draw, judge
from bench.stream_json import make_documents
from bench.stream_latency import check_whole
from bench.stream_load import Due
from bench.stream_memory import list_processes

SVG = "{http://www.w3.org/2000/svg}"


def test_each_tick_of_a_trickle_writes_one_record_into_each_partition() -> None:
    due = Due(200)
    due.set_rate(2000.0)
    for tick in range(1, 1000):
        assert sorted(due.take(tick * 0.1)) == list(range(200))


def test_a_late_tick_writes_what_is_due_by_then_and_a_new_rate_counts_from_there() -> None:
    due = Due(3)
    due.set_rate(10.0)
    assert len(due.take(0.1)) == 1
    assert len(due.take(2.0)) == 19
    due.set_rate(100.0)
    assert len(due.take(2.5)) == 50
    due.set_rate(0.0)
    assert due.take(9.0) == []


@pytest.mark.parametrize(
    ("durations", "settled"),
    [
        ([1.0, 1.0, 1.0], 1),
        ([5.0, 0.85, 0.98, 1.02, 1.4], 2),
        ([1.0, 5.0, 1.0, 1.0, 1.0], 3),
        ([1.0, 1.0, 1.3, 1.0, 1.0, 0.7], None),
        ([1.1, 0.9], 1),
        ([5.0, 1.0, 1.0], None),
        ([], None),
    ],
)
def test_batches_have_settled_from_the_first_of_three_good_ones_in_a_row(
    durations: list[float], settled: int | None
) -> None:
    assert count_until_settled(durations, 1.0) == settled


def make_run(took_s: float) -> Run:
    steps = {phase.name: 10.0 * number for number, phase in enumerate(PHASES)}
    batches = [
        Batch(number, phase.name, steps[phase.name] + number % 10, took_s, 100, 5000, 900.0)
        for number in range(50)
        for phase in [PHASES[number // 10]]
    ]
    memory = {"reader": {phase.name: 100.0 for phase in PHASES}}
    return Run(batches, steps, memory, drained=True)


def test_a_run_within_the_tolerance_misses_nothing_and_one_outside_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    judge(make_run(1.1))
    assert "MISSED" not in capsys.readouterr().out
    judge(make_run(1.3))
    assert capsys.readouterr().out.count("MISSED") == len(PHASES) - 1


def test_memory_that_grows_by_more_than_a_tenth_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(1.0)
    grown = {"reader": {**run.memory["reader"], PHASES[-1].name: 111.0}}
    judge(Run(run.batches, run.steps, grown, run.drained))
    assert "111 MiB later  goal within 10 %: MISSED" in capsys.readouterr().out


def test_a_missing_and_a_repeated_record_are_found() -> None:
    rows = np.array([[0, 5, 0, 0], [0, 6, 0, 0], [1, 0, 0, 0]], np.int64)
    check_whole(rows)
    with pytest.raises(AssertionError, match="partition 0"):
        check_whole(np.vstack([rows, [[0, 8, 0, 0]]]))
    with pytest.raises(AssertionError, match="partition 1"):
        check_whole(np.vstack([rows, [[1, 0, 0, 0]]]))


def test_documents_are_about_a_hundred_bytes() -> None:
    sizes = [len(each) for each in make_documents(1000)]
    assert 85 <= min(sizes) <= max(sizes) <= 115


def test_this_process_is_the_drivers_python() -> None:
    found = dict(list_processes(os.getpid()))
    assert found["driver Python"] > 10


@pytest.mark.parametrize("highest", [0.0, 0.3, 1.0, 1.2, 7.0, 59.0, 180.0, 99_999.0])
def test_ticks_are_few_and_reach_over_the_highest_value(highest: float) -> None:
    ticks = choose_ticks(highest)
    assert ticks[0] == 0.0
    assert ticks[-1] >= highest
    assert 2 <= len(ticks) <= 12


def test_the_picture_keeps_every_point_inside_its_frame_and_names_both_runs() -> None:
    page = ElementTree.fromstring(draw({"backpressure": make_run(1.0), "static cap": make_run(5.0)}))
    texts = {each.text for each in page.iter(f"{SVG}text")}
    assert {"backpressure", "static cap", "batch time, s", "records/s", "records waiting"} <= texts
    assert {phase.name for phase in PHASES} <= texts
    width, height = (float(page.attrib[each]) for each in ("width", "height"))
    lines = list(page.iter(f"{SVG}polyline"))
    assert len(lines) == 2 * 4
    for line in lines:
        for pair in line.attrib["points"].split():
            x, y = map(float, pair.split(","))
            assert 0 < x < width
            assert 0 < y < height


def test_charts_of_one_row_share_their_scale() -> None:
    low, high = (Chart("y", [Line("l", "#000000", [(0.0, 0.0), (10.0, top)])]) for top in (1.0, 10.0))
    page = ElementTree.fromstring(draw_page("<&>", [Column("a", [low]), Column("b", [high])]))
    tops = [float(each.attrib["points"].split()[-1].split(",")[1]) for each in page.iter(f"{SVG}polyline")]
    bottom = float(next(page.iter(f"{SVG}polyline")).attrib["points"].split()[0].split(",")[1])
    assert (bottom - tops[0]) * 10 == pytest.approx(bottom - tops[1], abs=0.5)
