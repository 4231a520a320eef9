"""Assumed receipts: publications in logs without receipts, where every delivery counts as received when it is made.

Rules 2 to 5, 7 and 9 would hold a publication, deliver it, confirm each delivery, and end it where a device takes it.
This module goes straight to the result. Each present device gets its outcome; if one takes the notification, so does
each absent device. Where no device takes it, the notification is held, with the devices that have received it.
Rule: the rules apply a publication, in all of its sessions, if quality of service, a share or a policy makes a
difference in any of them. ``tests/property/test_hold_assumed.py`` compares both ways.
"""

from __future__ import annotations

from typing import NamedTuple

from whimbrel.hold.commands import Command, Identity, Matches, Published, Settle
from whimbrel.hold.rules.endings import OutcomeRules
from whimbrel.hold.rules.keeping import QueueRules
from whimbrel.hold.rules.publications import Publications
from whimbrel.hold.shared_subscriptions import sorted_matches
from whimbrel.hold.state import Copy, Pending, Session, State
from whimbrel.hold.view import View
from whimbrel.model.facts import Outcome

__all__ = ["AssumedReceipts"]

_DELIVERED, _TAKEN = Outcome.DELIVERED, Outcome.TAKEN_ELSEWHERE
_LIVE = "live"
_NEW = tuple.__new__  # makes a named tuple in a third of the time of its constructor


class _Match(NamedTuple):
    """A session whose subscriptions match a publication, and how the publication ends there."""

    session: Session
    identities: tuple[Identity, ...]
    held: dict[Identity, int]
    """Time until which each subscription holds the publication; empty if no subscription holds it."""
    end: tuple[Outcome, tuple[Identity, ...], int]
    """Outcome, subscriptions and time of absent devices if the publication is not held."""
    taker: str | None
    """The present device in mode take that gets it first, by name; None without one."""


class AssumedReceipts:
    """Applies publications without policies, for a caller that would confirm each delivery at once."""

    def __init__(
        self, state: State, view: View, endings: OutcomeRules, keeping: QueueRules, publications: Publications
    ) -> None:
        self._state, self._view, self._endings, self._keeping = state, view, endings, keeping
        self._publications = publications

    def published(self, kept: Published, matches: Matches) -> list[Command]:
        """Apply a publication as ``Publications.published`` does, without commands for deliveries that end at once."""
        out: list[Command] = []
        self._endings.advance(kept.published_at, out)
        copy = Copy(kept.qos, kept.published_at, kept.expires_at, kept=kept)
        found = self._plain(sorted_matches(matches), copy)
        if found is None:
            out += self._publications.published(kept, matches)
        else:
            self._apply(kept, copy, found, out)
        return out

    def _plain(self, matches: Matches, copy: Copy) -> list[_Match] | None:
        """Return the result of a publication for each session that it matches; None if the rules must apply it."""
        state, found = self._state, list[_Match]()
        if state.shaped or (copy.expires_at is not None and copy.expires_at <= state.now):
            return None
        for name, identities in matches:
            session = state.sessions.get(name)
            if session is None or session.is_private or session.with_qos or session.with_policy or session.conditional:
                return None
            held, end = self._keeping.to_hold(session, identities, copy)
            taker = None
            for device, member in session.members.items():
                if member.is_present and member.takes and (taker is None or device < taker):
                    taker = device
            found.append(_NEW(_Match, (session, identities, held, end, taker)))
        return found

    def _apply(self, kept: Published, copy: Copy, matches: list[_Match], out: list[Command]) -> None:
        """Add the outcomes to *out*, and hold the notification in the sessions where no device takes it."""
        state, seq, now = self._state, kept.seq, self._state.now
        for session, identities, held, _, taker in matches:
            lapses_at = max(held.values()) if held else None
            if held:
                self._keeping.make_room(session, held, out)
            present = [device for device, member in session.members.items() if member.is_present]
            out += [
                _NEW(Settle, (session.name, device, seq, identities, _DELIVERED, now, lapses_at, _LIVE, kept))
                for device in present
            ]
            copy.received.update(present)
            if held and taker is None:
                pending = session.pending[seq] = Pending(held, lapses_at)
                pending.settled.update(present)
                state.pendings += 1
                copy.sessions.add(session.name)
                self._keeping.add(session, seq, held)
                self._view.touch(("pending", session.name, seq))
        for match in matches:
            if not match.held or match.taker is not None:
                self._end_for_absent(kept, copy, match, out)
        if copy.sessions:
            copy.has_row = True
            state.copies[seq] = copy
            self._view.touch(("copy", seq))
            state.store(copy)

    def _end_for_absent(self, kept: Published, copy: Copy, match: _Match, out: list[Command]) -> None:
        """Add the outcomes for the absent devices of a session that does not hold the notification."""
        session, _, held, (outcome, identities, moment), taker = match
        lapses_at: int | None = None
        if held:
            outcome, identities, moment, lapses_at = _TAKEN, tuple(held), self._state.now, max(held.values())
        for device, member in session.members.items():
            if not member.is_present:
                # The device may have received it in another session, before the first device of this one took it.
                has_it = held and taker is not None and device < taker and device in copy.received
                found = _DELIVERED if has_it else outcome
                end = (session.name, device, kept.seq, identities, found, moment, lapses_at, None, kept)
                out.append(_NEW(Settle, end))
        if not session.members:
            out.append(_NEW(Settle, (session.name, None, kept.seq, identities, outcome, moment, None, None, kept)))
