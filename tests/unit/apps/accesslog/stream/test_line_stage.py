"""The stages of a batch without Spark: chunks, headers, counts, state changes, and wrong settings."""

from __future__ import annotations

import argparse
import pickle
import sqlite3
from collections.abc import Sequence
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.apps.accesslog.blocking import blocklist_files
from penstock.apps.accesslog.blocking.blocklists import Gate
from penstock.apps.accesslog.defence.defence_settings import DefenceSettings, OrdersInForce
from penstock.apps.accesslog.detection.rule_set import RuleSet
from penstock.apps.accesslog.events.log_clocks import NEVER, Clocks, LogClock, advance
from penstock.apps.accesslog.monitoring.load_counting import MonitorSettings
from penstock.apps.accesslog.monitoring.packed_tables import unpack_tables
from penstock.apps.accesslog.parsing.line_parser import make_parser
from penstock.apps.accesslog.stream import line_stage
from penstock.apps.accesslog.stream.lane_stage import LaneStage, read_maxima
from penstock.apps.accesslog.stream.line_stage import (
    COLUMNS,
    RECORD_TIME,
    LogStage,
    Tools,
    count_late,
    find_header,
    gather_chunks,
    make_kit,
    open_kit,
)
from penstock.apps.accesslog.stream.parcels import Parcel, make_parcel, read_parcels, unpack
from penstock.apps.accesslog.stream.pipeline_settings import PipelineSettings
from penstock.apps.accesslog.stream.pipeline_tables import create_tables
from penstock.cli.accesslog import run_outputs
from penstock.cli.commands.accesslog import run_pipeline
from penstock.core.errors import OptionError
from tests.support.accesslog.accesslog_traffic import (
    RULES,
    START,
    Request,
    Traffic,
    cut,
    decide_in_memory,
    make_traffic,
    sort_decisions,
    write_line,
)

HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
LANES = 5
KIT = make_kit(
    Tools("log", make_parser(), DefenceSettings(RuleSet.parse(RULES), lanes=LANES), MonitorSettings())
)


def make_records(partition: int, lines: Sequence[tuple[str, bytes]], first: int) -> pa.RecordBatch:
    headers = [[{"key": "server", "value": server.encode()}] for server, _ in lines]
    columns = [
        pa.array([line for _, line in lines], pa.binary()),
        pa.array(np.full(len(lines), partition, np.int32)),
        pa.array(np.arange(first, first + len(lines))),
        pa.array(headers, HEADERS),
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(COLUMNS))


class Miniature:
    """The pipeline's batches without Spark and SQL: the same stages, with state in a dictionary."""

    def __init__(self, partitions: int) -> None:
        self.clocks = Clocks.begin(range(partitions))
        self.state: dict[tuple[int, int], pa.Buffer] = {}
        self.decisions: list[dict[str, Any]] = []
        self.counts: dict[str, int] = {}
        self.letters = 0
        self._next = dict.fromkeys(range(partitions), 0)

    def feed(self, traffic: Traffic) -> None:
        batches = []
        for partition, lines in traffic.items():
            if lines:
                batches.append(make_records(partition, lines, self._next[partition]))
                self._next[partition] += len(lines)
        maxima = {number: clock.max_us for number, clock in self.clocks.partitions.items()}
        self._run(list(LogStage(KIT, maxima)(batches)))

    def end(self) -> None:
        idle = {
            number: LogClock(each.max_us, is_idle=True) for number, each in self.clocks.partitions.items()
        }
        self.clocks = Clocks(idle, self.clocks.watermark_us)
        self._run([])

    def _run(self, parcels: list[pa.RecordBatch]) -> None:
        state = [make_parcel("state", lane, piece, part) for (lane, part), piece in self.state.items()]
        made = LaneStage(KIT, self.clocks, OrdersInForce())([*state, *parcels])
        counts: list[pa.Table] = []
        for parcel in (each for rows in made for each in read_parcels(rows)):
            self._keep(parcel, counts)
        self.clocks = advance(self.clocks, read_maxima(counts), lateness_us=1_000_000)
        for each in counts:
            for name in ("lines", "parsed", "dead", "late"):
                self.counts[name] = self.counts.get(name, 0) + sum(each[name].to_pylist())

    def _keep(self, parcel: Parcel, counts: list[pa.Table]) -> None:
        key = (parcel.lane, parcel.part)
        if parcel.kind == "state" and parcel.payload is None:
            del self.state[key]
        elif parcel.kind == "state":
            assert parcel.payload is not None
            assert parcel.payload.size <= 1 << 20
            assert not (key in self.state and self.state[key].equals(parcel.payload)), "it had not changed"
            self.state[key] = parcel.payload
        elif parcel.kind == "decisions":
            self.decisions += unpack(parcel.payload).to_pylist()
        elif parcel.kind == "counts":
            counts.append(unpack(parcel.payload))
        elif parcel.kind == "letters":
            self.letters += unpack(parcel.payload).num_rows


@pytest.mark.parametrize("shares", [(0, 1), (0, 0.5, 1), (0, 0.1, 0.11, 0.6, 0.95, 1)])
def test_the_stages_decide_what_the_engine_decides_for_any_batches(shares: tuple[float, ...]) -> None:
    """They count each line once, as parsed or dead."""
    traffic = make_traffic(11, benign=400)
    small = Miniature(len(traffic))
    for first, last in pairwise(shares):
        small.feed(cut(traffic, first, last))
    small.end()
    assert sort_decisions(small.decisions) == decide_in_memory(traffic)
    assert small.counts["lines"] == small.counts["parsed"] + small.counts["dead"]
    assert small.counts["lines"] == sum(map(len, traffic.values()))
    assert small.letters == small.counts["dead"] > 0
    assert small.counts["late"] > 0


def test_a_line_from_the_future_does_not_carry_its_partitions_clock_away() -> None:
    """A line may be at most a minute later than its record; a record without a time sets no limit."""
    now_us, now_ms = START * 1_000_000, START * 1000
    lines = [("w", write_line(Request(second, "192.0.2.1"))) for second in (0, 400 * 86_400, 1)]
    for made_at, late, maximum in (
        ([now_ms] * 3, 1, now_us + 60_000_000),
        ([now_ms, None, now_ms], 1, now_us + 400 * 86_400_000_000),
        ([now_ms, -1, now_ms], 1, now_us + 400 * 86_400_000_000),
        ([now_ms, 2**63 - 1, now_ms], 1, now_us + 400 * 86_400_000_000),
        ([now_ms, -(2**63), now_ms], 1, now_us + 400 * 86_400_000_000),
        ([now_ms, now_ms - 59_000, now_ms], 0, now_us + 1_000_000),
    ):
        records = make_records(0, lines, 0)
        stamps = pa.array(made_at, pa.int64())
        parcels = list(LogStage(KIT, {})([records.append_column(RECORD_TIME, stamps)]))
        made = {each.kind: each.payload for rows in parcels for each in read_parcels(rows)}
        (counted,) = unpack(made["counts"]).to_pylist()
        assert (counted["late"], counted["maximum"]) == (late, maximum)
        _, tables = unpack_tables(made["partial"])
        assert max(tables["seconds"]["second"].to_pylist()) == maximum // 1_000_000


def test_lines_in_a_row_from_the_future_make_no_other_line_too_late_for_the_load() -> None:
    """The monitoring tolerates a single such line; a server whose clock is wrong writes more."""
    lines = [("w", write_line(Request(second, "192.0.2.1"))) for second in (0, 86_400, 86_401, 1, 2)]
    for stamps, late in (([START * 1000] * 5, 0), ([-1] * 5, 2)):
        records = make_records(0, lines, 0).append_column(RECORD_TIME, pa.array(stamps, pa.int64()))
        made = {
            each.kind: each.payload for rows in LogStage(KIT, {})([records]) for each in read_parcels(rows)
        }
        _, tables = unpack_tables(made["partial"])
        assert sum(tables["clocks"]["late"].to_pylist()) == late


def test_dead_letters_of_a_task_have_a_room_and_beyond_it_only_their_beginnings_are_kept() -> None:
    batches = [make_records(number, [("w", b"x" * 65_536)] * 300, 0) for number in range(3)]
    parcels = (each for rows in LogStage(KIT, {})(batches) for each in read_parcels(rows))
    (letters,) = [unpack(each.payload) for each in parcels if each.kind == "letters"]
    kept = [len(line) for line in letters["line"].to_pylist()]
    assert letters.num_rows == 900
    assert set(letters["length"].to_pylist()) == {65_536}
    assert kept[:250] == [65_536] * 250
    assert kept[300:] == [200] * 600
    assert sum(kept) < (16 << 20) + 900 * 200


def test_nothing_changes_in_lanes_that_nothing_came_for() -> None:
    traffic = make_traffic(12, benign=100)
    small = Miniature(len(traffic))
    small.feed(traffic)
    before = dict(small.state)
    small._run([])
    assert small.state == before


def test_a_stage_is_small_and_a_kit_is_opened_once_in_a_worker() -> None:
    stage = LogStage(KIT, {0: 5})
    assert len(pickle.dumps(stage)) < 100_000
    assert pickle.loads(pickle.dumps(stage)).maxima == {0: 5}
    tools = open_kit(KIT)
    assert open_kit(pickle.loads(pickle.dumps(KIT))) is tools
    assert tools.detector is tools.detector


def test_chunks_join_batches_of_one_partition_and_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_stage, "CHUNK_LINES", 4)
    batches = [make_records(0, [("w", b"a")] * 3, 0), make_records(0, [("w", b"b")] * 2, 3)]
    batches += [make_records(1, [("w", b"c")] * 4, 0), make_records(1, [("w", b"d")] * 4, 4)]
    mixed = pa.concat_batches([make_records(2, [("w", b"e")], 0), make_records(3, [("w", b"f")], 0)])
    chunks = list(gather_chunks([*batches, mixed, mixed.slice(0, 0)]))
    found = [(set(each["partition"].to_pylist()), each["offset"].to_pylist()) for each in chunks]
    assert found == [({0}, [0, 1, 2, 3, 4]), ({1}, [0, 1, 2, 3]), ({1}, [4, 5, 6, 7]), ({2}, [0]), ({3}, [0])]


@given(st.lists(st.lists(st.tuples(st.sampled_from(["server", "x"]), st.binary(max_size=3)), max_size=3)))
def test_a_header_is_the_first_of_its_name_in_each_row(rows: list[list[tuple[str, bytes]]]) -> None:
    headers = pa.array([[{"key": k, "value": v} for k, v in row] for row in rows], HEADERS)
    expected = [next((value for key, value in row if key == "server"), None) for row in rows]
    for start in {0, len(rows) // 2}:
        found = find_header(headers.slice(start), "server")
        wanted = expected[start:]
        assert (found.to_pylist() if found is not None else [None] * len(wanted)) == wanted


@given(st.lists(st.integers(0, 50), max_size=30), st.sampled_from([NEVER, 20]))
def test_a_line_is_late_when_its_partition_was_further_than_the_lateness(
    times: list[int], before: int
) -> None:
    late, most = 0, before
    for time in times:
        late += time < most - 10
        most = max(most, time)
    assert count_late(np.array(times, np.int64), before, 10) == (late, most)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"lateness": "soon"}, "OPTION_INVALID.*lateness"),
        ({"idle_after": "5"}, "OPTION_INVALID.*idle_after"),
        ({"outage_timeout": "ever"}, "OPTION_INVALID.*outage_timeout"),
        ({"lanes": 0}, "OPTION_INVALID.*lanes"),
        ({"most_lines": -1}, "OPTION_INVALID.*most_lines"),
        ({"start": "now"}, "OPTION_INVALID.*start"),
        ({"topic": "a,b"}, "OPTION_INVALID.*topic"),
        ({"allow": ("10.0.0.0/33",)}, "NETWORK_INVALID"),
        ({"trusted_proxies": "proxy.example"}, "NETWORK_INVALID"),
        ({"rules": ("nowhere.yaml",)}, "RULE_FILE_UNREADABLE"),
        ({"database": "mongodb://x"}, "PLACE_INVALID"),
        ({"name": " "}, "STREAM_NAME_INVALID"),
        ({"kafka": {"bootstrap.servers": "b:1", "isolation.level": "read_uncommitted"}}, "OPTION_CONFLICT"),
    ],
)
def test_wrong_settings_are_told_when_they_are_made(wrong: dict[str, Any], told: str) -> None:
    given = {"topic": "log", "database": "x.db", "kafka": {"bootstrap.servers": "b:9092"}, **wrong}
    with pytest.raises(Exception, match=told) as raised:
        PipelineSettings(**given)
    assert getattr(raised.value, "hint", "")


def test_settings_are_complete_and_show_no_password() -> None:
    kafka = {"bootstrap.servers": "b:9092", "sasl.jaas.config": "password=hunter2"}
    settings = PipelineSettings("log", "postgresql://me:hunter2@db/x", kafka, allow="192.0.2.1")
    assert settings.consumer["isolation.level"] == "read_committed"
    assert settings.allow == ("192.0.2.1",)
    assert settings.idle_after_us == 5_000_000
    assert "hunter2" not in repr(settings)
    with pytest.raises(OptionError):
        PipelineSettings("log", "x.db", kafka, log_format='%h "%r')


def test_secrets_kept_elsewhere_reach_the_brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This also holds if a program makes the settings: a command has resolved the secrets before."""
    login = (
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="hunter2";'
    )
    monkeypatch.setenv("PENSTOCK_TEST_LOGIN", login)
    (tmp_path / "name").write_text("from-file\n")
    kafka = {
        "bootstrap.servers": "b:9092",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": "${env:PENSTOCK_TEST_LOGIN}",
        "client.id": "${file:%s}" % (tmp_path / "name"),
    }
    client = PipelineSettings("log", "x.db", kafka).client
    assert client.sasl is not None
    assert (client.client_id, client.sasl.password.reveal()) == ("from-file", "hunter2")


@pytest.mark.parametrize("more", [(), ("--distrust-crawlers",)])
def test_crawlers_are_trusted_unless_a_run_is_told_otherwise(
    more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the decisions, and by the blocklists that the run keeps."""
    parser = argparse.ArgumentParser()
    run_pipeline.add_arguments(parser)
    needed = ["--topic", "log", "--database", str(tmp_path / "x.db"), "--bootstrap-server", "b:9092"]
    arguments = parser.parse_args([*needed, "--blocklist-dir", str(tmp_path), *more])
    settings = run_pipeline.read_settings(arguments)
    assert settings.tools.defence.trust_crawlers is not bool(more)
    given: list[Any] = []
    monkeypatch.setattr(blocklist_files, "BlocklistWriter", lambda *all_given: given.extend(all_given))
    with ExitStack() as stack:
        run_outputs._open_blocklists(stack, arguments, settings)
    assert given[2] == Gate.of(trust_crawlers=not more)


@pytest.mark.parametrize("column", ["decision_id", "expires_at"])
def test_decisions_are_looked_up_by_an_index(column: str, tmp_path: Path) -> None:
    create_tables(tmp_path / "x.db")
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection:
        query = f"EXPLAIN QUERY PLAN SELECT * FROM accesslog_decisions WHERE {column} > 7"
        assert f"accesslog_decisions_{column}" in connection.execute(query).fetchone()[-1]
