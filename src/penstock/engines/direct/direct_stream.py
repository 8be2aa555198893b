"""The direct stream: a loop on the driver that decides each batch's ranges and makes their results durable.

The steps of one batch: wait until it is due; look at the log; decide the ranges
(`core.streaming.next_batch`); give the user a frame over exactly these; store the offsets before, after or
together with the results, as the delivery says; notify the listeners. Batches run one after another, in one
thread, so what is stored only grows.

Two positions are kept apart: `planned` moves when a batch is decided, `committed` when it is stored. After a
crash only the second counts. Without a store nothing outlives the program, and each run begins at its
configured start. Spark only runs the frames. Its checkpoints and query listeners are not used.

    stream = DirectStream(spark, Subscribe("clicks"), {"bootstrap.servers": "b:9092"}, name="visits",
                          offsets=FileOffsetStore("offsets"))
    stream.for_each_batch(lambda batch: batch.frame.show())
    stream.run()
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from penstock.core.errors import BrokerError, OffsetStoreError, OptionError
from penstock.core.loggers import get_logger, in_stream
from penstock.core.model import Log, Position, TopicPartition
from penstock.core.offsets.offset_store_contract import OffsetStore, check_stream_name, demand_offset_store
from penstock.core.offsets.stream_position import NOWHERE, StreamPosition
from penstock.core.options.direct_options import DELIVERIES, DeliveryMode, parse_direct_options
from penstock.core.options.direct_strategies import ReadStrategy, Starts, read_positions
from penstock.core.options.option_table import invalid, parse_setting
from penstock.core.options.option_values import parse_delay_ms
from penstock.core.outages import Patience, has_stopped, waiting_for_servers
from penstock.core.sinks.sink_contract import Sink, SinkWriter, demand_contract
from penstock.core.streaming.next_batch import plan_batch
from penstock.engines.direct.batch_loop import BatchLoop, Job, LoopSettings
from penstock.engines.direct.direct_backpressure import DirectPace
from penstock.engines.direct.direct_batch import Batch, BatchReport
from penstock.engines.direct.direct_start import doubt_seek, find_start, plan_seek
from penstock.engines.direct.offset_keeper import Keeper
from penstock.engines.direct.order_frames import ArrowFunction, make_frame, read_schema
from penstock.engines.direct.record_functions import RecordFunction, handle_records
from penstock.engines.direct.run_reports import Event, RunOutcome, RunReports
from penstock.engines.direct.stop_requests import StopSwitch, stop_on_signals
from penstock.engines.reading.kafka_log import KafkaLog
from penstock.engines.reading.option_inputs import see_outside
from penstock.engines.reading.read_tasks import make_tasks, name_schema
from penstock.engines.reading.stream_watch import StreamWatch
from penstock.engines.reading.typed_column_setup import make_typed, refuse_missing_letter_box
from penstock.engines.sinks import open_sink
from penstock.stores.offsets.offset_store_addresses import open_offset_store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

log = get_logger(__name__)


BatchListener = Callable[[Event, BatchReport], None]
CommitMode: TypeAlias = Literal["automatic", "manual"]
COMMITS: tuple[CommitMode, ...] = ("automatic", "manual")


class DirectStream:
    """One stream. Create it, say what to do with each batch, then run it once.

    `kafka` holds Kafka's own settings, and `options` those of `format("penstock")`. `name` identifies the
    stream in its store (default: the group id). `offsets` is a store or its address: `"kafka"`, a folder, a
    database. `delivery` says when offsets are stored; `commit="manual"` leaves that to `batch.commit()`.
    `seek` overrides what is stored. `must_resume` raises an error if nothing is stored. `batch_attempts` says
    how often a failing batch is tried, always with the same ranges. `empty_batches` also calls the functions
    when there is nothing new. `stop_file` is a file that ends the stream when it appears.
    """

    def __init__(
        self,
        spark: SparkSession,
        strategy: ReadStrategy,
        kafka: Mapping[str, object],
        *,
        interval: str | int = "1s",
        name: str | None = None,
        offsets: OffsetStore | str | None = None,
        delivery: DeliveryMode | None = None,
        commit: CommitMode = "automatic",
        seek: Starts | None = None,
        must_resume: bool = False,
        batch_attempts: int = 3,
        empty_batches: bool = False,
        stop_file: Path | str | None = None,
        options: Mapping[str, object] | None = None,
        source: Log | None = None,
    ) -> None:
        self._interval_ms = parse_setting("interval", str(interval), parse_delay_ms)  # 0: without a pause
        self._options = parse_direct_options(
            strategy,
            kafka,
            options or {},
            dict(spark.sparkContext.getConf().getAll()),
            interval_ms=self._interval_ms or 1000,
            **see_outside(),
            has_brokers=source is None or offsets == "kafka",
        )
        self._patience = Patience(self._options.outage_timeout_ms / 1000)
        for warning in self._options.stream.warnings:
            log.warning("%s", warning)
        self._spark = spark
        self._source = source or KafkaLog(self._options.stream.client)
        self.name = _choose_name(name, self._options.stream.fixed_group, is_needed=offsets is not None)
        self._keeper = Keeper(self._open_store(offsets), self.name, is_owner=isinstance(offsets, str))
        self._is_named = name is not None or self._options.stream.fixed_group is not None
        self._is_named_in_vain = name is not None and offsets is None
        self._delivery, self._commit = _check_choices(delivery, commit)
        self._seek = read_positions(seek or {})
        self._must_resume, self._attempts, self._empty = must_resume, batch_attempts, empty_batches
        self._typed = make_typed(self._options.stream.formats, self._options.stream.columns)
        self._schema = read_schema(name_schema(self._options.stream.columns, self._typed))
        self._stages: list[ArrowFunction] = []
        self._functions: list[Callable[[Batch], object]] = []
        self._sink: tuple[Sink, Callable[[Batch], Any]] | None = None
        self._listeners: list[BatchListener] = []
        self._switch = StopSwitch(Path(stop_file) if stop_file is not None else None)
        self._thread: threading.Thread | None = None
        self._has_run = self._is_writer = False
        self._loop: BatchLoop | None = None
        self._outcome: RunOutcome | None = None
        self._failure: BaseException | None = None
        told = self._told = RunReports()
        self.reports, self.failed_attempts = told.completed, told.failed  # the last 100 of each

    @property
    def planned(self) -> StreamPosition:
        """Return where the next batch begins."""
        return NOWHERE if self._loop is None else self._loop.planned

    @property
    def stop_reason(self) -> str | None:
        """Return what asked the stream to stop, or None. May be read from other threads."""
        return self._switch.reason

    @property
    def committed(self) -> StreamPosition | None:
        """Return the stored position; None if nothing is stored."""
        return self._keeper.committed

    # --- what to do with each batch ---------------------------------------------------------------------

    def arrow(self, function: ArrowFunction, schema: str | StructType | pa.Schema) -> DirectStream:
        """Run `function` on the Arrow batches of each task, in the worker that fetches them.

        The function takes an iterator over a task's batches and yields batches with the columns of `schema`,
        which become the columns of the frames.
        """
        self._refuse_after_start()
        self._stages.append(function)
        self._schema = read_schema(schema)
        return self

    def map(self, function: RecordFunction, schema: str | StructType | pa.Schema) -> DirectStream:
        """Turn each record into a row with a plain Python function. It is slow, so use it for small jobs."""
        wanted = read_schema(schema)
        return self.arrow(handle_records(function, wanted), wanted)

    def for_each_batch(self, function: Callable[[Batch], object]) -> DirectStream:
        """Call `function` with each batch. Several functions run in the order given; offsets are stored after
        the last one."""
        self._refuse_after_start()
        self._functions.append(function)
        return self

    def write(self, sink: Sink, transform: Callable[[Batch], Any] | None = None) -> DirectStream:
        """Make what `transform` returns (a frame, or one per table) durable together with the offsets."""
        self._refuse_after_start()
        demand_contract(sink, Sink)
        if not self._is_named:
            raise _name_missing()  # two programs without a name would use the same place in the sink
        if self._sink is not None:
            raise OptionError(
                "TWO_SINKS",
                "This stream already has a sink; two sinks cannot commit together.",
                hint="Give one sink several tables, or run two streams.",
            )
        self._sink = (sink, transform or (lambda batch: batch.frame))
        return self

    def add_listener(self, listener: BatchListener) -> DirectStream:
        """Call `listener(event, report)` when a batch is submitted, started, completed or failed."""
        self._listeners.append(listener)
        return self

    # --- running ----------------------------------------------------------------------------------------

    def run(self, *, batches: int | None = None, until_idle: bool = False) -> RunOutcome:
        """Run in this thread until asked to stop, until `batches` have run, or (with `until_idle`) until
        nothing is left. Return how the run ended.

        In the main thread, SIGTERM and SIGINT ask to stop: the running batch is finished and stored.
        """
        self._refuse_after_start()
        self._has_run = True
        signals = stop_on_signals(self._switch) if self._options.graceful else nullcontext()
        with signals:
            return self._run(batches, until_idle)

    def start(self) -> DirectStream:
        """Run in a separate thread. Signals do not reach it: call `stop()`, then `await_termination()`."""
        self._refuse_after_start()
        self._has_run = True

        def keep_running() -> None:
            try:
                self._outcome = self._run(None, until_idle=False)
            except BaseException as error:
                self._failure = error
                log.error("The stream %s ended: %s", self.name, error)
                if not isinstance(error, Exception):
                    raise

        self._thread = threading.Thread(target=keep_running, name=f"penstock-{self.name}", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ask to stop after the running batch, and return at once."""
        self._switch.set("stop()")

    def await_termination(self, timeout_s: float | None = None) -> RunOutcome | None:
        """Wait for a started stream to end and return its outcome, or None if it still runs. Raise the error
        that ended it, if there was one."""
        if self._thread is None:
            raise OptionError("NOT_STARTED", "This stream was not started.", hint="Call `start()` first.")
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return None
        if self._failure is not None:
            raise self._failure
        return self._outcome

    @property
    def is_active(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _open_store(self, offsets: OffsetStore | str | None) -> OffsetStore | None:
        """Return a store, or open the one at an address; `kafka` is a group of the cluster that is read."""
        if not isinstance(offsets, str):
            return None if offsets is None else demand_offset_store(offsets)
        if offsets != "kafka":
            return open_offset_store(offsets)
        from penstock.stores.offsets.kafka_store import KafkaOffsetStore

        stream = self._options.stream
        return KafkaOffsetStore(stream.client, group=stream.fixed_group or self.name)

    # --- the loop ---------------------------------------------------------------------------------------

    def _run(self, most: int | None, until_idle: bool) -> RunOutcome:
        try:
            return self._run_batches(most, until_idle)
        except BrokerError as error:
            if self._loop is not None or not has_stopped(error):
                raise
            if self._seek:
                raise doubt_seek(error) from error
            if self._is_writer:
                raise  # another program is fenced by now: the user should know that this one did no more
            return RunOutcome(self._switch.reason or "", 0)  # nothing has been changed

    def _run_batches(self, most: int | None, until_idle: bool) -> RunOutcome:
        with ExitStack() as stack:
            stack.enter_context(in_stream(self.name if self._is_named else ""))
            stack.callback(self._switch.close)
            stack.callback(self._keeper.close)
            settings = self._check_settings()
            with self._switch.hearing():
                refuse_missing_letter_box(self._typed, self._options.stream.client)
            stream, pace = self._options.stream, None
            if stream.pacing is not None:
                pace = DirectPace(stream.pacing, learns=stream.learns)
            watch = StreamWatch(stream, self._source, pace=pace)
            stack.callback(watch.close)
            writer, seek = None, self._seek
            if self._sink is not None:
                sink = self._sink[0]
                if seek:
                    with self._switch.hearing():  # cuts short the looks at the log, which precede the move
                        is_done = sink.move(self.name, partial(plan_seek, watch, self._options, seek))
                    seek = {} if is_done else seek
                self._is_writer = True
                writer = open_sink(sink, self.name, self._spark)
                stack.callback(writer.close)
            start = self._find_start(watch, writer, seek)
            job = Job(
                self._make_frame,
                lambda batch: self._work(batch, writer),
                self._tell,
                lambda table: self._read_state(writer, table),
                lambda begin: self._register(begin, NOWHERE, writer),
                (lambda: None) if writer is None else writer.check_writable,
                (lambda _before, _end: False) if writer is None else writer.is_written,
            )
            self._loop = BatchLoop(settings, start, watch, pace, self._keeper, self._switch, job)
            stack.enter_context(waiting_for_servers(self._patience))  # the driver has reached all servers
            done = self._loop.run(most, until_idle)
            self._keeper.flush(self._options.stream.client.default_api_timeout_ms / 1000)
            are_done = f"{done} {'batch is' if done == 1 else 'batches are'} done"
            reason = self._switch.reason or ("nothing is left" if until_idle else are_done)
            log.info("The stream %s stopped after %d batches: %s.", self.name, done, reason)
            return RunOutcome(reason, done, self._told.offsets)

    def _check_settings(self) -> LoopSettings:
        is_manual = self._commit == "manual"
        delivery = self._check_delivery(is_manual)
        if not self._functions and self._sink is None:
            raise OptionError(
                "NOTHING_TO_DO",
                "This stream was not told what to do with its batches.",
                hint="Call `for_each_batch(function)` or `write(sink)` before it runs.",
            )
        outage_s = self._options.outage_timeout_ms / 1000
        return LoopSettings(self._interval_ms, self._attempts, self._empty, delivery, is_manual, outage_s)

    def _check_delivery(self, is_manual: bool) -> DeliveryMode | None:
        delivery = self._delivery
        if self._sink is not None:
            if delivery not in (None, "exactly-once") or is_manual:
                raise _conflict(
                    "`write` is exactly-once and commits automatically", "Leave out `delivery` and `commit`."
                )
            return "exactly-once"
        if delivery == "exactly-once":
            raise _conflict(
                '`delivery` is "exactly-once", but the results go where no offsets are stored',
                "Write them with `write(SqlSink(...))`: rows and offsets in one transaction.",
            )
        if not self._keeper.has_store:
            if delivery is not None or is_manual:
                raise _conflict(
                    f"`{'delivery' if delivery else 'commit'}` is set, but no store keeps the offsets",
                    'Give a store: `offsets=FileOffsetStore("offsets")`.',
                )
            if self._is_named_in_vain:
                log.warning("The stream %s has no offset store (`offsets`): each run starts anew.", self.name)
            return None
        if is_manual:
            if delivery == "at-most-once":
                raise _conflict(
                    "At-most-once stores offsets before the work, but `commit` is manual", "Choose one."
                )
            return None
        return delivery or "at-least-once"

    def _find_start(
        self, watch: StreamWatch, writer: SinkWriter | None, seek: Mapping[TopicPartition, Position]
    ) -> StreamPosition:
        """Return where this run begins, and register a stream that its store does not know yet. `seek` is the
        part that the sink has not been moved to yet."""
        keeper = self._keeper
        with self._switch.hearing():
            stored = beside = keeper.load()
        if writer is not None:
            stored = writer.position
            if beside is not None and stored is not None and not stored.stands_at(beside):
                log.warning("The offset store and the sink differ; the sink's own offsets are used.")
            if beside is not None and stored is None and not self._seek:
                raise _sink_is_empty(self.name)
        if stored is None and self._must_resume and not self._seek:
            raise OffsetStoreError(
                "STREAM_UNKNOWN",
                f"`must_resume` is set, but nothing is stored for the stream {self.name}.",
                hint="The offsets may have expired, or the store or the name may be the wrong one. To start "
                "anew, leave out `must_resume`, or say where to start with `seek`.",
                facts={"stream": self.name},
            )
        with self._switch.hearing():
            start = find_start(watch, self._options, stored, seek)
        if not start.offsets and not start.gone:
            log.warning(
                "Nothing that %s selects exists yet. It waits, and reads what it finds from the first "
                "offset. Until then nothing is stored: if it is restarted, it begins as a new stream.",
                self.name,
            )
        elif stored is None or self._seek:
            is_new_there = stored is None or seek
            self._register(start, stored or NOWHERE, writer if is_new_there else None)
        if writer is not None or keeper.has_store:
            keeper.committed = start
        return start

    def _register(self, start: StreamPosition, before: StreamPosition, writer: SinkWriter | None) -> None:
        """Store where the stream begins. This happens before the first batch, because after a crash `latest`
        would mean another place."""
        if writer is not None:
            writer.write({}, before, replace(start, starts=start.offsets))
            self._keeper.committed = start
        self._keeper.keep(start, may_go_back=bool(self._seek))

    def _make_frame(
        self, before: StreamPosition, end: StreamPosition, stage: Any = None, schema: Any = None
    ) -> DataFrame:
        stream = self._options.stream
        tasks = make_tasks(stream, plan_batch(before, end, stream.limits), self._typed)
        strict = not self._options.allow_gaps
        is_waiting = self._loop is not None and self._loop.tasks_answered
        return make_frame(
            self._spark,
            self._source,
            tasks,
            self._schema if schema is None else read_schema(schema),
            stages=self._stages if stage is None else [*self._stages, stage],
            strict=strict,
            stream=self.name if self._is_named else "",
            patience=self._patience if is_waiting else None,
        )

    def _read_state(self, writer: SinkWriter | None, table: str) -> DataFrame | None:
        rows = None if writer is None else writer.read_state(table)
        return None if rows is None else self._spark.createDataFrame(rows)

    def _work(self, batch: Batch, writer: SinkWriter | None) -> int | None:
        for function in self._functions:
            function(batch)
        if self._sink is None or writer is None:
            return None
        results = self._sink[1](batch)
        if results is None:
            raise OptionError(
                "RESULTS_MISSING",
                "The function given to `write` returned nothing.",
                hint="Let it `return` a frame, frames by table, or {} for a batch without results.",
            )
        written = writer.write(results, batch.start, batch.end)
        return None if written.was_repeated else written.rows

    def _tell(self, event: Event, report: BatchReport) -> None:
        self._told.note(event, report)
        for listener in self._listeners:
            listener(event, report)

    def _refuse_after_start(self) -> None:
        if self._has_run:
            raise OptionError(
                "ALREADY_STARTED",
                "This stream has already been started; a stream runs only once.",
                hint="Make a new one: with the same name and store it continues from where this one stopped.",
            )


def _choose_name(name: str | None, group: str | None, *, is_needed: bool) -> str:
    if name is not None or group is not None:
        return check_stream_name(name or group or "")
    if is_needed:
        raise _name_missing()
    return "unnamed"


def _name_missing() -> OptionError:
    return OptionError(
        "NAME_MISSING",
        "A stream that keeps its offsets needs a name to find them again.",
        hint='Give `name="..."`, or `group.id` among Kafka\'s settings.',
    )


def _check_choices(
    delivery: DeliveryMode | None, commit: CommitMode
) -> tuple[DeliveryMode | None, CommitMode]:
    if delivery is not None and delivery not in DELIVERIES:
        raise invalid("delivery", str(delivery), ", ".join(f"`{each}`" for each in DELIVERIES))
    if commit not in COMMITS:
        raise invalid("commit", str(commit), ", ".join(f"`{each}`" for each in COMMITS))
    return delivery, commit


def _sink_is_empty(stream: str) -> OffsetStoreError:
    return OffsetStoreError(
        "SINK_IS_EMPTY",
        f"The offset store has a position for the stream {stream}, but the sink has no results of it.",
        hint="If the results were here, restore them. If the stream writes to this sink for the first time, "
        "say where it starts with `seek`, or leave out `offsets`.",
        facts={"stream": stream},
    )


def _conflict(what: str, hint: str) -> OptionError:
    return OptionError("OPTION_CONFLICT", f"{what}.", hint=hint)
