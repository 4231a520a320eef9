"""The piconet: which devices are connected, active or parked, and who may have a seat (Huang, 2.1.3, 4.1.1).

Rule: at most seven are active. When all seats are taken, the device that has been active longest and is in no
conversation is parked, so that there is always a seat for a device that comes.
Rule: a conversation holds its devices' seats. It begins only where one seat is left for others.
Rule: a device that says too much too fast is found out before its words are read.
"""

from __future__ import annotations

from dataclasses import dataclass

from whimbrel.rendezvous.controller.commands import Command, Park, Send, Unpark
from whimbrel.rendezvous.controller.parameters import Parameters
from whimbrel.rendezvous.events import Address
from whimbrel.rendezvous.messages import Sleep

__all__ = ["Member", "Piconet"]

_BURST_US = 4_000_000


@dataclass(slots=True, eq=False)
class Member:
    """One connected device."""

    address: Address
    has_layer: bool
    credit_us: int
    """The time this device may still spend on messages; it grows as time passes."""
    credited_at: int
    conversations: int = 0
    is_gone: bool = False


class Piconet:
    """The connected devices of one controller."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._members: dict[Address, Member] = {}
        self._active: dict[Address, Member] = {}
        self._cost_us = 1_000_000 // parameters.messages_per_s

    def __len__(self) -> int:
        return len(self._members)

    @property
    def active(self) -> tuple[Address, ...]:
        """The devices that have a seat, the longest active first."""
        return tuple(self._active)

    @property
    def parked(self) -> tuple[Address, ...]:
        """The devices that have none."""
        return tuple(address for address in self._members if address not in self._active)

    @property
    def free_seats(self) -> int:
        """How many more devices could be active."""
        return self._parameters.max_active - len(self._active)

    @property
    def is_open(self) -> bool:
        """Whether a device that comes would get a seat."""
        return self.free_seats > 0 and len(self._members) < self._parameters.max_members

    def get(self, address: Address) -> Member | None:
        """Return the member at *address*, unless it is gone."""
        member = self._members.get(address)
        return None if member is None or member.is_gone else member

    def join(self, address: Address, *, has_layer: bool, now: int) -> list[Command] | None:
        """Seat a device that has connected; ``None`` if there is no room for it."""
        if len(self._members) >= self._parameters.max_members:
            return None
        commands = self._park_longest_active()
        member = Member(address=address, has_layer=has_layer, credit_us=_BURST_US, credited_at=now)
        self._members[address] = self._active[address] = member
        return commands

    def leave(self, address: Address) -> None:
        """Forget a device that is gone."""
        self._members.pop(address, None)
        self._active.pop(address, None)

    def wake(self, member: Member) -> list[Command]:
        """Give *member* a seat if it has none.

        A parked device that speaks was given a seat by the radio after a poll, or spoke before it was parked; which of
        the two cannot be known here, so it is woken in any case, and waking an active device does nothing.
        """
        if member.address in self._active:
            return []
        commands = [*self._park_longest_active(), Unpark(member.address)]
        self._active[member.address] = member
        return commands

    def park(self, member: Member, *, has_scans_off: bool = True) -> list[Command]:
        """Park *member* unless it is parked, in a conversation, or every parked address is taken."""
        has_place = len(self._members) - len(self._active) < self._parameters.max_parked
        if member.conversations or not has_place or self._active.pop(member.address, None) is None:
            return []
        sleep = [Send(member.address, Sleep())] if member.has_layer and has_scans_off else []
        return [*sleep, Park(member.address)]

    def keep_seat_free(self) -> list[Command]:
        """Park a device if all seats are taken, so that another can connect."""
        return self._park_longest_active()

    def has_seats_for(self, *members: Member) -> bool:
        """Tell whether a conversation with *members* leaves a seat for others."""
        held = sum(1 for each in self._active.values() if each.conversations)
        return held + sum(1 for each in members if not each.conversations) < self._parameters.max_active

    def may_speak(self, member: Member, *, now: int) -> bool:
        """Take the cost of a message from what *member* may spend; ``False`` if it has spent it."""
        member.credit_us = min(_BURST_US, member.credit_us + max(0, now - member.credited_at))
        member.credited_at = now
        member.credit_us -= self._cost_us
        return member.credit_us >= 0

    def _park_longest_active(self) -> list[Command]:
        if self.free_seats > 0:
            return []
        resting = next((each for each in self._active.values() if not each.conversations), None)
        return [] if resting is None else self.park(resting)
