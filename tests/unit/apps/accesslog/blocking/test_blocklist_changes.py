"""Cursors: all changes from the start, applied in order, give the list, whatever happened in between."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.apps.accesslog.blocking import blocklist_changes
from penstock.apps.accesslog.blocking.blocklist_changes import Delta, advance, read_next_end
from penstock.apps.accesslog.blocking.blocklists import Gate
from penstock.apps.accesslog.stream.operator_orders import place_order
from penstock.core.options.storage_addresses import Place
from tests.support.accesslog.decisions_database import NOW_US, SECOND_US, decide, make_database

NOTHING = Gate()


def shown(delta: Delta) -> tuple[list[str], list[str], bool]:
    return [str(ban.network) for ban in delta.added], list(map(str, delta.removed)), delta.is_complete


class Enforcer:
    """An enforcer that asks now and then, and does what the answer says."""

    def __init__(self, gate: Gate) -> None:
        self.gate, self.cursor = gate, 0
        self.blocked: dict[str, int] = {}

    def ask(self, place: Place, now_us: int) -> None:
        listed = advance(place, now_us=now_us)
        delta = listed.since(self.cursor, self.gate)
        if delta.is_complete:
            self.blocked.clear()
        self.blocked |= {str(ban.network): ban.expires_at_us for ban in delta.added}
        for network in delta.removed:
            del self.blocked[str(network)]
        assert delta.cursor >= self.cursor
        self.cursor = delta.cursor
        assert self.blocked == {str(ban.network): ban.expires_at_us for ban in self.gate.apply(listed.bans)}


SUBJECTS = ["192.0.2.1", "192.0.2.2", "192.0.2.0/30", "192.0.2.0/24", "2001:db8::1", "2001:db8::/64", "evil"]
steps = st.one_of(
    st.tuples(st.just("decide"), st.sampled_from(SUBJECTS), st.integers(1, 40)),
    st.tuples(st.just("simulate"), st.sampled_from(SUBJECTS), st.integers(1, 40)),
    st.tuples(st.just("unban"), st.sampled_from(SUBJECTS[:-1]), st.integers(0, 10)),
    st.tuples(st.just("wait"), st.none(), st.integers(1, 30)),
)


@given(
    st.lists(st.tuples(steps, st.sets(st.integers(0, 2))), max_size=14),
    st.lists(st.sampled_from(["192.0.2.1", "192.0.2.0/31", "2001:db8::/127"]), max_size=2),
)
def test_all_deltas_applied_in_order_are_the_full_list_at_every_step(
    history: list[tuple[tuple[str, Any, int], set[int]]], allow: list[str]
) -> None:
    """One enforcer asks at each step, others miss some steps, and one of them allows more than the others."""
    gate = Gate.of(allow=allow)
    enforcers = [Enforcer(gate), Enforcer(NOTHING), Enforcer(gate)]
    now_us = NOW_US
    with tempfile.TemporaryDirectory() as folder:
        place = make_database(Path(folder) / "results.db")
        for number, ((what, subject, amount), asking) in enumerate(history):
            if what == "wait":
                now_us += amount * SECOND_US
            elif what == "unban":
                place_order(place, subject, now_us=now_us, grace_us=amount * SECOND_US)
            else:
                decide(
                    place,
                    subject,
                    decision_id=f"d{number}",
                    decided_at=now_us,
                    action="block" if what == "decide" else "simulate",
                    expires_at=now_us + amount * SECOND_US,
                )
            for each in asking:
                enforcers[each].ask(place, now_us)
        for enforcer in enforcers:
            enforcer.ask(place, now_us)


def test_a_step_without_a_change_has_no_new_cursor(place: Place) -> None:
    decide(place, "192.0.2.1")
    first = advance(place, now_us=NOW_US)
    again = advance(place, now_us=NOW_US + SECOND_US)
    assert again == first
    assert shown(again.since(first.cursor, NOTHING)) == ([], [], False)


def test_a_ban_that_ends_is_a_change_though_nobody_decided_anything(place: Place) -> None:
    decide(place, "192.0.2.1")
    decide(place, "192.0.2.2", seconds=900)
    first = advance(place, now_us=NOW_US)
    assert read_next_end(first) == NOW_US + 600 * SECOND_US
    later = advance(place, now_us=NOW_US + 600 * SECOND_US)
    assert later.cursor > first.cursor
    assert shown(later.since(first.cursor, NOTHING)) == ([], ["192.0.2.1"], False)


def test_a_ban_that_is_prolonged_is_told_again_with_its_new_end(place: Place) -> None:
    decide(place, "192.0.2.1")
    first = advance(place, now_us=NOW_US)
    decide(place, "192.0.2.1", seconds=1200)
    delta = advance(place, now_us=NOW_US).since(first.cursor, NOTHING)
    assert [(str(ban.network), ban.expires_at_us) for ban in delta.added] == [
        ("192.0.2.1", NOW_US + 1200 * SECOND_US)
    ]
    assert delta.removed == ()


def test_a_cursor_that_nobody_knows_gets_the_whole_list(place: Place) -> None:
    decide(place, "192.0.2.1")
    listed = advance(place, now_us=NOW_US)
    for cursor in (0, 1, listed.cursor - 2, listed.cursor + 1, 10**18):
        assert shown(listed.since(cursor, NOTHING)) == (["192.0.2.1"], [], True)


def test_a_database_made_anew_never_answers_an_old_cursor_with_a_part(tmp_path: Path) -> None:
    """The new database's cursors begin after all those that the old one gave out."""
    old = make_database(tmp_path / "old.db")
    for number in range(5):
        decide(old, f"192.0.2.{number}")
        last = advance(old, now_us=NOW_US + number)
    new = make_database(tmp_path / "new.db")
    decide(new, "203.0.113.1")
    listed = advance(new, now_us=NOW_US + SECOND_US)
    assert shown(listed.since(last.cursor, NOTHING)) == (["203.0.113.1"], [], True)


def test_old_changes_go_and_who_was_away_that_long_gets_everything(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocklist_changes, "KEPT_CHANGES", 6)
    cursors = []
    for number in range(12):
        decide(place, f"192.0.2.{number}")
        cursors.append(advance(place, now_us=NOW_US).cursor)
    listed = advance(place, now_us=NOW_US)
    answers = [shown(listed.since(cursor, NOTHING)) for cursor in cursors]
    known = [not is_complete for _, _, is_complete in answers]
    assert known == sorted(known), "from some cursor on all are known"
    assert known[0] is False
    assert known[-2] is True
    for number, (added, _, is_complete) in enumerate(answers):
        assert len(added) == (12 if is_complete else 11 - number)


def test_a_reader_that_waited_for_nobody_writes_nothing(place: Place, tmp_path: Path) -> None:
    decide(place, "192.0.2.1")
    advance(place, now_us=NOW_US)
    before = (tmp_path / "results.db").read_bytes()
    advance(place, now_us=NOW_US + 1)
    assert (tmp_path / "results.db").read_bytes() == before
