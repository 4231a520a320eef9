"""What is told of a stream: the line, the object, the metrics, and when."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from whimbrel.log.writer import LogWriter
from whimbrel.model.facts import PresenceChange, PresenceChanged
from whimbrel.pipeline.stream.meters import Meters
from whimbrel.pipeline.stream.stream import BatchSummary
from whimbrel.pipeline.stream.watching import StreamWatch, Told, compute_status
from whimbrel.pipeline.subscriptions.matcher_files import Uses

SECOND = 1_000_000


def _taken(batch: int = 41, **given: Any) -> BatchSummary:
    values: dict[str, Any] = {
        "batch": batch,
        "facts": 1_000,
        "rows": {"matches": 30, "deliveries": 12},
        "applied": {"a": 100, "b": 50},
        "done_with": {},
        "newest_at": 90 * SECOND,
        "state": 1_204,
        "state_bytes": 310_400,
        "took_s": 0.5,
    }
    return BatchSummary(**(values | given))


def test_a_line_says_it_all() -> None:
    """Whoever looks at a terminal wants one line: is it alive, does it keep up, does it grow."""
    found = compute_status(_taken(), {"a": 100, "b": 50}, now=100 * SECOND, rows_per_s=12_310.4)
    assert found.line() == "batch 41 · 12,310 rows/s · up to date · 1,204 remembered, 310 KB"


def test_notes_are_part_of_the_line() -> None:
    """A plan that could not be made is nothing to be silent about."""
    taken = _taken(notes=("replicas: too many subjects",))
    assert compute_status(taken, {}, now=0).line().endswith(" · replicas: too many subjects")


def test_lag_is_what_the_log_has_and_the_tables_have_not() -> None:
    """Also of a node that the tables know nothing of yet."""
    found = compute_status(_taken(), {"a": 103, "b": 50, "c": 9}, now=100 * SECOND)
    assert (found.lag, found.lag_facts, found.lag_s) == ({"a": 3, "b": 0, "c": 10}, 13, 10.0)


@pytest.mark.parametrize("last", [{"a": 103}, {"a": 103, "b": 49}])
def test_lag_behind_another_log_is_not_known(last: dict[str, int]) -> None:
    """A broker that was set up anew, or whose folder is gone, is not a stream that keeps up."""
    found = compute_status(_taken(), last, now=100 * SECOND)
    assert (found.lag, found.lag_facts, found.lag_s) == ({"a": 3, "b": None}, 3, None)
    assert "lag not known: the log of b ends before what was read of it" in found.line()
    assert json.loads(json.dumps(found.as_json()))["lag"] == {"a": 3, "b": None}
    told_of = generate_latest(Meters(lambda: found).registry).decode()
    assert 'lag_facts{node="a"} 3.0' in told_of
    assert 'lag_facts{node="b"}' not in told_of
    assert "lag_seconds" not in told_of


@pytest.mark.parametrize(
    ("caught_up_at", "lag_s"), [(None, 10.0), (95 * SECOND, 5.0), (80 * SECOND, 10.0), (101 * SECOND, 0.0)]
)
def test_a_silent_log_is_not_ahead(caught_up_at: int | None, lag_s: float) -> None:
    """The first fact after an hour of silence has not waited for an hour."""
    assert compute_status(_taken(), {"a": 101, "b": 50}, now=100 * SECOND, caught_up_at=caught_up_at).lag_s == lag_s


def test_before_the_first_batch_nothing_is_claimed() -> None:
    """What was taken before the start is not known here, so no lag is made up."""
    found = compute_status(None, {"a": 7}, now=5)
    assert (found.line(), found.lag, found.lag_s) == ("no batch yet", {}, 0.0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(119.9, "119.9 s"), (120, "2 min"), (7_200, "2 h"), (8_640_000, "100 d")]
)
def test_long_lags_are_told_as_people_say_them(seconds: float, text: str) -> None:
    """Nobody reads 31,536,000 s."""
    found = compute_status(_taken(newest_at=0), {"a": 101, "b": 50}, now=int(seconds * SECOND))
    assert f"1 log record ({text}) behind" in found.line()


def test_programs_get_an_object() -> None:
    """It goes through JSON, and has what the line has, by node and by table."""
    found = compute_status(_taken(), {"a": 103, "b": 50}, now=100 * SECOND, is_new=True, rows_per_s=2_000)
    assert json.loads(json.dumps(found.as_json())) == {
        "at": 100 * SECOND,
        "batch": 41,
        "facts": 1_000,
        "rows": {"matches": 30, "deliveries": 12},
        "applied": {"a": 100, "b": 50},
        "newest_at": 90 * SECOND,
        "state": 1_204,
        "state_bytes": 310_400,
        "took_s": 0.5,
        "notes": [],
        "late": {},
        "matchers": {"found": 0, "packed": 0},
        "rows_per_s": 2_000,
        "lag": {"a": 3, "b": 0},
        "lag_s": 10.0,
    }


# -- the watch -------------------------------------------------------------------------------------------------------


class _Stream:
    def __init__(self) -> None:
        self.last: BatchSummary | None = None
        self.listeners: list[Callable[[BatchSummary], None]] = []
        self.idle_listeners: list[Callable[[], None]] = []

    def tell(self) -> None:
        """Say that there may be a batch."""
        for listener in self.idle_listeners:
            listener()


def _fact(node: str, number: int) -> PresenceChanged:
    return PresenceChanged(node=node, seq=number, changed_at=number, device="d", change=PresenceChange.CONNECTED)


def _log(folder: Path, facts: int) -> Path:
    with LogWriter(folder, "a") as log:
        for number in range(1, facts + 1):
            log.append(_fact("a", number))
        log.sync()
    return folder


def _watch(tmp_path: Path, stream: _Stream, seen: list[Told], times: list[float]) -> StreamWatch:
    return StreamWatch(stream, _log(tmp_path / "log", 5), seen.append, clock=lambda: times[0])


def test_a_batch_is_new_once(tmp_path: Path) -> None:
    """A batch counts once, and its rate is over the time since it was told of before."""
    stream, seen, times = _Stream(), list[Told](), [100.0]
    with _watch(tmp_path, stream, seen, times):
        stream.tell()
        stream.last = _taken(1, facts=50, applied={"a": 5})
        stream.tell()
        stream.tell()
        times[0], stream.last = 110.0, _taken(2, facts=50, applied={"a": 5})
        stream.tell()
        times[0] = 120.0
        stream.tell()
    assert not stream.idle_listeners
    assert not stream.listeners
    assert [each.is_new for each in seen] == [False, True, False, True, False]
    assert [each.rows_per_s for each in seen] == [0, 100, 0, 5, 0]
    assert [each.at for each in seen] == [at * SECOND for at in (100, 100, 100, 110, 120)]


def test_lag_is_measured_against_the_log_as_it_is(tmp_path: Path) -> None:
    """Facts that came after the batch are behind it, since the tables last had everything."""
    stream, seen, times = _Stream(), list[Told](), [1_000.0]
    watch = _watch(tmp_path, stream, seen, times)
    stream.last = _taken(1, applied={"a": 5}, newest_at=5)
    assert watch.look().lag == {"a": 0}
    stream.last, times[0] = _taken(2, applied={"a": 3}, newest_at=3), 1_004.0
    found = watch.look()
    assert (found.lag, found.lag_s, found.is_new) == ({"a": 2}, 4.0, False)
    assert not seen


def test_a_log_that_cannot_be_read_now_is_told_as_it_was(tmp_path: Path) -> None:
    """An export that moves files under our eyes is no reason to fall silent."""
    stream, times = _Stream(), [1_000.0]
    watch = _watch(tmp_path, stream, [], times)
    stream.last = _taken(1, applied={"a": 3}, newest_at=3)
    assert watch.look().lag == {"a": 2}
    segment = next((tmp_path / "log" / "segments" / "a").glob("*.seg"))
    segment.write_bytes(b"?" * 200)
    assert watch.look().lag == {"a": 2}
    shutil.rmtree(tmp_path / "log")
    assert watch.look().lag == {"a": None}


def test_prometheus_counts_each_batch_once_and_asks_for_the_lag() -> None:
    """A batch that hangs must show: lag is looked up when Prometheus asks, not when a batch ends."""
    now = compute_status(_taken(), {"a": 100, "b": 50}, now=100 * SECOND)
    meters = Meters(lambda: now)
    meters.take(
        compute_status(_taken(40, late={"popularity": 3}, matchers=Uses(3, 1)), {}, now=90 * SECOND, is_new=True)
    )
    meters.take(compute_status(_taken(41, took_s=3.0), {}, now=95 * SECOND, is_new=True))
    meters.take(compute_status(_taken(41), {}, now=96 * SECOND, is_new=False))
    now = compute_status(_taken(), {"a": 107, "b": 50}, now=100 * SECOND)
    lines = generate_latest(meters.registry).decode().splitlines()
    wanted = [
        "whimbrel_pipeline_batch 41.0",
        "whimbrel_pipeline_facts_total 2000.0",
        'whimbrel_pipeline_rows_total{table="matches"} 60.0',
        'whimbrel_pipeline_late_total{table="popularity"} 3.0',
        'whimbrel_pipeline_matchers_total{source="found"} 3.0',
        'whimbrel_pipeline_matchers_total{source="packed"} 1.0',
        'whimbrel_pipeline_lag_facts{node="a"} 7.0',
        'whimbrel_pipeline_lag_facts{node="b"} 0.0',
        "whimbrel_pipeline_lag_seconds 10.0",
        "whimbrel_pipeline_state_things 1204.0",
        "whimbrel_pipeline_state_bytes 310400.0",
        "whimbrel_pipeline_batch_seconds_count 2.0",
        "whimbrel_pipeline_batch_seconds_sum 3.5",
        "whimbrel_pipeline_last_batch_timestamp_seconds 95.0",
    ]
    assert [line for line in wanted if line not in lines] == []
