"""STEAM's figures through the real cores and their bytes: Figure 2 cell for cell, and Figure 3's deliveries."""

from __future__ import annotations

import pytest
from tests.unit.nearby_rig import Street, at

from whimbrel.model.place import Area
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


def test_figure_2_where_the_area_is_not_centred_on_the_light() -> None:
    """The place of the light is a parameter of the event (4.3): behind the light a car nears the area's centre.

    The area reaches from 100 m before the light to 300 m behind it.
    """
    street = Street()
    street.add("light", at(0))
    street.add("car", at(-400))
    street.announce("light", "traffic light", radius_m=200, centre=at(100))
    street.nodes["car"].subscribe(TOWARDS)
    table = {}
    for stage, stops in (("s1", (-390, -370)), ("s2", (-70, -50)), ("s3", (40, 60)), ("s4", (320, 340))):
        _drive(street, *stops)
        table[stage] = _published(street)
    assert table == {"s1": (False, False), "s2": (True, True), "s3": (True, False), "s4": (False, False)}


def test_distance_and_direction_are_those_to_the_producer() -> None:
    """And so is the place that a subscription's own circle must hold."""
    street = Street()
    street.add("light", at(0))
    street.announce("light", "traffic light", radius_m=300, centre=at(200))
    car = street.add("car", at(160))
    near = {"here": Area(at(0), 20), "centre": Area(at(200), 20)}
    for name, area in near.items():
        car.subscribe(NearbySubscription(subject="traffic light", name=name, near=area))
    street.run(1.5)
    street.move("car", at(150))
    street.publish("light", "traffic light", status="red")
    street.run(0.1)
    ((_, found),) = street.delivered
    assert found.subscriptions == ("here",)
    assert found.attributes["distance_m"] == pytest.approx(150, abs=0.5)
    assert found.attributes["approaching"] == 1
    assert found.attributes["heading_difference"] == pytest.approx(0, abs=0.5)


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
