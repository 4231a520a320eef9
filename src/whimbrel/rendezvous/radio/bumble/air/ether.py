"""The ether between radios in software: range, and the removal of a radio whose process ends."""

from __future__ import annotations

import asyncio
import math
from typing import Any, Protocol, TypeVar, cast

from bumble import hci
from bumble.link import LocalLink

__all__ = ["RANGE_M", "SUPERVISION_S", "Ether", "InEther"]

RANGE_M = 10.0
SUPERVISION_S = 2.0


class InEther(Protocol):
    """The parts of a radio that the ether uses."""

    place: tuple[float, float]
    classic_connections: dict[hci.Address, Any]

    @property
    def public_address(self) -> hci.Address:
        """The address of the radio."""
        ...

    def lose(self, address: hci.Address) -> None:
        """End the connection to the radio at *address*, which is silent."""
        ...


_Radio = TypeVar("_Radio", bound=InEther)


class Ether(LocalLink):
    """Radios in one plane; each hears the others within ``RANGE_M``. Pages and inquiries end *speed* times sooner."""

    def __init__(self, *, supervision_s: float = SUPERVISION_S, speed: float = 1.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Bumble's own signature has no types
        self.supervision_s, self.speed = supervision_s, speed

    def peer(self, of: _Radio, address: hci.Address) -> _Radio | None:
        """Return the radio at *address*, if *of* hears it."""
        found = cast("_Radio | None", self.find_classic_controller(address))
        return found if found is not None and self.are_in_range(of, found) else None

    def neighbours(self, of: _Radio) -> list[_Radio]:
        """Return the radios that *of* hears."""
        everyone = cast("set[_Radio]", self.controllers)
        return [each for each in everyone if each is not of and self.are_in_range(of, each)]

    @staticmethod
    def are_in_range(one: InEther, other: InEther) -> bool:
        """Return whether two radios hear each other."""
        return math.dist(one.place, other.place) <= RANGE_M

    def remove(self, radio: InEther) -> None:
        """Remove a radio whose process has ended; the others lose it after the supervision time-out."""
        self.controllers.discard(cast(Any, radio))
        loop = asyncio.get_running_loop()
        for peer in list(radio.classic_connections):
            other = cast("InEther | None", self.find_classic_controller(peer))
            if other is not None:
                loop.call_later(self.supervision_s, other.lose, radio.public_address)
        radio.classic_connections.clear()
