"""The log's clock and the heartbeat: time goes on whatever the machine's clock says; sessions live when in doubt."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from whimbrel.broker.shell.disk.heartbeat import Beat, Heartbeat, resumption
from whimbrel.broker.shell.log_clock import LogClock

S = 1_000_000
START = 1_700_000_000 * S
DAY = 86_400 * S


class Machine:
    """Two clocks, moved by hand."""

    def __init__(self, start: int = START) -> None:
        self.wall, self.monotonic = START, 5 * S
        self.told: list[str] = []
        self.clock = LogClock(
            start,
            wall=lambda: self.wall,
            monotonic_ns=lambda: self.monotonic * 1_000,
            say=lambda event, _: self.told.append(event),
        )

    def passes(self, seconds: float, *, ticks: int = 1) -> None:
        """Let time pass, in so many ticks."""
        for _ in range(ticks):
            self.wall += int(seconds * S / ticks)
            self.monotonic += int(seconds * S / ticks)
            self.clock.adjust()


def test_it_is_the_machines_time_where_nothing_is_wrong() -> None:
    """UTC is what people and other machines compare it with."""
    machine = Machine()
    machine.passes(100, ticks=400)
    assert machine.clock.now() == machine.wall
    assert machine.told == []


def test_a_small_step_ahead_is_followed_at_once() -> None:
    """NTP corrects by seconds, and is right."""
    machine = Machine()
    machine.wall += 30 * S
    machine.passes(0.25)
    assert machine.clock.now() == machine.wall


def test_a_large_step_ahead_is_believed_after_a_minute() -> None:
    """A wrong clock for a moment must not get into the log; one that stays is the time."""
    machine = Machine()
    machine.wall += 3 * DAY
    machine.passes(59, ticks=236)
    assert machine.clock.now() == machine.wall - 3 * DAY
    machine.passes(2, ticks=8)
    assert machine.clock.now() == machine.wall
    assert len(machine.told) == 2


def test_a_large_step_ahead_that_is_taken_back_was_never_there() -> None:
    """Neither then nor afterwards."""
    machine = Machine()
    machine.wall += 3 * DAY
    machine.passes(30, ticks=120)
    machine.wall -= 3 * DAY
    machine.passes(120, ticks=480)
    assert machine.clock.now() == machine.wall


def test_a_log_that_is_days_ahead_goes_on_a_tenth_slower() -> None:
    """Standing still would keep everything alive for days; going back would bring to life what was over."""
    machine = Machine(START + 3 * DAY)
    before = machine.clock.now()
    machine.passes(100, ticks=400)
    assert machine.clock.now() - before == 90 * S
    assert len(machine.told) == 1


def test_a_small_step_back_is_caught_up_with() -> None:
    """Two seconds ahead are twenty seconds of going slower, and then both agree."""
    machine = Machine()
    machine.wall -= 2 * S
    machine.passes(21, ticks=84)
    assert machine.clock.now() == machine.wall
    assert machine.told == []


@given(
    steps=st.lists(
        st.tuples(st.integers(-7 * DAY, 7 * DAY), st.floats(0, 100), st.integers(1, 5)), min_size=1, max_size=20
    )
)
def test_facts_never_go_back_and_time_never_stands_still(steps: list[tuple[int, float, int]]) -> None:
    """Whatever is done to the machine's clock: of each second at least nine tenths pass, seen from tick to tick."""
    machine = Machine()
    for step, seconds, ticks in steps:
        machine.wall += step
        before, began = machine.clock.now(), machine.monotonic
        machine.passes(seconds, ticks=ticks)
        assert machine.clock.now() - before >= (machine.monotonic - began) * 9 // 10 - ticks


# -- after a crash -----------------------------------------------------------------------------------------------------


def test_a_broker_may_have_lived_until_its_next_beat() -> None:
    """When in doubt a session lives, by seconds."""
    found = resumption(Beat(START, START), START - 100 * S, Beat(0, START + 3_600 * S))
    assert found.now == START + 3_600 * S
    assert START < found.died_at < START + 10 * S


def test_without_a_heartbeat_nobody_was_gone_before_now() -> None:
    """A folder of an older version has none."""
    found = resumption(None, START, Beat(0, START + 3_600 * S))
    assert found.died_at == found.now == START + 3_600 * S


def test_time_while_the_broker_is_down_counts_though_the_log_is_ahead() -> None:
    """The beat says by how much it was ahead."""
    found = resumption(Beat(START + 3 * DAY, START), START + 3 * DAY, Beat(0, START + 3_600 * S))
    assert found.now == START + 3 * DAY + 3_600 * S


def test_a_clock_that_was_set_back_while_the_broker_was_down_takes_nothing_back() -> None:
    """How long it was down is not known then."""
    found = resumption(Beat(START, START), START - S, Beat(0, START - DAY))
    assert (found.now, found.died_at) == (START, START)


def test_the_monotonic_clock_says_how_long_the_broker_was_down() -> None:
    """As long as the machine runs, it does not matter to what its clock was set meanwhile."""
    boot = bytes(range(16))
    for wall in (START - DAY, START + 3 * DAY):
        found = resumption(Beat(START, START, 7, boot), START, Beat(0, wall, 7 + 60 * S, boot))
        assert found.now == START + 60 * S
    found = resumption(Beat(START, START, 7, boot), START, Beat(0, START + DAY, 9, bytes(15) + b"x"))
    assert found.now == START + DAY


def test_a_beat_comes_back(tmp_path: Path) -> None:
    """In place, and for the owner alone."""
    heartbeat = Heartbeat(tmp_path / "heartbeat")
    assert heartbeat.read() is None
    for number in range(3):
        beat = Beat(START + number, START, number, bytes(range(16)))
        heartbeat.write(beat)
        assert heartbeat.read() == beat
    heartbeat.close()
    assert (tmp_path / "heartbeat").stat().st_mode & 0o777 == 0o600


@given(data=st.binary(max_size=60))
def test_any_bytes_are_a_beat_or_none(data: bytes, tmp_path_factory: object) -> None:
    """A file that is damaged is as good as none."""
    path = Path(tmp_path_factory.mktemp("beat")) / "heartbeat"  # type: ignore[attr-defined]
    path.write_bytes(data)
    assert Heartbeat(path).read() is None
