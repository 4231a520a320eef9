"""Departures: unconfirmed deliveries to devices that have left a session (rule 10).

A delivery that was sent may still be confirmed, so it stays in flight until the device confirms it or is disconnected.
A delivery that was not sent, or whose connection ended, is remembered with its notification (``Pending.left``).
Rule: each such delivery gets one outcome: that of its receipt if one comes, else that with which the session ends the
notification. A device that joins again is a member like any other: it is sent all that it has not confirmed.
"""

from __future__ import annotations

from collections.abc import Iterator

from whimbrel.hold.commands import Command
from whimbrel.hold.rules.endings import OutcomeRules
from whimbrel.hold.rules.work import QUICK_PIECE
from whimbrel.hold.state import NO_FLIGHTS, Flight, Member, Pending, Session, State
from whimbrel.hold.view import View
from whimbrel.model.facts import Outcome

__all__ = ["Departures"]


class Departures:
    """Tracks the deliveries that devices had in flight in sessions that they left."""

    def __init__(self, state: State, view: View, endings: OutcomeRules) -> None:
        self._state, self._view, self._endings = state, view, endings

    def leave(self, session: Session, device: str, member: Member, sent_seq: int, out: list[Command]) -> Iterator[None]:
        """Keep the deliveries up to the seq *sent_seq*, which a leaving device was sent, in flight.

        Cancel the later ones.
        """
        gone = Member(is_present=False, takes=False)  # not in mode take: its receipts end nothing for other members
        for count, (seq, flight) in enumerate(member.in_flight.items(), start=1):
            if count % QUICK_PIECE == 0:
                yield
            if seq <= sent_seq:
                gone.in_flight[seq] = flight
            else:
                self.take_back(session, device, seq, flight, out)
        if gone.in_flight:
            session.departed[device] = gone
            self._state.departed.setdefault(device, set()).add(session.name)

    def disconnect(self, device: str, out: list[Command]) -> Iterator[None]:
        """Cancel the deliveries that a device has in flight in all sessions that it left."""
        for name in sorted(self._state.departed.get(device, ())):
            yield from self.end(self._state.sessions[name], device, out)

    def end(self, session: Session, device: str, out: list[Command]) -> Iterator[None]:
        """Cancel the deliveries that a device has in flight in a session that it left."""
        gone = self.forget(session, device)
        for count, (seq, flight) in enumerate(gone.items(), start=1):
            if count % QUICK_PIECE == 0:
                yield
            self.take_back(session, device, seq, flight, out)

    def forget(self, session: Session, device: str) -> dict[int, Flight]:
        """Forget that a device left a session; return the notifications that it had in flight there, by seq."""
        gone = session.departed.pop(device, None)
        if gone is None:
            return {}
        names = self._state.departed[device]
        names.discard(session.name)
        if not names:
            del self._state.departed[device]
        return gone.in_flight

    def take_back(self, session: Session, device: str, seq: int, flight: Flight, out: list[Command]) -> None:
        """Cancel a delivery to a device that left.

        If the session has ended the notification, the device gets its final outcome.
        """
        pending = session.pending[seq]
        self._view.touch(("pending", session.name, seq))
        if pending.end is None:
            pending.in_flight.discard(device)
            pending.left = {**pending.left, device: flight}
        else:
            self._endings.take_back(session, device, seq, pending, out)

    def join(self, session: Session, device: str, member: Member) -> None:
        """Restore the deliveries that a device has had in flight since it left, because it joins again."""
        member.in_flight |= self.forget(session, device)

    def come_back(self, session: Session, device: str, seq: int, pending: Pending) -> None:
        """Remove the record that a device left with this notification unconfirmed; the device is a member again."""
        if device in pending.left:
            left = {other: flight for other, flight in pending.left.items() if other != device}
            pending.left = left or NO_FLIGHTS
            self._view.touch(("pending", session.name, seq))

    def confirm(
        self,
        session: Session,
        device: str,
        seq: int,
        outcome: Outcome,
        out: list[Command],
        *,
        via: str | None,
    ) -> None:
        """Apply the late receipt of a delivery that was cancelled after the device left."""
        pending = session.pending.get(seq)
        flight = None if pending is None or pending.end is not None else pending.left.get(device)
        if pending is None or flight is None:
            return
        self.come_back(session, device, seq, pending)
        if outcome is Outcome.DELIVERED:
            copy = self._state.copies[seq]
            copy.received.add(device)
            copy.attempted.pop(device, None)
            self._view.touch(("copy", seq))
        now, via = self._state.now, via if outcome is Outcome.DELIVERED else None
        self._endings.settle(session.name, device, seq, pending, flight.identities, outcome, now, out, via=via)
