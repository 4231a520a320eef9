"""One node under anything that strangers can send, in any order: a model watches every output it gives.

Frames come from few names, numbers and areas, so that a few dozen steps reach every corner: forged, replayed, of former
announcements, with numbers that leap, from outside. After every step: nothing is sent outside, no event is delivered
twice or late, tables are bounded, nothing raises but our refusals. A second node gets the same inputs and gives the
same outputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from whimbrel.errors import InvalidInputError
from whimbrel.model.attributes import checked
from whimbrel.model.place import Area, Place, Plane, Point
from whimbrel.nearby.deployment import Deployment
from whimbrel.nearby.frames.values import Beacon, Event, Frame, Join, Objection, Request, ViewDigest
from whimbrel.nearby.frames.wire import decode, encode
from whimbrel.nearby.group.outputs import Deliver, Output, Send
from whimbrel.nearby.group.relay import is_inside
from whimbrel.nearby.group.subscriptions import NearbySubscription
from whimbrel.nearby.node import Node
from whimbrel.nearby.vocabulary import Vocabulary

WORDS = Vocabulary.of({"light": {"value": "int32"}, "sign": {"value": "int32"}})
SMALL = Deployment(
    max_groups=4, max_origins=6, max_queue=8, max_kept=5, max_members=3, max_missing=4, max_waiting=3, max_listed=2
)
PLANE = Plane(Place(53.3438, -6.2546))
names = st.sampled_from(["n1", "n1", "n1", "n2", "n2", "n3", "n4", "n5", "n6", "n7", "me"])
subjects = st.sampled_from(["light", "light", "light", "light", "sign", "other"])
numbers = st.integers(0, 6) | st.sampled_from([40, 300, 2**40])
HERE = PLANE.place(Point(0, 0))
NEAR = Area(HERE, 400)
spots = st.sampled_from([0.0, 0.0, 50.0, 90.0, 200.0, 5_000.0]).map(lambda x_m: PLANE.place(Point(x_m, 0)))
areas = st.just(NEAR) | st.just(NEAR) | st.builds(Area, spots, st.sampled_from([60.0, 100.0, 400.0, 6_000.0]))
durations = st.sampled_from([0, 5_000, 300_000, 3_000_000, 3_000_000, 3_000_000])
flooded = {
    "origin": names,
    "seq": numbers,
    "sender": names,
    "hops": st.integers(0, 3),
    "max_hops": st.just(3),
    "subject": subjects,
    "area": areas,
    "epoch": st.sampled_from([0, 0, 0, 0, 1, 2]),
}
frames: st.SearchStrategy[Frame] = st.one_of(
    st.builds(
        Beacon,
        **flooded,
        place=spots,
        moves=st.booleans(),
        lifetime_us=durations,
        max_remaining_us=durations,
        latest=numbers,
        latest_us=durations,
        cell_m=st.sampled_from([500, 500, 500, 250]),
        fingerprint=st.sampled_from(
            [WORDS["light"].fingerprint, WORDS["light"].fingerprint, WORDS["sign"].fingerprint]
        ),
        view=st.builds(ViewDigest, st.integers(0, 3), st.integers(0, 3)),
        members=st.none() | st.just((1, 2)),
    ),
    st.builds(
        Join,
        **flooded,
        producer=names,
        accounted=numbers,
        expired=numbers,
        missed=numbers,
        wants_view=st.booleans(),
        is_leaving=st.booleans(),
    ),
    st.builds(
        Event,
        **flooded,
        place=spots,
        number=numbers.filter(bool),
        deadline_us=st.just(3_000_000),
        remaining_us=durations,
        attributes=st.sampled_from([checked({"value": 1}), checked({"value": 1}), checked({"value": "x"})]),
    ),
    st.builds(
        Objection,
        sender=names,
        to=names,
        area=areas,
        subject=subjects,
        clock_us=numbers,
        epoch=numbers,
    ),
    st.builds(
        Request,
        sender=names,
        to=names,
        area=areas,
        producer=names,
        subject=subjects,
        epoch=st.integers(0, 1),
        numbers=st.lists(numbers, max_size=4).map(tuple),
    ),
)


def _node() -> Node:
    node = Node("me", vocabulary=WORDS, deployment=SMALL, first_seq=1_000)
    node.move(HERE, now=0)
    node.subscribe(NearbySubscription(subject="light"))
    return node


class NodeModel(RuleBasedStateMachine):
    """Strangers around one node."""

    def __init__(self) -> None:
        super().__init__()
        self.node, self.again = _node(), _node()
        self.now = 0
        self.delivered: Counter[tuple[str, int, int, str]] = Counter()

    def do(self, act: Callable[[Node], object]) -> None:
        """Do the same to both nodes; see that they answer alike, and where they send."""
        results: list[object] = []
        for node in (self.node, self.again):
            try:
                results.append(act(node))
            except InvalidInputError as error:
                results.append(str(error))
        assert results[0] == results[1]
        outputs = results[0]
        if isinstance(outputs, list):
            self.see(outputs)

    def see(self, outputs: list[Output]) -> None:
        """See that frames have bytes, and leave inside their area only."""
        for each in outputs:
            if isinstance(each, Send):
                assert decode(encode(each.frame)) == each.frame
                assert is_inside(each.frame.area, self.node.motion.place)

    @rule(frame=frames)
    def hear(self, frame: Frame) -> None:
        """Let a frame arrive."""
        self.do(lambda node: node.receive(frame, now=self.now))

    @rule(many=st.lists(frames, min_size=5, max_size=20))
    def hear_many(self, many: list[Frame]) -> None:
        """Let many arrive at once."""
        for frame in many:
            self.hear(frame)

    @rule(place=spots | st.none())
    def move(self, place: Place | None) -> None:
        """Let the node be elsewhere, or nowhere."""
        self.do(lambda node: node.move(place, now=self.now))

    @rule(subject=subjects, text=st.none() | st.sampled_from(["value == 1", "approaching == 1", "colour == 1"]))
    def subscribe(self, subject: str, text: str | None) -> None:
        """Subscribe, perhaps in vain."""
        self.do(lambda node: node.subscribe(NearbySubscription(subject=subject, filter_text=text)))

    @rule(subject=subjects)
    def unsubscribe(self, subject: str) -> None:
        """Unsubscribe."""
        self.do(lambda node: node.unsubscribe(subject, now=self.now))

    @rule(subject=subjects, radius_m=st.sampled_from([60.0, 400.0, 9_000.0]), moves=st.booleans())
    def announce(self, subject: str, radius_m: float, *, moves: bool) -> None:
        """Announce."""
        self.do(
            lambda node: node.announce(
                subject, radius_m=radius_m, deadline_us=2_000_000, moves=moves, hops=1, now=self.now
            )[1]
        )

    @rule(subject=subjects)
    def publish(self, subject: str) -> None:
        """Publish."""
        self.do(lambda node: node.publish(subject, {"value": 1}, now=self.now)[1])

    @rule(duration=st.sampled_from([0, 1_000, 60_000, 1_100_000, 4_000_000, -10_000_000]))
    def wait(self, duration: int) -> None:
        """Let time pass, timer by timer, or set the clock back."""
        end = self.now + duration
        for _ in range(200):
            due = self.node.next_due
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self.do(lambda node: node.timer(now=self.now))
        self.now = end
        self.do(lambda node: node.timer(now=self.now))

    @rule(count=st.integers(1, 4))
    def take(self, count: int) -> None:
        """Take events as the application would."""
        for _ in range(count):
            found, notes = self.node.take(now=self.now)
            assert (found, notes) == self.again.take(now=self.now)
            if found is not None:
                self.check(found)

    def check(self, found: Deliver) -> None:
        """See that an event is delivered once, and in time."""
        event = found.event
        assert found.left_us > 0
        key = (event.origin, event.epoch, event.number, event.subject)
        self.delivered[key] += 1
        # A producer that this node had to forget, because so many others came, may be taken for a new one.
        assert self.delivered[key] == 1 or self.node.counts["forgotten"]

    @invariant()
    def tables_are_bounded(self) -> None:
        """Whatever strangers send."""
        consumer, relay = self.node._consumer, self.node._relay
        groups = consumer._groups
        assert len(groups.known) <= SMALL.max_groups
        assert set(groups.active) == {group for group, each in groups.known.items() if each.is_active}
        assert all(len(each.missing) <= SMALL.max_missing + 1 for each in groups.known.values())
        assert len(consumer._objected) <= SMALL.max_groups
        assert len(consumer._dispatcher) <= SMALL.max_waiting
        assert len(relay._seen) <= SMALL.max_origins
        assert len(relay._queue) <= SMALL.max_queue
        assert len(relay._kept) <= SMALL.max_kept
        for subject in ("light", "sign"):
            with suppress(InvalidInputError):
                assert len(self.node.members(subject)) <= SMALL.max_members


NodeModel.TestCase.settings = settings(settings.default, stateful_step_count=40)
TestNode = NodeModel.TestCase
