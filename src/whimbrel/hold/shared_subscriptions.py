"""Shared subscriptions: which of the matching subscriptions get a notification, by no-local and shares (rules 17, 18).

A *share* is the subject filter of a shared subscription, ``$share/<group>/<filter>``: only one of the sessions that
have it gets each notification.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import NamedTuple

from whimbrel.hold.commands import Identity, Matches
from whimbrel.hold.private import client_of, is_shared
from whimbrel.hold.state import Session, State

__all__ = ["Matches", "ShareAssignment", "chosen_of", "matches_that_count", "sorted_identities", "sorted_matches"]

_NEVER = -1


class ShareAssignment(NamedTuple):
    """Sessions that get a notification through shared subscriptions; the key is the subject filter of the share."""

    chosen: Mapping[str, str]
    """Session that gets the notification."""
    others: Mapping[str, Matches]
    """Sessions that may get it if a policy withholds it from the chosen one; they do not get it otherwise (rule 21)."""


_NONE_SERVED = ShareAssignment({}, {})


def sorted_matches(matches: Matches) -> Matches:
    """Return *matches* in order of session names, each with its subscriptions in order of subject filter and name."""
    return sorted(((session, sorted_identities(found)) for session, found in matches), key=itemgetter(0))


def sorted_identities(identities: tuple[Identity, ...]) -> tuple[Identity, ...]:
    """Return the subscriptions *identities* (pairs of subject filter and name) in order of subject filter and name."""
    if len(identities) == 1:
        return identities
    return tuple(sorted(identities, key=lambda identity: (identity[0] or "", identity[1])))


def matches_that_count(state: State, publisher: str | None, matches: Matches) -> tuple[Matches, ShareAssignment]:
    """Return the *matches* that count for a notification, and the session that gets it through each share.

    A subscription with no-local does not count for its own client's notifications (rule 17), nor does a share for
    which another session is chosen (rule 18).
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
        return found, _NONE_SERVED
    chosen = {share: chosen_of(state, share, names) for share, names in shares.items()}
    counted = [
        (name, tuple(i for i in identities if i[0] is None or chosen.get(i[0], name) == name))
        for name, identities in found
    ]
    others = {
        share: _others(share, found, counted)
        for share, name in chosen.items()
        if _may_withhold(state, state.sessions[name])
    }
    return [match for match in counted if match[1]], ShareAssignment(chosen, others)


def _may_withhold(state: State, session: Session) -> bool:
    """Return whether a policy, of a subscription or a member, may withhold notifications from a session."""
    return session.with_policy > 0 or not state.shaped.isdisjoint(session.members)


def _others(share: str, found: Matches, counted: Matches) -> Matches:
    """Return the sessions in which *share* matched but no subscription counts, because shares chose other sessions.

    Each has its subscriptions to *share*.
    """
    return [
        (name, sorted_identities(tuple(identity for identity in identities if identity[0] == share)))
        for (name, identities), (_, left) in zip(found, counted, strict=True)
        if not left and any(identity[0] == share for identity in identities)
    ]


def _is_no_local(session: Session, identity: Identity) -> bool:
    subscription = session.subscriptions.get(identity)
    return subscription is not None and subscription.no_local


def chosen_of(state: State, share: str, names: list[str]) -> str:
    """Return the session of *names* that gets the next notification of *share*: the one that was chosen longest ago.

    Sessions with a present device have precedence.
    """
    sessions, turns = state.sessions, state.turns.get(share, {})
    able = [name for name in names if any(member.is_present for member in sessions[name].members.values())]
    return min(able or names, key=lambda name: (turns.get(name, _NEVER), name))
