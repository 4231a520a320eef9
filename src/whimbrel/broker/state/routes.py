"""Routes: the index that finds the subscriptions that match a notification.

Subscriptions with neither a content filter nor keys are found by the subject, and the result is cached until a
subscription changes. The others are found by the packed matcher; it matches many notifications in one call if many
arrive together.
Rule: matching is done by ``match/``; nothing about it is decided here.
Rule: a filter that an older version accepted never prevents a start. If this version would refuse the filter, it is
evaluated within the budget of patterns (``language.pattern_cost``); if it cannot be parsed, it matches nothing.
``refused_today`` has these subscriptions, each with the reason.
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
from whimbrel.hold.private import asked_for
from whimbrel.hold.shared_subscriptions import sorted_identities
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
"""Result of matching: pairs of a session and its subscriptions that match a notification, ordered by session."""

_REMEMBERED_SESSIONS = 16
_MATCH_BYTES = 250
"""Approximate memory in bytes of one session in a cached result, with its subscriptions."""
_BY_SESSION = itemgetter(0)
_PIECE_S = 0.004
"""Most time, in seconds, for evaluating patterns in one turn of the event loop."""
_LONG_FILTER = 1_024
"""Length from which a content filter is parsed in steps, in characters; parsing it takes a millisecond or more."""
_MAX_ASKED = 8_192
"""Most evaluations of single filters (outside the packed index) in a turn of the event loop; one takes some 4 µs."""
_LITTLE = 16
"""Fewer content filters than this are never packed, so they do not limit the notifications of a turn."""
_FEW = 10
"""Fewer notifications than this are matched one by one, because a batch has the fixed cost of about this many."""


class Heard(Protocol):
    """Function that finds which of the matching subscriptions are near enough to a publication (hold, rule 20)."""

    def __call__(self, matches: Found, *, place: Place | None, area: Area | None, at: int) -> Found:
        """Return the subscriptions in *matches* that are near enough to receive a publication of the time *at*.

        The publication was made at *place*, and only sessions in *area* may receive it.
        """


class Routes:
    """Matching index of the subscriptions of a broker; *make_matcher* creates the index for content filters.

    *stopwatch* measures the time of expensive patterns, so that a long match can be interrupted and continued later.
    *near* has the subscriptions with ``near`` (a circle, polygon or distance); by default it never uses a grid.
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
        """Decides which subscriptions are near enough to a publication; set to the hold's rule when a hold exists."""
        self._numbers: dict[tuple[str, Identity], int] = {}
        """Route number of each subscription: positive in the plain index, negative in the matcher or in ``near``."""
        self.memory = Memory()
        self.pattern_instructions = 0
        """Number of instructions that the patterns of all subscriptions compile to."""
        self._from_anywhere: set[int] = set()
        """Route numbers of the subscriptions with ``near=any``."""
        self._programs: dict[int, int] = {}
        """Number of instructions that the patterns of each subscription compile to, by route number; 0 is omitted."""
        self._wanted: dict[int, tuple[str, Identity, str, int]] = {}
        """Session, identity, subject filter and memory in bytes of each subscription, by route number."""
        self._by_handle: dict[int, int] = {}
        """Route number of each subscription in the matcher, by its handle there."""
        self.has_content = False
        """Whether the matcher has any subscription: one with a content filter, with keys, or that demands keys."""
        self._handles: dict[int, int] = {}
        """Handle of each subscription (its index in the matcher), by route number."""
        self._last = 0
        self.refused_today: dict[tuple[str, Identity], str] = {}
        """Subscriptions whose filter an older version accepted and this one would refuse, each with the reason."""
        self.unreadable: dict[tuple[str, Identity], str] = {}
        """Those of ``refused_today`` whose filter cannot be parsed, with the reason; see ``unreadable_filters``."""
        self._anywhere: Counter[str] = Counter()
        """Number of subscriptions with ``near=any`` per session: they match publications for all areas."""
        self._remembered = Remembered[Found](self.memory, item_bytes=_MATCH_BYTES)
        """Cached results of ``by_subject``."""
        self._remembered_sessions: dict[str, dict[str, tuple[Identity, ...]]] = {}
        """Cached results of ``by_subject`` as maps with sessions as keys, for publications for an area."""
        self.epoch = 0
        """Version number: it changes with every subscription, and when other clients can be served without the hold."""

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def unpacked(self) -> int:
        """Number of content filters that are evaluated one by one, because the packed index does not have them yet."""
        return self._matcher.content.unpacked

    @property
    def at_once(self) -> int:
        """Most notifications to match in one turn of the event loop: the more filters are not packed yet, the fewer."""
        unpacked = self._matcher.content.unpacked + self.near.unpacked
        return _MAX_ASKED if unpacked < _LITTLE else max(1, _MAX_ASKED // unpacked)

    def settle(self) -> None:
        """Start packing new filters or merging segments, if needed, in matchers that got no filter since the last call.

        It is called periodically: see ``match.index.content``.
        """
        self._matcher.content.settle()
        self.near.settle()

    def prepare(self, subscription: Subscription) -> Generator[None, None, Subscription]:
        """Return *subscription*; if its content filter is long, with the filter parsed and ready for the index.

        Facts are applied in the order of their seqs, so a long filter must not delay the facts behind it. The slow
        steps are therefore done before the subscription's fact gets a seq, while only the subscribing client waits.
        This yields after each of them.
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
        self._invalidate()

    def _put_indexed(self, number: int, subscription: Subscription, content: Filter | None, *, is_near: bool) -> None:
        """Add a subscription to the matcher, or to ``near`` if it needs a place.

        Raise ``FilterError`` if its filter cannot be parsed.
        """
        interest = _interest(subscription, content)
        read = content.prepared if isinstance(content, PreparedFilter) else None
        if is_near:
            entry = (subscription.session, ((subscription.subject_filter, subscription.name),))
            self.near.put(number, entry, _with_place(interest, subscription), read)
            return
        handle = self._matcher.add(str(number), interest, read)
        self._handles[number] = handle
        self._by_handle[handle] = number
        self.has_content = True

    def remove(self, session: str, identity: Identity) -> None:
        """Remove a subscription, if the index has it."""
        self.refused_today.pop((session, identity), None)
        self.unreadable.pop((session, identity), None)
        number = self._numbers.pop((session, identity), None)
        if number is None:
            return
        _, _, subject_filter, size = self._wanted.pop(number)
        if number in self._from_anywhere:
            self._from_anywhere.remove(number)
            self._anywhere -= Counter((session,))  # this also removes a session whose count becomes 0
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
        self._invalidate()

    def instructions_of(self, session: str, identity: Identity) -> int:
        """Return the number of instructions that a subscription's patterns compile to; 0 if it has no patterns."""
        return self._programs.get(self._numbers.get((session, identity), 0), 0)

    def forget(self) -> None:
        """Discard the cached results, and change ``epoch`` so that other caches of results are discarded too."""
        self._invalidate()

    def _invalidate(self) -> None:
        self.epoch += 1
        self._remembered.clear()
        self._remembered_sessions.clear()

    def by_subject(self, subject: str) -> Found:
        """Return the subscriptions without a content filter, keys or near that match *subject*; results are cached."""
        found = self._remembered.get(subject)
        if found is None:
            found = self._merge(self._plain.match(subject))
            self._remembered.put(subject, found, len(found))
        return found

    def by_content(
        self, subjects: Sequence[str], attributes: Sequence[Attributes], secured: Sequence[Secured] | None = None
    ) -> list[list[int]]:
        """Return, for each notification, the handles (see ``whose``) of the matcher's subscriptions that match it.

        They match in subject, content and keys. *secured* has the keys of each notification; None: all are open.
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
        """Return a time allowance for evaluating patterns on one publication, or on several that came together."""
        return Allowance(self._stopwatch, _PIECE_S)

    def subscribers(self, subject: str, handles: Sequence[int], secured: Secured = OPEN) -> Found:
        """Return the subscriptions that match a notification without place: those found by *subject*, and *handles*.

        *handles* come from ``by_content``. If the notification demands keys, subscriptions without keys are left out.
        """
        plain = self.by_subject(subject) if secured.deliver_insecure else []  # plain subscriptions have no keys
        return self._merge([self._by_handle[handle] for handle in handles], plain) if handles else plain

    def subscribers_at(
        self, subject: str, handles: Sequence[int], near: NearFound, secured: Secured, placing: Placing, at: int
    ) -> Found:
        """Return the matching subscriptions of a notification with a place that are near enough to receive it.

        *handles* come from ``by_content``; *near* are the matching subscriptions with ``near``; *at* is the time of
        publication.
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
        return _union(found, nearby) if found else nearby

    def _subscribers_within(self, area: Area, subject: str, handles: Sequence[int], secured: Secured, at: int) -> Found:
        """Return the matching subscriptions without ``near`` whose session is in the *area* of a publication.

        If many match in subject and content, the grid of places finds the sessions in the area first.
        """
        plain = self.by_subject(subject) if secured.deliver_insecure else []
        inside = self.near.sessions_within(area, len(plain) + len(handles))
        if inside is None:
            found = self.subscribers(subject, handles, secured)
        else:
            inside.update(self._anywhere)
            found = self._by_session(subject, inside) if plain else []
            numbers = map(self._by_handle.__getitem__, handles)
            found = self._merge([number for number in numbers if self._wanted[number][0] in inside], found)
        assert self.heard is not None
        return self.heard(found, place=area.centre, area=area, at=at) if found else found

    def _by_session(self, subject: str, sessions: Collection[str]) -> Found:
        """Return the part of the result of ``by_subject`` that belongs to *sessions*."""
        known = self._remembered_sessions.get(subject)
        if known is None:
            if len(self._remembered_sessions) >= _REMEMBERED_SESSIONS:
                self._remembered_sessions.clear()
            known = self._remembered_sessions[subject] = dict(self.by_subject(subject))
        return [(session, known[session]) for session in sorted(sessions) if session in known]

    def whose(self, handle: int) -> tuple[str, Identity]:
        """Return the session and identity of the subscription with a matcher's *handle*."""
        session, identity, _, _ = self._wanted[self._by_handle[handle]]
        return session, identity

    def _merge(self, numbers: Sequence[int], others: Found | None = None) -> Found:
        wanted = self._wanted
        if not others:
            alone = {(each := wanted[number])[0]: (each[1],) for number in numbers}
            if len(alone) == len(numbers):  # nearly always: no session has two matching subscriptions
                return sorted(alone.items(), key=_BY_SESSION)
        found: dict[str, tuple[Identity, ...]] = dict(others or ())
        for number in numbers:
            session, identity, _, _ = wanted[number]
            found[session] = (*found.get(session, ()), identity)
        return [(session, sorted_identities(found[session])) for session in sorted(found)]


def is_long(filter_text: str | None) -> bool:
    """Return whether a content filter is so long that it must be parsed in steps."""
    return filter_text is not None and len(filter_text) >= _LONG_FILTER


def _interest(subscription: Subscription, content: Filter | None) -> Interest:
    return Interest(
        filter_text=subscription.filter_text,
        subject_filter=asked_for(subscription.subject_filter) or "#",
        keys=subscription.keys,
        accept_insecure=subscription.accept_insecure,
        parsed=content,
    )


def _with_place(interest: Interest, subscription: Subscription) -> Interest:
    near, stale_us = subscription.near, subscription.stale_us
    return replace(interest, near=near, stale_us=stale_us, session=subscription.session)


def _union(some: Found, others: Found) -> Found:
    """Return the union of two lists of matching subscriptions by session, ordered by session."""
    found = dict(some)
    for session, identities in others:
        found[session] = sorted_identities((*found.get(session, ()), *identities))
    return sorted(found.items(), key=_BY_SESSION)


def _by_row(rows: Any, handles: Any, count: int) -> list[list[int]]:  # noqa: ANN401 # numpy arrays
    flat, ends = handles.tolist(), np.searchsorted(rows, np.arange(1, count + 1)).tolist()
    return [flat[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
