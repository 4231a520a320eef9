"""Streets: vehicles stay on them, the radio has a range, and a city is the same again from its seed."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from whimbrel.errors import InvalidValueError
from whimbrel.model.place import Point
from whimbrel.nearby.frames.values import Event, Frame
from whimbrel.nearby.group.subscriptions import NearbySubscription
from whimbrel.sim.mobility.streets import StreetGrid
from whimbrel.sim.mobility.traffic import TRACE, read_traffic, recorded_drives, write_traffic
from whimbrel.sim.streets.city import WORDS, City, Design, make_city, run_city
from whimbrel.sim.streets.filtering import FilteringTown, FilterJoin
from whimbrel.sim.streets.radio import BroadcastRadio
from whimbrel.sim.streets.town import Resident, Town

VILLAGE = City(grid=StreetGrid(blocks=2), vehicles=12, seconds=6.0, loss=0.1)


def test_vehicles_stay_on_the_streets() -> None:
    """At any time one coordinate is that of a street, and both are inside the city."""
    grid = StreetGrid(blocks=3, block_m=100)
    places = grid.drives(20, 120, seed=5).positions(np.arange(0, 120, 0.5))
    assert places.min() >= -1e-6
    assert places.max() <= 300 + 1e-6
    off_street = np.abs((places + 50) % 100 - 50)
    assert (off_street.min(axis=2) < 1e-6).all()


def test_vehicles_of_sumo_stay_on_the_streets_and_wait_at_lights() -> None:
    """The trace that we ship: on a lane at any time, no faster than its drivers dare, a third of the time standing."""
    places = recorded_drives(301, 699).positions(np.arange(0, 699, 1.0))
    assert places.shape == (301, 699, 2)
    off_street = np.abs((places + 125) % 250 - 125).min(axis=2)
    assert off_street.max() < 3.2  # the width of a lane
    moved_m = np.linalg.norm(np.diff(places, axis=1), axis=2)
    assert moved_m.max() < 20
    assert 0.2 < (moved_m < 0.1).mean() < 0.5
    assert (moved_m.sum(axis=1) > 1_000).all()


def test_a_trace_is_read_as_it_was_written_or_refused(tmp_path: Path) -> None:
    """Positions to the decimetre; whatever else is in the file is our error."""
    path, places = tmp_path / "a.trace", np.array([[[0.0, 1.26], [3.0, -4.5]], [[9.0, 1.0], [9.0, 1.0]]])
    write_traffic(places, path)
    assert read_traffic(path).tolist() == [[[0.0, 1.3], [3.0, -4.5]], [[9.0, 1.0], [9.0, 1.0]]]
    whole = path.read_bytes()
    for wrong in (
        b"",
        b"{}\n",
        whole[:-3],
        b'{"vehicles": 1000000, "seconds": 1000000}\n',
        whole.replace(b"2", b"3", 1),
    ):
        path.write_bytes(wrong)
        with pytest.raises(InvalidValueError, match="one that write_traffic made"):
            read_traffic(path)


@pytest.mark.parametrize(("vehicles", "seconds"), [(302, 10), (10, 700)])
def test_no_more_is_driven_than_was_recorded(vehicles: int, seconds: int) -> None:
    """Neither more vehicles nor longer; and only on the streets of the trace."""
    with pytest.raises(InvalidValueError, match="of the trace"):
        recorded_drives(vehicles, seconds)
    with pytest.raises(InvalidValueError, match="of the trace"):
        City(grid=StreetGrid(blocks=2), is_recorded=True)


def test_the_trace_is_what_sumo_makes(tmp_path: Path) -> None:
    """Where the extra ``vehicles`` is installed, its first seconds are driven again."""
    pytest.importorskip("libsumo", reason="the extra vehicles is not installed")
    made = tmp_path / "again.trace"
    tool = Path(__file__).parents[2] / "tools" / "make_vehicle_trace.py"
    subprocess.run([sys.executable, str(tool), "--seconds", "20", "--out", str(made)], check=True, capture_output=True)
    assert (read_traffic(made) == read_traffic(TRACE)[:, :20]).all()


def test_drives_follow_from_the_seed_and_the_number() -> None:
    """More vehicles do not change the drives of the first ones."""
    few, many = (StreetGrid().drives(count, 60, seed=3) for count in (3, 9))
    assert few.corners(2) == many.corners(2)
    assert few.corners(2) != StreetGrid().drives(3, 60, seed=4).corners(2)
    with pytest.raises(InvalidValueError):
        StreetGrid(slowest_m_s=20, fastest_m_s=10)


def test_the_radio_has_a_range_and_loses_what_it_is_told() -> None:
    """Neighbours are symmetrical, walls divide, and loss is a share."""
    radio = BroadcastRadio(range_m=100, random=Random(1))
    for number, x_m in enumerate((0, 90, 180, 1_000)):
        radio.place(number, Point(x_m, -5))
    assert [radio.neighbours(number) for number in range(4)] == [[1], [0, 2], [1], []]
    radio.divide(frozenset({0}))
    assert radio.neighbours(1) == [2]
    radio.divide(None)
    radio.place(3, Point(90, 50))
    radio.loss = 0.3
    heard = sum(len(radio.transmit(1)) for _ in range(2_000))
    assert heard == pytest.approx(0.7 * 3 * 2_000, rel=0.05)


def test_a_city_is_the_same_again() -> None:
    """Everything follows from the seed; every delivery is within the bound, or was asked for."""
    one, other = run_city(VILLAGE), run_city(VILLAGE)
    assert one.counts == other.counts
    assert one.frames == other.frames
    assert one.counts["delivered"] > 0
    assert one.late == 0


def test_content_filters_at_the_producer_deliver_the_same_where_nobody_moves() -> None:
    """The baseline is fair: with fresh places its verdicts are those of the consumers, and its deliveries STEAM's."""
    parked = replace(VILLAGE, loss=0.0, ambulances=20, is_parked=True)
    town, watcher = make_city(replace(parked, design=Design.PRODUCER_FILTERS))
    assert isinstance(town, FilteringTown)
    town.run(parked.warmup_s)
    watcher.is_counting = watcher.is_weighing = True
    town.run(parked.seconds)
    assert town.verdicts["asked"] > town.verdicts["named"] > 0
    assert town.verdicts["wrongly named"] == town.verdicts["wrongly left out"] == 0
    assert watcher.report.counts["delivered"] == run_city(parked).counts["delivered"] > 0
    assert watcher.report.sizes["join"] > 100 * watcher.report.frames["join"]


def test_content_filters_at_the_producer_judge_by_places_of_the_past() -> None:
    """A vehicle that has passed the light since its last join is still named; one that turned towards it is not."""
    moving = City(vehicles=100, seconds=10.0, is_recorded=True, design=Design.PRODUCER_FILTERS)
    town, _ = make_city(moving)
    assert isinstance(town, FilteringTown)
    town.run(10.0)
    assert town.verdicts["wrongly named"] + town.verdicts["wrongly left out"] > 0
    assert all(isinstance(each, FilterJoin) for group in town._deployed.values() for each in group.values())


def test_without_proximity_every_node_repeats_every_event() -> None:
    """The baseline floods: each of the nodes that the radio joins transmits an event once."""
    joined = replace(VILLAGE, loss=0.0, range_m=300.0, design=Design.NO_PROXIMITY)
    town, watcher = make_city(joined)
    town.run(joined.warmup_s)
    sent: Counter[tuple[str, int]] = Counter()

    def on_transmission(_who: Resident, frame: Frame, **_more: int) -> None:
        assert isinstance(frame, Event)  # neither beacons nor joins
        sent[frame.origin, frame.seq] += 1

    watcher.is_counting = True
    watcher.on_transmission = on_transmission  # type: ignore[method-assign, assignment] # each event by itself
    town.run(joined.seconds)
    through = [each for each, (at, _) in watcher.published.items() if at < town.now - joined.deadline_us]
    assert len(through) > 10
    assert {sent[each] for each in through} == {joined.entities + 1}  # everybody, and the witness


@pytest.mark.parametrize(("by_deadline", "expired"), [(True, 0), (False, 5)])
def test_the_dispatcher_keeps_deadlines_that_first_come_first_served_misses(*, by_deadline: bool, expired: int) -> None:
    """An application that takes 20 ms for an event, bursts of ten patient events, and an urgent one behind each."""
    radio = BroadcastRadio(range_m=100, random=Random(1), shortest_us=1_000, longest_us=1_000)
    town = Town(radio=radio, vocabulary=WORDS)
    light = town.add("light", Point(0, 0))
    car = town.add("car", Point(10, 0), service_us=20_000, by_deadline=by_deadline)
    for subject in ("traffic light", "ambulance"):
        car.node.subscribe(NearbySubscription(subject=subject))
        _, outputs = light.node.announce(subject, radius_m=50, deadline_us=900_000, now=town.now)
        town.perform(light, outputs)
    town.run(1.5)
    for _ in range(5):
        for _ in range(10):
            town.perform(light, light.node.publish("traffic light", {"status": "red"}, now=town.now)[1])
        urgent = light.node.publish("ambulance", {"siren": 1}, deadline_us=100_000, now=town.now)
        town.perform(light, urgent[1])
        town.run(1)
    assert town.counts["expired"] == expired
    assert town.counts["delivered"] == 55 - expired
