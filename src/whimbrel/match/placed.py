"""Subscriptions that depend on places: which index finds them, and which of them a publication reaches.

A *near* is the place condition of a subscription: a circle, a polygon, or a radius around its session's devices. An
*area* is the circle around its own place that a publication is meant for.

| the subscription has | it is found by |
|---|---|
| a near, and no content filter | the proximity index; the subject is checked afterwards |
| a near, and a content filter that many share | the proximity index; the filter is evaluated once per event |
| a near and a content filter of its own | the content index; the place is checked last |
| a near of more than 50 km, and a subject filter | the topic index; the place is checked last |
| no near | the topic or content index; the place is checked last if the publication has an area |

In the last case, if the topic index would find many subscriptions for a publication with an area, the proximity index
lists the subscriptions inside the area instead.

Rule: the result does not depend on the index that finds a subscription; a differential test varies ``Bounds``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.match.index.segments import closure
from whimbrel.match.index.texts import Texts
from whimbrel.match.interest import Interest, PublishedAt
from whimbrel.match.proximity.index import ProximityIndex, Publications
from whimbrel.match.proximity.stored import SAVED as SAVED_INDEX
from whimbrel.match.proximity.stored import read, state_arrays
from whimbrel.match.topics import TopicIndex, check_topic_filter, matches
from whimbrel.model.attributes import Attributes
from whimbrel.model.near import Around, Near
from whimbrel.model.place import Area
from whimbrel.model.polygon import Polygon

__all__ = ["SAVED", "Bounds", "Placed", "Publications"]

_Rest: TypeAlias = tuple[str | None, str | None]
"""Subject filter and content filter to check after place found a subscription; None: nothing to check."""
SAVED = (*SAVED_INDEX, "rest.handles", "rest.which", "rest.bytes", "rest.start", "plain")
_NOWHERE = PublishedAt(None, None, 0)
_METRES_OF_A_DEGREE = 111_700.0


class Bounds(NamedTuple):
    """Limits that decide which index finds a subscription."""

    narrow_m: float = 50_000.0
    """Largest radius of a ``near``, in metres, that is searched by place; larger circles would be found too often."""
    shared: int = 32
    """Once this many subscriptions with a ``near`` share the same filters, further ones are found by place."""
    few: int = 128
    """Most subscriptions to a subject whose places are checked one by one; above it, the area is searched instead."""


class Placed:
    """The subscriptions that depend on places, by handle (number); *bounds* affect only the speed, not the matches."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self._bounds = Bounds() if bounds is None else bounds
        self.index = ProximityIndex()
        self._topics = TopicIndex()
        self._rest: dict[int, _Rest] = {}
        """Filters to check after a subscription was found, by handle; of subscriptions found by place or ``_plain``."""
        self._plain: dict[int, None] = {}
        """Plain subscriptions: without a content filter, and not found by place."""
        self._anyhow: dict[int, None] = {}
        """Subscriptions of ``_plain`` without a subject filter."""
        self._shared: Counter[_Rest] = Counter()
        self._sharing: dict[int, _Rest] = {}
        """Filters of each subscription that has both a near and a content filter, by handle."""
        self._kinds: dict[_Rest, int] = {}
        """Numbers of the distinct pairs of filters in ``_rest``; ``_kind_of`` has each handle's number."""
        self._kind_of = np.zeros(1_024, np.int64)
        self._with_subject = self._with_more = 0
        """Number of entries of ``_rest`` with a subject filter, and with any filter."""

    def __len__(self) -> int:
        return len(self.index)

    def put(self, handle: int, interest: Interest) -> bool:
        """Add a subscription; return False if the caller must still add its content filter to the content index."""
        subject, text = interest.subject_filter, interest.filter_text
        if subject is not None:
            check_topic_filter(subject)
        rest, is_source = (subject, text), self._is_found_by_place(interest)
        where = {"session": interest.session, "stale_us": interest.stale_us}
        self.index.put(handle, interest.near, is_source=is_source, **where)  # type: ignore[arg-type]  # by name
        if interest.near is not None and text is not None:
            self._shared[rest] += 1
            self._sharing[handle] = rest
        if is_source:
            self._put_rest(handle, rest)
        elif text is None:
            self._put_plain(handle, subject)
        return is_source or text is None

    def _is_found_by_place(self, interest: Interest) -> bool:
        subject, text, near = interest.subject_filter, interest.filter_text, interest.near
        if near is None:
            return False
        if text is None and (subject is None or interest.session is None):
            return True  # otherwise it would be found every time; or it has no session, so only its near matters
        if _radius_m(near) > self._bounds.narrow_m:
            return False
        return text is None or self._shared[subject, text] >= self._bounds.shared

    def _put_plain(self, handle: int, subject: str | None) -> None:
        self._plain[handle] = None
        if subject is None:
            self._anyhow[handle] = None
        else:
            self._topics.add(subject, handle)
        self._put_rest(handle, (subject, None))

    def _put_rest(self, handle: int, rest: _Rest) -> None:
        self._rest[handle] = rest
        if handle >= self._kind_of.size:
            wider = np.zeros(max(handle + 1, 2 * self._kind_of.size), np.int64)
            wider[: self._kind_of.size] = self._kind_of
            self._kind_of = wider
        if len(self._kinds) > 2 * len(self._rest) + 64:  # most of the numbered filters are gone
            self._kinds = {}
            for each, own in self._rest.items():
                self._kind_of[each] = self._kinds.setdefault(own, len(self._kinds))
        self._kind_of[handle] = self._kinds.setdefault(rest, len(self._kinds))
        self._with_subject += rest[0] is not None
        self._with_more += rest != (None, None)

    def remove(self, handle: int) -> bool:
        """Remove a subscription, if present; return False if another index still has it."""
        self.index.remove(handle)
        shared = self._sharing.pop(handle, None)
        if shared is not None:
            self._shared[shared] -= 1
            if not self._shared[shared]:
                del self._shared[shared]
        rest = self._rest.pop(handle, None)
        if rest is not None:
            self._with_subject -= rest[0] is not None
            self._with_more -= rest != (None, None)
        if handle in self._plain:
            del self._plain[handle]
            self._anyhow.pop(handle, None)
            if rest is not None and rest[0] is not None:
                self._topics.remove(rest[0], handle)
        return rest is not None

    # -- matching ----------------------------------------------------------------------------------------------------

    @staticmethod
    def nowhere(count: int) -> Publications:
        """Return *count* publications without a place."""
        return Publications.of([None] * count, [None] * count, [0] * count)

    def find_reached(
        self, found: list[int], subject: str | None, attributes: Attributes, where: PublishedAt | None
    ) -> list[int]:
        """Return the handles of all subscriptions that the publication reaches.

        *found* has the handles from the topic and content indexes; those that fail the place check are left out.
        Subscriptions that only a search by place finds are added. If *where* is None, the publication has no place.
        """
        place, radius_m, time = _NOWHERE if where is None else where
        has_area = place is not None and radius_m is not None
        if found and (has_area or self._sharing):
            spot = Publications.of_one(place, radius_m, time)
            stays = self.index.sieve(spot, np.zeros(len(found), np.int64), np.array(found, np.int64))
            found = [handle for handle, is_heard in zip(found, stays.tolist(), strict=True) if is_heard]
        if self._plain:
            found += self._plain_heard(subject, Publications.of_one(place, radius_m, time), has_area=has_area)
        if len(self._rest) > len(self._plain) and place is not None:
            found += self._near_heard(self.index.near_one(place, radius_m, time), subject, attributes)
        return found

    def _near_heard(self, near: Any, subject: str | None, attributes: Attributes) -> list[int]:
        """Return the handles in *near* (all found by place) whose subject and content filters admit a publication."""
        handles: list[int] = near.tolist()
        if not self._with_more or not handles:
            return handles
        wanted, rest = _Wanted(subject, lambda: attributes), self._rest
        if len(self._kinds) == 1:
            return handles if wanted[rest[handles[0]]] else []
        kinds = self._kind_of[near].tolist()
        if kinds.count(kinds[0]) == len(kinds):  # typical where all devices of a town have the same filters
            return handles if wanted[rest[handles[0]]] else []
        return [handle for handle in handles if wanted[rest[handle]]]

    def _plain_heard(self, subject: str | None, where: Publications, *, has_area: bool) -> list[int]:
        many = len(self._anyhow) + (0 if subject is None else self._topics.count(subject))
        if has_area and many > self._bounds.few:
            is_wanted = self._content_check(lambda _: subject, lambda _: {})
            inside = self.index.inside(where, 0).tolist()
            return [handle for handle in inside if handle in self._plain and is_wanted(0, handle)]
        found = [] if subject is None else self._topics.match(subject)
        found += self._anyhow
        if not found:
            return found
        stays = self.index.sieve(where, np.zeros(len(found), np.int64), np.array(found, np.int64))
        return [handle for handle, is_heard in zip(found, stays.tolist(), strict=True) if is_heard]

    def heard_many(
        self,
        rows: Any,
        handles: Any,
        subjects: Sequence[str | None] | None,
        attributes_of: Callable[[int], Attributes],
        where: Publications,
    ) -> tuple[Any, Any]:
        """Return all pairs (publication, subscription) that pass the place check.

        *rows* and *handles* are the pairs from the topic and content indexes; pairs found by place are added.
        """
        rows, handles = rows.astype(np.int64, copy=False), handles.astype(np.int64, copy=False)
        parts = []
        if rows.size:
            stays = self.index.sieve(where, rows, handles)
            parts.append((rows[stays], handles[stays]))
        if self._plain:
            parts += self._plain_heard_many(subjects, where)
        if len(self._rest) > len(self._plain):
            subject_of: Callable[[int], str | None] = (lambda _: None) if subjects is None else subjects.__getitem__
            is_wanted = self._content_check(subject_of, attributes_of)
            near_rows, near_handles = self.index.near(where)
            if self._with_more:
                pairs = zip(near_rows.tolist(), near_handles.tolist(), strict=True)
                stays = np.fromiter((is_wanted(row, handle) for row, handle in pairs), np.bool_, near_rows.size)
                near_rows, near_handles = near_rows[stays], near_handles[stays]
            parts.append((near_rows, near_handles))
        if not parts:
            return rows, handles
        rows, handles = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        order = np.argsort(rows, kind="stable")
        return rows[order], handles[order]

    def _plain_heard_many(
        self, subjects: Sequence[str | None] | None, where: Publications
    ) -> Iterable[tuple[Any, Any]]:
        asked = [None] * where.times.size if subjects is None else list(subjects)
        is_crowded = ~np.isnan(where.spots[:, 5])
        for row in np.flatnonzero(is_crowded).tolist():
            one = Publications(where.spots[row : row + 1], where.times[row : row + 1])
            subject = asked[row]
            many = len(self._anyhow) + (0 if subject is None else self._topics.count(subject))
            is_crowded[row] = many > self._bounds.few
            if is_crowded[row]:
                found = self._plain_heard(subject, one, has_area=True)
                yield np.full(len(found), row, np.int64), np.array(found, np.int64)
                asked[row] = None
        by_topic, others = self._topics.match_many(asked), np.flatnonzero(~is_crowded)
        anyhow = np.fromiter(self._anyhow, np.int64)
        rows = np.concatenate([by_topic.rows.astype(np.int64), np.repeat(others, anyhow.size)])
        handles = np.concatenate([by_topic.handles.astype(np.int64), np.tile(anyhow, others.size)])
        stays = self.index.sieve(where, rows, handles)
        yield rows[stays], handles[stays]

    def _content_check(
        self, subject_of: Callable[[int], str | None], attributes_of: Callable[[int], Attributes]
    ) -> Callable[[int, int], bool]:
        """Return a function that checks publication *row* against the subject and content filters of a subscription.

        Each filter is evaluated once per publication.
        """
        known: dict[int, _Wanted] = {}

        def is_wanted(row: int, handle: int) -> bool:
            if row not in known:
                known[row] = _Wanted(subject_of(row), partial(attributes_of, row))
            return known[row][self._rest[handle]]

        return is_wanted

    @property
    def needs_subjects(self) -> bool:
        """Whether matching needs the subjects of publications: some subscription here has a subject filter."""
        return self._with_subject > 0

    # -- files -------------------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, Any]:
        """Return the state as named flat arrays, from which ``of`` restores it."""
        texts, which = Texts(), []
        for subject, text in self._rest.values():
            which.append((subject is not None) + 2 * (text is not None))
            texts.append(subject or "")
            texts.append(text or "")
        kept = texts.arrays()
        return state_arrays(self.index) | {
            "rest.handles": np.fromiter(self._rest, np.int64),
            "rest.which": np.array(which, np.int64),
            "rest.bytes": kept["text_bytes"],
            "rest.start": kept["text_start"],
            "plain": np.fromiter(self._plain, np.int64),
        }

    @classmethod
    def of(cls, arrays: Mapping[str, Any], *, handles: int) -> Placed:
        """Restore the state that ``arrays`` returned, for subscriptions below *handles*; every number is checked."""
        placed = cls()
        placed.index = read(arrays, handles=handles)
        texts = Texts.of(arrays["rest.bytes"], arrays["rest.start"])
        own, which = arrays["rest.handles"].tolist(), arrays["rest.which"].tolist()
        if not len(texts) == 2 * len(own) == 2 * len(which):
            raise InvalidValueError("rest", Phrase(f"{len(texts)} texts"), f"{2 * len(own)}, two each")
        known, plain = set(arrays["handles"].tolist()), set(arrays["plain"].tolist())
        if not known >= set(own) or not set(own) >= plain:
            raise InvalidValueError("rest", Phrase("other numbers"), "handles of subscriptions that places matter to")
        for at, (handle, kinds) in enumerate(zip(own, which, strict=True)):
            subject = check_topic_filter(texts[2 * at]) if kinds & 1 else None
            text = texts[2 * at + 1] if kinds & 2 else None
            if handle in plain:
                placed._put_plain(handle, subject)
            else:
                placed._put_rest(handle, (subject, text))
        # Subscriptions in the content index get dummy filters here: the true ones are needed only to add or remove.
        placed._sharing = dict.fromkeys(known.difference(own), (None, None))
        return placed


class _Wanted(dict[_Rest, bool]):
    """Cache for one publication: whether it passes each pair of subject filter and content filter.

    Each is evaluated once.
    """

    def __init__(self, subject: str | None, attributes: Callable[[], Attributes]) -> None:
        super().__init__({(None, None): True})
        self._subject, self._attributes = subject, attributes

    def __missing__(self, rest: _Rest) -> bool:
        wanted, text = rest
        is_wanted = wanted is None or (self._subject is not None and matches(wanted, self._subject))
        is_wanted = is_wanted and (text is None or closure(text)(self._attributes()) is True)
        self[rest] = is_wanted
        return is_wanted


def _radius_m(near: Near) -> float:
    """Return the approximate radius, in metres, of a near (a circle, a polygon, or ``near=R``)."""
    if isinstance(near, Area | Around):
        return near.radius_m
    assert isinstance(near, Polygon)
    return max(near.east - near.west, near.north - near.south) / 2 * _METRES_OF_A_DEGREE
