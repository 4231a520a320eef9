"""Counting: which of the subscriptions that match a notification count (rules 17 and 18), and their order."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter

from whimbrel.hold.commands import Identity, Matches
from whimbrel.hold.private import client_of, is_shared
from whimbrel.hold.state import Session, State

__all__ = ["Matches", "matches_that_count", "sorted_identities", "sorted_matches"]

_NEVER = -1


def sorted_matches(matches: Matches) -> Matches:
    """Return *matches* by session, and each session's by subject filter and name, however they were found."""
    return sorted(((session, sorted_identities(found)) for session, found in matches), key=itemgetter(0))


def sorted_identities(identities: tuple[Identity, ...]) -> tuple[Identity, ...]:
    """Return subscriptions by subject filter and name."""
    if len(identities) == 1:
        return identities
    return tuple(sorted(identities, key=lambda identity: (identity[0] or "", identity[1])))


def matches_that_count(state: State, publisher: str | None, matches: Matches) -> tuple[Matches, Mapping[str, str]]:
    """Return *matches* without what does not count: a client's own notifications, and shares that others serve.

    And, by share, the session that is chosen to serve it this time.
    """
    found: list[tuple[str, tuple[Identity, ...]]] = []
    shares: dict[str, list[str]] = {}
    for match in matches:
        name, identities = match
        session = state.sessions.get(name)
        if session is None or not session.conditional:
            found.append(match)
            continue
        if publisher is not None and publisher == client_of(name):
            identities = tuple(identity for identity in identities if not _is_no_local(session, identity))
        for share in {share for share, _ in identities if share is not None and is_shared(share)}:
            shares.setdefault(share, []).append(name)
        if identities:
            found.append((name, identities))
    if not shares:
        return found, {}
    chosen = {share: _chosen(state, share, names) for share, names in shares.items()}
    found = [
        (name, tuple(i for i in identities if i[0] is None or chosen.get(i[0], name) == name))
        for name, identities in found
    ]
    return [match for match in found if match[1]], chosen


def _is_no_local(session: Session, identity: Identity) -> bool:
    subscription = session.subscriptions.get(identity)
    return subscription is not None and subscription.no_local


def _chosen(state: State, share: str, names: list[str]) -> str:
    """Return the session whose turn it is: of those with a present device, if any, the one chosen longest ago."""
    sessions, turns = state.sessions, state.turns.get(share, {})
    able = [name for name in names if any(member.is_present for member in sessions[name].members.values())]
    return min(able or names, key=lambda name: (turns.get(name, _NEVER), name))
