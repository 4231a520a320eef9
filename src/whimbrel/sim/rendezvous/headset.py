"""A headset or a mouse on the simulated radio: one connection, a fixed PIN, no software (Huang, 5.4.4).

It is paired with one smart device. After it is switched on, or has lost its connection, it pages that device at once.
If the page is not answered, it pages again after a pause, until it is answered or switched off.

Rule: it knows nothing about controllers. Any device that answers its page under the called address counts as its
smart device.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from whimbrel.model.bounds import whole
from whimbrel.rendezvous.events import Address
from whimbrel.rendezvous.radio.interface import LinkLost, LinkMade, PageFailed, Parked, RadioEvent, RoleSwitched
from whimbrel.rendezvous.radio.simulated.air import Air, SimulatedRadio

__all__ = ["PAGE_US", "PAUSE_US", "Headset", "HeadsetEvent", "HeadsetFact"]

PAGE_US = 5_120_000
"""Duration of one page: the default page timeout of Bluetooth 1.2, 0x2000 slots."""

PAUSE_US = 10_000_000
"""Pause after an unanswered page. The value is assumed; the thesis only says *periodically*."""


class HeadsetFact(Enum):
    """Events of a headset's connection."""

    PAGES = "pages"
    CONNECTED = "is connected"
    SLAVE = "becomes slave"
    PARKED = "is parked"
    LOST = "is disconnected"
    UNANSWERED = "is not answered"


@dataclass(frozen=True, slots=True)
class HeadsetEvent:
    """One event of a headset, and its time."""

    fact: HeadsetFact
    at: int


class Headset:
    """A dumb device at *address*, paired with the device at *smart*."""

    def __init__(
        self,
        air: Air,
        address: Address,
        *,
        smart: Address,
        pin: str = "0000",
        pause_us: int = PAUSE_US,
        place: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self._air, self._smart = air, smart
        self._pause_us = whole("pause_us", pause_us, 0, 3_600_000_000)
        self.radio: SimulatedRadio = air.add(
            address, name="headset", device_class=0x200404, place=place, has_layer=False
        )
        self.radio.pin = pin
        self.radio.handler = self._handle
        air.reserve(smart)
        self.facts: list[HeadsetEvent] = []
        self._is_on = False
        self._is_connected = False

    @property
    def is_connected(self) -> bool:
        """Whether it is connected, to its phone or to a controller in its place."""
        return self._is_connected

    def switch_on(self) -> None:
        """Start paging the smart device."""
        self._is_on = True
        self._page()

    def switch_off(self) -> None:
        """Disconnect, and stop paging."""
        self._is_on = False
        if self._is_connected:
            self._is_connected = False
            self.radio.disconnect(self._smart)

    def pages(self) -> int:
        """Return how many pages it has started."""
        return sum(each.fact is HeadsetFact.PAGES for each in self.facts)

    def _page(self) -> None:
        if self._is_on and not self._is_connected:
            self._note(HeadsetFact.PAGES)
            self.radio.page(self._smart, self.radio.clock_offset_of(self._smart), timeout_us=PAGE_US)

    def _handle(self, event: RadioEvent, _now: int) -> None:
        match event:
            case LinkMade(address, is_caller=True) if address == self._smart and self._is_on:
                self._is_connected = True
                self._note(HeadsetFact.CONNECTED)
            case LinkMade(address):
                self.radio.disconnect(address)  # switched off meanwhile, or another device
            case PageFailed():
                self._note(HeadsetFact.UNANSWERED)
                self._air.after(self._pause_us, self._page)
            case LinkLost(address) if address == self._smart and self._is_connected:
                self._is_connected = False
                self._note(HeadsetFact.LOST)
                self._page()
            case RoleSwitched(is_master=False):
                self._note(HeadsetFact.SLAVE)
            case Parked():
                self._note(HeadsetFact.PARKED)
            case _:
                pass

    def _note(self, fact: HeadsetFact) -> None:
        self.facts.append(HeadsetEvent(fact, self._air.now))
