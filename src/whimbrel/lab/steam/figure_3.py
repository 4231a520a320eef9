"""STEAM, Figure 3, with the real cores over a simulated radio: the consumers that an event is sent and delivered to.

Part a has content filters at the producer; part b has the subject at the producer and content filters at the consumers.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from whimbrel.model.place import Point
from whimbrel.nearby.frames.values import Frame
from whimbrel.nearby.group.outputs import Deliver, Note, NoteKind
from whimbrel.nearby.group.subscriptions import NearbySubscription
from whimbrel.nearby.vocabulary import Vocabulary
from whimbrel.sim.streets.filtering import FilteringTown
from whimbrel.sim.streets.radio import BroadcastRadio
from whimbrel.sim.streets.town import Resident, Town

__all__ = ["FIGURE_3A", "FIGURE_3B", "Reached", "deliveries_3a", "deliveries_3b"]

_WORDS = Vocabulary.of({"A": {"value": "int32"}, "B": {"value": "int32"}})
Reached = dict[str, tuple[tuple[str, ...], tuple[str, ...]]]
FIGURE_3A: Reached = {
    "e1": (("C1",), ("C1",)),
    "e2": (("C2",), ("C2",)),
    "e3": (("C2", "C3"), ("C2", "C3")),
}
"""The consumers that each event is addressed and delivered to, with all content filters at the producer."""
FIGURE_3B: Reached = {
    "e1 of A, cfX": (("C1", "C2"), ("C1",)),
    "e1 of A, cfY": (("C1", "C2"), ("C2",)),
    "e2 of B, cfZ": (("C2", "C3"), ("C2", "C3")),
}
"""The consumers that each event is propagated and delivered to, with the subject at the producer."""
_CONTENT = {("C1", "A"): "value == 1", ("C2", "A"): "value == 2", ("C2", "B"): "value == 3", ("C3", "B"): "value == 3"}
_ALL_CONTENT = {"C1": "value == 1", "C2": "value == 2 || value == 3", "C3": "value == 3"}
"""cfX, cfY and cfZ; C2 has two of them."""


class _Watcher:
    """Records which consumers an event reaches."""

    def __init__(self) -> None:
        self.propagated: list[str] = []
        self.given: list[str] = []

    def on_transmission(self, who: Resident, frame: Frame, *, datagrams: int, heard_by: int, now: int) -> None:
        """Ignore a transmission."""

    def on_note(self, who: Resident, note: Note, *, now: int) -> None:
        """Record a propagation."""
        del now
        if note.kind is NoteKind.PROPAGATED:
            self.propagated.append(who.node.name)

    def on_delivery(self, who: Resident, what: Deliver, *, now: int) -> None:
        """Record a delivery."""
        del what, now
        self.given.append(who.node.name)


def deliveries_3a() -> Reached:
    """Return the consumers that e1, e2 and e3 are addressed and delivered to, with content filters at the producer."""
    watcher = _Watcher()
    radio = BroadcastRadio(range_m=200, random=Random(1))  # noqa: S311 # a made-up radio
    town = FilteringTown(
        radio=radio, vocabulary=_WORDS, watcher=watcher, filter_of=lambda consumer, _subject: _ALL_CONTENT[consumer]
    )
    producer = _populate(town, {name: {"A": None} for name in _ALL_CONTENT})
    found: Reached = {}
    for value in (1, 2, 3):
        watcher.given.clear()
        event = town.publish(producer, "A", {"value": value})
        town.run(0.4)
        assert event is not None
        found[f"e{value}"] = (tuple(sorted(town.find_named(event))), tuple(sorted(watcher.given)))
    return found


def deliveries_3b() -> Reached:
    """Return the consumers that events are propagated and delivered to, with the subject at the producer."""
    watcher = _Watcher()
    radio = BroadcastRadio(range_m=200, random=Random(1))  # noqa: S311 # a made-up radio
    town = Town(radio=radio, vocabulary=_WORDS, watcher=watcher)
    wants: dict[str, dict[str, str | None]] = {}
    for (name, subject), text in _CONTENT.items():
        wants.setdefault(name, {})[subject] = text
    producer = _populate(town, wants)
    found: Reached = {}
    for which, subject, value in (("e1 of A, cfX", "A", 1), ("e1 of A, cfY", "A", 2), ("e2 of B, cfZ", "B", 3)):
        watcher.propagated.clear()
        watcher.given.clear()
        town.publish(producer, subject, {"value": value})
        town.run(0.4)
        found[which] = (tuple(sorted(watcher.propagated)), tuple(sorted(watcher.given)))
    return found


def _populate(town: Town, wants: Mapping[str, Mapping[str, str | None]]) -> Resident:
    """Add the producer and the consumers to *town*, and run it until their groups have formed."""
    producer = town.add("P", Point(0, 0))
    for number, (name, wanted) in enumerate(wants.items()):
        consumer = town.add(name, Point(10 * (number + 1), 0))
        for subject, text in wanted.items():
            consumer.node.subscribe(NearbySubscription(subject=subject, filter_text=text))
    for subject in sorted({subject for wanted in wants.values() for subject in wanted}):
        _, outputs = producer.node.announce(
            subject, radius_m=100, centre=town.plane.place(Point(40, 30)), deadline_us=300_000, now=town.now
        )
        town.perform(producer, outputs)
    town.run(2.0)
    return producer
