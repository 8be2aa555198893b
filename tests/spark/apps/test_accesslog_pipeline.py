"""The access-log pipeline on a real Kafka and a real Spark: what is decided, counted and stored."""

from __future__ import annotations

import socket
import sqlite3
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.apps.accesslog.defence.defence_settings import DECISIONS
from penstock.apps.accesslog.first_look.topic_samples import read_newest
from penstock.apps.accesslog.stream import pipeline as pipeline_module
from penstock.apps.accesslog.stream.operator_orders import list_orders, place_order
from penstock.apps.accesslog.stream.pipeline import BatchNews, Pipeline
from penstock.apps.accesslog.stream.pipeline_state import read_format
from penstock.apps.accesslog.stream.pipeline_tables import create_tables
from penstock.cli import main
from penstock.cli.accesslog.blocked_count import BlockedCount
from penstock.cli.accesslog.first_look_messages import FirstLook
from penstock.cli.accesslog.live_numbers import PLAIN_EVERY_S, Display
from penstock.core.errors import OptionError
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.options.storage_addresses import parse_place
from penstock.direct import Batch, DirectStream, TopicPartition
from penstock.kafka.writing.plain_producer import Writer
from tests.support.accesslog.accesslog_traffic import (
    START,
    Request,
    cut,
    decide_in_memory,
    make_settings,
    make_traffic,
    send_traffic,
    sort_decisions,
    write_line,
)
from tests.support.kafka.client_settings import settings_of
from tests.support.kafka.topic_filling import await_markers, open_transaction, send

pytestmark = pytest.mark.usefixtures("accesslog_kernels")

#: Tables that are a function of the log alone.
OF_THE_LOG = ("decisions", "dead_letters", "counts", "seconds", "minutes", "tops")


def read(database: Path, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute(f"SELECT {columns} FROM accesslog_{table}").fetchall()
    return sorted(rows, key=repr)


def read_decisions(database: Path) -> list[dict[str, Any]]:
    columns = ", ".join(f'"{name}"' for name in DECISIONS.names)
    rows = read(database, "decisions", columns)
    return sort_decisions(dict(zip(DECISIONS.names, row, strict=True)) for row in rows)


#: A number of batches that takes long enough, even on a fast computer, for anything that waits for the wall
#: clock.
MANY = 400


def run(spark: SparkSession, settings: Any, *, batches: int | None = None) -> list[BatchNews]:
    create_tables(settings.place)
    heard: list[BatchNews] = []
    pipeline = Pipeline(spark, settings).add_listener(heard.append)
    pipeline.run(batches=batches, until_idle=True)
    return heard


def test_decisions_are_those_of_the_engine_in_memory_for_any_batches_and_after_a_restart(
    spark: SparkSession, kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """The client, the rule, the causing line, the evidence: all columns agree, and so do the counts."""
    traffic = make_traffic(1)
    expected = decide_in_memory(traffic)
    assert len(expected) > 10
    name = topic(len(traffic))
    send_traffic(kafka.bootstrap, name, traffic)
    results: dict[str, Path] = {}
    for how, most_lines in (("at once", 1_000_000), ("in batches", 333)):
        results[how] = tmp_path / f"{how}.db"
        settings = make_settings(kafka.bootstrap, name, str(results[how]), tmp_path, most_lines=most_lines)
        news = run(spark, settings)
        assert sum(each.lines for each in news) == sum(map(len, traffic.values()))
    results["restarted"] = tmp_path / "restarted.db"
    for most_lines, batches in ((150, 3), (400, 2), (1_000_000, None)):
        settings = make_settings(
            kafka.bootstrap, name, str(results["restarted"]), tmp_path, most_lines=most_lines
        )
        run(spark, settings, batches=batches)
    for how, database in results.items():
        assert read_decisions(database) == expected, how
        for table in OF_THE_LOG:
            assert read(database, table) == read(results["at once"], table), (how, table)


def test_each_line_is_parsed_or_a_dead_letter_and_the_audit_finds_them(
    spark: SparkSession, kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """In each partition, lines = parsed + dead; a dead letter names its record; late lines are counted."""
    traffic = make_traffic(2, benign=700)
    name = topic(len(traffic))
    send_traffic(kafka.bootstrap, name, traffic)
    database = tmp_path / "results.db"
    settings = make_settings(kafka.bootstrap, name, str(database), tmp_path, most_lines=400, idle_after=None)
    news = run(spark, settings)
    counts = {row[0]: row[1:] for row in read(database, "counts", '"partition", lines, parsed, dead, late')}
    assert {number: some[0] for number, some in counts.items()} == {n: len(s) for n, s in traffic.items()}
    assert all(lines == parsed + dead for lines, parsed, dead, _ in counts.values())
    assert sum(late for *_, late in counts.values()) == sum(each.late for each in news) > 0
    letters = read(
        database, "dead_letters", "penstock_topic, penstock_partition, penstock_offset, line, length"
    )
    assert len(letters) == sum(dead for _, _, dead, _ in counts.values()) > 0
    for where, number, offset, line, length in letters:
        assert (where, line) == (name, traffic[number][offset][1])
        assert length == len(line)
    requests = sum(row[0] for row in read(database, "seconds", "requests"))
    assert requests == sum(parsed for _, parsed, _, _ in counts.values())
    assert main(["audit", str(database)]) == 0


def test_lines_that_are_in_no_second_are_told(
    spark: SparkSession, kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """The requests in all seconds plus the lines too late for theirs are the lines that were parsed."""
    name, database = topic(1), tmp_path / "results.db"
    lines = [("web-1", write_line(Request(second, "192.0.2.1"))) for second in (0, 3600, 3601, 1)]
    send_traffic(kafka.bootstrap, name, {0: lines})
    news = run(spark, make_settings(kafka.bootstrap, name, str(database), tmp_path))
    assert sum(row[0] for row in read(database, "seconds", "requests")) == 3
    assert [each.too_late for each in (news[0], news[-1])] == [1, 1]
    assert dict(read(database, "settings", "name, value"))["too_late"] == "1"


def test_a_line_from_the_future_is_at_most_a_minute_later_than_its_record(
    spark: SparkSession, kafka: Any, topic: Any, tmp_path: Path
) -> None:
    name, database = topic(1), tmp_path / "results.db"
    far = time.time() - START + 86_400
    send_traffic(kafka.bootstrap, name, {0: [("web-1", write_line(Request(far, "192.0.2.1")))]})
    run(spark, make_settings(kafka.bootstrap, name, str(database), tmp_path))
    ((maximum,),) = read(database, "clocks", "maximum")
    assert maximum < (time.time() + 61) * 1_000_000


def test_a_record_whose_time_is_no_time_is_a_line_like_any_other(
    spark: SparkSession, kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """A broker accepts such numbers: very negative ones always, very large ones where the topic allows it."""
    default = topic(1)
    lenient = topic(1, message_timestamp_after_max_ms=2**63 - 1)
    lines = [write_line(Request(second, "192.0.2.1", "/.env")) for second in range(3)]
    for name, odd in ((default, -(2**62)), (lenient, 2**63 - 1)):
        database = tmp_path / f"{name}.db"
        with closing(Writer(settings_of(kafka.bootstrap))) as writer:
            writer.write(name, pa.record_batch({"value": lines, "timestamp": [START * 1000, odd, odd]}))
        run(spark, make_settings(kafka.bootstrap, name, str(database), tmp_path))
        assert read(database, "counts", "lines, parsed, dead") == [(3, 3, 0)]
        assert read(database, "clocks", "maximum") == [((START + 2) * 1_000_000,)]
        assert len(read_decisions(database)) == 1


def test_a_partition_without_lines_is_waited_for_until_it_is_decided_that_it_is_idle(
    spark: SparkSession, kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """The decision and its time are stored with the lines that it released; later lines are moved up."""
    name, database = topic(2), tmp_path / "results.db"
    secret = [("web-1", write_line(Request(n, "192.0.2.9", "/.env"))) for n in range(5)]
    send_traffic(kafka.bootstrap, name, {0: secret})
    settings = make_settings(kafka.bootstrap, name, str(database), tmp_path, idle_after=None)
    first = run(spark, settings)
    assert first[-1].pending == 10  # each line counts for the client and for its network
    assert read_decisions(database) == []
    clocks = read(database, "clocks", '"partition", maximum, watermark, is_idle, idle_since')
    assert clocks == [(0, (START + 4) * 1_000_000, None, 0, None), (1, None, None, 0, None)]
    settings = make_settings(kafka.bootstrap, name, str(database), tmp_path, idle_after="300ms")
    later = run(spark, settings)
    assert later[-1].pending == 0
    assert [(each["client"], each["offset"]) for each in read_decisions(database)] == [("192.0.2.9", 0)]
    released = (START + 4) * 1_000_000 + 1
    clocks = read(database, "clocks", '"partition", watermark, is_idle, idle_since > seen_at')
    assert clocks == [(0, released, 1, 1), (1, released, 1, 1)]
    send_traffic(kafka.bootstrap, name, {1: [("web-2", write_line(Request(1, "192.0.2.77", "/.env")))]})
    run(spark, settings)
    (late,) = [each for each in read_decisions(database) if each["client"] == "192.0.2.77"]
    assert late["decided_at"] >= released - 1


def test_a_silent_partition_that_is_behind_is_waited_for(
    spark: SparkSession, kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """Lines arrive when a batch is already planned: that batch would go ahead without them."""
    name, database = topic(2), tmp_path / "results.db"
    send_traffic(kafka.bootstrap, name, {0: [("web-1", write_line(Request(50, "192.0.2.9", "/.env")))]})
    run(spark, make_settings(kafka.bootstrap, name, str(database), tmp_path, idle_after=None))

    class Overtaken(Pipeline):
        def work(self, batch: Batch) -> dict[str, pa.Table]:
            line = write_line(Request(1, "192.0.2.77", "/.env"))
            send_traffic(kafka.bootstrap, name, {1: [("web-2", line)]})
            return super().work(batch)

    settings = make_settings(kafka.bootstrap, name, str(database), tmp_path, idle_after="1ms")
    Overtaken(spark, settings).run(batches=1)
    assert read(database, "clocks", '"partition", watermark, is_idle') == [(0, None, 1), (1, None, 0)]
    run(spark, settings)
    decided = {each["client"]: each["decided_at"] for each in read_decisions(database)}
    assert decided == {"192.0.2.9": (START + 50) * 1_000_000, "192.0.2.77": (START + 1) * 1_000_000}


def test_a_partition_of_nothing_but_dead_letters_is_not_waited_for(
    spark: SparkSession, kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """Time advances while only nonsense arrives."""
    name, database = topic(2), tmp_path / "results.db"
    secret = [("web-1", write_line(Request(n, "192.0.2.9", "/.env"))) for n in range(5)]
    send_traffic(kafka.bootstrap, name, {0: secret, 1: [("web-2", b"nonsense")] * 300})
    settings = make_settings(
        kafka.bootstrap, name, str(database), tmp_path, most_lines=60, idle_after="1ms", interval="50ms"
    )
    news = run(spark, settings)
    assert any(each.watermark_us is not None and each.dead for each in news)
    assert [each["client"] for each in read_decisions(database)] == ["192.0.2.9"]


def test_bans_go_on_when_the_computers_clock_was_set_back(
    spark: SparkSession, kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """Partition 1 was last seen an hour from now, and is silent: it is waited for like any other."""
    name, database = topic(2), tmp_path / "results.db"
    settings = make_settings(kafka.bootstrap, name, str(database), tmp_path, idle_after="300ms")
    benign = {number: [("web-1", write_line(Request(0, "192.0.2.1")))] for number in (0, 1)}
    send_traffic(kafka.bootstrap, name, benign)
    run(spark, settings)
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE accesslog_clocks SET seen_at = seen_at + 3600000000, is_idle = 0")
    send_traffic(kafka.bootstrap, name, {0: [("web-1", write_line(Request(9, "192.0.2.9", "/.env")))]})
    run(spark, settings, batches=MANY)
    assert [each["client"] for each in read_decisions(database)] == ["192.0.2.9"]


def test_bans_go_on_after_a_producer_whose_clock_was_a_day_ahead(
    spark: SparkSession, kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """Lines arrive all the time, so no partition is silent; the log's time advances."""
    name, database = topic(1, message_timestamp_after_max_ms=2**63 - 1), tmp_path / "results.db"
    settings = make_settings(kafka.bootstrap, name, str(database), tmp_path, idle_after="300ms")
    ahead = time.time() + 86_400
    with closing(Writer(settings_of(kafka.bootstrap))) as writer:
        line = write_line(Request(ahead - START, "192.0.2.1"))
        writer.write(name, pa.record_batch({"value": [line], "timestamp": [int(ahead * 1000)]}))
    run(spark, settings, batches=1)

    class Visited(Pipeline):
        def work(self, batch: Batch) -> dict[str, pa.Table]:
            line = write_line(Request(time.time() - START, "192.0.2.9", "/.env"))
            send_traffic(kafka.bootstrap, name, {0: [("web-1", line)]})
            return super().work(batch)

    def has_gone_on() -> bool:
        return read(database, "clocks", "watermark") > [((ahead + 0.1) * 1_000_000,)]

    def stop_when_done(_: BatchNews) -> None:
        if has_gone_on() and read_decisions(database):
            pipeline.stop()

    pipeline = Visited(spark, settings).add_listener(stop_when_done)
    pipeline.run(batches=MANY)
    assert {each["client"] for each in read_decisions(database)} == {"192.0.2.9"}
    assert has_gone_on(), "the time of the log goes on"


def test_an_order_lets_a_client_go_from_a_moment_of_the_log_on_that_is_stored(
    spark: SparkSession, kafka: Any, topic: Any, tmp_path: Path
) -> None:
    name, database = topic(1), tmp_path / "results.db"
    settings = make_settings(kafka.bootstrap, name, str(database), tmp_path, idle_after="100ms")

    def ask(second: int) -> list[tuple[str, str]]:
        lines = [write_line(Request(second, "192.0.2.9", "/.env"))]
        send_traffic(kafka.bootstrap, name, {0: [("web-1", line) for line in lines]})
        run(spark, settings)
        return [(each["client"], each["action"]) for each in read_decisions(database)]

    assert ask(0) == [("192.0.2.9", "block")]
    place = parse_place(str(database))
    place_order(place, "192.0.2.0/24", now_us=(START + 100) * 1_000_000, grace_us=3_600_000_000)
    assert ask(200) == [("192.0.2.9", "block"), ("192.0.2.9", "grace")]
    (order,) = list_orders(place)
    assert order.taken_at == (START + 100) * 1_000_000
    assert ask(10_000)[-1] == ("192.0.2.9", "block")


def test_what_a_shipper_has_taken_back_is_not_counted(
    spark: SparkSession, kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """Lines of an aborted transaction do not count."""
    name, database = topic(1), tmp_path / "results.db"
    for outcome in ("abort_transaction", "commit_transaction"):
        producer = open_transaction(kafka.bootstrap)
        send(producer, name, [write_line(Request(n, "198.51.100.1")) for n in range(20)])
        assert producer.flush(60) == 0
        getattr(producer, outcome)(60)
    await_markers(kafka.bootstrap, name)
    run(spark, make_settings(kafka.bootstrap, name, str(database), tmp_path))
    assert read(database, "counts", "lines, parsed, dead") == [(20, 20, 0)]


def test_a_database_holds_one_pipeline(spark: SparkSession, kafka: Any, topic: Any, tmp_path: Path) -> None:
    """State is divided into lanes and clocks belong to a topic, so other settings would corrupt it."""
    name, other, database = topic(1), topic(1), tmp_path / "results.db"
    run(spark, make_settings(kafka.bootstrap, name, str(database), tmp_path))
    for change, what in (({"lanes": 7}, "lanes"), ({"topic": other}, "topic")):
        settings = make_settings(
            kafka.bootstrap, str(change.get("topic", name)), str(database), tmp_path,
            **{key: value for key, value in change.items() if key != "topic"},
        )  # fmt: skip
        with pytest.raises(OptionError, match=f"STATE_OF_ANOTHER.*`{what}`"):
            run(spark, settings)


def test_a_restart_between_any_two_batches_changes_nothing(
    spark: SparkSession, kafka: Any, topic: Any, tmp_path: Path
) -> None:
    """Lines that arrive in portions while it runs give the same result as if all had been there before."""
    traffic = make_traffic(3, benign=600)
    name, database = topic(len(traffic)), tmp_path / "results.db"
    settings = make_settings(kafka.bootstrap, name, str(database), tmp_path, idle_after=None)
    shares = (0, 0.3, 0.31, 0.8, 1)
    for first, last in pairwise(shares):
        send_traffic(kafka.bootstrap, name, cut(traffic, first, last))
        run(spark, settings)
    run(spark, make_settings(kafka.bootstrap, name, str(database), tmp_path, idle_after="100ms"))
    assert read_decisions(database) == decide_in_memory(traffic)


def write_now(client: str, path: str = "/.env") -> bytes:
    """Return a line with the current time, so that its ban has not ended."""
    return write_line(Request(time.time() - START, client, path, 404))


def test_the_first_lines_of_an_empty_topic_are_looked_at_before_anything_is_decided_about_them(
    spark: SparkSession, kafka: Any, topic: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line is not enough: its consequences wait, and are decided when the waiting time is over."""
    name, database = topic(2), tmp_path / "results.db"
    changes = {"log_format": "combined", "idle_after": "100ms"}
    settings = make_settings(kafka.bootstrap, name, str(database), tmp_path, **changes)
    create_tables(settings.place)
    client = settings_of(kafka.bootstrap, isolation_level="read_committed")
    look = FirstLook(settings.tools.parser, has_more=True)
    assert not look(read_newest(client, name))
    Pipeline(spark, settings).look_first(look).run(batches=2)
    assert not look.is_done
    send_traffic(kafka.bootstrap, name, {0: [("web-1", write_now("203.0.113.7"))]})
    for hold_s, decided in ((3600.0, 0), (0.0, 1)):
        Pipeline(spark, settings).look_first(look, hold_s=hold_s).run(batches=8)
        assert len(read(database, "counts")) == 1
        assert len(read(database, "decisions")) == decided
    standing = {each: read(database, each) for each in ("decisions", "counts", "lanes", "clocks")}
    assert {row[1] for row in standing["clocks"]} == {0, 1}
    lines = [b"shop.example " + write_now(f"192.0.2.{n}") for n in range(1, 25)]
    send_traffic(kafka.bootstrap, name, {0: [("web-1", line) for line in lines]})
    with pytest.raises(OptionError, match="CLIENT_IS_NO_ADDRESS"):
        Pipeline(spark, settings).look_first(look).run(batches=2)
    assert {each: read(database, each) for each in standing} == standing
    assert "203.0.113.7" in capsys.readouterr().err
    with pytest.raises(OptionError, match="CLIENT_IS_NO_ADDRESS"):
        FirstLook(settings.tools.parser)(read_newest(client, name))
    assert read_format(settings.place) is None


def test_the_live_line_says_what_the_lists_hold_also_after_a_restart(
    spark: SparkSession, kafka: Any, topic: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines come in one batch and decisions in a later one. Then nothing comes, and the run restarts."""
    name, database, seconds = topic(1), tmp_path / "results.db", 0.0
    lines = [write_now(f"203.{n}.113.7") for n in range(6)] + [write_now("10.0.0.5")]
    send_traffic(kafka.bootstrap, name, {0: [("web-1", line) for line in lines]})
    settings = make_settings(kafka.bootstrap, name, str(database), tmp_path)
    create_tables(settings.place)

    def advance_clock(_news: BatchNews) -> None:
        nonlocal seconds
        seconds += PLAIN_EVERY_S

    told = []
    for _ in range(2):
        pipeline = Pipeline(spark, settings).add_listener(advance_clock)
        blocked = BlockedCount(settings, clock=lambda: seconds)
        pipeline.add_listener(Display(pipeline, blocked, clock=lambda: seconds).show)
        pipeline.run(until_idle=True)
        told.append(capsys.readouterr().out.splitlines())
    assert main(["accesslog", "blocklist", str(database)]) == 0
    assert len(capsys.readouterr().out.split()) == 6
    assert all("6 clients blocked" in some[-1] for some in told), told
    assert ", 1 client spared" in told[0][-1]
    assert read_format(settings.place) == settings.log_format


def test_brokers_that_are_away_when_the_lag_is_asked_for_end_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lag is only displayed: the next batch waits the outage out, or gives up after its own limit."""
    monkeypatch.setattr(pipeline_module, "_LAG_TIMEOUT_MS", 300)
    monkeypatch.setattr(DirectStream, "planned", StreamPosition({TopicPartition("log", 0): 5}))
    create_tables(str(tmp_path / "results.db"))
    with socket.socket() as nobody:  # bound, but never listening
        nobody.bind(("127.0.0.1", 0))
        bootstrap = f"127.0.0.1:{nobody.getsockname()[1]}"
        settings = make_settings(bootstrap, "log", str(tmp_path / "results.db"), tmp_path)
        assert Pipeline(spark, settings).measure_lag() is None
