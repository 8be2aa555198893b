"""Show what was decided, about whom and why.

penstock accesslog decisions results.db
penstock accesslog decisions results.db --client 192.0.2.7
penstock accesslog decisions results.db --explain 5f0c9a1e
penstock accesslog decisions results.db --to-topic decisions --follow

--client also shows the decisions about the networks that the client is in. The column `about` tells them
apart: a row about `a neighbour` does not block the client itself. --explain shows the log lines that caused a
decision; they are a stranger's text, so control characters are shown and not obeyed. --to-topic sends what
the topic does not have yet, each decision at least once, with its id as the key. --follow goes on until
Ctrl-C, and exits with 1 if some decisions could not be sent. The next start sends them.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from penstock.apps.accesslog.blocking.blocklist_formats import show_time
from penstock.apps.accesslog.blocking.blocklists import can_be_listed, demand_decisions
from penstock.apps.accesslog.blocking.decision_records import (
    MOMENTS,
    Decision,
    describe_line,
    read_decision,
    read_decisions,
    relate,
    show_moments,
)
from penstock.apps.accesslog.stream.table_names import DECISIONS
from penstock.cli.accesslog.database_arguments import (
    add_database_argument,
    add_limit_argument,
    describe_unlisted,
    find_database,
)
from penstock.cli.accesslog.run_outputs import TOPIC_PATIENCE_MS
from penstock.cli.shared.kafka_arguments import add_connection_arguments, connect
from penstock.cli.shared.moments import parse_moment
from penstock.cli.shared.stop_signals import hearing_signals
from penstock.cli.shared.terminal import complain, complain_dated, count, escape, say
from penstock.cli.shared.text_tables import align
from penstock.core.errors import OptionError, PenstockError
from penstock.core.loggers import in_stream
from penstock.stores.sql.connections.sql_sessions import Database, Session

if TYPE_CHECKING:
    from penstock.apps.accesslog.blocking.decisions_topic import DecisionsTopic

JSON_VERSION = 2
_FOLLOW_EVERY_S = 1.0
#: The beginning of an id, or all of it: no character has a meaning in a LIKE pattern.
_BEGINNING = re.compile(r"[A-Za-z0-9.:-]{4,128}")
_TABLE = ("decided_at", "action", "class", "rule", "subject", "expires_at", "request_index", "decision_id")
_DETAILS = (
    *("subject", "kind", "client", "action", "class", "rule", "score", "decided_at", "expires_at"),
    *("ban_seconds", "level", "server", "partition", "offset", "request_index"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_database_argument(parser)
    parser.add_argument("--client", metavar="X", default=None, help="an address, a network or a host name")
    parser.add_argument(
        "--explain", metavar="ID", default=None, help="a decision and its log lines; the id may be shortened"
    )
    parser.add_argument(
        "--since", type=parse_moment, default=0, metavar="WHEN", help="1h, 2d, or 2026-01-31T12:00:00Z"
    )
    add_limit_argument(parser)
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")
    parser.add_argument("--to-topic", metavar="TOPIC", default=None, help="send decisions not sent there yet")
    parser.add_argument("--follow", action="store_true", help="go on sending until Ctrl-C")
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.to_topic is not None or arguments.follow:
        return _send(arguments)
    database = Database(find_database(arguments))
    if arguments.explain is not None:
        found = database.run(lambda session: _find(session, arguments.explain))
        if arguments.json:
            say(json.dumps({"version": JSON_VERSION, "decision": show_moments(found)}, indent=1))
        else:
            for line in _explain(found):
                say(line)
        return 0
    decisions = database.run(
        lambda session: read_decisions(
            session, client=arguments.client, since_us=arguments.since * 1000, limit=arguments.limit + 1
        )
    )
    has_more = len(decisions) > arguments.limit
    decisions = decisions[: arguments.limit]
    if arguments.json:
        shown = [show_moments(each) for each in decisions]
        if arguments.client is not None:
            shown = [{**each, "about": relate(each, arguments.client)} for each in shown]
        told = {"version": JSON_VERSION, "decisions": shown, "has_more": has_more}
        say(json.dumps(told, indent=1))
    elif not decisions:
        say("No decisions.")
    else:
        for line in _write_table(decisions, arguments.client):
            say(line)
        for note in _list_notes(decisions, arguments.client):
            complain(note)
        if has_more:
            complain(f"The latest {len(decisions)} are shown and there are more: --limit, --since, --client.")
    return 0


def _find(session: Session, given: str) -> Decision:
    """Return the decision with this id, or the only one whose id begins with it."""
    found = read_decision(session, given)
    if found is None and _BEGINNING.fullmatch(given):
        name, mark = session.grammar.name, session.grammar.mark
        rows = session.execute(
            f"SELECT {name('decision_id')} FROM {name(DECISIONS)} WHERE {name('decision_id')} LIKE {mark} "
            "LIMIT 2",
            [f"{given}%"],
        )
        if len(rows) > 1:
            raise OptionError(
                "DECISION_AMBIGUOUS", f"Several decisions begin with {given!r}.", hint="Give more of the id."
            )
        found = read_decision(session, str(rows[0][0])) if rows else None
    if found is None:
        raise OptionError(
            "DECISION_NOT_FOUND",
            f"There is no decision {given[:130]!r}.",
            hint="Take an id, or four letters of its beginning, from `penstock accesslog decisions`.",
        )
    return found


def _write_table(decisions: Sequence[Decision], asked: str | None) -> Iterator[str]:
    """Yield the rows; if a client was asked for, each says whether it is about that client."""
    rows = [[_show(each, column) for column in _name_columns(each)] for each in decisions]
    head = ["decided", "action", "class", "rule", "who", "until", "request", "id"]
    if asked is not None:
        head.insert(5, "about")
        for row, each in zip(rows, decisions, strict=True):
            row.insert(5, relate(each, asked))
    yield from align(head, rows, right={head.index("request")})


def _list_notes(decisions: Sequence[Decision], asked: str | None) -> Iterator[str]:
    """Yield notes on what a reader of the table could misunderstand."""
    related = [] if asked is None else [relate(each, asked) for each in decisions]
    if strange := related.count("a neighbour"):
        rows = "row is" if strange == 1 else "rows are"
        yield (
            f"{strange} {rows} about other clients that were counted together with {asked}; `--explain` "
            "names them. Such a row does not block it."
        )
    if related and not {"itself", "inside it"} & set(related):
        yield f"No decision is about {asked} itself."
    blocked = dict.fromkeys(str(each["client"] or "") for each in decisions if each["action"] == "block")
    if unlisted := [each for each in blocked if not can_be_listed(each)]:
        yield describe_unlisted(unlisted)


def _name_columns(decision: Decision) -> tuple[str, ...]:
    """Return the columns to show: not a fingerprint, which says little, but the client, which is blocked."""
    if decision["kind"] != "print":
        return _TABLE
    return tuple("client" if each == "subject" else each for each in _TABLE)


def _send(arguments: argparse.Namespace) -> int:
    if arguments.to_topic is None:
        raise OptionError("TOPIC_MISSING", "There is nothing to follow.", hint="Add --to-topic TOPIC.")
    from penstock.apps.accesslog.blocking.decisions_topic import DecisionsTopic

    place = find_database(arguments)
    Database(place).run(demand_decisions)  # reports a wrong place before anything is created there
    # --follow retries on its own, so a single attempt need not wait long, and neither need the end.
    patience = {"patience_ms": TOPIC_PATIENCE_MS} if arguments.follow else {}
    with closing(DecisionsTopic(place, connect(arguments), arguments.to_topic, **patience)) as sender:
        following = _Following(sender)
        if arguments.follow:
            with in_stream(arguments.to_topic):
                following.run()
        else:
            following.send()
    if arguments.json:
        say(json.dumps({"version": JSON_VERSION, "topic": arguments.to_topic, "sent": following.sent}))
    else:
        say(f"{count(following.sent, 'decision')} sent to {escape(arguments.to_topic)}.")
    if following.is_behind:
        complain("Not all decisions were sent; the next start sends the rest.")
    return 1 if following.is_behind else 0


class _Following:
    """Sends new decisions until a signal. `is_behind`: the last attempt failed, or was interrupted."""

    def __init__(self, sender: DecisionsTopic) -> None:
        self.sent = 0
        self.is_behind = False
        self._sender = sender
        self._is_asked = False
        self._may_end_now = False
        self._told = ""

    def send(self) -> None:
        """Send what is new; errors are left to the caller."""
        self.sent += self._sender.send()

    def run(self) -> None:
        """Send until a signal.

        A signal ends this at once if nothing is being sent or if the last attempt failed, and so does a
        second signal. What was not acknowledged is not noted as sent, so nothing is lost.
        """
        with hearing_signals(self._hear):
            try:
                self.send()
                while not self._is_asked:
                    self._may_end_now = True
                    time.sleep(_FOLLOW_EVERY_S)
                    self._may_end_now = self.is_behind
                    self._try_to_send()
            except KeyboardInterrupt:
                self.is_behind = self.is_behind or not self._may_end_now

    def _try_to_send(self) -> None:
        try:
            self.send()
            self.is_behind = False
        except PenstockError as error:
            if not error.retriable:
                raise
            if str(error) != self._told:
                complain_dated(str(error))
            self._told, self.is_behind = str(error), True

    def _hear(self, _: int) -> None:
        if self._may_end_now or self._is_asked:
            raise KeyboardInterrupt
        self._is_asked = True


def _explain(decision: Decision) -> Iterator[str]:
    yield f"decision       {escape(str(decision['decision_id']))}"
    for column in _DETAILS:
        yield f"{column:<14} {escape(_show(decision, column))}"
    yield ""
    lines = decision["evidence"]
    yield "the lines that caused it:" if lines else "no lines were kept with it"
    for line in lines:
        if isinstance(line, dict):
            where = f"{line.get('partition', '?')}@{line.get('offset', '?')}"
            time_us = line.get("time")
            when = show_time(time_us) if isinstance(time_us, int) else "?"
            yield f"  {escape(where)}  {when}  {escape(describe_line(line))}"
        else:
            yield f"  {escape(str(line))}"


def _show(decision: Decision, column: str) -> str:
    value = decision[column]
    if value is None:
        return "-"
    if column in MOMENTS:
        return show_time(int(value)) if value else "-"
    return f"{value:.1f}" if isinstance(value, float) else str(value)
