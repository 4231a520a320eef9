"""Links: connections of the simulated radio, with what waits for a parked slave."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from whimbrel.rendezvous.events import Address

__all__ = ["Link"]


@dataclass(slots=True, eq=False)
class Link:
    """A connection of two radios, of which one may act in the place of a third."""

    master: Address
    slave: Address
    is_parked: bool = False
    waiting: deque[bytes] = field(default_factory=deque)
    """Messages of a parked slave that wait for a poll."""
    held: deque[bytes] = field(default_factory=deque)
    """Messages of the master to a slave that is waking."""
    free_at: int = 0
    parked_at: int = 0
    is_waking: bool = False
    """Whether its slave is woken at the next beacon."""
    is_parked_again: bool = False
    """Whether the slave is parked again after it was woken and has heard the messages that were held for it."""
    lost_at: int | None = None
    closed_by: Address | None = None
    actor: Address | None = None
    """The end that answered in the place of another device, and whom the other end takes it for."""
    alias: Address | None = None

    @property
    def key(self) -> frozenset[Address]:
        """The two ends, whichever is master."""
        return frozenset({self.master, self.slave})

    def seen_by(self, address: Address) -> Address:
        """Return the other end as the device at *address* knows it."""
        other = self.other(address)
        return self.alias if self.alias is not None and other == self.actor else other

    def other(self, address: Address) -> Address:
        """Return the other end."""
        return self.slave if address == self.master else self.master
