"""Discovery by plain Bluetooth and through a controller, on the simulated radio, for the lab.

With plain Bluetooth, the sought device is discoverable and connectable. The seeker inquires periodically, and pages the
sought device when that has answered. An inquiry lasts 10.24 s, as in an application of 2004. If the application reads
answers as they arrive, the inquiry ends with the answer of the sought device. A device looks for a controller in the
same way.

Rule: the settings and the seed decide everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from whimbrel.model.bounds import real
from whimbrel.model.clock import US_PER_S
from whimbrel.rendezvous.device import Device
from whimbrel.rendezvous.device.commands import Introduced
from whimbrel.rendezvous.events import Address, address_from
from whimbrel.rendezvous.nodes import DeviceNode
from whimbrel.rendezvous.radio.interface import InquiryResult, LinkMade, PageFailed, RadioEvent
from whimbrel.rendezvous.radio.simulated.air import Air, SimulatedRadio
from whimbrel.sim.hall import Hall

__all__ = ["INQUIRY_US", "PAGE_US", "TALK_US", "PlainSeeker", "Search", "add_device", "address"]

INQUIRY_US = 10_240_000
"""Length of an inquiry that is not stopped: eight times 1.28 s (Table 2.1, no voice links)."""

PAGE_US = 5_120_000

TALK_US = 1_000_000
"""How long two devices of a room stay connected; their conversation is not part of discovery."""

_PREFIX = 0x020000000000


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The way in which a plain Bluetooth device inquires."""

    every_s: float = 30.0
    """From the start of an inquiry to the start of the next, unless an inquiry lasts longer."""
    is_whole: bool = True
    """Whether an inquiry always lasts 10.24 s; otherwise it ends with the answer of the sought device."""

    def __post_init__(self) -> None:
        real("every_s", self.every_s, 1, 86_400)


def address(number: int) -> Address:
    """Return the address of the device with this *number*."""
    return address_from((_PREFIX + number).to_bytes(6, "big"))


class PlainSeeker:
    """Inquires for one device until it is connected to it; *radio* may be discoverable meanwhile."""

    def __init__(
        self, air: Air, radio: SimulatedRadio, sought: Address, search: Search, met: Callable[[int], None]
    ) -> None:
        self._air, self._radio, self._sought, self._search, self._met = air, radio, sought, search, met
        self._heard: InquiryResult | None = None
        self._begun = 0
        self._is_inquiring = False
        self._is_done = False
        self.unwanted = 0
        """Number of answers from devices that were not sought."""
        radio.handler = self._handle

    def begin(self) -> None:
        """Start an inquiry now, and repeat it until the device is found."""
        if self._is_done:
            return
        self._begun, self._heard, self._is_inquiring = self._air.now, None, True
        self._radio.inquire(is_on=True)
        begun = self._begun
        self._air.after(INQUIRY_US, lambda: self._end(begun))

    def stop(self) -> None:
        """Stop inquiring."""
        self._is_done = True
        if self._is_inquiring:
            self._is_inquiring = False
            self._radio.inquire(is_on=False)

    def _end(self, begun: int) -> None:
        """Stop the inquiry that began at *begun*, if it still runs; then page the device, or repeat later."""
        if not self._is_inquiring or begun != self._begun:
            return
        self._is_inquiring = False
        self._radio.inquire(is_on=False)
        if self._heard is not None:
            self._radio.page(self._sought, self._heard.clock_offset, timeout_us=PAGE_US)
        else:
            self._repeat()

    def _repeat(self) -> None:
        due = self._begun + round(self._search.every_s * US_PER_S)
        self._air.after(max(0, due - self._air.now), self.begin)

    def _handle(self, event: RadioEvent, now: int) -> None:
        match event:
            case InquiryResult(address=found) if self._is_inquiring:
                if found != self._sought:
                    self.unwanted += 1
                elif self._heard is None:
                    self._heard = event
                    if not self._search.is_whole:
                        self._end(self._begun)
            case LinkMade(found) if found == self._sought:
                self._is_done = True
                self._met(now)
            case PageFailed() if not self._is_done:
                self._repeat()
            case _:
                pass


def add_device(
    hall: Hall, device: Device, *, is_shown: bool = False, is_whole: bool = False, has_short_talks: bool = False
) -> DeviceNode:
    """Add *device* to *hall*; with *is_whole* its inquiry for a controller lasts 10.24 s, even after an answer.

    With *has_short_talks* it disconnects a second after it was connected to a device that it sought.
    """

    def hear(told: object, _now: int) -> None:
        if has_short_talks and isinstance(told, Introduced) and told.is_caller:
            hall.air.after(TALK_US, lambda: node.hang_up(told.address))

    node = hall.add(device, is_shown=is_shown, on_told=hear)
    radio = hall.air.radio(device.address)
    if not is_whole or radio is None:
        return node
    begun: list[int] = []

    def handle(event: RadioEvent, now: int) -> None:
        if not isinstance(event, InquiryResult):
            node.handle(event, now)
        elif not begun:  # the first answer of this inquiry; it is handled when the inquiry ends
            begun.append(now)
            rest = max(0, arrived + INQUIRY_US - now)
            hall.air.after(rest, lambda: deliver(event))

    def deliver(event: InquiryResult) -> None:
        begun.clear()
        node.handle(event, hall.now())

    arrived = hall.now()
    radio.handler = handle
    return node
