"""Live spans: for which publications of a piece of a log a session needs no queue, known before they are applied.

While a device that takes is present, a notification ends in its session at once, if every delivery counts as received
when it is made: each present device has its copy, and the notification is taken from each absent one (rules 2 to 5, 7
and 9). Which devices these are changes only with facts. So a caller that folds a piece can find the outcomes of most
publications without the hold, all at a time, and give the hold only the others.
Rule: the outcomes are those of the rules; ``tests/property/test_hold_live_spans.py`` compares.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from typing import NamedTuple

from whimbrel.hold.state import Session, State
from whimbrel.model.facts import Fact, InterestChanged, Mode, PresenceChange, PresenceChanged, SessionChanged

__all__ = ["LiveSpan", "live_spans"]

_MAX_MEMBERS = 100
"""Members up to which a session has live spans: every change of presence in it looks at all of them."""
_MOVES = frozenset({PresenceChange.JOINED, PresenceChange.LEFT, PresenceChange.DISCONNECTED})


class LiveSpan(NamedTuple):
    """From the seq *first* until the next span of its session: who gets a publication that a subscription matches."""

    session: str
    first: int
    present: tuple[str, ...]
    """Devices that receive it at once; empty if the rules must decide."""
    absent: tuple[str, ...]
    """Devices from which it is taken."""


def live_spans(state: State, sessions: Collection[str], facts: Iterable[Fact]) -> list[LiveSpan]:
    """Return the live spans of *sessions* while *facts*, in the order of their seqs, are applied to *state*.

    *sessions* has every session in which a subscription matches a publication of the piece. A session without a span,
    and a time before the first span, are left to the rules.
    """
    facts = list(facts)
    excluded: set[str | None] = {fact.subscription.session for fact in facts if isinstance(fact, InterestChanged)}
    excluded |= {fact.session for fact in facts if isinstance(fact, SessionChanged)}
    excluded |= {fact.session for fact in facts if isinstance(fact, PresenceChanged) and fact.change not in _MOVES}
    followed = _Followed(state, sessions, excluded)
    for fact in facts:
        if isinstance(fact, PresenceChanged) and fact.change in _MOVES:
            followed.apply(fact)
    return followed.spans


def _is_plain(session: Session) -> bool:
    """Return whether no rule of MQTT and no policy applies to a session."""
    return not (session.is_private or session.with_qos or session.with_policy or session.conditional)


def _ends_pending(session: Session) -> bool:
    """Return whether any device that takes ends all that is pending in a session when it joins."""
    if session.departed or len(session.members) > _MAX_MEMBERS:
        return False
    keepers = {device for device, member in session.members.items() if not member.takes}
    is_taken = any(member.takes and member.is_present for member in session.members.values())
    return not any(
        is_taken or pending.in_flight or pending.left or not keepers.issuperset(pending.settled)
        for pending in session.pending.values()
    )


class _Followed:
    """The presence of devices in some sessions, while the facts of a piece are read ahead."""

    def __init__(self, state: State, sessions: Collection[str], excluded: Container[str | None]) -> None:
        self.spans: list[LiveSpan] = []
        self._state = state
        self._joined: dict[str, set[str]] = {}
        """Sessions that a device is present in, where this may differ from the state."""
        self._takes: dict[str, dict[str, bool]] = {}
        """Members of each session, and whether they take."""
        self._sessions: dict[str, set[str]] = {}
        """Sessions that each device is a member of."""
        self._left: set[tuple[str, str]] = set()
        """Sessions and the devices that left them."""
        self._plain: set[str] = set()
        """Sessions to which only the rules of named sessions apply."""
        self._simple: set[str] = set()
        """Sessions that can have live spans."""
        for name in sessions:
            session = state.sessions.get(name)
            self._takes[name] = {}
            if session is None:
                continue
            for device, member in session.members.items():
                self._takes[name][device] = member.takes
                self._sessions.setdefault(device, set()).add(name)
            if name not in excluded and _is_plain(session):
                self._plain.add(name)
                if _ends_pending(session):
                    self._simple.add(name)
        for name in self._simple:
            self._add_span(name, 0)

    def apply(self, fact: PresenceChanged) -> None:
        """Apply that a device joins or leaves a session, or disconnects; add the spans that begin with it."""
        device, name = fact.device, fact.session
        joined = self._joined.get(device)
        if joined is None:
            joined = self._joined[device] = set(self._state.joined.get(device, ()))
        affected = set(self._sessions.get(device, ()))
        if fact.change is PresenceChange.DISCONNECTED:
            joined.clear()
        elif name is not None and fact.change is PresenceChange.LEFT:
            joined.discard(name)
            if self._takes.get(name, {}).pop(device, None) is not None:
                self._sessions[device].discard(name)
                self._left.add((name, device))
        elif name is not None:
            joined.add(name)
            self._join(name, device, takes=fact.receipt is Mode.TAKE, first=fact.seq)
            affected |= self._sessions.get(device, set())
        for other in affected:
            if other in self._simple:
                self._add_span(other, fact.seq)

    def _join(self, name: str, device: str, *, takes: bool, first: int) -> None:
        members = self._takes.get(name)
        if members is None:
            return
        may_have_it = takes and (name, device) in self._left
        is_changed = members.setdefault(device, takes) is not takes
        members[device] = takes
        self._sessions.setdefault(device, set()).add(name)
        if name in self._simple and (is_changed or may_have_it or len(members) > _MAX_MEMBERS):
            self._simple.discard(name)  # a device that received what is pending, and takes from now on, ends nothing
            self.spans.append(LiveSpan(name, first, (), ()))

    def _add_span(self, name: str, first: int) -> None:
        present: list[str] = []
        absent: list[str] = []
        members = self._takes[name]
        for device in members:
            joined = self._joined.get(device)
            joined = self._state.joined.get(device, set()) if joined is None else joined
            matched = self._sessions[device]
            if not matched <= self._plain:
                break
            if matched <= joined:
                present.append(device)
            elif matched.isdisjoint(joined):
                absent.append(device)
            else:  # whether it has the notification here depends on the other session
                break
        is_live = len(present) + len(absent) == len(members) and any(members[device] for device in present)
        span = LiveSpan(name, first, tuple(present), tuple(absent)) if is_live else LiveSpan(name, first, (), ())
        self.spans.append(span)
