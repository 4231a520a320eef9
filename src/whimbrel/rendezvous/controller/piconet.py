"""The piconet: its devices (active, parked or released), and the assignment of active slots (Huang, 2.1.3, 4.1.1).

Rule: at most seven are active. When all active slots are taken, the device that has been active longest and is in no
conversation is parked, or without park released, so that there is always a slot for a new device.
Rule: a conversation keeps its devices active. It begins only if one active slot is left for others.
Rule: the rate limit of a device is checked before its messages are parsed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from whimbrel.rendezvous.controller.commands import Command, Park, Release, Send, Unpark
from whimbrel.rendezvous.controller.paging import Pager
from whimbrel.rendezvous.controller.parameters import Parameters
from whimbrel.rendezvous.events import Address
from whimbrel.rendezvous.messages import FromController, Released, Sleep

__all__ = ["Member", "Piconet"]

_BURST_US = 4_000_000


@dataclass(slots=True, eq=False)
class Member:
    """One device that is connected, or released."""

    address: Address
    has_layer: bool
    credit_us: int
    """Credit of the rate limit, in microseconds: each message costs some, and it grows as time passes."""
    credited_at: int
    conversations: int = 0
    is_gone: bool = False
    is_released: bool = False
    """Whether it is disconnected, and listens for pages."""
    seated_at: int = 0
    """Time of its last connection, from which its time to answer counts."""
    outbox: list[FromController] = field(default_factory=list)
    """Messages to send to a released device once it is connected."""


class Piconet:
    """The devices of one controller."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._members: dict[Address, Member] = {}
        self._active: dict[Address, Member] = {}
        self.pager = Pager(parameters)
        self._cost_us = 1_000_000 // parameters.messages_per_s

    def __len__(self) -> int:
        return len(self._members)

    @property
    def active(self) -> tuple[Address, ...]:
        """The active devices, the longest active first."""
        return tuple(self._active)

    @property
    def parked(self) -> tuple[Address, ...]:
        """The parked devices; without park, the released ones."""
        return tuple(address for address in self._members if address not in self._active)

    @property
    def free_seats(self) -> int:
        """Number of free active slots; a page in progress takes one."""
        return self._parameters.max_active - len(self._active) - (self.pager.current is not None)

    @property
    def is_open(self) -> bool:
        """Whether a new device would get an active slot."""
        return self.free_seats > 0 and len(self._members) < self._parameters.max_members

    def get(self, address: Address) -> Member | None:
        """Return the member at *address*, unless it is gone."""
        member = self._members.get(address)
        return None if member is None or member.is_gone else member

    def join(self, address: Address, *, has_layer: bool, now: int) -> list[Command] | None:
        """Add a connected device as active; return commands that free a slot, ``None`` if the piconet is full."""
        if len(self._members) >= self._parameters.max_members:
            return None
        commands = self._park_longest_active()
        member = Member(address=address, has_layer=has_layer, credit_us=_BURST_US, credited_at=now, seated_at=now)
        self._members[address] = self._active[address] = member
        return commands

    def seat(self, member: Member, *, now: int) -> list[Command]:
        """Make a released device active when it is connected again; return commands that free a slot."""
        self.pager.forget(member.address)
        commands = self._park_longest_active()
        member.is_released, member.seated_at = False, now
        self._active[member.address] = member
        return commands

    def next_page(self, *, now: int) -> tuple[Address | None, list[Command]]:
        """Return the released device to page now, if it can get an active slot, and the commands that free one."""
        has_seat = self.free_seats > 0 or any(not each.conversations for each in self._active.values())
        address = self.pager.next(now=now)
        if address is None or has_seat:
            return address, [] if address is None or self.free_seats >= 0 else self._park_resting()
        self.pager.put_off(now=now)
        return None, []

    def leave(self, address: Address) -> None:
        """Remove a device that is gone."""
        self._members.pop(address, None)
        self._active.pop(address, None)
        self.pager.forget(address)

    def wake(self, member: Member) -> list[Command]:
        """Make *member* active if it is not; a released one is paged for it.

        A parked device that sends was made active by the radio after a poll, or sent before it was parked; that cannot
        be known here, so it is woken in any case, and waking an active device does nothing.
        """
        if member.address in self._active:
            return []
        if member.is_released:
            self.pager.call(member.address)
            return []
        commands = [*self._park_longest_active(), Unpark(member.address)]
        self._active[member.address] = member
        return commands

    def park(self, member: Member, *, has_scans_off: bool = True) -> list[Command]:
        """Park *member* unless it is parked, in a conversation, or every parked address is taken.

        Without park it is released, whatever it was told about its scans: it listens.
        """
        if not self._parameters.has_park:
            return self._release(member)
        has_place = len(self._members) - len(self._active) < self._parameters.max_parked
        if member.conversations or not has_place or self._active.pop(member.address, None) is None:
            return []
        sleep = [Send(member.address, Sleep())] if member.has_layer and has_scans_off else []
        return [*sleep, Park(member.address)]

    def keep_seat_free(self) -> list[Command]:
        """Park a device if all active slots are taken, so that another can connect."""
        return self._park_longest_active()

    def has_seats_for(self, *members: Member) -> bool:
        """Return whether a conversation with *members* leaves an active slot for others."""
        here = self._active if self._parameters.has_park else self._members
        held = sum(1 for each in here.values() if each.conversations)
        return held + sum(1 for each in members if not each.conversations) < self._parameters.max_active

    def may_speak(self, member: Member, *, now: int) -> bool:
        """Charge a message to the rate limit of *member*; return ``False`` if it is exhausted."""
        member.credit_us = min(_BURST_US, member.credit_us + max(0, now - member.credited_at))
        member.credited_at = now
        member.credit_us -= self._cost_us
        return member.credit_us >= 0

    def _release(self, member: Member) -> list[Command]:
        if member.conversations or self._active.pop(member.address, None) is None:
            return []
        member.is_released = True
        self.pager.release(member.address)
        told = [Send(member.address, Released(self._parameters.patience_us))] if member.has_layer else []
        return [*told, Release(member.address)]

    def _park_longest_active(self) -> list[Command]:
        return [] if self.free_seats > 0 else self._park_resting()

    def _park_resting(self) -> list[Command]:
        resting = next((each for each in self._active.values() if not each.conversations), None)
        return [] if resting is None else self.park(resting)
