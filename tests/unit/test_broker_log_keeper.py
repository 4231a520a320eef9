"""The pace of the log keeper: it rests while it works, and neither sleeps for what it idled nor keeps a broker up."""

from __future__ import annotations

import pytest

from whimbrel.broker.shell.disk.log_truncator import DutyCycle, Stopped


class _Time:
    """A clock that is moved by hand, and what was slept."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def pace(self) -> DutyCycle:
        """Return a pace of this time."""
        return DutyCycle(sleep=self.slept.append, clock=lambda: self.now)


def test_it_rests_twice_as_long_as_it_worked() -> None:
    """So the event loop has the interpreter most of the time."""
    time = _Time()
    pace = time.pace()
    pace.begin()
    time.now += 0.001
    pace()
    assert not time.slept
    time.now += 0.009
    pace()
    assert time.slept == [pytest.approx(0.02)]


def test_what_it_idled_was_no_work() -> None:
    """A checkpoint that is made after an hour must not rest for two."""
    time = _Time()
    pace = time.pace()
    time.now += 3_600
    pace.begin()
    pace()
    assert not time.slept


def test_a_piece_that_took_long_is_followed_by_a_rest_of_a_second() -> None:
    """A disk that hung for a minute is no reason to wait two more."""
    time = _Time()
    pace = time.pace()
    pace.begin()
    time.now += 60
    pace()
    assert time.slept == [1.0]


def test_a_broker_that_stops_does_not_wait_for_the_rest() -> None:
    """The rest ends at once, and then the work."""
    pace = DutyCycle(clock=lambda: 0.0)
    pace.stop()
    with pytest.raises(Stopped):
        pace()
