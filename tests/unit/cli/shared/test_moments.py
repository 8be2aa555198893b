"""Times as people write them: a duration ago, or a point in time."""

from __future__ import annotations

import pytest

from penstock.cli.shared.moments import find_moment

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("10m", NOW_MS - 600_000),
        ("-10m", NOW_MS - 600_000),
        (" -2H", NOW_MS - 7_200_000),
        ("2026-01-31T12:00:00Z", 1_769_860_800_000),
        ("1769860800000", 1_769_860_800_000),
    ],
)
def test_a_moment_is_so_long_ago_or_a_time(text: str, time_ms: int) -> None:
    assert find_moment(text, now_ms=NOW_MS) == time_ms


@pytest.mark.parametrize(
    "text", ["+10m", "10 m", "- 10m", "-10 m", "10min", "-1", "-10", "noon", "", "m", "--10m"]
)
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a length of time ago") as refused:
        find_moment(text, now_ms=NOW_MS)
    assert ("`-10m`" in str(refused.value)) == (
        text.replace(" ", "").lstrip("+-") == "10m" and text != "--10m"
    )


def test_a_bare_number_that_may_be_meant_as_minutes_is_no_moment() -> None:
    """Read as milliseconds since 1970, it would select the whole topic."""
    with pytest.raises(ValueError, match="write 60s, 60m, 60h or 60d"):
        find_moment("60", now_ms=NOW_MS)
