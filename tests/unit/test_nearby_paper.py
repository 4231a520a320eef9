"""STEAM's figures through the real cores and their bytes: Figure 2 cell for cell, and Figure 3's deliveries."""

from __future__ import annotations

from tests.unit.nearby_rig import Street, at

from whimbrel.nearby.group.outputs import NoteKind
from whimbrel.nearby.group.subscriptions import NearbySubscription

TOWARDS = NearbySubscription(subject="traffic light", filter_text="approaching == 1")


def _drive(street: Street, *stops: float) -> None:
    for x_m in stops:
        street.move("car", at(x_m))
        street.run(1)


def _published(street: Street, light: str = "light") -> tuple[bool, bool]:
    """Publish at *light* and return whether the event was propagated to the car, and delivered to its application."""
    notes, delivered = len(street.notes), len(street.delivered)
    street.publish(light, "traffic light", status="red")
    street.run(0.4)
    kinds = [note.kind for who, note in street.notes[notes:] if who == "car"]
    return NoteKind.PROPAGATED in kinds, len(street.delivered) > delivered


def test_figures_1_and_2_the_traffic_light() -> None:
    """Stages s1 to s4, and then the next light with no new subscription (T7, T13, T15)."""
    street = Street()
    street.add("light", at(0))
    street.add("car", at(-400))
    street.announce("light", "traffic light", radius_m=150)
    street.nodes["car"].subscribe(TOWARDS)
    table = {}
    _drive(street, -390, -370)
    table["s1"] = _published(street)
    _drive(street, -120, -100)
    table["s2"] = _published(street)
    _drive(street, 40, 60)
    table["s3"] = _published(street)
    _drive(street, 180, 200)
    table["s4"] = _published(street)
    assert table == {"s1": (False, False), "s2": (True, True), "s3": (True, False), "s4": (False, False)}

    street.add("next", at(500))
    street.announce("next", "traffic light", radius_m=150)
    _drive(street, 380, 400)
    assert _published(street, "next") == (True, True)
    assert _published(street, "light") == (False, False)


def test_figure_3b_subject_at_the_producer_content_at_the_consumer() -> None:
    """Subject A goes to C1 and C2, B to C2 and C3; each consumer's own filter decides what its application gets."""
    street = Street()
    street.add("P", at(0))
    for number in (1, 2, 3):
        street.add(f"C{number}", at(10 * number))
    wanted = {"C1": {"A": "value == 1"}, "C2": {"A": "value == 2", "B": "value == 3"}, "C3": {"B": "value == 3"}}
    for name, filters in wanted.items():
        for subject, text in filters.items():
            street.nodes[name].subscribe(NearbySubscription(subject=subject, filter_text=text))
    for subject in "AB":
        street.announce("P", subject)
    street.run(1.5)
    assert set(street.nodes["P"].members("A")) == {"C1", "C2"}
    assert set(street.nodes["P"].members("B")) == {"C2", "C3"}
    for subject, value in (("A", 1), ("A", 2), ("B", 3), ("B", 4)):
        street.publish("P", subject, value=value)
        street.run(0.1)
    propagated = {
        name: [note.group.subject for who, note in street.notes if who == name and note.kind is NoteKind.PROPAGATED]
        for name in wanted
    }
    assert propagated == {"C1": ["A", "A"], "C2": ["A", "A", "B", "B"], "C3": ["B", "B"]}
    assert {name: street.values(name) for name in wanted} == {"C1": [1], "C2": [2, 3], "C3": [3]}
