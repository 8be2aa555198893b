"""The access-log pipeline on a real Spark cluster into PostgreSQL: both executors fetch, and both fold."""

from __future__ import annotations

from typing import Any

from penstock.apps.accesslog.defence.defence_settings import DECISIONS
from penstock.apps.accesslog.stream.pipeline_tables import create_tables
from tests.cluster.conftest import TwoWorkers
from tests.sql.databases import make_database
from tests.support.accesslog.accesslog_traffic import (
    decide_in_memory,
    make_traffic,
    send_traffic,
    sort_decisions,
    warm_kernels,
    write_rules,
)

DRIVER = """
from penstock.apps.accesslog.stream import pipeline as pipelines
from penstock.apps.accesslog.stream.lane_stage import LaneStage
from penstock.apps.accesslog.stream.pipeline import Pipeline
from penstock.apps.accesslog.stream.pipeline_settings import PipelineSettings
from penstock.apps.accesslog.stream.line_stage import LogStage

bootstrap, topic, database, folder = sys.argv[2:]

def note(stage, work):
    # Each executor has a folder of its own to work in.
    (Path(folder) / f"{stage} {os.getcwd().replace('/', '_')}").touch()
    yield from work

class NotedLogStage(LogStage):
    def __call__(self, batches):
        return note("fetched", LogStage.__call__(self, batches))

class NotedLaneStage(LaneStage):
    def __call__(self, batches):
        return note("folded", LaneStage.__call__(self, batches))

pipelines.LogStage, pipelines.LaneStage = NotedLogStage, NotedLaneStage
pipelines.LINES_PER_TASK = 0
spark = builder.getOrCreate()
settings = PipelineSettings(
    topic, database, {"bootstrap.servers": bootstrap}, rules=(Path(folder) / "rules.yaml",),
    interval="100ms", idle_after="1s", lanes=5, most_lines=500)
print("TOLD", json.dumps(str(Pipeline(spark, settings).run(until_idle=True))))
spark.stop()
"""


def test_two_executors_decide_what_the_engine_in_memory_decides(
    two_workers: TwoWorkers, kafka: Any, topic: Any, postgres: Any
) -> None:
    warm_kernels()
    traffic = make_traffic(6, partitions=4, benign=900)
    expected = decide_in_memory(traffic)
    write_rules(two_workers.folder)
    name = topic(len(traffic))
    send_traffic(kafka.bootstrap, name, traffic)
    with make_database(postgres) as database:
        create_tables(database.url)
        arguments = [kafka.bootstrap, name, database.url, str(two_workers.folder)]
        two_workers.run(DRIVER, *arguments)
        columns = ", ".join(f'"{column}"' for column in DECISIONS.names)
        rows = database.run(f"SELECT {columns} FROM accesslog_decisions")
        counts = database.run("SELECT SUM(lines), SUM(parsed) + SUM(dead) FROM accesslog_counts")
    assert sort_decisions(dict(zip(DECISIONS.names, row, strict=True)) for row in rows) == expected
    assert counts == [(sum(map(len, traffic.values())),) * 2]
    places = [path.name.split(" ") for path in two_workers.folder.iterdir() if " " in path.name]
    for stage in ("fetched", "folded"):
        assert len({place for what, place in places if what == stage}) == 2, f"two executors {stage}"
