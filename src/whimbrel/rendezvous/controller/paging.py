"""Paging of released devices by the controller, one after the other (without park).

Real radios have lost park (Bluetooth 5.0). A device whose event is open is *released* instead: it is disconnected,
hides from inquiries and listens for pages. The controller pages it when it has a message for it, and every
``presence_us`` to check that it is still in range.

Rule: one page at a time. Pages for messages and presence pages take turns, so that neither starves; so a device that
walked away is listed for ``stale_us`` at most (``Parameters``).
Rule: a device that does not answer two pages is gone.
Rule: a device that a subscriber was told to page is *hushed*: the controller never pages it at the same time
(Figure 4-9).
"""

from __future__ import annotations

from collections import OrderedDict

from whimbrel.rendezvous.controller.parameters import Parameters
from whimbrel.rendezvous.events import Address

__all__ = ["MAX_PAGES", "Pager"]

MAX_PAGES = 2
_RETRY_US = 640_000


class Pager:
    """Queue of pages to released devices: pages for messages, and presence pages."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self.current: Address | None = None
        """The device that is being paged."""
        self._called: OrderedDict[Address, None] = OrderedDict()
        """Devices that are paged for a message; the next to be paged is first."""
        self._released: dict[Address, None] = {}
        """Devices that were released in this round."""
        self._presence: OrderedDict[Address, int] = OrderedDict()
        """Time of each released device's next presence page; the first due is first."""
        self._hushed: dict[Address, int | None] = {}
        """Devices that must not be paged now, each with the end of that time; ``None``: not known yet."""
        self._misses: dict[Address, int] = {}
        self._is_presence_next = False
        self._not_before = 0

    def release(self, address: Address) -> None:
        """Send presence pages to the device at *address* from now on, every ``presence_us``."""
        self._released[address] = None

    def call(self, address: Address) -> None:
        """Queue a page to the device at *address*, for which a message waits."""
        if address != self.current:
            self._called.setdefault(address)

    def hush(self, address: Address, until: int | None = None) -> None:
        """Do not page the device at *address* before *until*; ``None``: until a later call gives the time."""
        self._hushed[address] = until

    def forget(self, address: Address) -> None:
        """Remove a device that is connected or gone from every table."""
        for table in (self._called, self._released, self._presence, self._hushed, self._misses):
            table.pop(address, None)
        if self.current == address:
            self.current = None

    def next(self, *, now: int) -> Address | None:
        """Return the device to page now; None if a page is in progress or none is due."""
        for address in self._released:
            self._presence[address] = now + self._parameters.presence_us
            self._presence.move_to_end(address)
        self._released.clear()
        for address in [each for each, until in self._hushed.items() if until is not None and until <= now]:
            del self._hushed[address]
        if self.current is not None or now < self._not_before:
            return None
        called = next((each for each in self._called if each not in self._hushed), None)
        due = (each for each, at in self._presence.items() if at <= now and each not in self._hushed)
        missed = next(due, None)
        self.current = (missed or called) if self._is_presence_next else (called or missed)
        if self.current is not None:
            self._is_presence_next = self.current != missed
            self._called.pop(self.current, None)
        return self.current

    def fail(self, address: Address) -> bool:
        """Record that a device did not answer a page; return whether it is gone, else queue another page."""
        if self.current == address:
            self.current = None
        self._misses[address] = self._misses.get(address, 0) + 1
        if self._misses[address] >= MAX_PAGES:
            return True
        self.call(address)
        self._called.move_to_end(address, last=False)
        return False

    def put_off(self, *, now: int) -> None:
        """Postpone the page that was about to begin: there is no active slot for its device."""
        self._not_before = now + _RETRY_US
        if self.current is not None:
            address, self.current = self.current, None
            self.call(address)

    @property
    def next_due(self) -> int | None:
        """Time at which the next page may begin, if it waits only for time."""
        if self.current is not None:
            return None
        due = [at for address, at in self._presence.items() if address not in self._hushed]
        due += [until for until in self._hushed.values() if until is not None]
        due += [self._not_before for address in self._called if address not in self._hushed]
        return max(self._not_before, min(due)) if due else None

    def is_expected(self, address: Address) -> bool:
        """Return whether a device is being paged, or waits for it."""
        return self.current == address or address in self._called

    def is_free(self, address: Address) -> bool:
        """Return whether a device is neither paged nor sought by a subscriber, nor about to be."""
        return not self.is_expected(address) and address not in self._hushed

    def is_watched(self, address: Address) -> bool:
        """Return whether a device is paged sooner or later."""
        return self.is_expected(address) or address in self._presence or address in self._released
