"""Reporting: what a device says of itself by and by, so that a policy can decide by it (SUBLIM, 6.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from whimbrel.errors import InvalidValueError

__all__ = ["Reporting", "system_battery"]

_SUPPLIES = Path("/sys/class/power_supply")
_LEAST_S = 1.0


def system_battery(supplies: Path = _SUPPLIES) -> float | None:
    """Return what is left of the charge of this machine's batteries, 0 to 1; None if it has none that it tells of."""
    try:
        batteries = [each for each in supplies.iterdir() if (each / "type").read_text().strip() == "Battery"]
        found = [int((each / "capacity").read_text()) for each in batteries]
    except (OSError, ValueError):  # no such folder on this system, or a driver that says something else
        return None
    return min(100, max(0, round(sum(found) / len(found)))) / 100 if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    """How often a client reports the state of its device by itself, and what beside the messages it received.

    >>> Reporting(members={"responsible": ["p1", "p7"]}).every_s
    30.0
    """

    every_s: float = 30.0
    battery: Callable[[], float | None] = system_battery
    """Asked each time; it must not wait."""
    display: tuple[int, int] | None = None
    """Width and height in pixels."""
    place: str | Callable[[], str | None] | None = None
    """``lat,lon`` in degrees; asked each time if it can be called, and it must not wait."""
    members: Mapping[str, object] = field(default_factory=dict)
    """Other variables that a policy of this device reads, such as sets."""

    def __post_init__(self) -> None:
        if self.every_s < _LEAST_S:
            raise InvalidValueError("every_s", self.every_s, f"at least {_LEAST_S:g}")
