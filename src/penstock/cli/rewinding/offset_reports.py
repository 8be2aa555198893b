"""What `penstock offsets` prints: plans, positions and changes, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from penstock.cli.shared.moments import show_moment
from penstock.cli.shared.terminal import escape, say
from penstock.cli.shared.text_tables import align
from penstock.core.model import TopicPartition
from penstock.core.offsets.offset_store_contract import Change, OffsetStore
from penstock.core.offsets.rewinds import RewindPlan, plan_replacement
from penstock.core.offsets.stream_position import StreamPosition, write_position
from penstock.core.prose import shorten

JSON_VERSION = 1


def say_json(**content: object) -> None:
    say(json.dumps({"version": JSON_VERSION, **content}, indent=1))


def say_position(
    position: StreamPosition, ends: Mapping[TopicPartition, int], changes: Sequence[Change]
) -> None:
    rows = [
        (each.topic, f"{each.partition}", f"{at}", *_show_lag(at, ends.get(each)))
        for each, at in sorted(position.offsets.items())
    ]
    for line in align(("topic", "partition", "next offset", "log end", "lag"), rows, right={1, 2, 3, 4}):
        say(line)
    for each, at in sorted(position.gone.items()):
        say(f"{escape(str(each))} is gone; the stream stood at {at}.")
    for change in changes:
        plan = plan_replacement(change.before, change.after)
        moved = "; ".join(str(each) for each in plan.moves if each.before != each.after) or "no offset"
        say(f"{show_moment(change.at_ms)} {escape(change.who)}: {escape(change.verb)} {escape(moved)}")


def _show_lag(at: int, end: int | None) -> tuple[str, str]:
    if end is None:
        return "-", "-"
    return f"{end}", "beyond the end" if at > end else f"{end - at}"


def find_beyond(position: StreamPosition, ends: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """Return the partitions in which the stream is beyond the end of the log, which no lag shows."""
    return [each for each, at in sorted(position.offsets.items()) if at > ends.get(each, at)]


def tell_beyond(position: StreamPosition, ends: Mapping[TopicPartition, int]) -> str:
    """Return the sentence about such partitions."""
    beyond = find_beyond(position, ends)
    named = [f"{each} at {position.offsets[each]} of {ends[each]}" for each in beyond]
    return (
        f"The stream stands beyond the end of the log: {shorten(named, 5)}. Records were cut off (unclean "
        "election), or the position is of another topic or cluster; it would read nothing. Look at what was "
        "written, then `penstock offsets rewind`."
    )


def say_plan(
    verb: str,
    store: OffsetStore,
    stream: str,
    plan: RewindPlan,
    notes: Sequence[str],
    is_done: bool,
    is_empty: bool,
) -> None:
    rows = [
        (str(each.partition), *("-" if n is None else f"{n}" for n in (each.before, each.after)), each.note)
        for each in plan.moves
    ]
    for line in align(("partition", "stands at", "goes to", ""), rows, right={1, 2}):
        say(line)
    for note in notes:
        say(escape(note))
    if is_done:
        say(f"Done: {escape(stream)} in {escape(str(store))}.")
    elif is_empty:
        say("Nothing to change.")
    else:
        say("Nothing was changed." + ("" if verb == "plan" else " Say --yes to do it."))


def plan_to_json(plan: RewindPlan) -> dict[str, object]:
    return {
        "moves": [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "before": each.before,
                "after": each.after,
                "note": each.note,
            }
            for each in plan.moves
        ],
        "before": None if plan.before is None else write_position(plan.before),
        "after": write_position(plan.after),
    }


def change_to_json(change: Change) -> dict[str, object]:
    return {
        "at_ms": change.at_ms,
        "who": change.who,
        "verb": change.verb,
        "before": None if change.before is None else write_position(change.before),
        "after": write_position(change.after),
    }
