"""Periodic reports of a device's state, which its policy can use as variables (SUBLIM, 6.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from whimbrel.errors import InvalidValueError

__all__ = ["Reporting", "system_battery"]

_SUPPLIES = Path("/sys/class/power_supply")
_LEAST_S = 1.0


def system_battery(supplies: Path = _SUPPLIES) -> float | None:
    """Return the mean charge of this machine's batteries, 0 to 1; None if no battery can be read."""
    try:
        batteries = [each for each in supplies.iterdir() if (each / "type").read_text().strip() == "Battery"]
        found = [int((each / "capacity").read_text()) for each in batteries]
    except (OSError, ValueError):  # no such folder on this system, or a driver with another format
        return None
    return min(100, max(0, round(sum(found) / len(found)))) / 100 if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    """Settings of a client's automatic reports: interval, and content besides the count of received messages.

    >>> Reporting(members={"responsible": ["p1", "p7"]}).every_s
    30.0
    """

    every_s: float = 30.0
    battery: Callable[[], float | None] = system_battery
    """Called for each report; it must not block."""
    display: tuple[int, int] | None = None
    """Width and height in pixels."""
    place: str | Callable[[], str | None] | None = None
    """``lat,lon`` in degrees; a callable is called for each report, and must not block."""
    members: Mapping[str, object] = field(default_factory=dict)
    """Other variables that a policy of this device reads, such as sets."""

    def __post_init__(self) -> None:
        if self.every_s < _LEAST_S:
            raise InvalidValueError("every_s", self.every_s, f"at least {_LEAST_S:g}")
