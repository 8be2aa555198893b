"""The API for enforcers over a real socket: what it answers, and what it refuses to anyone."""

from __future__ import annotations

import http.client
import json
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.apps.accesslog.blocking import enforcement_api
from penstock.apps.accesslog.blocking.blocklist_formats import show_time
from penstock.apps.accesslog.blocking.blocklists import Gate
from penstock.apps.accesslog.blocking.enforcement_api import EnforcementApi, _Lists
from penstock.apps.accesslog.blocking.enforcement_guards import (
    HostNames,
    RateLimit,
    check_token,
    parse_listen,
)
from penstock.apps.accesslog.stream.pipeline_tables import create_tables
from penstock.core.errors import OptionError
from penstock.core.options.storage_addresses import Place
from penstock.stores.sql.connections.sql_sessions import Database, Session
from penstock.stores.sql.connections.versioned_tables import ensure_tables
from penstock.stores.sql.ledger.ledger_tables import BATCHES, LEDGER
from tests.support.accesslog.decisions_database import NOW_US, SECOND_US, decide, make_database
from tests.support.hostile_texts import HOSTILE

TOKEN = secrets.token_urlsafe(32)


class Clock:
    def __init__(self) -> None:
        self.now_us = NOW_US

    def __call__(self) -> int:
        return self.now_us


def note_batch(place: Place, stream: str, at_ms: int) -> None:
    """Write what a batch of this stream leaves in the ledger; the settings name the pipeline's stream."""

    def write(session: Session) -> None:
        ensure_tables(session, LEDGER)
        session.execute(
            "INSERT OR REPLACE INTO accesslog_settings (name, value) VALUES ('name', 'accesslog')"
        )
        session.execute(
            f"INSERT INTO {BATCHES} VALUES ({session.grammar.marks(8)})",
            [stream, f"token {at_ms}", 1, 1, "batch", at_ms, 0, 1],
        )

    Database(place).run(write, writes=True)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = make_database(tmp_path / "results.db")
    create_tables(place)
    note_batch(place, "accesslog", NOW_US // 1000)
    return place


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(enforcement_api, "FRESH_FOR_S", 0.0)
    return Clock()


@pytest.fixture
def api(place: Place, clock: Clock) -> Iterator[EnforcementApi]:
    with EnforcementApi(
        place,
        Gate.of(trusted_proxies=["192.0.2.200"]),
        listen="127.0.0.1:0",
        requests_per_s=10_000,
        clock_us=clock,
    ) as serving:
        serving.start()
        yield serving


def ask(
    api: EnforcementApi, target: str, *, method: str = "GET", body: bytes | None = None, **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", api.port, timeout=20)) as connection:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, target, body, named)
        answer = connection.getresponse()
        return answer, answer.read()


def ask_raw(api: EnforcementApi, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", api.port), timeout=20) as connection:
        connection.sendall(request)
        received = b""
        while piece := connection.recv(65_536):
            received += piece
        return received


def read_status(received: bytes) -> int:
    assert received.startswith(b"HTTP/1.1 "), received
    return int(received.split(b" ")[1])


# --- answers ----------------------------------------------------------------------------------------------


def test_the_list_as_json_as_text_and_its_health(api: EnforcementApi, place: Place) -> None:
    chosen = decide(place, "192.0.2.1")
    decide(place, "192.0.2.200")
    decide(place, "192.0.2.3", action="simulate")
    answer, body = ask(api, "/v1/blocklist")
    told = json.loads(body)
    assert answer.status == 200
    assert answer.getheader("Content-Type") == "application/json"
    assert [(each["network"], each["decision_id"]) for each in told["added"]] == [("192.0.2.1", chosen)]
    assert told["complete"] is True
    answer, body = ask(api, "/v1/blocklist.txt")
    assert (answer.getheader("Content-Type"), body) == ("text/plain; charset=utf-8", b"192.0.2.1\n")
    answer, body = ask(api, "/v1/health")
    health = json.loads(body)
    assert (health["status"], health["cursor"], health["entries"]) == ("ok", told["cursor"], 1)


def test_a_pipeline_that_publishes_nothing_any_more_is_not_healthy(
    api: EnforcementApi, place: Place, clock: Clock
) -> None:
    """Its list is still served, and batches of other streams in the same database do not count."""
    clock.now_us = NOW_US + 180 * SECOND_US
    answer, body = ask(api, "/v1/health")
    assert (answer.status, json.loads(body)["last_batch_age_s"]) == (200, 180.0)
    note_batch(place, "another stream", NOW_US // 1000 + 170_000)
    clock.now_us += SECOND_US
    answer, body = ask(api, "/v1/health")
    told = json.loads(body)
    assert (answer.status, told["status"], told["last_batch_age_s"]) == (503, "stale", 181.0)
    assert told["last_batch_at"].startswith("2030-03-17T17:46:40")
    assert ask(api, "/v1/blocklist")[0].status == 200
    note_batch(place, "accesslog", NOW_US // 1000 + 180_000)
    assert ask(api, "/v1/health")[0].status == 200


def test_a_last_batch_in_the_future_is_as_old_as_nothing_came_after_it(place: Place, clock: Clock) -> None:
    """The computer's clock was set back by an hour: an ended pipeline must not look healthy until then."""
    note_batch(place, "accesslog", NOW_US // 1000 + 3_600_000)
    seconds = [0.0]
    lists = _Lists(place, Gate.of(), clock, 180.0, lambda: seconds[0])
    for now_s, status in ((0.0, 200), (180.0, 200), (181.0, 503)):
        seconds[0] = now_s
        assert lists.answer_health().status == status
    note_batch(place, "accesslog", NOW_US // 1000 + 1)
    assert lists.answer_health().status == 200


def test_where_no_batch_ever_was_nobody_is_healthy(tmp_path: Path) -> None:
    place = make_database(tmp_path / "new.db")
    with EnforcementApi(place, Gate.of(), listen="127.0.0.1:0") as api:
        api.start()
        answer, body = ask(api, "/v1/health")
        assert (answer.status, json.loads(body)["last_batch_at"]) == (503, None)


def test_an_enforcer_that_asks_since_its_cursor_gets_what_changed(
    api: EnforcementApi, place: Place, clock: Clock
) -> None:
    decide(place, "192.0.2.1")
    cursor = json.loads(ask(api, "/v1/blocklist?since=0")[1])["cursor"]
    decide(place, "192.0.2.2", seconds=900)
    clock.now_us += 600 * SECOND_US
    told = json.loads(ask(api, f"/v1/blocklist?since={cursor}")[1])
    assert [each["network"] for each in told["added"]] == ["192.0.2.2"]
    assert told["removed"] == ["192.0.2.1"]
    assert told["complete"] is False
    assert told["cursor"] > cursor
    again = json.loads(ask(api, f"/v1/blocklist?since={told['cursor']}")[1])
    assert (again["added"], again["removed"]) == ([], [])


def test_a_decision_tells_the_lines_that_caused_it(api: EnforcementApi, place: Place) -> None:
    chosen = decide(place, "192.0.2.1", evidence=json.dumps([{"request": "GET /<script>\x1b[31m"}]))
    answer, body = ask(api, f"/v1/decisions/{chosen}")
    assert answer.status == 200
    told = json.loads(body)
    assert told["evidence"] == [{"request": "GET /<script>\x1b[31m"}]
    for name, moment in (("decided_at", NOW_US - 1), ("expires_at", NOW_US + 600 * SECOND_US)):
        assert (told[name], told[f"{name}_us"]) == (show_time(moment), moment)
    assert b"\x1b" not in body
    answer, body = ask(api, "/v1/decisions/no-such-id")
    assert (answer.status, json.loads(body)["error"]) == (404, "DECISION_NOT_FOUND")


def test_who_has_the_list_already_gets_304(api: EnforcementApi, place: Place) -> None:
    decide(place, "192.0.2.1")
    for target in ("/v1/blocklist", "/v1/blocklist.txt", "/v1/blocklist?since=0"):
        tag = ask(api, target)[0].getheader("ETag")
        assert tag is not None
        for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            answer, body = ask(api, target, If_None_Match=known)
            assert (answer.status, body, answer.getheader("ETag")) == (304, b"", tag)
        assert ask(api, target, If_None_Match='"other"')[0].status == 200
    decide(place, "192.0.2.2")
    assert ask(api, "/v1/blocklist.txt", If_None_Match=tag)[0].status == 200


def test_head_has_the_headers_of_get_and_no_body(api: EnforcementApi, place: Place) -> None:
    decide(place, "192.0.2.1")
    got, body = ask(api, "/v1/blocklist")
    head, nothing = ask(api, "/v1/blocklist", method="HEAD")
    assert nothing == b""
    for name in ("Content-Length", "ETag", "Content-Type"):
        assert head.getheader(name) == got.getheader(name)
    assert int(got.getheader("Content-Length") or 0) == len(body)


def test_a_database_that_is_away_is_told_as_503_without_its_place(
    api: EnforcementApi, tmp_path: Path
) -> None:
    (tmp_path / "results.db").unlink()
    answer, body = ask(api, "/v1/blocklist")
    assert (answer.status, json.loads(body)["error"]) == (503, "DATABASE_NOT_FOUND")
    assert str(tmp_path).encode() not in body


# --- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"])
def test_every_method_but_get_and_head_is_refused(api: EnforcementApi, method: str) -> None:
    """Nothing can be changed here, so only read requests are answered."""
    answer, body = ask(api, "/v1/blocklist", method=method, body=b"x" * 1000)
    assert (answer.status, answer.getheader("Allow")) == (405, "GET, HEAD")
    assert json.loads(body)["error"] == "METHOD_NOT_ALLOWED"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8477", "127.0.0.1.evil.example", "localhost.evil.example", "127.0.0.2", "",
     "localhost:x", "localhost@evil.example", "[::2]", "localhost evil"],
)  # fmt: skip
def test_a_foreign_host_is_refused(api: EnforcementApi, host: str) -> None:
    """A page in a browser can reach this port only under a name that is not ours."""
    answer, body = ask(api, "/v1/blocklist", Host=host)
    assert (answer.status, json.loads(body)["error"]) == (403, "HOST_NOT_ALLOWED")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8477", "127.0.0.1", "127.0.0.1:1", "[::1]:8477"])
def test_our_own_names_are_taken_with_any_port(api: EnforcementApi, host: str) -> None:
    assert ask(api, "/v1/health", Host=host)[0].status == 200


def test_no_host_and_two_hosts_are_refused(api: EnforcementApi) -> None:
    for hosts in (b"", b"Host: localhost\r\nHost: evil.example\r\n"):
        assert read_status(ask_raw(api, b"GET /v1/health HTTP/1.1\r\n" + hosts + b"\r\n")) == 403


def test_with_a_token_nobody_is_answered_without_it(place: Place) -> None:
    """Neither the list nor the health, nor whether a path exists."""
    with EnforcementApi(place, Gate.of(), listen="127.0.0.1:0", token=TOKEN, requests_per_s=10_000) as api:
        api.start()
        wrong = [
            "",
            TOKEN,
            f"Basic {TOKEN}",
            "Bearer",
            f"Bearer {TOKEN[:-1]}",
            f"Bearer {TOKEN}x",
            "Bearer \xff",
        ]
        for target in ("/v1/blocklist", "/v1/health", "/v1/decisions/x", "/nothing"):
            for given in wrong:
                answer, body = ask(api, target, Authorization=given)
                assert (answer.status, answer.getheader("WWW-Authenticate")) == (401, "Bearer")
                assert TOKEN.encode() not in body
        assert ask(api, "/v1/blocklist")[0].status == 401
        assert ask(api, "/v1/blocklist", Authorization=f"Bearer {TOKEN}")[0].status == 200


def test_tokens_are_compared_in_constant_time() -> None:
    """Their digests are compared, with the function made for that."""
    from penstock.apps.accesslog.blocking.enforcement_guards import TokenCheck

    assert "compare_digest" in TokenCheck.admits.__code__.co_names


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"])
def test_an_address_that_others_can_reach_needs_a_token(place: Place, listen: str) -> None:
    """It is refused before the server listens."""
    with pytest.raises(OptionError, match="TOKEN_NEEDED"):
        EnforcementApi(place, Gate.of(), listen=listen, hosts=["block.example"])


def test_who_listens_everywhere_must_say_its_names(place: Place) -> None:
    with pytest.raises(OptionError, match="HOST_NEEDED"):
        EnforcementApi(place, Gate.of(), listen="0.0.0.0:0", token=TOKEN)
    with EnforcementApi(place, Gate.of(), listen="0.0.0.0:0", token=TOKEN, hosts=["block.example"]) as api:
        api.start()
        answer, _ = ask(api, "/v1/health", Host="block.example", Authorization=f"Bearer {TOKEN}")
        assert answer.status == 200
        assert ask(api, "/v1/health", Authorization=f"Bearer {TOKEN}")[0].status == 403


@pytest.mark.parametrize(
    "weak",
    ["", "secret", "a" * 100, "0123456789abcdef0123456789abcde", "0123456789" * 3, "has blank" * 9, "ü" * 60],
)
def test_a_token_of_less_than_128_bits_is_refused_and_not_shown(weak: str) -> None:
    """A weak token protects nothing; the error does not repeat it."""
    with pytest.raises(OptionError, match="TOKEN_WEAK") as refused:
        check_token(weak)
    assert not weak or weak not in str(refused.value)


@pytest.mark.parametrize(
    "strong", [secrets.token_hex(16), secrets.token_urlsafe(22), secrets.token_hex(32), TOKEN + "\n"]
)
def test_a_token_of_128_bits_or_more_is_taken(strong: str) -> None:
    assert check_token(strong).reveal() == strong.strip()


@pytest.mark.parametrize(
    "listen", ["8477", "localhost", "example.com:80", "127.0.0.1:99999", "127.0.0.0/8:1", ":1"]
)
def test_an_address_to_listen_on_is_an_address(listen: str) -> None:
    with pytest.raises(OptionError, match="LISTEN_INVALID"):
        parse_listen(listen)


def test_what_is_too_large_is_refused_early(api: EnforcementApi) -> None:
    """A first line, headers by size, headers by number, and a body."""
    host = b"Host: localhost\r\n"
    line = b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n" + host + b"\r\n"
    assert read_status(ask_raw(api, line)) == 414
    assert read_status(ask_raw(api, b"GET /" + b"a" * 15_000 + b" HTTP/1.1\r\n" + host + b"\r\n")) == 414
    large = b"GET /v1/health HTTP/1.1\r\n" + host + b"X: " + b"a" * 60_000 + b"\r\n\r\n"
    assert read_status(ask_raw(api, large)) == 431
    many = b"GET /v1/health HTTP/1.1\r\n" + host + b"X: a\r\n" * 200 + b"\r\n"
    assert read_status(ask_raw(api, many)) == 431
    body = b"GET /v1/health HTTP/1.1\r\n" + host + b"Content-Length: 5\r\n\r\nhello"
    assert read_status(ask_raw(api, body)) == 413
    chunked = b"GET /v1/health HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert read_status(ask_raw(api, chunked)) == 413


def test_who_asks_too_often_is_told_to_wait(place: Place) -> None:
    """A little later the client may ask again."""
    with EnforcementApi(place, Gate.of(), listen="127.0.0.1:0", requests_per_s=0.01) as api:
        api.start()
        assert ask(api, "/v1/health")[0].status == 200
        answer, body = ask(api, "/v1/health")
        assert (answer.status, answer.getheader("Retry-After")) == (429, "1")
        assert json.loads(body)["error"] == "TOO_MANY_REQUESTS"


def test_a_rate_counts_each_address_and_forgets_the_silent() -> None:
    rate = RateLimit(2.0)
    assert [rate.admits("a", 0.0) for _ in range(5)] == [True] * 4 + [False]
    assert rate.admits("b", 0.0)
    assert [rate.admits("a", 1.0) for _ in range(3)] == [True, True, False]
    for number in range(5000):
        rate.admits(str(number), 1.0)
    assert len(rate._left) <= 1024


def test_slow_clients_hold_up_nobody_and_are_cut_off(
    api: EnforcementApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some clients fall silent, others send a byte now and then, without end."""
    monkeypatch.setattr(enforcement_api, "REQUEST_DEADLINE_S", 4.0)
    slow = [socket.create_connection(("127.0.0.1", api.port), timeout=20) for _ in range(20)]
    for each in slow:
        each.sendall(b"GET /v1/he")
    assert ask(api, "/v1/health")[0].status == 200
    for each in slow:
        each.setblocking(False)
        with pytest.raises(BlockingIOError):  # still waited for: the answer came before their end
            each.recv(1)
    open_ones = set(slow)
    deadline = time.monotonic() + 15
    while open_ones:
        assert time.monotonic() < deadline, "a client that drips is cut off"
        for each in list(open_ones):
            try:
                each.settimeout(0.01)
                if slow.index(each) % 2:
                    each.sendall(b"a")
                if each.recv(1) == b"":
                    open_ones.remove(each)
            except TimeoutError:
                continue
            except OSError:
                open_ones.remove(each)
    for each in slow:
        each.close()


def test_more_connections_than_there_is_room_for_are_closed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that are already connected are still answered."""
    monkeypatch.setattr(enforcement_api, "MOST_CONNECTIONS", 3)
    with EnforcementApi(place, Gate.of(), listen="127.0.0.1:0") as api:
        api.start()
        held = [socket.create_connection(("127.0.0.1", api.port), timeout=20) for _ in range(3)]
        turned_away = socket.create_connection(("127.0.0.1", api.port), timeout=20)
        assert turned_away.recv(1) == b""
        held[0].sendall(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert held[0].recv(12) == b"HTTP/1.1 200"
        for each in (*held, turned_away):
            each.close()


@pytest.mark.parametrize(
    "target",
    ["/", "/v1", "/v1/", "/v1/blocklist/", "/v1/decisions", "/v1/decisions/", "/v1/../v1/health",
     "/v1/decisions/../health", "/v1/decisions/%2e%2e", "/v1/decisions/a/b", "/etc/passwd",
     "/v1/blocklist.json", "/v1/decisions/" + "a" * 129, "/v1/decisions/%00", "/v1/blocklist.txt%00.html"],
)  # fmt: skip
def test_there_is_nothing_else_to_be_found(api: EnforcementApi, target: str) -> None:
    """There are no listings, no files, and no other paths to the same place."""
    answer, body = ask(api, target)
    assert (answer.status, json.loads(body)["error"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    "query", ["since=", "since=-1", "since=1&since=2", "since=1;x", "x=1", "since=" + "9" * 30, "since=1e3"]
)
def test_a_question_that_is_none_is_refused(api: EnforcementApi, query: str) -> None:
    answer, body = ask(api, f"/v1/blocklist?{query}")
    assert (answer.status, json.loads(body)["error"]) == (400, "QUERY_INVALID")
    assert ask(api, f"/v1/health?{query}")[0].status == 400


def test_no_answer_repeats_the_question(api: EnforcementApi) -> None:
    """Whatever the path, the query or the first line holds, no answer repeats any of it."""
    secret = b"zq7<script>zq7"
    for text in HOSTILE:
        words = text.encode("utf-8", "replace")[:600].replace(b"\n", b"").replace(b"\r", b"")
        for start in (b"GET /", b"GET /v1/decisions/", b"GET /v1/blocklist?since=", b""):
            request = start + secret + words + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
            received = ask_raw(api, request)
            assert read_status(received) >= 400
            assert b"zq7" not in received
            head, _, body = received.partition(b"\r\n\r\n")
            assert b"X-Content-Type-Options: nosniff" in head
            assert set(json.loads(body)) == {"error", "what"}


def test_every_answer_tells_browsers_to_keep_their_hands_off(api: EnforcementApi) -> None:
    """The headers forbid sniffing, frames, scripts and caching."""
    for target in ("/v1/health", "/nothing"):
        answer, _ = ask(api, target)
        assert answer.getheader("X-Content-Type-Options") == "nosniff"
        assert answer.getheader("X-Frame-Options") == "DENY"
        assert "default-src 'none'" in (answer.getheader("Content-Security-Policy") or "")
        assert answer.getheader("Server") is None
        assert answer.getheader("Connection") == "close"


def test_a_port_that_is_taken_is_told(place: Place, api: EnforcementApi) -> None:
    with pytest.raises(OptionError, match="LISTEN_FAILED"):
        EnforcementApi(place, Gate.of(), listen=f"127.0.0.1:{api.port}")


def test_host_names_are_compared_without_case() -> None:
    names = HostNames(["Block.Example", "2001:db8::1"])
    assert names.know("block.example:1")
    assert names.know("[2001:db8::1]")
    assert not names.know("2001:db8::1")
