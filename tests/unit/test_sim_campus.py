"""Scenarios of Campus++: what is drawn, what the plan gives, and the report of a small world by hand."""

from __future__ import annotations

import subprocess
import sys

import pytest
from campus_simulator import CampusSimulator
from unicast_routing import route

from whimbrel.errors import InvalidValueError
from whimbrel.sim.campus.outcome import Recorder
from whimbrel.sim.campus.report import campus_report
from whimbrel.sim.campus.scenario import Campus, Publication, World
from whimbrel.sim.contacts.table import Contacts
from whimbrel.sim.kernels.links import link_room
from whimbrel.sim.unicast.report import message_stats
from whimbrel.sim.unicast.scenario import Parcel, Unicast
from whimbrel.sim.unicast.theory import spray_delay_s


def test_a_world_is_imagined_without_a_compiler() -> None:
    """Numba takes a second to load and Spark more: only what simulates or sweeps pays for them."""
    modules = "whimbrel.sim.worlds, whimbrel.sim.campus.outcome, whimbrel.sim.unicast.report, whimbrel.cli.main"
    code = f"import sys, {modules}; print([each for each in ('numba', 'pyspark', 'matplotlib') if each in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    code = "import sys, whimbrel.carry.node; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_crowd_that_would_fill_the_memory_is_refused() -> None:
    """A star of many nodes is a short file."""
    star = Contacts.of([(0, 1, 0, other) for other in range(1, 8_000)], nodes=8_000, seconds=1)
    with pytest.raises(InvalidValueError, match="nodes × neighbours at once"):
        link_room(star, star.end_order())
    with pytest.raises(InvalidValueError, match="nodes × topics"):
        Campus(topics=60_000, workload=1).world(nodes=10_000, seconds=1, seed=1)


def test_the_papers_plans() -> None:
    """Eight copies each of 100 topics at 80 %, 40 of 20; and more for the popular ones (section 3.3)."""
    assert set(Campus().copies(100)) == {8}
    assert set(Campus(topics=20).copies(100)) == {40}
    popular = Campus(zipf_exponent=0.8).copies(100)
    assert (popular[0], sum(popular)) == (31, 800)
    assert set(Campus(zipf_exponent=0.8, allocation="flat").copies(100)) == {8}
    assert Campus(zipf_exponent=0.8, exponent=0.5).copies(100) == popular


def test_a_workload_that_gives_a_topic_less_than_one_copy_is_refused() -> None:
    """With the numbers."""
    with pytest.raises(InvalidValueError, match="found 100, allowed is at most 50"):
        Campus(workload=0.05).copies(100)
    with pytest.raises(InvalidValueError):
        Campus(workload=1.5)


def test_the_draws_depend_on_the_seed_and_not_on_the_plan() -> None:
    """Figures compare plans, not draws."""
    one, other = (Campus(workload=load).world(nodes=30, seconds=20_000, seed=4) for load in (0.4, 1.0))
    assert (one.subscribers, one.publications) == (other.subscribers, other.publications)
    assert one.copies != other.copies
    assert Campus().world(nodes=30, seconds=20_000, seed=5).publications != one.publications


def test_a_small_world_by_hand() -> None:
    """0 publishes at 10 s, 1 carries from 20 s on, 2 subscribes and meets 1 at 50 s; 3 never meets anybody."""
    contacts = Contacts.of([(20, 25, 0, 1), (50, 60, 1, 2)], nodes=4, seconds=100)
    publications = [Publication(10_000_000, 0, 0), Publication(90_000_000, 3, 0)]
    world = World(nodes=4, subscribers=[[2, 3]], publications=publications, copies=[2])
    campus = Campus(topics=1, memory=1, subscribers=2, warmup_s=0)
    recorder = Recorder(world)
    CampusSimulator(contacts, campus, world, [recorder]).run()
    report = campus_report(recorder.outcome(), campus, world)
    assert (report["created"], report["delivered"], report["never_retrieved"]) == (1, 1, 1)
    assert (report["delay_mean_s"], report["spray_time_s"], report["replicas_seen"]) == (40, 10, 2)
    assert (report["memory_used"], report["copies_lost"]) == (0.5, 0)


def test_what_counts_and_what_is_lost_by_hand() -> None:
    """Samples before the warm-up do not count, a source is no subscriber of its own, a broken transfer loses copies."""
    contacts = Contacts.of([(20, 22, 0, 1), (50, 60, 0, 2)], nodes=4, seconds=100)
    publications = [Publication(10_000_000, 0, 0), Publication(90_000_000, 3, 0)]
    world = World(nodes=4, subscribers=[[0, 2, 3]], publications=publications, copies=[4])

    def report(**settings: float) -> dict[str, float | int | None]:
        campus = Campus(topics=1, memory=1, subscribers=3, **settings)  # type: ignore[arg-type]  # two numbers
        recorder = Recorder(world)
        CampusSimulator(contacts, campus, world, [recorder]).run()
        return campus_report(recorder.outcome(), campus, world)

    whole = report(warmup_s=0, transfer_s=3)
    assert (whole["created"], whole["delivered"], whole["never_retrieved"]) == (1, 1, 1)
    assert (whole["delay_mean_s"], whole["copies_lost"]) == (43, 2)  # two copies went with the contact of 2 s
    assert (report(warmup_s=0)["copies_lost"], report(warmup_s=11)["created"]) == (0, 0)


def test_publications_come_in_the_order_of_their_ids() -> None:
    """Two of one microsecond are ordered by publisher, then by topic: samples are compared by that order."""
    drawn = Campus(topics=50, interval_s=0.002).world(nodes=10, seconds=0.05, seed=1).publications
    assert len({each.published_at for each in drawn}) < len(drawn)
    assert drawn == sorted(drawn, key=lambda each: (each.published_at, each.publisher, each.topic))


def test_a_chain_of_two_copies_by_hand() -> None:
    """From one holder of two: 1 / (1 + n - 2) until something happens, then with probability (n - 2) / (n - 1) two."""
    assert spray_delay_s(1, nodes=50, meeting_s=7) == pytest.approx(7)
    after = (1 + 8 * 0.5) / 9  # ten nodes: eight may get the other copy, then two wait
    assert spray_delay_s(2, nodes=10, meeting_s=1) == pytest.approx(after)


def test_a_transfer_takes_its_time_or_is_aborted() -> None:
    """A message of 3 s does not pass a contact of 2 s; both radios are busy meanwhile."""
    contacts = Contacts.of([(10, 12, 0, 1), (20, 24, 0, 1), (20, 24, 1, 2)], nodes=3, seconds=30)
    parcels = [Parcel(0, 0, 1), Parcel(1, 2, 1)]
    slow = Unicast(copies=1, message_bytes=300, rate_bytes_s=100)
    outcome = route(contacts, slow, parcels)
    assert outcome.delivered_s.tolist()[0] == 23
    assert (outcome.started, outcome.relayed, outcome.aborted) == (3, 1, 2)
    stats = message_stats(outcome, parcels)
    assert (stats["delivered"], stats["latency_avg"], stats["overhead_ratio"]) == (1, 23, 0)
    assert route(contacts, Unicast(copies=1), parcels).delivered_s.tolist() == [10, 20]
