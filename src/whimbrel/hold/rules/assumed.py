"""Assumed receipts: a shortcut for logs without receipts, where every delivery counts as received at once.

Most publications of such a log match sessions whose devices are all present, at least one of them in mode take. Each
device gets its copy at once, and nothing stays held. Holding, delivering, confirming and ending (rules 2 to 5, 7 and
9) then come down to one outcome per device.
Rule: the shortcut is taken for all sessions of a publication or for none; ``tests/property/test_hold_assumed.py``
compares it with the rules.
"""

from __future__ import annotations

from whimbrel.hold.commands import Command, Published, Settle
from whimbrel.hold.counting import Matches, sorted_identities
from whimbrel.hold.rules.endings import Endings
from whimbrel.hold.rules.keeping import Keeping
from whimbrel.hold.rules.publications import Publications
from whimbrel.hold.state import Copy, Session, State
from whimbrel.model.facts import Outcome

__all__ = ["AssumedReceipts"]

_DELIVERED = Outcome.DELIVERED
_LIVE = "live"
_NEW = tuple.__new__  # a named tuple from a tuple takes a third of the time of one from arguments


class AssumedReceipts:
    """Applies publications that no policy can withhold, for a caller that confirms each delivery at once."""

    def __init__(self, state: State, endings: Endings, keeping: Keeping, publications: Publications) -> None:
        self._state, self._endings, self._keeping, self._publications = state, endings, keeping, publications

    def published(self, kept: Published, matches: Matches) -> list[Command]:
        """Apply a publication like ``Publications.published``, but without the deliveries that end at once."""
        out: list[Command] = []
        self._endings.advance(kept.published_at, out)
        found = self._settled(kept, matches)
        if found is None:
            found = self._publications.published(kept, matches)
        return out + found if out else found

    def _settled(self, kept: Published, matches: Matches) -> list[Command] | None:
        """Return the outcome for each device; None if the shortcut does not apply."""
        seq, copy = kept.seq, Copy(kept.qos, kept.published_at, kept.expires_at)
        state, now = self._state, self._state.now
        if state.conditional or state.shaped:
            return None
        found: list[Command] = []
        for name, identities in matches:
            session = state.sessions.get(name)
            if session is None or not _takes_at_once(session):
                return None
            wanted = sorted_identities(identities)
            held, _ = self._keeping.to_hold(session, wanted, copy)
            if len(held) < len(wanted) or not self._keeping.has_room(session, wanted):
                return None
            lapses_at = max(held.values())
            found += [
                _NEW(Settle, (name, device, seq, wanted, _DELIVERED, now, lapses_at, _LIVE, kept))
                for device in session.members
            ]
        return found


def _takes_at_once(session: Session) -> bool:
    """Return whether all devices of a session are present and one has mode take, so that nothing stays held."""
    if session.is_private or session.with_qos or session.with_policy:
        return False
    takes = False
    for member in session.members.values():
        if not member.is_present:
            return False
        takes = takes or member.takes
    return takes
