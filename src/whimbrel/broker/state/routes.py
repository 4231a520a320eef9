"""Routes: which subscriptions a notification is for.

Subscriptions of a subject alone are found by the subject, and what was found is remembered until one changes.
Those with a content filter are asked of the packed matcher, many notifications at a time where many come at once.
Rule: this is ``match/``; nothing about matching is decided here.
Rule: what an older version accepted never stops a start. A filter that is refused today matches within the budget of
patterns (``language.budget``), or not at all if it cannot be read; ``refused_today`` names it and says why.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from whimbrel.broker.limits.memory import Memory
from whimbrel.broker.state.places.near_routes import NearFound, NearRoutes, needs_place
from whimbrel.broker.state.remembered import Remembered
from whimbrel.errors import FilterError
from whimbrel.hold.commands import Identity
from whimbrel.hold.counting import sorted_identities
from whimbrel.hold.private import asked_for
from whimbrel.language.allowance import Allowance
from whimbrel.language.filters import Filter, filter_of
from whimbrel.match.matcher import Interest, Matcher
from whimbrel.match.prepared import PreparedFilter
from whimbrel.match.topics import TopicIndex
from whimbrel.model.attributes import Attributes
from whimbrel.model.keys import NO_KEYS, OPEN, Secured
from whimbrel.model.near import Anywhere
from whimbrel.model.place import Area, Place
from whimbrel.model.subscription import Subscription
from whimbrel.node.memory import subscription_bytes
from whimbrel.node.places.placing import Placing

__all__ = ["Found", "Routes", "is_long"]

Found = list[tuple[str, tuple[Identity, ...]]]
"""By session, in order, the subscriptions that want a notification."""

_REMEMBERED_SESSIONS = 16
_MATCH_BYTES = 250
"""Memory of one session that wants a subject, with its subscriptions, about."""
_BY_SESSION = itemgetter(0)
_PIECE_S = 0.004
"""How long the patterns may be asked at a stretch."""
_LONG_FILTER = 1_024
"""Content filters of so many characters take a millisecond to read, and are read in steps."""
_MAX_ASKED = 8_192
"""How often one turn may ask a filter that is not packed yet: some 4 µs each."""
_LITTLE = 16
"""Fewer filters than this are never packed, and asked as often as notifications come."""
_FEW = 10
"""Fewer notifications than this are matched one by one: a batch costs as much before the first of them."""


class Heard(Protocol):
    """Leaves out the subscriptions that do not hear what was published at *place* for *area* at *at* (rule 20)."""

    def __call__(self, matches: Found, *, place: Place | None, area: Area | None, at: int) -> Found:
        """Return who hears it."""


class Routes:
    """The subscriptions of a broker; *make_matcher* gives the index for content filters.

    By *stopwatch* a match with dear patterns is broken off, to be taken up again. *near* is for subscriptions with a
    near; unless it is given, there is no grid of places.
    """

    def __init__(
        self,
        make_matcher: Callable[[], Matcher] = Matcher,
        *,
        stopwatch: Callable[[], float] = time.perf_counter,
        near: NearRoutes | None = None,
    ) -> None:
        self._stopwatch = stopwatch
        self._plain = TopicIndex()
        self._matcher = make_matcher()
        self.near = NearRoutes(make_matcher) if near is None else near
        self.heard: Heard | None = None
        """Who decides about places: the hold, once there is one."""
        self._numbers: dict[tuple[str, Identity], int] = {}
        """Of subscriptions; positive in the plain index, negative where they are the matcher's."""
        self.memory = Memory()
        self.pattern_instructions = 0
        """How many instructions the patterns of all subscriptions have together."""
        self._from_anywhere: set[int] = set()
        """The numbers of those that hear areas from anywhere."""
        self._programs: dict[int, int] = {}
        """How many those of each have, where it has any."""
        self._wanted: dict[int, tuple[str, Identity, str, int]] = {}
        """Session, identity, subject filter, and how much memory it takes; by number."""
        self._by_handle: dict[int, int] = {}
        self.has_content = False
        """Whether the content of notifications makes a difference to any subscription."""
        """Numbers by the matcher's handles, and the handles by number."""
        self._handles: dict[int, int] = {}
        self._last = 0
        self.refused_today: dict[tuple[str, Identity], str] = {}
        """Why this version would not accept the filter of a subscription that an older one accepted."""
        self.unreadable: dict[tuple[str, Identity], str] = {}
        """Of these, the filters that cannot be read at all, and why; see ``unreadable_filters``."""
        self._anywhere: Counter[str] = Counter()
        """By session, how many of its subscriptions hear areas from anywhere (``near=any``)."""
        self._remembered = Remembered[Found](self.memory, item_bytes=_MATCH_BYTES)
        self._remembered_sessions: dict[str, dict[str, tuple[Identity, ...]]] = {}
        """The same by session, of subjects that many want and that were published for an area."""
        self.epoch = 0
        """Changes with every change of a subscription, or of what else decides who may be served without the hold."""

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def unpacked(self) -> int:
        """How many content filters are asked one by one, because no segment of the matcher has them yet."""
        return self._matcher.content.unpacked

    @property
    def at_once(self) -> int:
        """How many notifications may be matched in one turn of the loop: as many as ask not too many such filters."""
        unpacked = self._matcher.content.unpacked + self.near.unpacked
        return _MAX_ASKED if unpacked < _LITTLE else max(1, _MAX_ASKED // unpacked)

    def settle(self) -> None:
        """Let the matcher make itself at home with what did not change since the last call."""
        self._matcher.content.settle()
        self.near.settle()

    def prepare(self, subscription: Subscription) -> Generator[None, None, Subscription]:
        """Return *subscription* with its content filter prepared for the index, yielding after each step if long.

        Facts are applied in the order of their numbers, so a long filter must not hold up those behind it: the steps
        that take long are done before its fact has a number, while only the client waits that asks for it.
        """
        content = filter_of(subscription) if is_long(subscription.filter_text) else None
        if content is None:
            return subscription
        prepared = yield from self._matcher.reading(_interest(subscription, content))
        return replace(subscription, parsed=PreparedFilter(content, prepared))

    def put(self, subscription: Subscription) -> None:
        """Add *subscription*, or replace the one with its identity."""
        identity = (subscription.subject_filter, subscription.name)
        self.remove(subscription.session, identity)
        subject_filter = asked_for(subscription.subject_filter) or "#"
        self._last += 1
        is_near = needs_place(subscription)
        is_open = subscription.filter_text is None and subscription.keys == NO_KEYS and subscription.accept_insecure
        is_plain = is_open and not is_near
        number = self._last if is_plain else -self._last
        content: Filter | None = None
        if is_plain:
            self._plain.add(subject_filter, number)
        else:
            try:
                content = filter_of(subscription)
                self._put_indexed(number, subscription, content, is_near=is_near)
            except FilterError as error:
                self.unreadable[subscription.session, identity] = error.reason
                self.refused_today[subscription.session, identity] = f"{error.reason}; it matches nothing"
                return
        if content is not None and subscription.parsed is None and (refusal := content.refusal) is not None:
            self.refused_today[subscription.session, identity] = refusal
        self._numbers[subscription.session, identity] = number
        if content is not None and (instructions := content.instructions):
            self._programs[number] = instructions
            self.pattern_instructions += instructions
        size = subscription_bytes(subscription)
        self._wanted[number] = (subscription.session, identity, subject_filter, size)
        if isinstance(subscription.near, Anywhere):
            self._anywhere[subscription.session] += 1
            self._from_anywhere.add(number)
        self.memory.counted += size
        self._changed()

    def _put_indexed(self, number: int, subscription: Subscription, content: Filter | None, *, is_near: bool) -> None:
        """Put a subscription where content, keys and places are asked; ``FilterError`` if its filter is unreadable."""
        interest = _interest(subscription, content)
        read = content.prepared if isinstance(content, PreparedFilter) else None
        if is_near:
            entry = (subscription.session, ((subscription.subject_filter, subscription.name),))
            self.near.put(number, entry, _placed(interest, subscription), read)
            return
        handle = self._matcher.add(str(number), interest, read)
        self._handles[number] = handle
        self._by_handle[handle] = number
        self.has_content = True

    def remove(self, session: str, identity: Identity) -> None:
        """Remove a subscription, if it is there."""
        self.refused_today.pop((session, identity), None)
        self.unreadable.pop((session, identity), None)
        number = self._numbers.pop((session, identity), None)
        if number is None:
            return
        _, _, subject_filter, size = self._wanted.pop(number)
        if number in self._from_anywhere:
            self._from_anywhere.remove(number)
            self._anywhere -= Counter((session,))  # which leaves none of no subscription
        self.memory.counted -= size
        self.pattern_instructions -= self._programs.pop(number, 0)
        if number > 0:
            self._plain.remove(subject_filter, number)
        elif number in self.near:
            self.near.remove(number)
        else:
            del self._by_handle[self._handles.pop(number)]
            self.has_content = bool(self._by_handle)
            self._matcher.remove(str(number))
        self._changed()

    def instructions_of(self, session: str, identity: Identity) -> int:
        """Return how many instructions the patterns of a subscription that was put have together."""
        return self._programs.get(self._numbers.get((session, identity), 0), 0)

    def forget(self) -> None:
        """Invalidate everything worked out from the routes so far."""
        self._changed()

    def _changed(self) -> None:
        self.epoch += 1
        self._remembered.clear()
        self._remembered_sessions.clear()

    def by_subject(self, subject: str) -> Found:
        """Return who wants *subject* whatever its content."""
        found = self._remembered.get(subject)
        if found is None:
            found = self._merged(self._plain.match(subject))
            self._remembered.put(subject, found, len(found))
        return found

    def by_content(
        self, subjects: Sequence[str], attributes: Sequence[Attributes], secured: Sequence[Secured] | None = None
    ) -> list[list[int]]:
        """Return for each notification the handles of those who want it for its content as well, and may have it.

        Without *secured* all are open.
        """
        if len(subjects) < _FEW:
            each_secured = [OPEN] * len(subjects) if secured is None else secured
            return [
                self._matcher.match_parts(subject, shown, keys, deliver_insecure=is_free)
                for subject, shown, (keys, is_free) in zip(subjects, attributes, each_secured, strict=True)
            ]
        rows, found = self._matcher.match_batch(
            subjects,
            attributes,
            keys=None if secured is None else [each.keys for each in secured],
            deliver_insecure=None if secured is None else np.array([each.deliver_insecure for each in secured]),
        )
        return _by_row(rows, found, len(subjects))

    def allowance(self) -> Allowance:
        """Return an allowance for asking the patterns about one publication, or several that came together."""
        return Allowance(self._stopwatch, _PIECE_S)

    def subscribers(self, subject: str, handles: Sequence[int], secured: Secured = OPEN) -> Found:
        """Return all subscribers of a notification: for its subject, and those of *handles* for its content."""
        plain = self.by_subject(subject) if secured.deliver_insecure else []  # plain subscriptions have no keys
        return self._merged([self._by_handle[handle] for handle in handles], plain) if handles else plain

    def subscribers_at(
        self, subject: str, handles: Sequence[int], near: NearFound, secured: Secured, placing: Placing, at: int
    ) -> Found:
        """Return the subscribers who hear a notification that was published somewhere at the time *at*.

        Of those with a ``near``, *near* want it.
        """
        area = placing.area
        nearby = list(near.entries)
        if nearby and not near.is_decided:
            assert self.heard is not None
            nearby = self.heard(nearby, place=placing.place, area=area, at=at)
        if area is None:
            found = self.subscribers(subject, handles, secured)
        else:
            found = self._subscribers_within(area, subject, handles, secured, at)
        if not nearby:
            return found
        return _united(found, nearby) if found else nearby

    def _subscribers_within(self, area: Area, subject: str, handles: Sequence[int], secured: Secured, at: int) -> Found:
        """Return who hears what is published for an area, of those without a near.

        Where many want it for subject and content, the grid is asked who is there.
        """
        plain = self.by_subject(subject) if secured.deliver_insecure else []
        inside = self.near.sessions_within(area, len(plain) + len(handles))
        if inside is None:
            found = self.subscribers(subject, handles, secured)
        else:
            inside.update(self._anywhere)
            found = self._by_session(subject, inside) if plain else []
            numbers = map(self._by_handle.__getitem__, handles)
            found = self._merged([number for number in numbers if self._wanted[number][0] in inside], found)
        assert self.heard is not None
        return self.heard(found, place=area.centre, area=area, at=at) if found else found

    def _by_session(self, subject: str, sessions: Collection[str]) -> Found:
        """Return what ``by_subject`` has of some sessions."""
        known = self._remembered_sessions.get(subject)
        if known is None:
            if len(self._remembered_sessions) >= _REMEMBERED_SESSIONS:
                self._remembered_sessions.clear()
            known = self._remembered_sessions[subject] = dict(self.by_subject(subject))
        return [(session, known[session]) for session in sorted(sessions) if session in known]

    def whose(self, handle: int) -> tuple[str, Identity]:
        """Return session and subscription of a handle."""
        session, identity, _, _ = self._wanted[self._by_handle[handle]]
        return session, identity

    def _merged(self, numbers: Sequence[int], others: Found | None = None) -> Found:
        wanted = self._wanted
        if not others:
            alone = {(each := wanted[number])[0]: (each[1],) for number in numbers}
            if len(alone) == len(numbers):  # nearly always: no session wants it for two reasons
                return sorted(alone.items(), key=_BY_SESSION)
        found: dict[str, tuple[Identity, ...]] = dict(others or ())
        for number in numbers:
            session, identity, _, _ = wanted[number]
            found[session] = (*found.get(session, ()), identity)
        return [(session, sorted_identities(found[session])) for session in sorted(found)]


def is_long(filter_text: str | None) -> bool:
    """Tell whether a content filter takes long to read."""
    return filter_text is not None and len(filter_text) >= _LONG_FILTER


def _interest(subscription: Subscription, content: Filter | None) -> Interest:
    return Interest(
        filter_text=subscription.filter_text,
        subject_filter=asked_for(subscription.subject_filter) or "#",
        keys=subscription.keys,
        accept_insecure=subscription.accept_insecure,
        parsed=content,
    )


def _placed(interest: Interest, subscription: Subscription) -> Interest:
    near, stale_us = subscription.near, subscription.stale_us
    return replace(interest, near=near, stale_us=stale_us, session=subscription.session)


def _united(some: Found, others: Found) -> Found:
    """Return both, by session."""
    found = dict(some)
    for session, identities in others:
        found[session] = sorted_identities((*found.get(session, ()), *identities))
    return sorted(found.items(), key=_BY_SESSION)


def _by_row(rows: Any, handles: Any, count: int) -> list[list[int]]:  # noqa: ANN401 # numpy arrays
    flat, ends = handles.tolist(), np.searchsorted(rows, np.arange(1, count + 1)).tolist()
    return [flat[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
