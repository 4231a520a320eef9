"""Notifications: invalid ones cannot be built."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from whimbrel.errors import InvalidValueError
from whimbrel.model.attributes import FrozenAttributes
from whimbrel.model.notification import Notification, NotificationId
from whimbrel.model.place import Area, Place

HERE = Place(52.52, 13.405)


def a_notification(**changes: Any) -> Notification:  # any field, also a wrong one
    """Return a notification with *changes*."""
    return replace(Notification(node="n1", seq=7, published_at=1_000, subject="ward/3/pulse"), **changes)


def test_an_id_has_a_text_form() -> None:
    """Receipts, logs and redeliveries carry ``node:seq``."""
    assert str(a_notification().id) == "n1:7"
    assert NotificationId.parse("n1:9223372036854775807") == NotificationId("n1", 2**63 - 1)


def test_ids_of_a_node_are_ordered_by_number() -> None:
    """The sequence is the order; 10 comes after 9."""
    assert NotificationId("n1", 9) < NotificationId("n1", 10)


@pytest.mark.parametrize(
    "text", ["", "n1", "n1:", ":1", "n1:-1", "n1:01", "n1:9223372036854775808", "a:b:1", "n/1:1", "n" * 65 + ":1"]
)
def test_a_text_that_is_no_id_is_refused(text: str) -> None:
    """One spelling per id, and a node is also a folder's name."""
    with pytest.raises(InvalidValueError):
        NotificationId.parse(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("node", "a:b"),
        ("seq", -1),
        ("seq", 2**63),
        ("published_at", 1.5),
        ("publisher", ""),
        ("subject", ""),
        ("subject", "a/+/b"),
        ("subject", "a\0b"),
        ("subject", "é" * 32_768),
        ("subject", "\ud800"),
        ("attributes", {"a": None}),
        ("body", bytearray(b"x")),
        ("qos", 3),
        ("qos", True),
        ("radius_m", 10.0),
        ("expires_at", 2**63),
        ("deadline_at", "soon"),
    ],
)
def test_an_invalid_field_is_refused(field: str, value: object) -> None:
    """Whoever holds a notification need not check it again."""
    with pytest.raises(InvalidValueError):
        a_notification(**{field: value})


def test_attributes_are_frozen_on_the_way_in() -> None:
    """The caller's dict may change; the notification may not."""
    mine: dict[str, Any] = {"a": 1}
    notification = a_notification(attributes=mine)
    mine["a"] = 2
    assert notification.attributes == {"a": 1}
    assert type(notification.attributes) is FrozenAttributes
    with pytest.raises(FrozenInstanceError):
        notification.seq = 8  # type: ignore[misc]  # that it is refused is the point


def test_a_place_with_a_radius_is_an_area() -> None:
    """STEAM's proximity; a place alone is only where it happened."""
    assert a_notification(place=HERE, radius_m=150).area == Area(HERE, 150.0)
    assert a_notification(place=HERE).area is None


def test_insecure_delivery_is_the_default() -> None:
    """Plain MQTT clients know no keys and must still hear each other."""
    assert a_notification().deliver_insecure


def test_a_notification_pickles_and_hashes() -> None:
    """It travels to Spark workers and lives in sets."""
    notification = a_notification(attributes={"a": b"x"}, place=HERE, radius_m=1.0)
    assert pickle.loads(pickle.dumps(notification)) == notification  # noqa: S301 # our own bytes
    assert len({notification, a_notification(attributes={"a": b"x"}, place=HERE, radius_m=1.0)}) == 1
