"""Status of a controller, folded from its log: how many facts of each kind, and whose addresses it uses (5.4.4).

Rule: the status shows what was logged. A killed controller is shown as it was at its last fact.
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
"""Most addresses in the status. A controller's log names at most 64; a log with more is not a controller's."""


@dataclass(slots=True)
class AddressUse:
    """Use of another device's address by a controller."""

    does: str = StandIn.OFF.value
    since: int = 0
    holds: set[str] = field(default_factory=set)
    """Dumb devices that take the controller for this device."""
    woken: int = 0
    """Number of times that the device was told to listen because it was paged."""
    held: int = 0
    refused: int = 0

    def take(self, detail: str, other: str | None, at: int) -> None:
        """Apply one fact."""
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
    """Fold *facts* of a controller's log; facts of other subjects are ignored."""
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
