"""Placing: the place, area and deadline that a publisher gives its publication (STEAM, 4.3).

| MQTT 5, user property | meaning |
|---|---|
| ``place=lat,lon`` | the place of the publication |
| ``radius=R`` | only sessions at most R metres from the place receive it |
| ``deadline=S`` | a copy that is sent S seconds or more after the publication was accepted counts as late |

In a topic, for clients of 3.1.1: ``$place/<lat,lon,radius>/<topic>`` or ``$place/<lat,lon>/<topic>``.

Rule: the properties stay in the publication: receivers get them, and content filters see them as attributes.
Rule: the strict form (``whimbrel.place``, or ``place`` on a connection whose CONNECT carries ``whimbrel=1``, or
``$place/``) is refused if it does not parse. A bare property that does not parse is the application's:
``place=Kitchen`` has no meaning for the broker, and is counted. Bare ``place`` and ``radius`` count together or not at
all: a place without its intended radius would reach every subscriber.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from whimbrel.broker.wire.own_properties import PREFIX, Pairs
from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.model.bounds import real
from whimbrel.model.clock import US_PER_S
from whimbrel.model.near import MAX_NEAR_M
from whimbrel.model.place import Place
from whimbrel.node.places.placing import Placing

__all__ = ["IN_TOPIC", "ReadPlacing", "in_properties", "read_placing"]

IN_TOPIC = "$place/"
_MAX_DEADLINE_S = 7 * 86_400
_LONGEST = 80
_NUMBER = re.compile(r"(?:[0-9]{1,16}(?:\.[0-9]{0,32})?|\.[0-9]{1,32})(?:[eE][+-]?[0-9]{1,3})?")
_BARE = frozenset({"place", "radius", "deadline"})
_NAMES = _BARE | {PREFIX + name for name in _BARE}


class ReadPlacing(NamedTuple):
    """The placing that was read, and the count of bare properties that are the application's, as they do not parse."""

    placing: Placing | None
    foreign: int


_NOTHING = ReadPlacing(None, 0)


def read_placing(user: Pairs, *, is_ours: bool) -> ReadPlacing:
    """Parse the placing in a publication's user properties; raise ``InvalidValueError`` if a strict one is wrong."""
    for name, _ in user:
        if name in _NAMES:
            return _read(user, is_ours=is_ours)
    return _NOTHING


def _read(user: Pairs, *, is_ours: bool) -> ReadPlacing:
    strict: dict[str, str] = {}
    bare: dict[str, str] = {}
    foreign = 0
    for name, value in user:
        if name not in _NAMES:
            continue
        option = name.removeprefix(PREFIX)
        if is_ours or name != option:
            if option in strict:
                raise InvalidValueError(option, Phrase("two values"), "one")
            strict[option] = value
        elif option in bare:
            foreign += 1
        else:
            bare[option] = value
    place, radius_m, ignored = _area(strict, bare)
    foreign += ignored
    deadline_us = None
    if "deadline" in strict:
        deadline_us = _deadline_us(strict["deadline"])
    elif "deadline" in bare:
        try:
            deadline_us = _deadline_us(bare["deadline"])
        except InvalidValueError:
            foreign += 1
    if place is None and deadline_us is None:
        return ReadPlacing(None, foreign)
    return ReadPlacing(Placing(place, radius_m, deadline_us), foreign)


def _area(strict: dict[str, str], bare: dict[str, str]) -> tuple[Place | None, float | None, int]:
    """Return the place, the radius, and the count of bare properties that do not parse as these."""
    if "place" in strict or "radius" in strict:
        if "place" not in strict:
            raise InvalidValueError("radius", strict["radius"][:_LONGEST], "none without a place")
        radius = strict.get("radius")
        return Place.parse(strict["place"]), None if radius is None else _radius_m(radius), 0
    said = ("place" in bare) + ("radius" in bare)
    if "place" not in bare:
        return None, None, said
    try:
        radius = bare.get("radius")
        return Place.parse(bare["place"]), None if radius is None else _radius_m(radius), 0
    except InvalidValueError:
        return None, None, said


def _radius_m(text: str) -> float:
    return real("radius", _number("radius", text, "metres"), 0, MAX_NEAR_M)


def _deadline_us(text: str) -> int:
    return round(real("deadline", _number("deadline", text, "seconds"), 0, _MAX_DEADLINE_S) * US_PER_S)


def _number(what: str, text: str, unit: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise InvalidValueError(what, text[:_LONGEST], f"a number of {unit}")
    return float(text)


def in_properties(topic: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Split ``$place/<lat,lon,radius>/<topic>`` into the topic and the user properties for its place and radius."""
    where, slash, plain = topic.removeprefix(IN_TOPIC).partition("/")
    if not slash or not plain or plain[0] == "$":
        allowed = f"{IN_TOPIC}lat,lon,radius/topic, the topic not beginning with $"
        raise InvalidValueError("topic", topic[:_LONGEST], allowed)
    place, comma, radius = where.rpartition(",")
    if "," not in place:
        place, comma, radius = where, "", ""
    Place.parse(place)
    if not comma:
        return plain, (("place", place),)
    _radius_m(radius)
    return plain, (("place", place), ("radius", radius))
