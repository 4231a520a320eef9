"""Status of a controller, folded from its log: how many facts of each kind, and whose addresses it uses (5.4.4).

Rule: the status shows what was written. A controller that was killed is shown as it was at its last fact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from whimbrel.model.facts import Fact
from whimbrel.model.notification import Notification
from whimbrel.rendezvous.controller.commands import NoteKind
from whimbrel.rendezvous.journal import SUBJECT
from whimbrel.rendezvous.stand_in import StandIn

__all__ = ["AddressUse", "ControllerStatus", "status_of"]

_MODES = {each.value for each in StandIn}
_SUBJECTS = {f"{SUBJECT}/{each.value}": each for each in NoteKind}
_MAX_ADDRESSES = 1_000
"""Addresses that are kept: a controller's own log names at most 64, so more are of a log that is not one."""


@dataclass(slots=True)
class AddressUse:
    """Use of another device's address by a controller."""

    does: str = StandIn.OFF.value
    since: int = 0
    holds: set[str] = field(default_factory=set)
    """Dumb devices that take the controller for this device."""
    woken: int = 0
    """How often the device was told to listen because it was paged."""
    held: int = 0
    refused: int = 0

    def take(self, detail: str, other: str | None, at: int) -> None:
        """Take one fact."""
        if detail in _MODES:
            self.does, self.since = detail, at
        elif detail == "holds" and other is not None:
            self.holds.add(other)
            self.held += 1
        elif detail == "lets go" and other is not None:
            self.holds.discard(other)
        elif detail == "heard":
            self.woken += 1
        elif detail.startswith("refused"):
            self.refused += 1

    @property
    def is_in_use(self) -> bool:
        """Whether the address is used now."""
        return self.does != StandIn.OFF.value or bool(self.holds)


@dataclass(slots=True)
class ControllerStatus:
    """Status of a controller, from its log."""

    facts: dict[str, int] = field(default_factory=dict)
    addresses: dict[str, AddressUse] = field(default_factory=dict)
    last_at: int | None = None


def status_of(facts: Iterable[Fact]) -> ControllerStatus:
    """Fold *facts* of a controller's log; those of other subjects are passed over."""
    status = ControllerStatus()
    for fact in facts:
        kind = _SUBJECTS.get(fact.subject or "") if isinstance(fact, Notification) else None
        if kind is None or not isinstance(fact, Notification):
            continue
        status.facts[kind.value] = status.facts.get(kind.value, 0) + 1
        status.last_at = fact.published_at
        device, detail = fact.attributes.get("device"), fact.attributes.get("detail")
        if kind is not NoteKind.STAND_IN or not isinstance(device, str) or not isinstance(detail, str):
            continue
        if device in status.addresses or len(status.addresses) < _MAX_ADDRESSES:
            other = fact.attributes.get("other_device")
            use = status.addresses.setdefault(device, AddressUse())
            use.take(detail, other if isinstance(other, str) else None, fact.published_at)
    return status
