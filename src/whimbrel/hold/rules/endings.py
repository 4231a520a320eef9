"""Endings: a session stops holding a notification, and each of its devices gets a final outcome (rules 1, 8 and 9)."""

from __future__ import annotations

from whimbrel.hold.commands import Command, Identity, Settle
from whimbrel.hold.state import Pending, Session, State
from whimbrel.hold.view import View
from whimbrel.model.facts import Outcome

__all__ = ["OutcomeRules"]

_DELIVERED, _EXPIRED = Outcome.DELIVERED, Outcome.EXPIRED
_NEW = tuple.__new__  # makes a named tuple in a third of the time of its constructor


class OutcomeRules:
    """Ends notifications in sessions, and gives each device its final outcome (settles it)."""

    def __init__(self, state: State, view: View) -> None:
        self._state, self._view = state, view

    def tick(self, now: int) -> list[Command]:
        """Advance the time to *now* and end the notifications that have lapsed."""
        out: list[Command] = []
        self.advance(now, out)
        return out

    def advance(self, at: int, out: list[Command]) -> None:
        """Advance the time to *at*; end the notifications that no subscription holds any longer (rules 1 and 8)."""
        if at > self._state.now:  # noqa: PLR1730  # max() takes twice as long, and this runs for every fact
            self._state.now = at
        heap = self._state.lapses.heap
        if heap and heap[0][0] <= self._state.now:
            self.end_lapsed(out)

    def end_lapsed(self, out: list[Command]) -> None:
        """Stop holding notifications for subscriptions whose time to hold them is over, earliest first (rule 8).

        End each notification that no subscription of the session holds any longer.
        """
        for lapse, seq, name in self._state.lapses.due(self._state.now):
            session = self._state.sessions.get(name)
            pending = None if session is None else session.pending.get(seq)
            if session is None or pending is None or not pending.held:
                continue
            lapsed = tuple(identity for identity, until in pending.held.items() if until == lapse)
            for identity in lapsed:
                del pending.held[identity]
                del session.counts[identity][seq]
            if lapsed:
                self._view.touch(("pending", name, seq))
                if not pending.held:
                    self.end(session, seq, _EXPIRED, lapsed, lapse, out)

    def strip(
        self, session: Session, seq: int, identity: Identity, outcome: Outcome, moment: int, out: list[Command]
    ) -> None:
        """Stop holding a notification for one subscription; if that was the last one, end it with *outcome*."""
        pending = session.pending[seq]
        del pending.held[identity]
        del session.counts[identity][seq]
        self._state.lapses.release(1, self._state.is_held)
        if self._view.is_followed:
            self._view.touch(("pending", session.name, seq))
        if not pending.held:
            self.end(session, seq, outcome, (identity,), moment, out)

    def end(
        self,
        session: Session,
        seq: int,
        outcome: Outcome,
        identities: tuple[Identity, ...],
        moment: int,
        out: list[Command],
    ) -> None:
        """End a notification in a session: record the final outcome of each device that has none yet (rule 9).

        The devices are the members, and those that left the session with the notification unconfirmed. A device that
        has it in flight gets its outcome later; one that has received it, from any session, gets *delivered*.
        """
        pending = session.pending[seq]
        if pending.held:
            for identity in pending.held:
                del session.counts[identity][seq]
            self._state.lapses.release(len(pending.held), self._state.is_held)
            pending.held = {}
        pending.end = (outcome, identities, moment)
        if self._view.is_followed:
            self._view.touch(("pending", session.name, seq))
        received = self._state.copies[seq].received
        for device in sorted({*session.members, *pending.left} if pending.left else session.members):
            if device not in pending.settled and device not in pending.in_flight:
                has_it = device in received
                self.settle(
                    session.name, device, seq, pending, identities, _DELIVERED if has_it else outcome, moment, out
                )
        self.close(session, seq, pending, out)

    def take_back(self, session: Session, device: str, seq: int, pending: Pending, out: list[Command]) -> None:
        """Cancel an unconfirmed delivery; if the session has ended the notification, the device gets its outcome."""
        pending.in_flight.discard(device)
        if pending.end is not None:
            outcome, identities, moment = pending.end
            outcome = _DELIVERED if device in self._state.copies[seq].received else outcome
            self.settle(session.name, device, seq, pending, identities, outcome, moment, out)
            self.close(session, seq, pending, out)

    def close(self, session: Session, seq: int, pending: Pending, out: list[Command]) -> None:
        """Remove a notification from a session once it has ended and no device has it in flight."""
        if pending.in_flight or pending.end is None:
            return
        if not pending.settled:
            outcome, identities, moment = pending.end
            self.settle(session.name, None, seq, pending, identities, outcome, moment, out)
        del session.pending[seq]
        self._state.pendings -= 1
        if self._view.is_followed:
            self._view.touch(("pending", session.name, seq))
        copy = self._state.copies[seq]
        copy.sessions.discard(session.name)
        if not copy.sessions and not copy.flight_count:
            self._state.forget(seq)
            if self._view.is_followed:
                self._view.touch(("copy", seq))

    def settle(
        self,
        session: str,
        device: str | None,
        seq: int,
        pending: Pending,
        identities: tuple[Identity, ...],
        outcome: Outcome,
        moment: int,
        out: list[Command],
        *,
        via: str | None = None,
    ) -> None:
        """Append the final outcome of a notification for a device.

        *device* is None if the session has no device to give it to.
        """
        if device is not None:
            pending.settled.add(device)
        kept = self._state.copies[seq].kept
        out.append(_NEW(Settle, (session, device, seq, identities, outcome, moment, pending.lapses_at, via, kept)))
