"""What a stream asks its log at a trigger, and what follows from the answers, decided without any I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from penstock.core.model import TopicPartition, TopicView
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.planning.partition_selection import Selection, SelectPattern, SelectTopics
from penstock.core.planning.topic_pattern import TopicPattern
from penstock.core.streaming.log_changes import Course, StreamView
from penstock.core.streaming.log_questions import LogLook, StreamQuestions, find_questions, follow

ID = b"a" * 16
T0 = TopicPartition("t", 0)
T = SelectTopics(("t",))
AT_5 = StreamPosition({T0: 5}, {"t": ID}, {T0: 3})
OLD = (T0, 3, 4, ID)


def topic(epoch: int = 3) -> TopicView:
    return TopicView("t", (0,), ID, leader_epochs=(epoch,))


def survey(
    answer: Callable[[StreamQuestions], StreamView],
    position: StreamPosition = AT_5,
    selection: Selection = T,
    settled: Mapping[tuple[TopicPartition, int, int | None, bytes | None], int] | None = None,
) -> tuple[list[StreamQuestions], Course]:
    """Return all questions that were asked, without empty ones, and the course."""
    asked, known = list[StreamQuestions](), LogLook(selection, position, {}, settled or {})
    while True:
        questions = find_questions(known)
        if questions != StreamQuestions():
            asked.append(questions)
        step = follow(known, answer(questions))
        if isinstance(step, Course):
            return asked, step
        known = step


def see(end: int, *leaders: int) -> Callable[[StreamQuestions], StreamView]:
    """Return a log that has another leader at each look, ending with the last one."""
    left = list(leaders)

    def answer(asked: StreamQuestions) -> StreamView:
        if asked.topics != () or asked.again:
            return StreamView({"t": topic(left.pop(0) if len(left) > 1 else left[0])}, {})
        view = StreamView({}, dict.fromkeys(asked.latest, end))
        return replace(
            view, earliest=dict.fromkeys(asked.earliest, 0), epoch_ends=dict.fromkeys(asked.epochs, 5)
        )

    return answer


def test_an_idle_stream_asks_for_its_topics_and_their_ends_and_no_more() -> None:
    asked, course = survey(see(5, 3))
    assert asked == [StreamQuestions(topics=("t",)), StreamQuestions(latest=(T0,))]
    assert (course.begins, course.ends) == ({T0: 5}, {T0: 5})


def test_an_end_with_news_is_kept_with_the_leader_it_was_reported_under() -> None:
    """The leader changed after the ends were asked for, so they are asked for again under the new one."""
    asked, course = survey(see(9, 3, 4))
    assert asked == [
        StreamQuestions(topics=("t",)),
        StreamQuestions(latest=(T0,)),
        StreamQuestions(again=frozenset({"t"})),
        StreamQuestions(latest=(T0,)),
        StreamQuestions(again=frozenset({"t"})),
        StreamQuestions(epochs={T0: 3}, earliest=frozenset({T0})),
    ]
    assert (course.ends, course.leader_epochs, course.settled) == ({T0: 9}, {T0: 4}, {OLD: 5})


def test_leaders_that_never_stay_are_accepted_after_ten_looks() -> None:
    asked, course = survey(see(9, *range(3, 99)))
    assert [bool(each.latest) for each in asked].count(True) == 10
    assert course.leader_epochs == {T0: 12}


@pytest.mark.parametrize("end", [5, 9])
def test_where_an_old_epoch_ends_is_asked_once(end: int) -> None:
    asked, course = survey(see(end, 4), settled={OLD: 5, (T0, 1, 3, ID): 2})
    assert not any(each.epochs for each in asked)
    assert course.settled == {OLD: 5}, "and what nobody asks about any more is forgotten"


def test_a_pattern_asks_for_all_topics_and_for_no_ends_where_there_is_none() -> None:
    asked, course = survey(
        lambda _: StreamView({}, {}), StreamPosition({}), SelectPattern(TopicPattern("u.*"))
    )
    assert asked == [StreamQuestions(topics=None)]
    assert course.ends == {}
