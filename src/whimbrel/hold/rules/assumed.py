"""Assumed receipts: publications in logs without receipts, where every delivery counts as received when it is made.

Rules 2 to 5, 7 and 9 would hold a publication, deliver it, confirm each delivery, and end it where a device takes it.
This module goes straight to the result. Each present device gets the notification. If one of them takes it, or if no
subscription may hold it, the absent devices have their outcome at once. Otherwise the session holds it for them.
For the same subscriptions of a session, the result is the same until the session changes, so it is computed once
(``AssumedResult``).
Rule: the rules apply a publication, in all of its sessions, if one of these makes a difference in any: a quality
of service, a share, a policy, a time to live that is over, or an absent device that got it through another session.
``tests/property/test_hold_assumed.py`` compares both ways.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from whimbrel.hold.commands import Command, Identity, Matches, Published, Settle
from whimbrel.hold.retention import Retention
from whimbrel.hold.rules.endings import OutcomeRules
from whimbrel.hold.rules.keeping import QueueRules
from whimbrel.hold.rules.publications import Publications
from whimbrel.hold.state import AssumedResult, Copy, Pending, Session, State
from whimbrel.hold.view import View
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.facts import Outcome

__all__ = ["AssumedReceipts", "Outcomes", "SessionOutcomes"]

_DELIVERED, _TAKEN, _DROPPED = Outcome.DELIVERED, Outcome.TAKEN_ELSEWHERE, Outcome.DROPPED
_MANY = 256
_NEW = tuple.__new__  # makes a named tuple in a third of the time of its constructor


class SessionOutcomes(NamedTuple):
    """Outcomes of a publication for the devices of one session, in place of one ``Settle`` for each of them."""

    result: AssumedResult
    kept: Published
    decided_at: int
    lapses_at: int | None
    """Time until which the session could hold the notification; None if no subscription may hold it."""

    def settles(self) -> Iterator[Settle]:
        """Yield the same outcomes, one for each device."""
        result, kept, decided_at, lapses_at = self
        name, seq = result.session.name, kept.seq
        for device in result.present:
            yield Settle(name, device, seq, result.identities, _DELIVERED, decided_at, lapses_at, via="live", kept=kept)
        for absent in result.absent:
            yield Settle(name, absent, seq, result.ended, result.outcome, decided_at, lapses_at, kept=kept)


Outcomes: TypeAlias = list[Command | SessionOutcomes]


class AssumedReceipts:
    """Applies publications for a caller that confirms each delivery at once.

    Uses the other rules only where it must.
    """

    def __init__(
        self,
        state: State,
        view: View,
        endings: OutcomeRules,
        keeping: QueueRules,
        publications: Publications,
        retention: Retention,
    ) -> None:
        self._state, self._view, self._endings, self._keeping = state, view, endings, keeping
        self._publications, self._retention = publications, retention

    def published(self, kept: Published, matches: Matches) -> Outcomes:
        """Apply a publication as ``Publications.published`` does; *matches* must be sorted (``sorted_matches``).

        Return the outcomes, those of one session together. If the rules had to apply it, return their commands instead;
        the caller then confirms the deliveries.
        """
        ended: list[Command] = []
        self._endings.advance(kept.published_at, ended)
        results = self._results(kept, matches)
        out: Outcomes = [*ended]
        if results is None:
            out += self._publications.published(kept, matches)
        else:
            self._apply(kept, results, out)
        return out

    def _results(self, kept: Published, matches: Matches) -> list[AssumedResult] | None:
        """Return how a publication ends in each session that it matches; None if the rules must apply it."""
        state, found = self._state, list[AssumedResult]()
        if state.shaped:
            return None
        joined, late_us, expires_at = state.joined, state.now - kept.published_at, kept.expires_at
        if expires_at is not None and expires_at <= state.now:
            return None
        for name, identities in matches:
            session = state.sessions.get(name)
            if session is None:
                return None
            result = session.results.get(identities) or self._work_out(session, identities)
            if not result.is_plain or late_us >= result.shortest_us:
                return None
            for device in result.earlier:
                if device in joined:  # it is absent here, and present in another session
                    return None
            found.append(result)
        return found

    def _work_out(self, session: Session, identities: tuple[Identity, ...]) -> AssumedResult:
        """Compute how publications end in a session for these subscriptions, and cache the result."""
        result = AssumedResult(session, identities)
        if not (session.is_private or session.with_qos or session.with_policy or session.conditional):
            self._fill(result, session)
        if len(session.results) >= _MANY:
            session.results.clear()
        session.results[identities] = result
        return result

    def _fill(self, result: AssumedResult, session: Session) -> None:
        result.is_plain = True
        held, live_only = list[tuple[Identity, int, int]](), list[Identity]()
        for identity in result.identities:
            ttl_us, most = self._retention.of(session.subscriptions.get(identity))
            if most == 0:
                live_only.append(identity)
            else:
                held.append((identity, ttl_us, most))
        members = session.members.items()
        result.present = tuple(device for device, member in members if member.is_present)
        absent = tuple(device for device, member in members if not member.is_present)
        takers = [device for device, member in members if member.is_present and member.takes]
        result.held = tuple(held)
        if not held:
            result.outcome, result.ended = _DROPPED, tuple(live_only)
            result.absent = absent if session.members else (None,)
            return
        result.shortest_us, result.longest_us = (
            min(ttl_us for _, ttl_us, _ in held),
            max(ttl_us for _, ttl_us, _ in held),
        )
        result.outcome, result.ended = _TAKEN, tuple(identity for identity, _, _ in held)
        result.is_held = not takers
        if takers:
            result.absent = absent
            result.earlier = tuple(device for device in absent if device < min(takers))

    def _apply(self, kept: Published, results: Sequence[AssumedResult], out: Outcomes) -> None:
        """Append the final outcomes of a publication to *out*.

        Hold it in each session that can and in which no device takes it.
        """
        published_at, expires_at, now = kept.published_at, kept.expires_at, self._state.now
        copy: Copy | None = None
        for result in results:
            lapses_at = None
            if result.held:
                lapses_at = published_at + result.longest_us
                if expires_at is not None and expires_at < lapses_at:
                    lapses_at = expires_at
                elif lapses_at > INT64_MAX:
                    lapses_at = INT64_MAX
                counts = result.session.counts
                for identity, _, most in result.held:
                    if counts and len(counts.get(identity, ())) >= most:
                        displaced: list[Command] = []
                        self._keeping.make_room(result.session, (identity,), displaced)
                        out += displaced
                if result.is_held:
                    if copy is None:
                        copy = Copy(kept.qos, published_at, expires_at, kept=kept)
                    self._hold(kept.seq, copy, result, lapses_at)
            out.append(_NEW(SessionOutcomes, (result, kept, now, lapses_at)))
        if copy is not None:
            for result in results:
                copy.received.update(result.present)
            copy.has_row = True
            self._state.copies[kept.seq] = copy
            self._view.touch(("copy", kept.seq))
            self._state.store(copy)

    def _hold(self, seq: int, copy: Copy, result: AssumedResult, lapses_at: int) -> None:
        """Put a notification into the queue of a session; its present devices have received it."""
        session = result.session
        held = {identity: copy.lapse_of(ttl_us) for identity, ttl_us, _ in result.held}
        pending = session.pending[seq] = Pending(held, lapses_at)
        pending.settled.update(result.present)
        self._state.pendings += 1
        copy.sessions.add(session.name)
        self._keeping.add(session, seq, held)
        self._view.touch(("pending", session.name, seq))
