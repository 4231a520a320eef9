"""Time: one unit inside, one rule for being alive."""

from __future__ import annotations

import math

import pytest

from whimbrel.errors import InvalidValueError
from whimbrel.model.clock import (
    Clock,
    SystemClock,
    format_time,
    is_alive,
    microseconds,
    parse_time,
    seconds,
)
from whimbrel.testing import ManualClock


@pytest.mark.parametrize(("expires_at", "alive"), [(101, True), (100, False), (99, False), (None, True)])
def test_alive_is_strictly_before_the_end(expires_at: int | None, *, alive: bool) -> None:
    """TTLs, deadlines, tokens and caches all mean the same instant."""
    assert is_alive(expires_at, now=100) is alive


def test_seconds_exist_only_at_the_edge() -> None:
    """A tenth of a second is exactly 100,000 microseconds, whatever floats think."""
    assert [microseconds(0.1), microseconds(3), seconds(250_000)] == [100_000, 3_000_000, 0.25]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, pytest.param(10**5000, id="huge")])
def test_seconds_that_are_no_time_are_refused(value: float) -> None:
    """They come from user properties."""
    with pytest.raises(InvalidValueError, match="fit 64 bits"):
        microseconds(value)


def test_times_print_and_parse() -> None:
    """Six decimals always, so that texts sort as times do."""
    assert format_time(0) == "1970-01-01T00:00:00.000000Z"
    assert format_time(-1) == "1969-12-31T23:59:59.999999Z"
    assert parse_time("1970-01-01T01:00:00.5+01:00") == 500_000


@pytest.mark.parametrize(
    "text", ["", "1970-01-01", "1970-01-01T00:00:00", "1970-13-01T00:00:00Z", "1970-01-01T00:00:00.1234567Z"]
)
def test_texts_that_are_no_time_are_refused(text: str) -> None:
    """A time without its zone is a guess, and the seventh decimal would be lost."""
    with pytest.raises(InvalidValueError, match="ISO 8601"):
        parse_time(text)


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 2**63])
def test_times_outside_the_calendar_do_not_print(value: int) -> None:
    """int64 reaches 292,000 years; ISO 8601 with four digits does not."""
    with pytest.raises(InvalidValueError, match="time"):
        format_time(value)


def test_a_manual_clock_moves_only_by_hand() -> None:
    """Time in a test is an argument."""
    clock = ManualClock(5)
    assert [clock.now(), clock.advance(10), clock.advance_s(0.5), clock.now()] == [5, 15, 500_015, 500_015]


def test_a_manual_clock_never_goes_back() -> None:
    """A test that needs that has its order wrong."""
    clock = ManualClock(5)
    with pytest.raises(InvalidValueError):
        clock.advance(-1)
    with pytest.raises(InvalidValueError, match="does not go back"):
        clock.move_to(4)


def test_both_clocks_are_clocks() -> None:
    """The shell takes either."""
    clocks: list[Clock] = [SystemClock(), ManualClock()]
    assert all(type(clock.now()) is int for clock in clocks)
