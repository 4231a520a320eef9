"""What the hold remembers: sessions, their members, what is pending in them, and one record per notification."""

from __future__ import annotations

from whimbrel.hold.commands import Identity
from whimbrel.hold.retention import Lapses
from whimbrel.model.facts import Outcome
from whimbrel.model.subscription import Subscription

__all__ = ["Copy", "Member", "Pending", "Session", "State"]


class Member:
    """A device of a session."""

    __slots__ = ("in_flight", "is_present", "takes")

    def __init__(self, *, is_present: bool, takes: bool) -> None:
        self.is_present, self.takes = is_present, takes
        self.in_flight: dict[int, tuple[Identity, ...]] = {}
        """Handed over and not confirmed, and for which subscriptions."""


class Pending:
    """A notification in a session, until it has ended there and nobody has it in flight."""

    __slots__ = ("end", "held", "in_flight", "lapses_at", "settled")

    def __init__(self, held: dict[Identity, int], lapses_at: int | None) -> None:
        self.held = held
        """Until when, by subscription."""
        self.lapses_at = lapses_at
        self.end: tuple[Outcome, tuple[Identity, ...], int] | None = None
        """How it ended here; waiting for those who have it in flight."""
        self.settled: set[str] = set()
        self.in_flight: set[str] = set()


class Session:
    """Subscriptions, the devices that come and go, and what is owed to them."""

    __slots__ = ("access", "counts", "members", "name", "pending", "subscriptions")

    def __init__(self, name: str) -> None:
        self.name = name
        self.access: str | None = None
        self.subscriptions: dict[Identity, Subscription] = {}
        self.members: dict[str, Member] = {}
        self.pending: dict[int, Pending] = {}
        """In order of their numbers."""
        self.counts: dict[Identity, dict[int, None]] = {}
        """What is held for each subscription, the oldest first."""


class Copy:
    """What is remembered of a notification while any session has it pending."""

    __slots__ = ("attempted", "received", "sessions")

    def __init__(self) -> None:
        self.sessions: set[str] = set()
        self.received: set[str] = set()
        """Devices that have it: never again to these."""
        self.attempted: set[str] = set()
        """Devices it was handed to."""


class State:
    """All of it, for one node."""

    __slots__ = ("copies", "joined", "lapses", "now", "sessions")

    def __init__(self) -> None:
        self.now = -(2**63)
        self.sessions: dict[str, Session] = {}
        self.joined: dict[str, set[str]] = {}
        """By device, the sessions it is present in."""
        self.copies: dict[int, Copy] = {}
        self.lapses = Lapses()

    def is_held(self, seq: int, session: str) -> bool:
        """Tell whether a notification is held for any subscription of a session."""
        found = self.sessions.get(session)
        pending = None if found is None else found.pending.get(seq)
        return pending is not None and bool(pending.held)
