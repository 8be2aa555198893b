"""What a direct stream remembers about its batches, and what can be added up from that."""

from __future__ import annotations

from penstock.engines.direct.direct_batch import Batch
from penstock.engines.direct.run_reports import RunReports
from tests.unit.engines.direct.test_batch_loop import World, write
from tests.unit.engines.direct.test_batch_loop import world as world  # the fixture


def run(world: World, reports: RunReports, fails: int = 0) -> None:
    failures = [ValueError("mine")] * fails

    def work(_batch: Batch) -> None:
        if failures:
            raise failures.pop()

    world.told.clear()
    world.run(work, attempts=fails + 1)
    for each in world.told:
        reports.note(*each)


def test_a_batch_that_was_tried_three_times_counts_once(world: World) -> None:
    """D18: the sum of the reports is the work that was done; failed attempts are reported separately."""
    reports = RunReports()
    run(world, reports, fails=2)
    assert sum(each.offsets for each in reports.completed) == reports.offsets == 15
    assert [(each.attempts, each.error) for each in reports.completed] == [(3, None)]
    assert [(each.attempts, each.error) for each in reports.failed] == [(1, "mine"), (2, "mine")]


def test_the_total_of_a_run_counts_batches_whose_reports_are_gone(world: World) -> None:
    """The list of reports is limited, so its sum is not the total of a long run."""
    reports = RunReports()
    run(world, reports)
    for _ in range(120):
        write(world, 1, 0, 0)
        run(world, reports)
    assert len(reports.completed) == 100
    assert reports.offsets == 15 + 120


def test_what_is_counted_is_called_offsets(world: World) -> None:
    """Aborted records and markers have offsets but no rows, so the two counts must not be confused."""
    seen: list[str] = []
    reports = RunReports()
    world.run(lambda batch: seen.append(repr(batch)))
    for each in world.told:
        reports.note(*each)
    assert seen[0].endswith("15 offsets)")
    assert not hasattr(reports.completed[0], "records")
