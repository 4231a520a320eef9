"""The kernels are the references: same contacts, same deliveries, same memory at every event; and both are theory."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from campus_simulator import CampusSimulator
from hypothesis import given, settings
from hypothesis import strategies as st
from unicast_routing import route

from whimbrel.carry.sight import Sight
from whimbrel.sim.campus.fast import campus_state, outcome_of, simulate
from whimbrel.sim.campus.outcome import CampusOutcome, Recorder
from whimbrel.sim.campus.report import campus_report
from whimbrel.sim.campus.scenario import Campus, Publication, World
from whimbrel.sim.contacts.crossings import contacts_of
from whimbrel.sim.contacts.statistics import contact_statistics
from whimbrel.sim.contacts.synthetic import exponential_contacts
from whimbrel.sim.contacts.table import Contacts
from whimbrel.sim.kernels.campus import advance
from whimbrel.sim.kernels.crossings import fast_contacts_of, time_order
from whimbrel.sim.mobility.waypoint import RandomWaypoint
from whimbrel.sim.unicast.fast import fast_route
from whimbrel.sim.unicast.report import message_stats
from whimbrel.sim.unicast.scenario import Parcel, Unicast
from whimbrel.sim.unicast.theory import spray_delay_s

NODES, TOPICS, SECONDS = 5, 3, 60


@st.composite
def traces(draw: st.DrawFn) -> Contacts:
    """Draw contacts at whole seconds, many at the same time, some of no length."""
    rows = []
    for low, high in combinations(range(NODES), 2):
        times = sorted(draw(st.lists(st.integers(0, SECONDS), max_size=6, unique=True)))
        if draw(st.booleans()):
            rows += [(float(time), float(time), low, high) for time in times]
        else:
            rows += [(float(a), float(b), low, high) for a, b in zip(times[::2], times[1::2], strict=False)]
    return Contacts.of(rows, nodes=NODES, seconds=float(SECONDS))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Draw subscribers, publications and copies."""
    each = st.builds(
        Publication,
        st.integers(0, SECONDS).map(lambda second: second * 1_000_000),
        st.integers(0, NODES - 1),
        st.integers(0, TOPICS - 1),
    )
    publications = draw(st.lists(each, max_size=25, unique=True))
    publications.sort(key=lambda found: (found.published_at, found.publisher, found.topic))
    subscribers = [sorted(draw(st.sets(st.integers(0, NODES - 1)))) for _ in range(TOPICS)]
    copies = [draw(st.integers(1, NODES)) for _ in range(TOPICS)]
    return World(nodes=NODES, subscribers=subscribers, publications=publications, copies=copies)


campuses = st.builds(
    lambda memory, hello_s, transfer_s, shows: Campus(
        topics=TOPICS, memory=memory, hello_s=hello_s, transfer_s=transfer_s, shows_retrieved=shows, interval_s=1
    ),
    st.integers(1, 3),
    st.sampled_from([None, None, 4.0, 7.5]),
    st.sampled_from([0.0, 0.0, 2.0, 9.0]),
    st.booleans(),
)


def assert_same(one: CampusOutcome, other: CampusOutcome) -> None:
    """Assert that two simulations came to the same."""
    assert one.counters == other.counters
    for name in ("delivered_s", "subscriber", "sample", "replicas", "sprayed_s"):
        assert np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True), name


def assert_twins(contacts: Contacts, world: World, campus: Campus) -> None:
    """Assert that the kernel does what the carriers do, at every event."""
    number = {each.sample: place for place, each in enumerate(world.publications)}
    recorder = Recorder(world)
    simulator = CampusSimulator(contacts, campus, world, [recorder])
    state = campus_state(contacts, campus, world)
    for _ in simulator.events():
        assert advance(state, 1) == 1
        carried = np.zeros(len(world.publications), np.int64)
        for node, carrier in enumerate(simulator.carriers):
            used = int(state.used[node])
            assert used <= campus.memory
            kernel = zip(
                state.sample[node, :used], state.copies[node, :used], state.removable[node, :used], strict=True
            )
            core = [(number[copy.sample], copy.copies, copy.is_removable) for copy in carrier.stored]
            assert sorted(core) == sorted(tuple(map(int, each)) for each in kernel)
            np.add.at(carried, state.sample[node, :used], state.copies[node, :used])
        assert (carried <= state.limit).all()
    assert advance(state, 1) == 0
    assert_same(recorder.outcome(), outcome_of(state))


@settings(max_examples=120)
@given(contacts=traces(), world=worlds(), campus=campuses)
def test_the_kernel_is_the_carrier_at_every_event(contacts: Contacts, world: World, campus: Campus) -> None:
    """Same trace, same memory after each event; copies never exceed L, memory never its bound."""
    assert_twins(contacts, world, campus)


def played(contacts: Contacts, world: World, campus: Campus, sight: Sight, *, liars: int = 0) -> CampusSimulator:
    """Return the simulator when all is over, with its recorder as its only report."""
    simulator = CampusSimulator(contacts, campus, world, [Recorder(world)], sight=sight, liars=liars)
    simulator.run()
    return simulator


@settings(max_examples=40)
@given(contacts=traces(), world=worlds(), campus=campuses)
def test_without_a_liar_and_with_instant_answers_both_rules_of_sight_are_one(
    contacts: Contacts, world: World, campus: Campus
) -> None:
    """The figures of the paper do not depend on the rule: same memory, same retrievals, same copies lost."""
    campus = replace(campus, transfer_s=0)
    made = [played(contacts, world, campus, sight) for sight in Sight]
    for carriers in zip(*(each.carriers for each in made), strict=True):
        assert carriers[0].stored == carriers[1].stored
    found = []
    for simulator in made:
        [recorder] = simulator.reports
        assert isinstance(recorder, Recorder)
        outcome = recorder.outcome()
        counters = {name: each for name, each in outcome.counters.items() if name not in {"request", "answer"}}
        rows = zip(outcome.delivered_s, outcome.subscriber, outcome.sample, outcome.replicas, strict=True)
        found.append((sorted(rows), counters, outcome.sprayed_s.tolist()))
    np.testing.assert_equal(found[0], found[1])


def test_neither_twin_carries_what_is_older_than_its_application_has() -> None:
    """Node 2 retrieved the newer sample when it had no place; when it has one, it leaves the older where it is."""
    met = [(5, 2, 3), (10, 1, 2), (22, 3, 4), (25, 2, 4), (30, 0, 2)]
    contacts = Contacts.of([(time, time + 1, low, high) for time, low, high in met], nodes=NODES, seconds=SECONDS)
    made = [(1, 0, 0), (2, 1, 0), (3, 3, 1), (20, 4, 1)]
    publications = [Publication(time * 1_000_000, publisher, topic) for time, publisher, topic in made]
    world = World(nodes=NODES, subscribers=[[2], []], publications=publications, copies=[4, 2])
    campus = Campus(topics=2, memory=1, interval_s=1)
    assert_twins(contacts, world, campus)
    outcome = simulate(contacts, campus, world)
    assert (outcome.subscriber.tolist(), outcome.sample.tolist()) == ([2], [1])
    assert outcome.counters["request"] == 3  # a share of each sample of topic 1, and the newer of topic 0


@given(
    contacts=traces(),
    copies=st.integers(0, 9),
    transfer_s=st.sampled_from([0, 0, 1, 4]),
    look_s=st.sampled_from([0.0, 2.0]),
    parcels=st.lists(
        st.tuples(st.integers(0, SECONDS), st.permutations(range(NODES))).map(
            lambda drawn: Parcel(float(drawn[0]), drawn[1][0], drawn[1][1])
        ),
        max_size=12,
    ),
)
def test_unicast_kernel_and_reference_route_alike(
    contacts: Contacts, copies: int, transfer_s: int, look_s: float, parcels: list[Parcel]
) -> None:
    """With and without time for a transfer, direct, sprayed and epidemic."""
    unicast = Unicast(copies=copies, message_bytes=transfer_s, rate_bytes_s=1, look_s=look_s)
    parcels.sort(key=lambda parcel: parcel.created_s)
    one, other = route(contacts, unicast, parcels), fast_route(contacts, unicast, parcels)
    assert np.array_equal(one.delivered_s, other.delivered_s, equal_nan=True)
    assert (one.started, one.relayed, one.aborted) == (other.started, other.relayed, other.aborted)


@pytest.mark.parametrize(("pause_s", "range_m", "seed"), [(5, 20, 1), (0, 35, 2), (60, 8, 3)])
def test_crossings_of_pairs_and_of_the_grid_are_those_of_the_reference(pause_s: int, range_m: int, seed: int) -> None:
    """To the last bit: the grid only leaves out pairs that cannot meet."""
    walks = RandomWaypoint(nodes=14, area_m=200, pause_s=pause_s).walks(2_500, seed=seed)
    reference = contacts_of(walks, range_m=range_m).rows()
    assert reference
    assert fast_contacts_of(walks, range_m=range_m, is_grid=False).rows() == reference
    assert fast_contacts_of(walks, range_m=range_m, is_grid=True).rows() == reference


@given(times=st.lists(st.floats(0, 100), max_size=50))
def test_buckets_sort_like_a_stable_sort(times: list[float]) -> None:
    """Equal times stay as they stand."""
    found = time_order(np.array(times, np.float64), 100.0)
    assert found.tolist() == sorted(range(len(times)), key=lambda place: times[place])


def test_the_papers_world_has_the_contacts_of_its_peers() -> None:
    """The ONE: one contact per pair per 1,532 s, of 63.6 s, and 1,262 s from a random instant to the next."""
    found = contact_statistics(fast_contacts_of(RandomWaypoint().walks(100_000, seed=1), range_m=50))
    assert found.contact_rate_s == pytest.approx(1_532, rel=0.02)
    assert found.contact_mean_s == pytest.approx(63.6, rel=0.03)
    assert found.meeting_time_s == pytest.approx(1_262, rel=0.03)


@pytest.mark.parametrize("copies", [1, 5, 10, 20])
def test_on_exponential_contacts_spray_and_wait_is_its_markov_chain(copies: int) -> None:
    """Within 3 %: the one world for which theory is exact."""
    contacts = exponential_contacts(nodes=100, meeting_s=1_500, seconds=400_000, seed=1)
    unicast = Unicast(copies=copies, interval_s=20)
    parcels = unicast.parcels(nodes=100, seconds=400_000, seed=2)
    found = message_stats(fast_route(contacts, unicast, parcels), parcels)
    assert found["latency_avg"] == pytest.approx(spray_delay_s(copies, nodes=100, meeting_s=1_500), rel=0.03)


def test_the_delay_falls_with_the_workload_and_rises_again() -> None:
    """Figure 2a in small: best near 80 %, and at 100 % spraying takes several times as long."""
    contacts = fast_contacts_of(RandomWaypoint().walks(100_000, seed=2), range_m=50)
    report = {}
    for workload in (0.2, 0.8, 1.0):
        campus = Campus(workload=workload)
        world = campus.world(nodes=100, seconds=100_000, seed=2)
        report[workload] = campus_report(simulate(contacts, campus, world), campus, world)
    delay = {workload: float(found["delay_mean_s"] or 0) for workload, found in report.items()}
    spray = {workload: float(found["spray_time_s"] or 0) for workload, found in report.items()}
    assert delay[0.8] < delay[1.0] < delay[0.2]
    assert spray[1.0] > 2 * spray[0.8]
