"""Load monitoring: every line is counted once, in its second or as too late, however the lines were split."""

from __future__ import annotations

import math
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.apps.accesslog.monitoring.load_counting import MonitorSettings, count_load, merge
from penstock.apps.accesslog.monitoring.load_merging import HEAD_PIECE, read_too_late
from penstock.apps.accesslog.monitoring.minute_tables import ALL
from penstock.apps.accesslog.monitoring.packed_tables import pack_tables, unpack_tables
from penstock.apps.accesslog.monitoring.top_lists import KINDS, ROOM
from penstock.apps.accesslog.parsing.line_parser import make_parser
from penstock.apps.accesslog.texts.text_grouping import group_lines
from penstock.core.errors import DecodeError
from tests.support.accesslog.accesslog_lines import (
    MINUTE_US,
    Database,
    Expected,
    Line,
    make_lines,
    observe_lines,
    read_lines,
    work_out,
)

GOLDEN = Path(__file__).parents[4] / "golden" / "accesslog-monitoring-v1.arrow"
START_US = 1_700_000_000_000_000 // MINUTE_US * MINUTE_US

lines_of_a_log = st.lists(
    st.builds(
        Line,
        # Few minutes, because each costs time: one, its neighbour, and some for which it is too late. All lie
        # within a quarter of an hour, because a server that is further behind the others holds no minute
        # open.
        time_us=st.builds(
            lambda minute, rest: minute * MINUTE_US + rest,
            st.sampled_from([START_US // MINUTE_US + later for later in (0, 0, 1, 6, 7, 13)]),
            st.integers(0, MINUTE_US - 1),
        ),
        server=st.sampled_from([None, "a", "b", "*"]),
        vhost=st.sampled_from(["", "a", "shop.example"]),
        client=st.sampled_from(["192.0.2.1", "192.0.2.2", "2001:db8::1", ""]),
        target=st.sampled_from(["/", "/?a=1", "/a/long/path/of/some/length?x", "?", "/ä", ""]),
        agent=st.sampled_from(["curl", "Mozilla/5.0 (of some length)", ""]),
        referrer=st.sampled_from(["", "https://www.example/"]),
        status=st.sampled_from([0, 100, 200, 302, 404, 499, 500, 503, 599, 600, 999]),
        size=st.integers(0, 1 << 40),
        latency_us=st.one_of(st.just(-1), st.integers(0, 1 << 34)),
    ),
    max_size=40,
)


def to_seconds(moment: datetime) -> int:
    return round(moment.timestamp())


def assert_as_expected(database: Database, expected: Expected) -> None:
    seconds = {
        (to_seconds(row["second"]), row["server"]): Counter(
            {name: count for name, count in row.items() if name not in ("second", "server") and count}
        )
        for row in database.tables["seconds"].values()
    }
    assert seconds == {key: +counts for key, counts in expected.seconds.items()}
    rows = {(to_seconds(r["minute"]) // 60, r["server"]): r for r in database.tables["minutes"].values()}
    assert rows.keys() == expected.minutes.keys()
    for key, facts in expected.minutes.items():
        latencies = facts.pop("sorted_latencies")
        assert {name: rows[key][name] for name in facts} == pytest.approx(facts)
        for share, column in ((0.50, "latency_p50_us"), (0.95, "latency_p95_us"), (0.99, "latency_p99_us")):
            if not latencies:
                assert rows[key][column] is None
            else:
                exact = latencies[max(1, math.ceil(share * len(latencies) - 1e-9)) - 1]
                assert rows[key][column] == pytest.approx(exact, rel=0.008, abs=1)
    tops: dict[tuple[int, str, str], list[tuple[int, str, int]]] = {}
    for row in database.tables["tops"].values():
        assert row["hits"] == row["hits_at_most"]
        key = (to_seconds(row["minute"]) // 60, row["server"], row["kind"])
        tops.setdefault(key, []).append((row["rank"], row["text"], row["hits"]))
    assert tops.keys() == expected.tops.keys()
    for key, counter in expected.tops.items():
        found = sorted(tops[key])
        assert [rank for rank, _, _ in found] == list(range(1, min(10, len(counter)) + 1))
        assert all(counter[text] == hits for _, text, hits in found)
        assert [hits for _, _, hits in found] == sorted(counter.values(), reverse=True)[:10]


def named(requests: list[Line]) -> list[Line]:
    """Put brackets around the name of a server that is called like the total of all servers."""
    return [Line(**{**each.__dict__, "server": "(*)"}) if each.server == ALL else each for each in requests]


@given(lines_of_a_log, lines_of_a_log, st.data())
def test_any_split_into_batches_gives_the_rows_that_one_line_after_the_other_gives(
    first: list[Line], second: list[Line], data: st.DataObject
) -> None:
    """H12: rates, status classes, bytes, latencies, clients and tops are equal to those of a slow twin."""
    known = [Line(START_US, server=name) for name in ("a", "b", "*", "shop.example")] + [Line(START_US)]
    logs = {0: known + first, 1: known + second}
    expected = work_out({partition: named(log) for partition, log in logs.items()})
    database = Database()
    done = {0: 0, 1: 0}
    while any(done[partition] < len(log) for partition, log in logs.items()):
        batch = {}
        for partition, log in logs.items():
            pieces = []
            for _ in range(data.draw(st.integers(1, 2))):
                size = data.draw(st.integers(15, 40))
                pieces.append(log[done[partition] : done[partition] + size])
                done[partition] += len(pieces[-1])
            batch[partition] = [piece for piece in pieces if piece]
        database.add(batch)
        so_far = sum(row["requests"] for row in database.tables["seconds"].values())
        assert so_far + database.too_late_total == database.lines_total == sum(done.values())
    assert database.too_late_total == expected.too_late
    assert_as_expected(database, expected)


def test_times_before_1970_are_times() -> None:
    database = Database()
    log = [Line(-3 * MINUTE_US + at) for at in (0, 1, 59_999_999)]
    database.add({0: [log[:2]]})
    database.add({0: [log[2:]]})
    assert_as_expected(database, work_out({0: log}))


def test_the_sum_of_a_minute_outlives_servers_that_are_past_it_and_one_that_nobody_knew_spoils_none() -> None:
    """One server is ten minutes on, another still in the first minute; then old lines of a third come."""
    database = Database()
    early = [Line(START_US + second * 1_000_000, server=name) for second in range(3) for name in "ab"]
    database.add({0: [early]})
    ahead = [Line(START_US + 10 * MINUTE_US + at, server="a") for at in range(2)]
    database.add({0: [ahead]})
    database.add({0: [[Line(START_US + 5_000_000, server="b")]]})
    minute = next(
        row for row in database.tables["minutes"].values() if row["server"] == ALL and row["requests"] != 2
    )
    assert minute["requests"] == 7
    for name in "ab":
        lines = [Line(START_US + 30 * MINUTE_US + at, server=name) for at in range(2)]
        database.add({0: [lines]})
    database.add({0: [[Line(START_US + 6_000_000, server="c")]]})
    assert database.too_late_total == 1
    assert minute in database.tables["minutes"].values()


@pytest.mark.parametrize("batches", [1, 2])
def test_minutes_whose_pieces_have_the_same_numbers_do_not_mix(batches: int) -> None:
    """The older minute closes early, and lines that come for it afterwards count as too late."""
    log = [Line(START_US), Line(START_US + 4096 * MINUTE_US)]
    database = Database()
    for batch in [log] if batches == 1 else [log[:1], log[1:]]:
        database.add({0: [batch]})
    database.add({0: [[Line(START_US + 1), Line(START_US + 4096 * MINUTE_US + 1)]]})
    assert (database.lines_total, database.too_late_total) == (4, 1)
    assert read_too_late(database.state[HEAD_PIECE]) == 1
    rows = [(to_seconds(r["minute"]), r["requests"]) for r in database.tables["minutes"].values()]
    begin = START_US // MINUTE_US * 60
    assert set(rows) == {(begin, 1), (begin + 4096 * 60, 2)}


def test_lines_that_come_after_five_minutes_are_counted_apart_and_one_from_the_future_moves_nothing() -> None:
    log = [
        Line(START_US),
        Line(START_US + 86_400_000_000),  # a broken clock, once
        Line(START_US + 1),
        Line(START_US + 6 * MINUTE_US - 1),
        Line(START_US + 6 * MINUTE_US - 1),
        Line(START_US + 2),  # the minute is open: no two lines were five minutes past it
        Line(START_US + 6 * MINUTE_US),
        Line(START_US + 6 * MINUTE_US),
        Line(START_US + 3),  # too late
        Line(START_US + MINUTE_US),
    ]
    for size in (1, 3, len(log)):
        database = Database()
        for begin in range(0, len(log), size):
            database.add({0: [log[begin : begin + size]]})
        assert (database.too_late_total, database.lines_total) == (1, len(log))


def test_one_line_that_is_a_minute_ahead_makes_no_other_line_late_for_its_alerts() -> None:
    """It is as far ahead as the stage allows; the seconds of that minute are judged with all lines."""
    log = [Line(START_US + n * 50_000) for n in range(20 * 1060)]
    log.insert(20 * 960, Line(START_US + (960 + 60) * 1_000_000))
    database = Database()
    database.add({0: [log]})
    assert database.tables["alerts"] == {}


def test_a_server_whose_clock_is_ahead_makes_only_its_own_lines_late() -> None:
    ahead = 3_600_000_000
    log = [Line(START_US + n * 1_000_000 + (n % 2) * ahead, server="ab"[n % 2]) for n in range(100)]
    database = Database()
    database.add({0: [log]})
    database.add({0: [log[:2]]})
    assert database.too_late_total == 0


@pytest.mark.parametrize(
    ("is_known", "minutes", "lost"), [(True, 20, 0), (True, 21, 3), (False, 5, 0), (False, 6, 3)]
)
def test_a_server_may_be_twenty_minutes_behind_the_others_and_a_new_one_five(
    is_known: bool, minutes: int, lost: int
) -> None:
    """The lines of a shipper that was away for longer are missing in the load, and count as too late."""
    database = Database()
    for server in "ab" if is_known else "b":
        database.add({0: [[Line(START_US + n, server=server) for n in range(3)]]})
    for minute in range(minutes + 1):
        moment = START_US + minute * MINUTE_US
        database.add({0: [[Line(moment + n, server="b") for n in range(3)]]}, moment)
    database.add({0: [[Line(START_US + 1_000_000, server="a")] * 3]}, START_US + minutes * MINUTE_US)
    assert database.too_late_total == lost


def test_a_minute_leaves_the_state_when_its_server_is_five_minutes_past_it() -> None:
    database = Database()
    for minute in range(30):
        database.add({0: [[Line(START_US + minute * MINUTE_US + n) for n in range(3)]]})
    open_minutes = [number for number in database.state if number >= 32]
    assert len(open_minutes) == 6


def test_an_idle_partition_holds_minutes_open_until_the_watermark_passes() -> None:
    settings = MonitorSettings()
    late = [Line(START_US + 30_000_000), Line(START_US + 31_000_000)]
    for watermark_us, lost in ((None, 0), (START_US + 20 * MINUTE_US, 2)):
        database = Database(settings)
        database.add({0: [[Line(START_US)] * 2], 1: [[Line(START_US)] * 2]})
        far = [Line(START_US + minute * MINUTE_US) for minute in range(21) for _ in range(2)]
        database.add({0: [far]}, watermark_us)
        database.add({1: [late]}, watermark_us)
        assert database.too_late_total == lost


def test_servers_beyond_the_most_there_may_be_share_one_name() -> None:
    log = [Line(START_US + n, server=f"server{n}") for n in range(300)]
    database = Database()
    database.add({0: [log]})
    names = Counter(row["server"] for row in database.tables["minutes"].values())
    assert len(names) == 256 + 2  # with "(other)" and "*"
    other = [row for row in database.tables["minutes"].values() if row["server"] == "(other)"]
    assert other[0]["requests"] == 300 - 256


def test_pieces_of_state_stay_small_with_many_servers_partitions_and_a_partition_that_holds_back() -> None:
    """There is no watermark, and partition 0 makes no progress: nothing is judged or closed as usual."""
    names = [f"{n:03d}" + "x" * 200 for n in range(300)]
    database = Database()
    database.add({0: [[Line(START_US, server=names[0])] * 2]})
    for step in range(2):
        log = [
            Line(START_US + (step * 50 + n // 300) * MINUTE_US, server=names[n % 300])
            for n in range(50 * 300)
        ]
        database.add({partition: [log[partition::7]] for partition in range(1, 8)})
    open_minutes = {(number - 32) // 256 for number in database.state if number >= 32}
    assert len(open_minutes) <= 180
    seconds = sum(row["requests"] for row in database.tables["seconds"].values())
    assert (seconds, database.too_late_total) == (database.lines_total, 0)


@pytest.mark.parametrize("pieces", [1, 7])
def test_tops_of_more_texts_than_there_is_room_for_keep_their_bound(pieces: int) -> None:
    """Hits are never too high, `hits_at_most` is never too low, and they differ by N / (ROOM + 1) at most."""
    random = np.random.default_rng(5)
    drawn = random.zipf(1.1, 40_000) % 20_000
    log = [Line(START_US + n, target=f"/page/{page}?q={n}") for n, page in enumerate(drawn.tolist())]
    exact = Counter(f"/page/{page}" for page in drawn.tolist())
    database = Database()
    step = -(-len(log) // pieces)
    for begin in range(0, len(log), step):
        database.add({0: [log[begin : begin + step]]})
    rows = [row for row in database.tables["tops"].values() if row["kind"] == KINDS[0]]
    assert len(rows) == 20
    for row in rows:
        assert row["hits"] <= exact[row["text"]] <= row["hits_at_most"]
        assert row["hits_at_most"] - row["hits"] <= len(log) / (ROOM + 1)
    assert [row["text"] for row in rows[:3]] == [text for text, _ in exact.most_common(3)]


def test_a_flood_of_clients_is_counted_within_two_percent_and_in_bounded_state() -> None:
    database = Database()
    for batch in range(4):
        clients = [
            f"198.51.{n // 256 % 256}.{n % 256}" for n in range(batch * 10_000, batch * 10_000 + 25_000)
        ]
        log = [Line(START_US + n, client=client, target=client) for n, client in enumerate(clients)]
        database.add({batch % 2: [log]})
    row = next(iter(database.tables["minutes"].values()))
    assert row["requests"] == 100_000
    assert row["unique_clients"] == pytest.approx(55_000, rel=0.02)
    assert sum(map(len, database.state.values())) < 1 << 20


def test_the_partial_of_no_lines_is_a_partial() -> None:
    merged = merge([observe_lines([])])
    assert (read_lines(merged.state), merged.seconds.num_rows, read_too_late(merged.state[HEAD_PIECE])) == (
        0,
        0,
        0,
    )


def test_texts_that_are_no_text_are_kept_as_escapes_and_long_ones_cut() -> None:
    log = [Line(START_US, target="\udcff\0" + "x" * 1000, agent="\udce4")]
    database = Database()
    database.add({0: [log]})
    texts = {row["kind"]: row["text"] for row in database.tables["tops"].values()}
    assert texts["url"].startswith("\\xff\\x00xx")
    assert len(texts["url"]) < 300
    assert texts["agent"] == "\\xe4"


def test_state_of_another_version_or_none_of_ours_is_refused() -> None:
    packed = pack_tables({}, {"version": 99})
    with pytest.raises(DecodeError, match="MONITORING_VERSION"):
        merge([], {0: packed})
    for damaged in (b"", b"nonsense", packed[:40]):
        with pytest.raises(DecodeError, match="MONITORING_UNREADABLE"):
            unpack_tables(damaged)


def test_spans_that_point_outside_the_buffer_are_taken_as_missing() -> None:
    lines = make_lines([Line(START_US)] * 3)
    for name in ("target", "client"):
        lines.starts[name][:] = [5, 1 << 30, -7]
        lines.lengths[name][:] = [1 << 30, 8, 3]
    merged = merge([count_load(lines)])
    texts = [row["text"] for row in merged.tops.to_pylist() if row["kind"] in ("url", "client")]
    assert set(texts) == {"-"}


@pytest.mark.parametrize("cut", [1, 2, 100, 258, 330])
def test_which_servers_are_told_apart_does_not_depend_on_where_a_batch_ends(cut: int) -> None:
    """There are more names than room, from headers and from lines, and some lines have none."""
    log = [Line(START_US)] * 2
    for number in range(330):
        server = f"header-{number}" if number % 3 == 0 else None
        log.append(Line(START_US, server=server, vhost=f"host-{number}" if number % 7 else ""))
    whole, pieces, batches = Database(), Database(), Database()
    whole.add({0: [log]})
    pieces.add({0: [log[:cut], log[cut:]]})
    for some in (log[:cut], log[cut:]):
        batches.add({0: [some]})
    told = {row["server"]: row["requests"] for row in whole.tables["seconds"].values()}
    assert told[""] == 2 + sum(number % 3 != 0 and number % 7 == 0 for number in range(330))
    assert len(told) > 256
    assert pieces.tables["seconds"] == batches.tables["seconds"] == whole.tables["seconds"]


def test_texts_numbered_by_others_count_alike_and_those_of_other_lines_are_refused() -> None:
    line = b'10.0.0.%d - - [01/Jan/2026:00:00:00 +0000] "GET /%d?a HTTP/1.1" 200 1 "-" "a%d"'
    lines = make_parser().parse(pa.array([line % (n % 3, n % 5, n % 2) for n in range(30)]))
    grouped = group_lines(lines)
    ours, theirs = merge([count_load(lines)]), merge([count_load(lines, grouped=grouped)])
    order = [(name, "ascending") for name in ("server", "kind", "text")]
    assert {"/1", "10.0.0.1", "a1", "-"} <= set(ours.tops.column("text").to_pylist())
    assert ours.tops.sort_by(order).equals(theirs.tops.sort_by(order))
    fewer = make_parser().parse(pa.array([line % (1, 1, 1)]))
    with pytest.raises(ValueError, match="other lines"):
        count_load(fewer, grouped=grouped)


def test_a_real_log_adds_up(accesslog_data: Any) -> None:
    for name in ("elastic-apache-combined", "zanbil-nginx-combined-xff"):
        log = (accesslog_data / "normal" / f"{name}.log").read_bytes().splitlines()
        parser = make_parser()
        whole = merge([count_load(parser.parse(pa.array(log)))])
        state: dict[int, bytes] = {}
        seconds: dict[Any, int] = {}
        offset = 0
        for begin in range(0, len(log), 777):
            lines = parser.parse(pa.array(log[begin : begin + 777]))
            merged = merge([count_load(lines, first_offset=offset)], state)
            offset, state, too_late = (
                offset + len(lines),
                merged.state,
                read_too_late(merged.state[HEAD_PIECE]),
            )
            seconds |= {row["second"]: row["requests"] for row in merged.seconds.to_pylist()}
        too_late = read_too_late(state[HEAD_PIECE])
        assert sum(seconds.values()) + too_late == read_lines(state) == read_lines(whole.state)
        assert seconds == {row["second"]: row["requests"] for row in whole.seconds.to_pylist()}


def make_golden_lines(first: int, count: int) -> list[Line]:
    """Return lines of two servers for some minutes, with latencies and late lines."""
    return [
        Line(
            START_US + (n * 250_000 if n % 97 else n * 250_000 - 70_000_000),
            server="ab"[n % 2],
            client=f"10.{n % 7}.{n // 200}.{n % 200}" if n % 2 else f"192.0.2.{n % 50}",
            target=f"/{n % 90}",
            agent=f"agent {n % 9}",
            status=(200, 304, 404, 503)[n % 4],
            size=n,
            latency_us=n * 10,
        )
        for n in range(first, first + count)
    ]


def test_stored_state_is_read_by_later_releases() -> None:
    """The golden pieces were written once by version 1; change them only together with the version."""
    stored = pa.ipc.open_file(GOLDEN).read_all().to_pydict()
    golden = Database(state=dict(zip(stored["number"], stored["piece"], strict=True)))
    fresh = Database()
    fresh.add({0: [make_golden_lines(0, 3_000)]})
    assert golden.state.keys() == fresh.state.keys()
    golden.offsets[0] = fresh.offsets[0]
    for each in (golden, fresh):
        each.tables = {name: {} for name in each.tables}
        each.add({0: [make_golden_lines(3_000, 500)]})
    assert golden.tables == fresh.tables
    assert golden.tables["minutes"]
    assert golden.lines_total == 3_500
