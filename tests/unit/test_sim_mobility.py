"""Walks: stationary from the first moment, at one speed, the same for the same seed."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from whimbrel.errors import InvalidValueError, MalformedLineError
from whimbrel.sim.mobility.positions import position_lines
from whimbrel.sim.mobility.recorded import read_walks, walks_of
from whimbrel.sim.mobility.walks import Walks
from whimbrel.sim.mobility.waypoint import RandomWaypoint


def test_a_walk_is_legs_at_one_speed_and_pauses() -> None:
    """Random waypoint with constant speed and pause (section 3.3)."""
    world = RandomWaypoint(nodes=5, area_m=300, speed_m_s=2, pause_s=7)
    walks = world.walks(5_000, seed=3)
    for node in range(5):
        corners = walks.corners(node)
        assert corners[0][0] == 0
        assert corners[-1][0] >= 5_000
        assert all(0 <= x <= 300 and 0 <= y <= 300 for _, x, y in corners)
        for (t0, x0, y0), (t1, x1, y1) in pairwise(corners[2:]):  # the first may be under way
            length = math.hypot(x1 - x0, y1 - y0)
            assert t1 - t0 == pytest.approx(length / 2 if length else 7)


def test_the_same_seed_walks_the_same_and_a_node_does_not_depend_on_the_others() -> None:
    """A larger world must not move the nodes of a smaller one."""
    small, large = (RandomWaypoint(nodes=count).walks(2_000, seed=8) for count in (3, 6))
    assert small.corners(2) == large.corners(2)
    assert small.corners(2) != RandomWaypoint(nodes=3).walks(2_000, seed=9).corners(2)


def test_the_beginning_is_like_any_later_time() -> None:
    """Stationary: at time 0 nodes are as near to the middle as later, and as many pause."""
    world = RandomWaypoint(nodes=4_000, area_m=100, pause_s=30)
    walks = world.walks(400, seed=1)
    spread = []
    for now in (0.0, 390.0):
        places = walks.positions(np.array([now]))[:, 0] - 50
        spread.append(float(np.hypot(*places.T).mean()))
    assert spread[0] == pytest.approx(spread[1], rel=0.03)
    uniform = 100 * (math.sqrt(2) + math.log(1 + math.sqrt(2))) / 6
    assert spread[0] < 0.95 * uniform
    pausing = np.mean([walks.corners(node)[0][1:] == walks.corners(node)[1][1:] for node in range(4_000)])
    assert pausing == pytest.approx(30 / (30 + 52.14), abs=0.03)


def test_an_area_smaller_than_the_range_is_refused() -> None:
    """Everybody would hear everybody for ever."""
    with pytest.raises(InvalidValueError, match=r"area_m: found 40.0, allowed is at least the radio range of 50 m"):
        RandomWaypoint(area_m=40.0).check_range(50)


def test_positions_are_rows_of_reports() -> None:
    """So that a walk can be imported into a log, and its contacts found by the pipeline."""
    walks = Walks.of([[(0, 0, 0), (10, 10, 0)], [(0, 5, 5), (10, 5, 5)]], seconds=10)
    rows = [json.loads(line) for line in position_lines(walks, every_s=5)]
    assert [row["device"] for row in rows] == ["node-0", "node-1"] * 3
    assert [row["reported_at"][17:19] for row in rows] == ["00", "00", "05", "05", "10", "10"]
    east = rows[4]["place"]["longitude"] - rows[0]["place"]["longitude"]
    assert east * 111_320 * math.cos(math.radians(41.8535)) == pytest.approx(10, rel=0.01)


def test_recorded_positions_are_walks_again() -> None:
    """Straight between two reports, still before the first and after the last."""
    walks = Walks.of([[(0, 0, 0), (10, 10, 0)], [(0, 5, 5), (10, 5, 5)]], seconds=10)
    lines = [line.encode() for line in position_lines(walks, every_s=5)]
    again = walks_of([b"\n", b'{"table": "presence"}', *lines[:5]], source="walk")
    assert (again.nodes, again.seconds) == (2, 10)
    assert again.positions(np.array([0.0, 2.5, 10.0]))[0] == pytest.approx(
        np.array([[0, 0], [2.5, 0], [10, 0]]), abs=0.05
    )
    assert again.corners(1)[-1][0] == 10


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[", "line 2, column"),
        (b'{"table": "reports", "place": 7, "device": "a", "reported_at": "2026-01-05T00:00:01Z"}', "place: found 7"),
        (b'{"table": "reports", "place": "1,2", "device": 7}', "device and reported_at"),
        (b'{"table": "reports", "place": "1,2", "device": "a", "reported_at": "2025-01-05T00:00:01Z"}', "backwards"),
        (b'{"table": "reports", "place": "1,200", "device": "a", "reported_at": "2026-01-05T00:00:01Z"}', "longitude"),
    ],
)
def test_a_bad_position_is_named_with_its_line(line: bytes, reason: str) -> None:
    """Anything from outside may be anything."""
    good = b'{"table": "reports", "place": "1,2", "device": "a", "reported_at": "2026-01-05T00:00:00Z"}'
    with pytest.raises(MalformedLineError) as caught:
        walks_of([good, line], source="walk")
    assert "walk: line 2" in str(caught.value)
    assert reason in str(caught.value)
    with pytest.raises(InvalidValueError, match="two devices that walk"):
        walks_of([good], source="walk")


def test_a_line_of_positions_without_an_end_is_not_read_to_its_end() -> None:
    """A device without an end must not fill the memory."""
    with pytest.raises(MalformedLineError, match="bytes of a line: found 100001"):
        read_walks(Path("/dev/zero"))


def test_a_leg_that_is_under_way_at_the_beginning_is_a_long_one() -> None:
    """Long legs take longer, so more of them are under way: E[L²] / 2E[L] of 0.32 sides are left, not half of 0.52."""
    walks = RandomWaypoint(nodes=3_000, pause_s=0.0).walks(1, seed=3)
    left = [math.dist(here[1:], there[1:]) for here, there, *_ in map(walks.corners, range(walks.nodes))]
    assert sum(left) / len(left) / 500 == pytest.approx((1 / 3) / (2 * 0.5214), rel=0.05)
