"""Whether an error may be temporary is known wherever it arrives: as itself, as a cause, as a traceback."""

from __future__ import annotations

import pickle
import traceback

import pytest

from penstock.core.errors import BrokerError, DataLossError, PenstockError, find_verdict

FINAL = DataLossError("OFFSET_MISSING", "It is gone.", hint="Look.")
PASSING = BrokerError("BROKER_TIMEOUT", "It was silent.\nSo it was.", hint="Wait.", retriable=True)


def wrap_as_spark_does(error: BaseException) -> Exception:
    """Return all that is left of an error in a task: a text in the middle of another."""
    told = "".join(traceback.format_exception(error))
    return RuntimeError(f"Job aborted: Task 0 failed 1 times: PythonException: {told}\n\tat org.apache.Spark")


def chain(outer: BaseException, cause: BaseException) -> BaseException:
    outer.__cause__ = cause
    return outer


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (FINAL, False),
        (PASSING, True),
        (pickle.loads(pickle.dumps(PASSING)), True),
        (ValueError("of the user's"), None),
        (wrap_as_spark_does(ValueError("of the user's")), None),
        (wrap_as_spark_does(FINAL), False),
        (wrap_as_spark_does(PASSING), True),
        (chain(ValueError("it failed"), FINAL), False),
        (chain(ValueError("it failed"), wrap_as_spark_does(PASSING)), True),
    ],
)
def test_an_error_of_ours_is_found_in_what_it_was_wrapped_in(
    error: BaseException, verdict: bool | None
) -> None:
    assert find_verdict(error) is verdict


@pytest.mark.parametrize("is_text", [False, True])
def test_the_outermost_of_several_decides(is_text: bool) -> None:
    """The wrapping code knew more: a lock timeout may be temporary, the batch that it fenced is not."""
    for kind, inner, outer in ((BrokerError, True, False), (DataLossError, False, True)):
        error: BaseException = kind("OUTER_ERROR", "It broke.", retriable=outer)
        error.__cause__ = PenstockError("INNER_ERROR", "It broke.", retriable=inner)
        assert find_verdict(wrap_as_spark_does(error) if is_text else error) is outer
