"""Events: lines as numbers, sorted into lanes, and the addresses they belong to."""

from __future__ import annotations

import ipaddress
import random

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.apps.accesslog.detection.detector import Detector
from penstock.apps.accesslog.detection.rule_set import default_rules
from penstock.apps.accesslog.events import line_events_kernel as k
from penstock.apps.accesslog.events.line_events import EVENTS, LONGEST_TEXT, EventsHeader, make_events
from penstock.apps.accesslog.events.subjects import CLIENT, NET, PRINT, is_host, name_client, name_subject
from penstock.apps.accesslog.parsing.line_parser import make_parser
from tests.reference.accesslog_fold import RULES, client_of, make_batch, make_history, net_of, number_client
from tests.support.guard_page import GuardedMemory

LONG = b"x" * 500
GUARDED = GuardedMemory(4096)


def read(texts: list[bytes]) -> list[tuple[int, int, int]]:
    data = np.frombuffer(b"".join(texts) or b"\0", np.uint8)
    sizes = np.array([len(text) for text in texts], np.int32)
    starts = (np.cumsum(sizes) - sizes).astype(np.int32)
    high, low, present = (np.empty(len(texts), kind) for kind in (np.uint64, np.uint64, np.int8))
    k.read_clients(data, starts, sizes, high, low, present)
    return list(zip(high.tolist(), low.tolist(), present.tolist(), strict=True))


@given(st.lists(st.ip_addresses(), min_size=1, max_size=20), st.booleans())
@settings(deadline=None)
def test_an_address_is_the_client_it_belongs_to_however_it_is_written(
    addresses: list[object], long: bool
) -> None:
    texts = [each.exploded if long else str(each) for each in addresses]  # type: ignore[attr-defined]
    found = read([text.encode() for text in texts])
    for address, text, (high, low, present) in zip(addresses, texts, found, strict=True):
        if address.version == 6 and int(address) >> 112 == 1:  # type: ignore[attr-defined, call-overload]
            assert is_host(high)
            continue
        assert present == 1
        assert (high, low) == number_client(text)
        assert name_subject(CLIENT, high, low) == name_client(text) == client_of(text)
        networks = np.array([high], np.uint64), np.array([low], np.uint64)
        k.cut_nets(*networks)
        assert name_subject(NET, *(int(each[0]) for each in networks)) == net_of(client_of(text))


@given(st.binary(min_size=1, max_size=60))
@settings(deadline=None)
def test_a_text_is_an_address_exactly_if_it_is_one(text: bytes) -> None:
    (found,) = read([text])
    try:
        address = ipaddress.ip_address(text.decode("ascii"))
    except ValueError:
        assert found[2] == 2
        return
    assert found[2] == (2 if "%" in str(address) or int(address) >> 112 == 1 else 1)


@given(st.text(alphabet="0123456789abcdef:.", min_size=1, max_size=42))
@settings(deadline=None)
def test_nearly_an_address_is_none(text: str) -> None:
    (found,) = read([text.encode()])
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        assert found[2] == 2
        return
    assert found[2] == (2 if int(address) >> 112 == 1 and address.version == 6 else 1)


def test_an_address_inside_ipv6_is_the_same_client() -> None:
    assert read([b"::ffff:192.0.2.7"]) == read([b"192.0.2.7"])
    assert read([b"::FFFF:c000:207"]) == read([b"192.0.2.7"])


def test_host_names_and_the_twin_agree() -> None:
    names = [b"crawl-1.example", b"a", b"xn--bcher-kva.example"]
    assert [found[:2] for found in read(names)] == [number_client(name.decode()) for name in names]


def test_subjects_have_names() -> None:
    high, low = number_client("2001:db8::7")
    assert name_subject(CLIENT, high, low) == "2001:db8::/64"
    assert name_subject(NET, high, low) == "2001:db8::/48"
    assert name_subject(PRINT, 0, 255) == "print:00000000000000ff"
    host = number_client("host.example")
    assert name_subject(CLIENT, *host, {host: "host.example"}) == "host.example"
    assert name_subject(CLIENT, *host).startswith("host:")


def test_every_line_is_in_the_lane_of_its_client_once() -> None:
    history = make_history(1, 500)
    made = make_events(*make_batch(history), RULES, partition=2, offsets=np.arange(500), lanes=5)
    assert sorted(made) == [0, 1, 2, 3, 4]
    lanes: dict[tuple[int, int], set[int]] = {}
    offsets = []
    for lane, events in made.items():
        assert events.schema.equals(EVENTS)
        for row in events.to_pylist():
            if row["kind"] == CLIENT:
                offsets.append(row["offset"])
                lanes.setdefault((row["high"], row["low"]), set()).add(lane)
    assert sorted(offsets) == list(range(500))
    assert all(len(some) == 1 for some in lanes.values())


def test_an_empty_lane_still_learns_how_far_the_clock_is() -> None:
    history = make_history(1, 1)
    made = make_events(*make_batch(history), RULES, partition=2, offsets=np.array([70]), lanes=9)
    headers = [EventsHeader.read(events.schema) for events in made.values()]
    assert {(each.partition, each.first_offset, each.max_us) for each in headers} == {
        (2, 70, history[0].time_us)
    }
    assert sum(events.num_rows == 0 for events in made.values()) >= 6


def test_only_lines_that_a_group_counts_make_events_of_groups() -> None:
    history = make_history(4, 400)
    made = make_events(*make_batch(history), RULES, partition=0, offsets=np.arange(400), lanes=3)
    rows = [row for events in made.values() for row in events.to_pylist()]
    near = {RULES.find(name).number for name in ("soft.four", "signal.b")}
    expected = {line.number for line in history if near & set(line.hits)}
    assert {row["offset"] for row in rows if row["kind"] == NET} == expected
    assert all(set(row["hits"]) <= near for row in rows if row["kind"] == NET)


def test_texts_are_kept_only_where_a_rule_has_hit_and_are_cut() -> None:
    ruleset = default_rules()
    log = [b'192.0.2.1 - - [10/Oct/2000:13:55:36 +0000] "POST /wp-login.php?%s HTTP/1.1" 200 5' % LONG,
           b'192.0.2.1 - - [10/Oct/2000:13:55:36 +0000] "GET /welcome HTTP/1.1" 200 5']  # fmt: skip
    lines = make_parser().parse(pa.array(log, pa.binary()))
    made = make_events(
        lines, Detector(ruleset).detect(lines), ruleset, partition=0, offsets=np.arange(2), lanes=1
    )
    texts = {row["offset"]: row["text"] for row in made[0].to_pylist() if row["kind"] == CLIENT}
    assert texts[0].startswith(b"POST /wp-login.php?xxx")
    assert len(texts[0]) == LONGEST_TEXT
    assert texts[1] is None


def test_rows_that_are_no_lines_keep_the_others_at_their_offsets() -> None:
    ruleset = default_rules()
    log = [b"nonsense", b'192.0.2.1 - - [10/Oct/2000:13:55:36 +0000] "GET /a HTTP/1.1" 200 5', None]
    lines = make_parser().parse(pa.array(log, pa.binary()))
    findings = Detector(ruleset).detect(lines)
    servers = pa.array(["a", "b", "c"])
    made = make_events(
        lines, findings, ruleset, partition=0, offsets=np.arange(7, 10), servers=servers, lanes=1
    )
    assert made[0].column("offset").to_pylist() == [8]
    assert EventsHeader.read(made[0].schema).servers[made[0].column("server")[0].as_py()] == "b"


def test_a_line_without_a_server_has_none_and_names_are_cut_and_clean() -> None:
    history = make_history(3, 3)
    long = b"w\x1b[2J\r\n" + b"x" * 999
    made = make_events(
        *make_batch(history), RULES, partition=0, offsets=np.arange(3),
        servers=pa.array([b"web-1", None, long]), lanes=1,
    )  # fmt: skip
    names = EventsHeader.read(made[0].schema).servers
    told = {row["offset"]: names[row["server"]] for row in made[0].to_pylist() if row["kind"] == CLIENT}
    assert (told[0], told[1]) == ("web-1", "")
    assert told[2].startswith("w[2Jxxx")
    assert len(told[2]) <= 128


def test_times_never_stand_before_the_running_maximum_less_the_lateness() -> None:
    dice = random.Random(5)
    times = np.array([dice.randint(0, 10_000_000) for _ in range(300)], np.int64)
    moved, late = np.empty(300, np.int64), np.empty(300, np.int64)
    most, count = k.follow_clock(times, 1_000_000, moved, late)
    before = np.maximum.accumulate(np.concatenate([[times[0]], times[:-1]]))
    assert (moved == np.maximum(times, before - 1_000_000)).all()
    assert (late == moved - times).all()
    assert (most, count) == (times.max(), (late > 0).sum())


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=5))
@settings(deadline=None)
def test_a_client_at_the_end_of_the_buffer_is_read_no_further(texts: list[bytes]) -> None:
    """The last text ends at a protected page."""
    data = GUARDED.place(b"".join(texts)) if any(texts) else np.zeros(1, np.uint8)
    sizes = np.array([len(text) for text in texts], np.int32)
    starts = (np.cumsum(sizes) - sizes).astype(np.int32)
    high, low, present = (np.empty(len(texts), kind) for kind in (np.uint64, np.uint64, np.int8))
    k.read_clients(data, starts, sizes, high, low, present)
    assert (present > 0).tolist() == [len(text) > 0 for text in texts]


def test_places_outside_the_buffer_name_no_client() -> None:
    data = np.frombuffer(b"192.0.2.1", np.uint8)
    starts, sizes = np.array([-1, 5, 0, 9], np.int32), np.array([3, 9, 10, 1], np.int32)
    high, low, present = (np.empty(4, kind) for kind in (np.uint64, np.uint64, np.int8))
    k.read_clients(data, starts, sizes, high, low, present)
    assert present.tolist() == [0, 0, 0, 0]
