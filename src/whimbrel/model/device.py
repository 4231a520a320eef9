"""Device state: a device's last report, and the automatic variables of a policy (SUBLIM, section 6.2).

Rule: ``None`` means "not known"; a policy must cope with it.
Rule: the device reports battery, display, received and place. The server sets ``sent`` and the time; values of these in
a report are ignored.
Rule: other members of a report are kept as members, flattened like attributes. A list is a set: ``{"mine": ["a", 7]}``
becomes ``mine`` = 2 (its size), ``mine.a`` = 1 and ``mine.7`` = 1. So an empty set differs from a missing one.
Rule: 7 and "7" are different members. If a name is a whole number, its value is an int64 that tells which of the two
the set contains (``has_item``): 1 the number, 2 the text, 3 both. Other members, and those of older reports, are int32.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Self

from whimbrel.errors import InvalidValueError
from whimbrel.model.attributes import NO_ATTRIBUTES, Attributes, Int64, Limits, Scalar, checked, integer
from whimbrel.model.bounds import INT32_MAX, INT64_MAX, check_time, name, real, whole
from whimbrel.model.json_body import read_json
from whimbrel.model.place import Place

__all__ = ["MEMBER_LIMITS", "REPORT_LIMITS", "DeviceState", "Display", "has_item", "network_connection"]

REPORT_LIMITS = Limits(max_bytes=65_536, max_depth=8)
MEMBER_LIMITS = Limits(max_names=256, max_bytes=8_192, max_depth=8, max_name_bytes=256)
"""Limits of the members of a report beyond those that every device has."""
IS_NUMBER, IS_TEXT = 1, 2
_WHOLE_NUMBER = re.compile("0|-?[1-9][0-9]{0,18}")
"""Pattern of a whole number: names that two members of a set, a number and a text, may share."""
_KNOWN = frozenset({"battery", "display", "received", "sent", "place", "device", "reported_at"})


def network_connection(received: int | None, sent: int | None) -> float | None:
    """Return the automatic variable NetworkConnection of a report; None without *received*, or if nothing was sent."""
    if received is None or not sent:
        return None
    return min(received / sent, 1.0)  # late arrivals of the last period can make it more than 1


@dataclass(frozen=True, slots=True)
class Display:
    """A screen's size in pixels; the automatic variable DisplaySize."""

    width_px: int
    height_px: int

    def __post_init__(self) -> None:
        whole("width of display", self.width_px, 0, INT32_MAX)
        whole("height of display", self.height_px, 0, INT32_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """One row of the ``reports`` table."""

    device: str
    reported_at: int
    battery: float | None = None
    """Fraction of the charge that is left, 0 to 1; the automatic variable Battery."""
    display: Display | None = None
    received: int | None = None
    """Notifications that the device received since its last report, as it says."""
    sent: int | None = None
    """Notifications that the server sent to the device since its last report."""
    place: Place | None = None
    members: Attributes = NO_ATTRIBUTES
    """The other members of the report, flattened."""

    def __post_init__(self) -> None:
        name("device", self.device)
        check_time("reported_at", self.reported_at)
        if self.battery is not None:
            object.__setattr__(self, "battery", real("battery", self.battery, 0, 1))
        if self.received is not None:
            whole("received", self.received, 0, INT64_MAX)
        if self.sent is not None:
            whole("sent", self.sent, 0, INT64_MAX)

    @property
    def is_move(self) -> bool:
        """Whether the report contains only the device's place."""
        said = (self.battery, self.display, self.received)
        return self.place is not None and not self.members and all(each is None for each in said)

    @property
    def network_connection(self) -> float | None:
        """The automatic variable NetworkConnection: received / sent, at most 1; None if nothing was sent."""
        return network_connection(self.received, self.sent)

    @classmethod
    def from_report(cls, data: bytes | str, *, device: str, now: int, sent: int | None = None) -> Self:
        """Return the state in a JSON report."""
        report = read_json(data, limits=REPORT_LIMITS)
        battery, received = report.get("battery"), report.get("received")
        return cls(
            device=device,
            reported_at=now,
            battery=None if battery is None else real("battery", battery, 0, 1),
            display=_display(report.get("display")),
            received=None if received is None else whole("received", received, 0, INT64_MAX),
            sent=sent,
            place=_place(report.get("place")),
            members=_members(report),
        )


def _display(found: object) -> Display | None:
    if found is None:
        return None
    if not isinstance(found, Mapping) or not {"width", "height"} <= found.keys():
        raise InvalidValueError("display", found, 'an object of "width" and "height" in pixels')
    return Display(
        whole("width of display", found["width"], 0, INT32_MAX),
        whole("height of display", found["height"], 0, INT32_MAX),
    )


def _place(found: object) -> Place | None:
    if found is None:
        return None
    if not isinstance(found, str):
        raise InvalidValueError("place", found, 'a string "lat,lon"')
    return Place.parse(found)


def _members(report: Mapping[str, object]) -> Attributes:
    """Return the members of *report* beyond those that every device has."""
    others = {key: value for key, value in report.items() if key not in _KNOWN}
    if not others:
        return NO_ATTRIBUTES
    found: dict[str, object] = {}
    for key, value in _leaves(others, ""):
        if key in found:
            raise InvalidValueError("member of a report", key, "each name once")
        found[key] = value
    return checked(found, limits=MEMBER_LIMITS)


def _leaves(tree: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in tree.items():
        if not key:
            raise InvalidValueError("member of a report", prefix + key, "names of at least one character")
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            items = {(type(each), each) for each in value if type(each) in {str, int} and each != ""}
            yield prefix + key, len(items)
            names = {str(item) for _, item in items}
            yield from ((f"{prefix}{key}.{each}", _item_value(each, items)) for each in sorted(names))
        elif isinstance(value, int):
            yield prefix + key, integer(value)
        elif value is not None:
            yield prefix + key, value


def _item_value(name: str, items: AbstractSet[tuple[type, str | int]]) -> int:
    """Return the value of a set's member *name*: 1, or for a whole number the types that the set contains."""
    if not _WHOLE_NUMBER.fullmatch(name):
        return 1
    return Int64(IS_NUMBER * ((int, int(name)) in items) | IS_TEXT * ((str, name) in items))


def has_item(value: Scalar, item: str | int) -> bool:
    """Return whether a set's member with this *value* includes *item*, and not only its namesake of the other type.

    Reports of older versions do not distinguish the two; their members include both.
    """
    if type(value) is not Int64 or not _WHOLE_NUMBER.fullmatch(str(item)):
        return True
    return bool(value & (IS_TEXT if isinstance(item, str) else IS_NUMBER))
