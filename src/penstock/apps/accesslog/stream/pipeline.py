"""The pipeline: access logs from Kafka through Spark into SQL, each line once, decisions with their offsets.

One batch is one Spark job with one shuffle. The first stage (`line_stage`) runs in the worker that fetches,
the second (`lane_stage`) folds lane by lane. The driver gets a few parcels, unpacks them to one Arrow table
for each SQL table, and publishes all of them with the offsets in one transaction. Of a single client, only
decisions and pieces of state of at most 1 MiB pass through the driver.

Rule: decisions are a function of the log. Some things that matter are not in the log: which partitions are
idle and not waited for, and when an operator's order takes effect. They are decided here, before the batch,
from the batch's own time, and stored with it, so later batches and a restart find them decided.

    create_tables("results.db")
    Pipeline(spark, PipelineSettings("log", "results.db", {"bootstrap.servers": "b:9092"})).run()
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.apps.accesslog.defence.defence_settings import DECISIONS, OrdersInForce
from penstock.apps.accesslog.events.future_clocks import correct_future_clocks, list_timely
from penstock.apps.accesslog.events.log_clocks import NEVER, Clocks, LogClock, advance, decide_idle, pass_time
from penstock.apps.accesslog.first_look.first_lines import LONGEST_HOLD_S, FirstLines, FormatLook
from penstock.apps.accesslog.monitoring.load_merging import ALERT_ROWS, HEAD_PIECE, read_too_late
from penstock.apps.accesslog.stream import lane_stage as kinds
from penstock.apps.accesslog.stream import pipeline_tables, table_names
from penstock.apps.accesslog.stream.lane_stage import LaneStage, read_maxima
from penstock.apps.accesslog.stream.line_stage import (
    COLUMNS,
    COUNTS,
    LETTERS,
    RECORD_TIME,
    LogStage,
    make_kit,
)
from penstock.apps.accesslog.stream.operator_orders import make_rows, take_orders
from penstock.apps.accesslog.stream.parcels import PARCELS_DDL, read_parcels, unpack
from penstock.apps.accesslog.stream.pipeline_settings import PipelineSettings
from penstock.apps.accesslog.stream.pipeline_state import make_clock_rows, make_setting_rows, read_standing
from penstock.core.errors import BrokerError
from penstock.direct import Batch, BatchReport, DirectStream, RunOutcome, Subscribe, TopicPartition
from penstock.engines.reading.kafka_log import KafkaLog
from penstock.sinks import SqlSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.core.model import LogView

#: Small ranges share a task: starting one costs as much as a few thousand lines.
LINES_PER_TASK = 5_000
#: The most wall-clock time that moves the log's time on at once while all partitions are idle.
_LONGEST_STEP_US = 60_000_000
#: The time that brokers have to answer for a lag that is only shown.
_LAG_TIMEOUT_MS = 5_000
#: A partition that does not exist: while it is waited for, lines are counted and nothing is decided.
_LOOK = -1
#: For the pipeline's own session: a plan with one shuffle gains nothing from adaptive execution.
_SESSION = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.sql.session.timeZone": "UTC",
}
_ROWS_OF = {
    kinds.DECISIONS: table_names.DECISIONS,
    kinds.LANE: table_names.LANES,
    LETTERS: table_names.DEAD_LETTERS,
    kinds.SECONDS: table_names.SECONDS,
    kinds.MINUTES: table_names.MINUTES,
    kinds.TOPS: table_names.TOPS,
    kinds.ALERTS: table_names.ALERTS,
}
_STATE_CHANGES = pipeline_tables.STATE_ROWS.append(pa.field("penstock_deleted", pa.bool_()))


@dataclass(frozen=True, slots=True)
class BatchNews:
    """What a published batch has brought, for listeners. Times are microseconds since 1970.

    `pending` events wait for the watermark; `subjects` are clients, networks and fingerprints remembered.
    `too_late` counts the parsed lines since the beginning that are in no table of the load.
    """

    report: BatchReport
    lines: int
    parsed: int
    dead: int
    late: int
    pending: int
    subjects: int
    watermark_us: int | None
    decisions: pa.Table
    alerts: pa.Table
    too_late: int = 0

    @property
    def was_repeated(self) -> bool:
        """Return whether it took more than one attempt. An earlier one may have left something, too."""
        return self.report.attempts > 1


NewsListener = Callable[[BatchNews], None]


class Pipeline:
    """The pipeline: create it, then run it once. Its tables must exist (`pipeline_tables.create_tables`)."""

    def __init__(
        self,
        spark: SparkSession,
        settings: PipelineSettings,
        *,
        sink: SqlSink | None = None,
    ) -> None:
        pipeline_tables.check_tables(settings.place)
        self.settings = settings
        self._spark = spark.newSession()
        for key, value in _SESSION.items():
            self._spark.conf.set(key, value)
        self._kit = make_kit(settings.tools)
        self._places = min(settings.lanes + 1, max(1, spark.sparkContext.defaultParallelism))
        client = settings.client
        brief_ms = min(client.default_api_timeout_ms, _LAG_TIMEOUT_MS)
        self._log = KafkaLog(client)
        self._brief_log = KafkaLog(replace(client, default_api_timeout_ms=brief_ms))
        self._view: LogView | None = None
        self._listeners: list[NewsListener] = []
        self._first_lines: FirstLines | None = None
        self._find_spared: Callable[[], tuple[str, ...]] = tuple
        self._unparsed: frozenset[int] = frozenset()
        self._last_us: int | None = None
        self._until_idle = False
        self._has_ended = False
        self.stream = DirectStream(
            self._spark,
            Subscribe(settings.topic),
            settings.consumer,
            interval=settings.interval,
            name=settings.name,
            empty_batches=True,
            options={
                "columns": ",".join((*COLUMNS, RECORD_TIME)),
                "maxOffsetsPerTrigger": settings.most_lines,
                "minRecordsPerTask": LINES_PER_TASK,
                "outageTimeout": settings.outage_timeout,
            },
        )
        self.stream.write(sink or pipeline_tables.make_sink(settings.place), self.work)

    def add_listener(self, listener: NewsListener) -> Pipeline:
        """Call `listener(news)` after each batch that was published."""
        self._listeners.append(listener)
        return self

    def look_first(self, look: FormatLook, *, hold_s: float = LONGEST_HOLD_S) -> Pipeline:
        """Show the first lines to `look`, batch by batch before they are processed, until it has seen enough.

        Nothing is decided before that, or at most for `hold_s` from the first line on; a run until nothing is
        left does not wait. An error that `look` raises ends the run, and nothing of that batch is written.
        """
        self._first_lines = FirstLines(look, hold_s)
        return self

    def spare(self, find_spared: Callable[[], tuple[str, ...]]) -> Pipeline:
        """Call `find_spared` before each batch for addresses not to block, besides those in the settings."""
        self._find_spared = find_spared
        return self

    def run(self, *, batches: int | None = None, until_idle: bool = False) -> RunOutcome:
        """Run until asked to stop or, with `until_idle`, until nothing new is there and no event waits."""
        self._until_idle = until_idle
        try:
            outcome = self.stream.run(batches=batches)
        finally:
            if self._view is not None:
                self._view.close()
        return replace(outcome, reason="nothing is left") if self._has_ended else outcome

    def stop(self) -> None:
        """Ask to stop after the running batch, and return at once."""
        self.stream.stop()

    def measure_lag(self) -> int | None:
        """Return how many lines in Kafka no batch has taken yet; None if no broker answers within 5 seconds.

        It is called between batches, where an outage is not waited out: the next batch does that.
        """
        planned = self.stream.planned.offsets
        try:
            with closing(self._brief_log.open_view()) as view:
                ends = view.latest(list(planned)) if planned else {}
        except BrokerError:
            return None
        return sum(max(0, end - planned[each]) for each, end in ends.items())

    # --- one batch --------------------------------------------------------------------------------------

    def work(self, batch: Batch) -> dict[str, pa.Table]:
        """Return the rows for the tables, made from one batch and from what all earlier ones have left.

        The batch is remembered, and listeners hear about it, only once it is published.
        """
        settings = self.settings
        now_us = batch.time_ms * 1000
        self._show_first_lines(batch)
        before = read_standing(settings.place, settings.topic)
        results = {table_names.SETTINGS: make_setting_rows(before, self._describe())}
        clocks = self._decide_idle(before.clocks, batch, now_us)
        if self._must_wait(is_waited_for=bool(before.pending) or not batch.is_empty):
            clocks = replace(clocks, partitions={**clocks.partitions, _LOOK: LogClock()})
        if batch.is_empty and before.pending:
            clocks = _release_waiting(clocks)
        elif not batch.is_empty and clocks.watermark_us > now_us:
            elapsed_us = 0 if self._last_us is None else now_us - self._last_us
            clocks = pass_time(clocks, min(max(elapsed_us, 0), _LONGEST_STEP_US))
        counting, taken = take_orders(before.orders, before.clocks.watermark_us)
        after = advance(clocks, {}, lateness_us=settings.lateness_us)
        pending, counts, timely = before.pending, list[pa.Table](), frozenset[int]()
        known = dict(before.settings)
        if not batch.is_empty or after.watermark_us != before.clocks.watermark_us:
            made = self._run_job(batch, clocks, OrdersInForce.of(counting, self._find_spared()))
            counts = made.pop(COUNTS, [])
            after = advance(clocks, read_maxima(counts), lateness_us=settings.lateness_us)
            timely = list_timely((row for each in counts for row in each.to_pylist()), clocks, now_us)
            after = _note_timely(after, timely, now_us)
            results |= {name: pa.concat_tables(some) for name, some in made.items()}
            counted = _find_too_late(results.get(table_names.STATE), settings.tools.monitor_lane)
            known |= counted
            results[table_names.SETTINGS] = make_setting_rows(before, {**self._describe(), **counted})
            pending = _add_up(results.get(table_names.LANES), "pending")
        after = replace(after, partitions={n: clock for n, clock in after.partitions.items() if n != _LOOK})
        results[table_names.COUNTS] = self._make_count_rows(counts)
        results[table_names.CLOCKS] = make_clock_rows(settings.topic, before, after, now_us)
        results[table_names.ORDERS] = make_rows(taken) if taken else None
        rows = {name: some for name, some in results.items() if some is not None}
        unparsed = (self._unparsed | _list_busy(batch)) - timely
        too_late = int(known.get(pipeline_tables.TOO_LATE, 0))
        watermark_us = None if after.watermark_us == NEVER else after.watermark_us

        def conclude(report: BatchReport) -> None:
            self._unparsed, self._last_us = unparsed, now_us
            self._tell_listeners(_make_news(report, rows, pending, watermark_us, too_late))

        batch.when_done(conclude)
        return rows

    def _run_job(self, batch: Batch, clocks: Clocks, orders: OrdersInForce) -> dict[str, list[pa.Table]]:
        """Run both stages; return what they made, by the name of the table it is for."""
        from pyspark.sql.functions import col

        state = batch.read_state(table_names.STATE).selectExpr(
            f"'{kinds.STATE}' AS kind", "CAST(lane AS INT)", "CAST(part AS INT)", "content AS payload"
        )
        stage = LogStage(self._kit, {number: clock.max_us for number, clock in clocks.partitions.items()})
        frame = state if batch.is_empty else batch.arrow(stage, PARCELS_DDL).union(state)
        lanes = frame.repartitionById(self._places, col("lane") % self._places)
        found = lanes.mapInArrow(LaneStage(self._kit, clocks, orders), PARCELS_DDL).toArrow()
        made: dict[str, list[pa.Table]] = {}
        changes = []
        for parcel in read_parcels(found):
            if parcel.kind == kinds.STATE:
                content = None if parcel.payload is None else parcel.payload.to_pybytes()
                changes.append((parcel.lane, parcel.part, content, content is None))
                continue
            assert parcel.payload is not None
            made.setdefault(_ROWS_OF.get(parcel.kind, parcel.kind), []).append(unpack(parcel.payload))
        if changes:
            columns = dict(zip(_STATE_CHANGES.names, zip(*sorted(changes), strict=True), strict=True))
            made[table_names.STATE] = [pa.table(columns, schema=_STATE_CHANGES)]
        if table_names.DECISIONS in made:
            order = [(name, "ascending") for name in ("decided_at", "client", "decision_id")]
            made[table_names.DECISIONS] = [pa.concat_tables(made[table_names.DECISIONS]).sort_by(order)]
        return made

    def _show_first_lines(self, batch: Batch) -> None:
        from penstock.apps.accesslog.first_look.topic_samples import read_ends

        if self._first_lines is None or batch.is_empty:
            return
        self._first_lines.show(batch.id, lambda: read_ends(self._log.client, batch.ranges))
        if self._first_lines.is_seen:
            self._first_lines = None

    # --- what is decided before a batch -----------------------------------------------------------------

    def _must_wait(self, *, is_waited_for: bool) -> bool:
        if self._first_lines is None or self._until_idle:
            return False
        return self._first_lines.must_wait(is_waited_for=is_waited_for)

    def _decide_idle(self, clocks: Clocks, batch: Batch, now_us: int) -> Clocks:
        """Return the clocks, with the partitions marked as idle that this batch does not wait for.

        A partition with records that are not read yet is waited for. One whose records hold no line counts
        as silent: a stranger who sends nonsense must not stop the time of all others. The same holds for a
        clock in the future that no line confirms.
        """
        idle_after_us = self.settings.idle_after_us
        known = [each.partition for each in batch.end.offsets]
        busy = _list_busy(batch) - self._unparsed

        def decide(with_lines: Collection[int]) -> Clocks:
            never = 1 << 62
            return decide_idle(
                clocks,
                now_us=now_us,
                with_lines=with_lines,
                known=known,
                idle_after_us=never if idle_after_us is None else idle_after_us,
            )

        decided = correct_future_clocks(decide(busy), self._unparsed, now_us)
        stopped = [
            number
            for number, clock in decided.partitions.items()
            if clock.is_idle and not (number in clocks.partitions and clocks.partitions[number].is_idle)
        ]
        if not stopped:
            return decided
        silent = set(stopped) - self._unparsed
        ends = self._find_ends([each for each in batch.end.offsets if each.partition in silent])
        behind = {each.partition for each, end in ends.items() if end > batch.end.offsets[each]}
        return correct_future_clocks(decide(busy | behind), self._unparsed, now_us) if behind else decided

    def _find_ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        if self._view is None:
            self._view = self._log.open_view()
        return self._view.latest(list(partitions)) if partitions else {}

    def _describe(self) -> dict[str, str]:
        """Return the settings that are stored with the state; a format only after enough lines were seen."""
        settings = self.settings
        proven = {} if self._first_lines is not None else {"log_format": settings.log_format}
        return {
            "name": settings.name,
            "topic": settings.topic,
            "lanes": str(settings.lanes),
            "lateness_us": str(settings.lateness_us),
            **proven,
            "rules": settings.tools.defence.ruleset.digest,
            pipeline_tables.BLOCK_PRIVATE: str(settings.block_private).lower(),
            pipeline_tables.TRUST_CRAWLERS: str(settings.trust_crawlers).lower(),
        }

    # --- news of a published batch ------------------------------------------------------------------------

    def _make_count_rows(self, counts: list[pa.Table]) -> pa.Table | None:
        if not counts:
            return None
        rows = pa.concat_tables(counts).drop_columns(["maximum"])
        topics = pa.array([self.settings.topic] * rows.num_rows, pa.string())
        return rows.add_column(0, "topic", topics).select(pipeline_tables.COUNT_ROWS.names)

    def _tell_listeners(self, news: BatchNews) -> None:
        for listener in self._listeners:
            listener(news)
        waits = news.pending and self.settings.idle_after_us is not None
        if self._until_idle and not news.report.offsets and not waits:
            self._has_ended = True
            self.stop()


def _make_news(
    report: BatchReport, rows: Mapping[str, pa.Table], pending: int, watermark_us: int | None, too_late: int
) -> BatchNews:
    counted = rows.get(table_names.COUNTS)
    return BatchNews(
        report,
        lines=_add_up(counted, "lines"),
        parsed=_add_up(counted, "parsed"),
        dead=_add_up(counted, "dead"),
        late=_add_up(counted, "late"),
        pending=pending,
        subjects=_add_up(rows.get(table_names.LANES), "subjects"),
        watermark_us=watermark_us,
        decisions=rows.get(table_names.DECISIONS, DECISIONS.empty_table()),
        alerts=rows.get(table_names.ALERTS, ALERT_ROWS.empty_table()),
        too_late=too_late,
    )


def _release_waiting(clocks: Clocks) -> Clocks:
    """Move the watermark past every waiting event once all partitions are idle."""
    if not all(each.is_idle for each in clocks.partitions.values()):
        return clocks
    return replace(clocks, watermark_us=clocks.watermark_us + 1)


def _list_busy(batch: Batch) -> frozenset[int]:
    return frozenset(each.partition for each in batch.ranges if each.size)


def _note_timely(clocks: Clocks, timely: Collection[int], now_us: int) -> Clocks:
    """Return the clocks with these partitions seen now, even if they were idle."""
    seen = {number: replace(clocks.partitions[number], seen_at_us=now_us) for number in timely}
    return replace(clocks, partitions={**clocks.partitions, **seen})


def _find_too_late(state: pa.Table | None, monitor_lane: int) -> dict[str, str]:
    """Return the setting of how many lines came too late so far; empty if the batch did not write it."""
    if state is None:
        return {}
    places = list(zip(state["lane"].to_pylist(), state["part"].to_pylist(), strict=True))
    if (monitor_lane, HEAD_PIECE) not in places:
        return {}
    head = state["content"][places.index((monitor_lane, HEAD_PIECE))].as_py()
    return {pipeline_tables.TOO_LATE: str(read_too_late(head))}


def _add_up(rows: pa.Table | None, column: str) -> int:
    return 0 if rows is None else int(sum(rows.column(column).to_pylist()))
