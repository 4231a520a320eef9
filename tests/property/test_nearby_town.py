"""Groups in a town under loss, any order, moving areas, and clocks that differ and jump (Must show 2 of STEAM).

A watcher holds everything against the truth that only the town knows: who was where, when an event was published, and
when it was delivered.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from whimbrel.model.place import Area, Point
from whimbrel.nearby.datagrams import MAX_DATAGRAMS
from whimbrel.nearby.deployment import Deployment
from whimbrel.nearby.frames.values import Asked, Event, Frame, GroupId
from whimbrel.nearby.group.outputs import Deliver, Note, NoteKind
from whimbrel.nearby.group.relay import is_inside
from whimbrel.nearby.group.subscriptions import NearbySubscription
from whimbrel.nearby.group.view import digest_of, member_hash
from whimbrel.nearby.vocabulary import Vocabulary
from whimbrel.sim.mobility.waypoint import RandomWaypoint
from whimbrel.sim.streets.radio import BroadcastRadio
from whimbrel.sim.streets.town import Resident, Town

WORDS = Vocabulary.of({"light": {"value": "int32"}})
GROUP_SETTINGS = Deployment(period_us=1_000_000)
PERIOD_S = 1.0
OUTCOMES = {NoteKind.EXPIRED, NoteKind.MISSED, NoteKind.DISCARDED, NoteKind.DROPPED, NoteKind.UNFIT, NoteKind.PASSED_BY}


class Truth:
    """Sees everything; asserts at once what must never happen, and keeps what is counted at the end."""

    def __init__(self) -> None:
        self.published: dict[tuple[str, int], tuple[int, Event]] = {}
        self.outcomes: dict[tuple[str, GroupId], Counter[int]] = defaultdict(Counter)
        self.cut_off: Counter[tuple[str, GroupId]] = Counter()
        self.history: dict[tuple[str, GroupId], list[tuple[int, NoteKind]]] = defaultdict(list)
        self.deliveries: Counter[tuple[str, str]] = Counter()
        self.departures: Counter[NoteKind] = Counter()
        self.is_timely = True
        """Whether deadlines are held against true time: a clock that is set back loses some of it."""
        self.repeats: Counter[tuple[str, str, int]] = Counter()

    def publish(self, event: Event, now: int) -> None:
        """Remember an event."""
        self.published[event.origin, event.number] = (now, event)

    def on_transmission(self, who: Resident, frame: Frame, *, datagrams: int, heard_by: int, now: int) -> None:
        """See that nobody transmits outside of the area, or repeats twice."""
        assert datagrams <= MAX_DATAGRAMS
        del heard_by, now
        assert is_inside(frame.area, who.node.motion.place)
        if not isinstance(frame, Asked) and frame.hops:
            self.repeats[who.node.name, frame.origin, frame.seq] += 1
            assert self.repeats[who.node.name, frame.origin, frame.seq] == 1

    def on_note(self, who: Resident, note: Note, *, now: int) -> None:
        """Keep what a node reports."""
        key = (who.node.name, note.group)
        if note.kind in OUTCOMES:
            if note.number is None:
                self.cut_off[key] += note.count
            else:
                self.outcomes[key][note.number] += 1
        elif note.kind in {NoteKind.JOINED, NoteKind.LEFT, NoteKind.LAPSED}:
            self.history[key].append((now, note.kind))
        elif note.kind in {NoteKind.MEMBER_SILENT, NoteKind.MEMBER_RETURNED}:
            self.departures[note.kind] += 1

    def on_delivery(self, who: Resident, what: Deliver, *, now: int) -> None:
        """See that an event is delivered once, inside its area, and in time."""
        event, name = what.event, who.node.name
        self.deliveries[name, str(event.id)] += 1
        assert self.deliveries[name, str(event.id)] == 1
        assert event.area.contains(who.node.motion.place)  # type: ignore[arg-type] # it has one
        at, _ = self.published[event.origin, event.number]
        assert now < at + event.deadline_us or not self.is_timely
        self.outcomes[name, event.group][event.number] += 1

    def check_accounts(self, residents: list[Resident]) -> None:
        """See that each event has one outcome at each member that stayed, and at most one elsewhere."""
        nodes = {each.node.name: each.node for each in residents}
        for key, history in self.history.items():
            name, group = key
            assert max(self.outcomes[key].values(), default=1) == 1
            if any(kind is NoteKind.LEFT for _, kind in history):
                continue
            joined_at, (_, last) = history[0][0], history[-1]
            # Who is out of reach at the end knows of no more than it heard of.
            known = (
                nodes[name]._consumer._groups.known[group].latest if last is NoteKind.LAPSED else len(self.published)
            )
            owed = [number for (_, number), (at, _) in self.published.items() if at > joined_at and number <= known]
            silent = [number for number in owed if self.outcomes[key][number] == 0]
            assert len(silent) <= self.cut_off[key], f"{name}: no word of {silent}"


@dataclass(frozen=True)
class World:
    """One drawn town."""

    seed: int
    cars: int
    loss: float
    range_m: float
    hops: int
    moves: bool
    walks: bool
    deadline_us: int
    jumps: list[tuple[float, int, int]]
    outage: tuple[float, float]


worlds = st.builds(
    World,
    seed=st.integers(0, 10**6),
    cars=st.integers(1, 7),
    loss=st.sampled_from([0.0, 0.1, 0.3]) | st.floats(0, 0.3),
    range_m=st.sampled_from([120.0, 400.0]),
    hops=st.integers(0, 4),
    moves=st.booleans(),
    walks=st.booleans(),
    deadline_us=st.sampled_from([250_000, 2_000_000, 8_000_000]),
    jumps=st.lists(
        st.tuples(st.floats(0.5, 9), st.integers(0, 7), st.sampled_from([-3_600, -2, 1, 5, 3_600])), max_size=3
    ),
    outage=st.tuples(st.floats(1, 5), st.sampled_from([0.0, 0.5, 4.0])),
)


def _town(world: World, truth: Truth) -> tuple[Town, list[Resident]]:
    """Return a town with a light in the middle and cars around it."""
    random = Random(world.seed)
    radio = BroadcastRadio(range_m=world.range_m, random=random, loss=world.loss)
    town = Town(
        radio=radio, vocabulary=WORDS, deployment=GROUP_SETTINGS, watcher=truth, through_bytes=True, jitter=random
    )
    light = town.add("light", Point(150, 150), clock_us=random.randrange(10**12))
    cars = [
        town.add(
            f"car{number}", Point(random.uniform(0, 300), random.uniform(0, 300)), clock_us=random.randrange(10**12)
        )
        for number in range(world.cars)
    ]
    for car in cars:
        car.node.subscribe(NearbySubscription(subject="light", filter_text="value >= 10" if car.index % 2 else None))
    if world.walks:
        walkers = [light, *cars] if world.moves else cars
        if len(walkers) > 1:
            steps = RandomWaypoint(nodes=len(walkers), area_m=300, speed_m_s=15, pause_s=1)
            town.follow(steps.walks(12, seed=world.seed), walkers)
    return town, [light, *cars]


def _announce(town: Town, light: Resident, *, hops: int, deadline_us: int, moves: bool) -> None:
    _, outputs = light.node.announce(
        "light", radius_m=140, hops=hops, deadline_us=deadline_us, moves=moves, now=town.now + light.clock_us
    )
    town.perform(light, outputs)


def _publish(town: Town, truth: Truth, light: Resident, value: int) -> None:
    event, outputs = light.node.publish("light", {"value": value}, now=town.now + light.clock_us)
    truth.publish(event, town.now)
    town.perform(light, outputs)


@given(worlds)
def test_never_outside_never_twice_and_every_event_has_an_outcome(world: World) -> None:
    """At any loss up to 30 %, in any order, with areas that move and clocks that differ and jump."""
    truth = Truth()
    town, residents = _town(world, truth)
    light = residents[0]
    _announce(town, light, hops=world.hops, deadline_us=world.deadline_us, moves=world.moves)
    for number in range(20):
        town.after(500_000 * (number + 1), lambda number=number: _publish(town, truth, light, number))  # type: ignore[misc] # bound now
    for at_s, who, by_s in world.jumps:
        resident = residents[who % len(residents)]
        truth.is_timely &= by_s > 0
        town.after(round(at_s * 1e6), lambda resident=resident, by_s=by_s: town.jump(resident, by_s * 1_000_000))  # type: ignore[misc] # bound now
    begins_s, lasts_s = world.outage
    cut_off = frozenset(range(1, len(residents), 2))
    town.after(round(begins_s * 1e6), lambda: town.radio.divide(cut_off if lasts_s else None))
    town.after(round((begins_s + lasts_s) * 1e6), lambda: town.radio.divide(None))
    town.run(12)
    town.radio.loss = 0.0
    town.run(12)  # nothing is published any more: what is owed is settled by now
    truth.check_accounts(residents)


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(0, 4), st.sampled_from([90.0, 150.0, 400.0]))
def test_views_of_a_quiet_group_are_equal_within_three_periods(seed: int, cars: int, hops: int, range_m: float) -> None:
    """Without loss: the producer's view is who is inside and reachable, and every member's view is the same."""
    world = World(seed, cars, 0.0, range_m, hops, False, False, 2_000_000, [], (1, 0))
    town, residents = _town(world, Truth())
    light = residents[0]
    _announce(town, light, hops=hops, deadline_us=2_000_000, moves=False)
    town.run(3 * PERIOD_S)
    members = _reachable(town, residents, hops)
    view = light.node.members("light")
    assert set(view) == {residents[index].node.name for index in members}
    hashes = frozenset(map(member_hash, view))
    for index in members:
        (membership,) = residents[index].node.memberships().values()
        assert membership.view == hashes
    assert digest_of(hashes) == view.digest


def _reachable(town: Town, residents: list[Resident], hops: int) -> set[int]:
    """Return who is inside the area and within the hop bound of the light, over nodes inside."""
    area = Area(residents[0].node.motion.place, 140)  # type: ignore[arg-type] # it has one
    inside = {each.index for each in residents if is_inside(area, each.node.motion.place)}
    found, edge = {0}, {0}
    for _ in range(hops + 1):
        edge = {other for index in edge for other in town.radio.neighbours(index) if other in inside} - found
        found |= edge
    return found - {0}


def test_false_departures_under_loss_are_counted_and_heal() -> None:
    """With 30 % loss some members are taken for gone though they never left; they are back with their next join."""
    truth = Truth()
    world = World(7, 7, 0.3, 400.0, 0, False, False, 2_000_000, [], (1, 0))
    town, residents = _town(world, truth)
    for number, car in enumerate(residents[1:]):
        town.move(car, Point(100 + 10 * number, 120))
    _announce(town, residents[0], hops=0, deadline_us=2_000_000, moves=False)
    town.run(120)
    silent, returned = truth.departures[NoteKind.MEMBER_SILENT], truth.departures[NoteKind.MEMBER_RETURNED]
    assert silent > 0
    town.radio.loss = 0.0
    town.run(2 * PERIOD_S)
    assert len(residents[0].node.members("light")) == 7
    assert truth.departures[NoteKind.MEMBER_RETURNED] == truth.departures[NoteKind.MEMBER_SILENT] >= silent >= returned


def test_the_same_seed_gives_the_same_town() -> None:
    """Everything follows from the seed."""

    def counts() -> Counter[str]:
        truth = Truth()
        town, residents = _town(World(3, 6, 0.2, 120.0, 2, True, True, 2_000_000, [], (1, 0)), truth)
        _announce(town, residents[0], hops=2, deadline_us=2_000_000, moves=True)
        for number in range(5):
            town.after(1_000_000 * number + 300_000, lambda number=number: _publish(town, truth, residents[0], number))  # type: ignore[misc] # bound now
        town.run(8)
        return town.counts

    assert counts() == counts()
