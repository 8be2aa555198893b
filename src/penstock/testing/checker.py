"""A small model checker: it runs programs that are made of steps in every possible order.

A program is a generator that yields steps and is sent their answers. A world says what a step can do. The
checker walks through all interleavings of several programs and, at each step, through all outcomes that the
world allows (an answer, a failure, a crash). The world judges every state and every end.

Rule: a program is a function of its answers. So the state of a run is the world and each program's answers.
Different ways to the same state are explored once, which keeps the search small. Why not random runs: a
protocol breaks in the one unforeseen order, and a finished search has tried it.

    found = explore(World(), {"a": make_a, "b": make_b}, most_states=100_000)
    assert found.violations == []
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, cast

from penstock.core.errors import PenstockError

Program: TypeAlias = Callable[[], Generator[Any, Any, Any]]


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply that sends this value to the program."""

    value: Any = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A reply that raises this error in the program."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Restart:
    """A reply that kills the program here and starts it again."""


Reply: TypeAlias = Answer | Failure | Restart


@dataclass(frozen=True, slots=True)
class Ended:
    """A finished program: what it returned, or the error that ended it."""

    value: Any = None
    error: str = ""


class World(Protocol):
    """A state of the world around the programs. It is immutable and hashable: a step returns new worlds."""

    def perform(self, who: str, step: Any) -> Iterable[tuple[str, World, Reply]]:
        """Return all outcomes of this step: a word for the trace, the world after it, and the reply.

        If there is no outcome, the program has to wait for another program.
        """

    def end(self, who: str, ended: Ended) -> Iterable[tuple[str, World, bool]]:
        """Return what can follow a program's end: a word, the world after it, and whether it begins again."""

    def judge(self) -> str | None:
        """Return what is wrong with this state, or None."""

    def judge_end(self) -> str | None:
        """Return what is wrong with a state in which no program can go on, or None."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A fault, and the trace that led to it."""

    what: str
    trace: tuple[str, ...]


@dataclass(slots=True)
class Exploration:
    """The size of the search, and what it found."""

    states: int = 0
    ends: int = 0
    violations: list[Violation] = field(default_factory=list)


#: A program's answers so far; failures by type and arguments, which are all a protocol may look at.
_History: TypeAlias = tuple[Hashable, ...]
_Histories: TypeAlias = tuple[tuple[str, _History], ...]
_OVER = ("over",)


def explore(
    world: World, programs: Mapping[str, Program], *, most_states: int, most_violations: int = 1
) -> Exploration:
    """Walk through all states and return what was found. More than `most_states` is an error, because half a
    search proves nothing."""
    found = Exploration()
    known: dict[tuple[str, _History], Any] = {}

    def find_step(who: str, history: _History) -> Any:
        if (who, history) not in known:
            known[who, history] = _replay(programs[who], history)
        return known[who, history]

    first: tuple[World, _Histories] = (world, tuple((name, ()) for name in sorted(programs)))
    seen = {first}
    waiting: list[tuple[tuple[World, _Histories], tuple[str, ...]]] = [(first, ())]
    while waiting:
        (here, histories), trace = waiting.pop()
        found.states += 1
        if found.states > most_states:
            raise RuntimeError(f"more than {most_states} states: make the world smaller")
        wrong = here.judge()
        moved = False
        if wrong is None:
            for word, there, then in _list_moves(here, histories, find_step):
                moved = True
                if (there, then) not in seen:
                    seen.add((there, then))
                    waiting.append(((there, then), (*trace, word)))
            if not moved:
                found.ends += 1
                wrong = here.judge_end()
        if wrong is not None:
            found.violations.append(Violation(wrong, trace))
            if len(found.violations) >= most_violations:
                return found
    return found


def _list_moves(
    world: World,
    histories: _Histories,
    find_step: Callable[[str, _History], Any],
) -> Iterable[tuple[str, World, _Histories]]:
    for place, (who, history) in enumerate(histories):
        if history == _OVER:
            continue

        def become(new: _History, at: int = place, name: str = who) -> _Histories:
            return (*histories[:at], (name, new), *histories[at + 1 :])

        step = find_step(who, history)
        if isinstance(step, Ended):
            for word, there, again in world.end(who, step):
                yield f"{who}: {word}", there, become(() if again else _OVER)
            continue
        for word, there, reply in world.perform(who, step):
            match reply:
                case Answer(value):
                    after: _History = (*history, ("answer", _freeze(value)))
                case Failure(error):
                    after = (*history, ("failure", (type(error), error.args)))
                case Restart():
                    after = ()
            yield f"{who}: {step} {word}".rstrip(), there, become(after)


def _replay(program: Program, history: _History) -> Any:
    """Return the step that the program yields next, after these answers."""
    steps = program()
    try:
        step = next(steps)
        for entry in history:
            kind, value = cast(tuple[str, Any], entry)
            step = steps.throw(value[0](*value[1])) if kind == "failure" else steps.send(_thaw(value))
    except StopIteration as end:
        return Ended(value=end.value)
    except PenstockError as error:  # the world judges an error for users; a bug passes through
        return Ended(error=f"{type(error).__name__}: {error}")
    finally:
        steps.close()
    return step


@dataclass(frozen=True, slots=True)
class _Frozen:
    items: tuple[Any, ...]


def _freeze(value: Any) -> Hashable:
    return _Frozen(tuple(sorted(value.items()))) if isinstance(value, dict) else value


def _thaw(value: Any) -> Any:
    return dict(value.items) if isinstance(value, _Frozen) else value
