"""The matcher: one call finds the subscriptions that want a notification, by subject, content, keys and places.

Rule: a subscription without a filter wants every notification. A notification without a subject matches only
subscriptions without a subject filter.
Rule: handles are small integers; ``id_of`` returns the subscription's id. A freed handle is reused only after many
others, so that a late answer does not name another subscription.
Key checks only remove subscriptions that were found. Place checks remove some, and find others (``placed``). As long as
no subscription depends on places, they cost nothing.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.language.filters import Filter
from whimbrel.match.index.content import Beside, ContentIndex, Pack, Run, pack_here
from whimbrel.match.index.damage import DAMAGE, CorruptIndexError
from whimbrel.match.index.delta import run_to_end
from whimbrel.match.index.texts import Texts
from whimbrel.match.interest import Interest, PublishedAt
from whimbrel.match.keys import KeyTable, may_deliver
from whimbrel.match.prepared import ReadInterest, check_names, checked_content, join_text, prepare
from whimbrel.match.subjects import is_exact, subject_attributes
from whimbrel.match.topics import TopicIndex, matches
from whimbrel.model.attributes import Attributes
from whimbrel.model.bounds import whole
from whimbrel.model.keys import NO_KEYS, KeyHashes
from whimbrel.model.notification import Notification
from whimbrel.model.rows import UNBOUNDED

if TYPE_CHECKING:  # places load numba; they are needed only from the first subscription with a place on
    from whimbrel.match.placed import Bounds, Placed
    from whimbrel.match.proximity.index import ProximityIndex, Publications

__all__ = ["Interest", "Matcher", "PublishedAt", "ReadInterest"]

_QUARANTINE = 65_536
"""Number of removals after which a freed handle may be reused."""


_SAVED = (
    "everything with_subject keys subjects.handles subjects.bytes subjects.start "
    "looked_at_again.handles looked_at_again.bytes looked_at_again.start ids.bytes ids.start"
).split()


def _reader(attributes: Any) -> Callable[[int], Attributes]:
    """Return a function that returns the attributes of a notification, given its row number in a batch."""
    if isinstance(attributes, Sequence):
        return attributes.__getitem__
    from whimbrel.model.tables import attributes_from_column_value  # a column exists, so pyarrow is installed

    return lambda row: attributes_from_column_value(attributes[row].as_py(), limits=UNBOUNDED)


def _text_arrays(name: str, texts: Mapping[int, str]) -> dict[str, Any]:
    """Return *texts*, whose keys are handles, as three flat arrays whose names begin with *name*.

    ``_pairs`` reads them.
    """
    arrays = Texts.from_strings(texts.values()).arrays()
    handles = np.fromiter(texts, np.int64)
    return {f"{name}.handles": handles, f"{name}.bytes": arrays["text_bytes"], f"{name}.start": arrays["text_start"]}


def _pairs(name: str, arrays: Mapping[str, Any]) -> Iterable[tuple[int, str]]:
    """Return pairs of handle and text from the arrays that ``_text_arrays`` made under *name*."""
    texts = Texts.of(arrays[f"{name}.bytes"], arrays[f"{name}.start"])
    if len(texts) != arrays[f"{name}.handles"].size:
        raise InvalidValueError(name, Phrase(f"{len(texts)} texts"), f"{arrays[f'{name}.handles'].size}, one each")
    return ((handle, texts[at]) for at, handle in enumerate(arrays[f"{name}.handles"].tolist()))


class Matcher:
    """Subscriptions by id, and the search for those that want a notification.

    *run* starts the repacking of the content index in the background, and *pack* does it (see ``ContentIndex``).
    """

    def __init__(self, *, run: Run | None = None, pack: Pack = pack_here, bounds: Bounds | None = None) -> None:
        self._placed: Placed | None = None
        """Subscriptions that depend on places; None until the first of them is added."""
        self._bounds = bounds
        self._content = ContentIndex(run=run, pack=pack)
        self._topics = TopicIndex()
        self._everything: dict[int, None] = {}
        """Subscriptions without any filter."""
        self._subjects: dict[int, str] = {}
        """Topic filters of subscriptions without a content filter."""
        self._looked_at_again: dict[int, str] = {}
        """Topic filters that the content index does not decide completely; they are checked on each match."""
        self._with_subject: set[int] = set()
        """Subscriptions whose topic filter is part of their filter in the content index."""
        self._keys = KeyTable()
        self._interests: dict[int, tuple[KeyHashes, bool]] = {}
        """Keys and ``accept_insecure`` of the subscriptions that have keys or refuse insecure notifications."""
        self._ids: list[str | None] | Texts = []
        """Subscription ids by handle; None: the handle is free."""
        self._handles: dict[str, int] = {}
        self._free: deque[int] = deque()

    @classmethod
    def load(
        cls,
        interests: Iterable[tuple[str, Interest]],
        *,
        run: Run | None = None,
        pack: Pack = pack_here,
        bounds: Bounds | None = None,
    ) -> Matcher:
        """Return a matcher with many subscriptions, packed at once; an id that occurs twice is refused."""
        matcher = cls(run=run, pack=pack, bounds=bounds)
        matcher._content = ContentIndex.load(matcher._contents(interests), run=run, pack=pack)
        return matcher

    def _contents(self, interests: Iterable[tuple[str, Interest]]) -> Iterable[tuple[int, str]]:
        for subscription, interest in interests:
            if subscription in self._handles:
                raise InvalidValueError("subscription id", subscription, "one that was not used before")
            text = interest.filter_text
            if text is not None and interest.is_placed:
                check_names(interest.content())
            handle = self._new_handle(subscription)
            if self._put(handle, interest):
                assert text is not None
                yield handle, self._join(handle, interest.subject_filter, text)

    def _join(self, handle: int, subject: str | None, text: str) -> str:
        """Return the text of a stored content filter for the index: joined with the topic filter, if there is one."""
        if subject is None and "\0" not in text:
            return text
        joined, has_subject = join_text(subject, text)
        self._note(handle, subject, has_subject=has_subject)
        return joined

    @classmethod
    def of_columns(
        cls,
        subjects: Sequence[str | None],
        texts: Sequence[str | None],
        *,
        keys: Iterable[KeyHashes],
        accept_insecure: Iterable[bool],
    ) -> Matcher:
        """Return a matcher of subscriptions without places, given as columns; it only matches, and can be saved.

        The handle of each subscription is its row. Raise the errors of ``load``.
        """
        matcher = cls()
        matcher._ids = Texts.of_numbers(len(texts))
        rows = zip(subjects, texts, keys, accept_insecure, strict=True)
        matcher._content = ContentIndex.load(matcher._column_contents(rows))
        return matcher

    def _column_contents(
        self, rows: Iterable[tuple[str | None, str | None, KeyHashes, bool]]
    ) -> Iterable[tuple[int, str]]:
        for handle, (subject, text, keys, accepts) in enumerate(rows):
            if keys is not NO_KEYS or not accepts:
                self._keys.put(handle, keys, accept_insecure=accepts)
                self._interests[handle] = (keys, accepts)
            if text is None:
                self._put_subject(handle, subject)
            else:
                yield handle, self._join(handle, subject, text)

    # -- changes -----------------------------------------------------------------------------------------------------

    def add(self, subscription: str, interest: Interest, read: ReadInterest | None = None) -> int:
        """Add a subscription, or replace the one with this id; return its handle.

        A bad filter raises ``FilterError`` (a bad topic filter ``InvalidValueError``) and changes nothing. *read* is
        the result of ``reading`` for the interest; with it, adding is quick.
        """
        content: Filter | None = None
        if read is None or read.interest != interest:
            content, read = checked_content(interest), None
        self.remove(subscription)
        handle = self._new_handle(subscription)
        if self._put(handle, interest):
            if read is None:
                assert content is not None
                read = run_to_end(prepare(interest, content))
            self._note(handle, interest.subject_filter, has_subject=read.indexed.has_subject)
            self._content.add(handle, read.indexed.text, read.read)
        return handle

    @staticmethod
    def reading(interest: Interest) -> Generator[None, None, ReadInterest | None]:
        """Do the slow part of ``add`` beforehand, yielding after each step; return the argument *read* of ``add``.

        Return None if the subscription has no content filter. Raise the errors that ``add`` raises.
        """
        content = checked_content(interest)
        if content is None:
            return None
        yield
        return (yield from prepare(interest, content))

    def remove(self, subscription: str) -> bool:
        """Remove a subscription; return whether there was one."""
        handle = self._handles.pop(subscription, None)
        if handle is None:
            return False
        subject = self._subjects.pop(handle, None)
        if self._placed is not None and self._placed.remove(handle):
            pass  # no other index has the subscription
        elif subject is not None:
            self._topics.remove(subject, handle)
        elif handle in self._everything:
            del self._everything[handle]
        else:
            self._content.remove(handle)
        self._looked_at_again.pop(handle, None)
        self._with_subject.discard(handle)
        self._interests.pop(handle, None)
        self._keys.remove(handle)
        assert isinstance(self._ids, list)
        self._ids[handle] = None
        self._free.append(handle)
        return True

    def _new_handle(self, subscription: str) -> int:
        if isinstance(self._ids, Texts):
            raise InvalidValueError("subscription id", subscription, "none: this matcher is mapped, and only matches")
        if len(self._free) > _QUARANTINE:
            handle = self._free.popleft()
            self._ids[handle] = subscription
        else:
            handle = len(self._ids)
            self._ids.append(subscription)
        self._handles[subscription] = handle
        return handle

    def _put(self, handle: int, interest: Interest) -> bool:
        """Register the keys, subject and places of a subscription.

        Return whether its content filter must still be indexed.
        """
        if interest.keys is not NO_KEYS or not interest.accept_insecure:
            self._keys.put(handle, interest.keys, accept_insecure=interest.accept_insecure)
            self._interests[handle] = (interest.keys, interest.accept_insecure)
        subject, text = interest.subject_filter, interest.filter_text
        if interest.is_placed and self._with_places().put(handle, interest):
            return False
        if text is None:
            self._put_subject(handle, subject)
        return text is not None

    def _put_subject(self, handle: int, subject: str | None) -> None:
        """Register a subscription without a content filter."""
        if subject is None:
            self._everything[handle] = None
        else:
            self._topics.add(subject, handle)
            self._subjects[handle] = subject

    def _note(self, handle: int, subject: str | None, *, has_subject: bool) -> None:
        """Record whether the content index checks a subscription's subject, and whether each match must check it."""
        if has_subject:
            self._with_subject.add(handle)
        if subject is not None and not (has_subject and is_exact(subject)):
            self._looked_at_again[handle] = subject

    # -- matching ----------------------------------------------------------------------------------------------------

    def match(self, notification: Notification) -> list[int]:
        """Return the handles of all subscriptions that want *notification*."""
        where = None
        if self._placed is not None:
            where = PublishedAt(notification.place, notification.radius_m, notification.published_at)
        return self.match_parts(
            notification.subject,
            notification.attributes,
            notification.keys,
            deliver_insecure=notification.deliver_insecure,
            where=where,
        )

    def match_parts(
        self,
        subject: str | None,
        attributes: Attributes,
        keys: KeyHashes = NO_KEYS,
        *,
        deliver_insecure: bool = True,
        where: PublishedAt | None = None,
    ) -> list[int]:
        """Return the handles of the subscriptions that want this subject and attributes, and whose keys allow it.

        *where* has the place, area and time of the publication; None: it has no place.
        """
        if subject is None:
            found = self._content.match(attributes)
        else:
            shown = {**attributes, **subject_attributes(subject)} if self._with_subject else attributes
            found = self._content.match(shown)
            found += self._topics.match(subject)
        if self._looked_at_again:
            found = [handle for handle in found if self._admits(handle, subject)]
        if self._everything:
            found = [*found, *self._everything]
        if self._placed is not None:
            found = self._placed.find_reached(found, subject, attributes, where)
        if not self._interests and deliver_insecure:
            return found
        return [handle for handle in found if self._may_have(keys, handle, deliver_insecure=deliver_insecure)]

    def _admits(self, handle: int, subject: str | None) -> bool:
        topic_filter = self._looked_at_again.get(handle)
        return topic_filter is None or (subject is not None and matches(topic_filter, subject))

    def _may_have(self, keys: KeyHashes, handle: int, *, deliver_insecure: bool) -> bool:
        theirs, accept_insecure = self._interests.get(handle, (NO_KEYS, True))
        return may_deliver(keys, theirs, deliver_insecure=deliver_insecure, accept_insecure=accept_insecure)

    def match_batch(
        self,
        subjects: Sequence[str | None] | None,
        attributes: Any,
        *,
        keys: Sequence[KeyHashes] | None = None,
        deliver_insecure: Any = None,
        where: Publications | None = None,
    ) -> tuple[Any, Any]:
        """Match many notifications; return row numbers and handles, in ascending order of rows.

        *attributes* is an Arrow array of the log's attributes column, or a sequence of Python attributes. *subjects*
        and *where* (places, areas and times) have the same length, or are None. All notifications see the devices where
        they are now: if devices move between two notifications, split the batch there.
        """
        if where is not None and where.times.size != len(attributes):
            found = f"{where.times.size} of them"
            raise InvalidValueError("where", found, f"{len(attributes)}, one for each notification")
        for name, given in (("subjects", subjects), ("keys", keys), ("deliver_insecure", deliver_insecure)):
            if given is not None and len(given) != len(attributes):
                raise InvalidValueError(name, len(given), f"{len(attributes)}, one for each notification")
        rows, handles = self._match_content(subjects, attributes)
        sources = 1
        if subjects is not None and self._subjects:
            by_topic = self._topics.match_many(subjects)
            rows, handles = np.concatenate([rows, by_topic.rows]), np.concatenate([handles, by_topic.handles])
            sources += 1
        if self._looked_at_again:
            rows, handles = self._look_again(rows, handles, subjects)
        if self._everything:
            unconditional = np.fromiter(self._everything, np.int64)
            every_row = np.arange(len(attributes), dtype=rows.dtype)
            rows = np.concatenate([rows, np.repeat(every_row, unconditional.size)])
            handles = np.concatenate([handles, np.tile(unconditional, every_row.size)])
            sources += 1
        if self._placed is not None:
            published = self._placed.nowhere(len(attributes)) if where is None else where
            rows, handles = self._placed.heard_many(rows, handles, subjects, _reader(attributes), published)
            sources = 1
        if self._interests or deliver_insecure is not None:
            all_keys = [NO_KEYS] * len(attributes) if keys is None else keys
            flags = np.ones(len(attributes), np.bool_) if deliver_insecure is None else deliver_insecure
            stays = self._keys.may_deliver(rows, handles, notification_keys=all_keys, deliver_insecure=flags)
            rows, handles = rows[stays], handles[stays]
        if sources == 1:  # the pairs of a single source are in order already
            return rows, handles
        order = np.argsort(rows, kind="stable")
        return rows[order], handles[order]

    def _match_content(self, subjects: Sequence[str | None] | None, attributes: Any) -> tuple[Any, Any]:
        beside = None
        if subjects is not None and self._with_subject:
            known = [subject for subject in dict.fromkeys(subjects) if subject is not None]
            numbers: dict[str | None, int] = {None: -1, **{subject: number for number, subject in enumerate(known)}}
            chosen = np.fromiter(map(numbers.__getitem__, subjects), np.int64, len(subjects))
            beside = Beside([subject_attributes(subject) for subject in known], chosen)
        if isinstance(attributes, Sequence):
            return self._content.match_rows(attributes, beside=beside)
        return self._content.match_arrow(attributes, beside=beside)

    def _look_again(self, rows: Any, handles: Any, subjects: Sequence[str | None] | None) -> tuple[Any, Any]:
        again = np.isin(handles, np.fromiter(self._looked_at_again, np.int64))
        stays = ~again
        for at in np.flatnonzero(again):
            subject = None if subjects is None else subjects[int(rows[at])]
            stays[at] = self._admits(int(handles[at]), subject)
        return rows[stays], handles[stays]

    @property
    def needs_subjects(self) -> bool:
        """Whether a match needs the subjects of notifications: some subscription has a subject filter."""
        placed = self._placed is not None and self._placed.needs_subjects
        return bool(self._subjects or self._with_subject or self._looked_at_again or placed)

    @property
    def needs_places(self) -> bool:
        """Whether a match needs the places, areas and times of notifications: some subscription depends on places."""
        return self._placed is not None and len(self._placed) > 0

    @property
    def places(self) -> ProximityIndex:
        """The index of device positions and session members; it must be told every join, leave and report."""
        return self._with_places().index

    def _with_places(self) -> Placed:
        if self._placed is None:
            from whimbrel.match.placed import Placed  # it loads numba

            self._placed = Placed(self._bounds)
        return self._placed

    @property
    def needs_keys(self) -> bool:
        """Whether a match needs the keys of notifications: some subscription has keys or refuses insecure ones."""
        return bool(self._interests)

    # -- files -------------------------------------------------------------------------------------------------------

    def save(self, path: Path, *, extra: Mapping[str, Any] | None = None) -> None:
        """Write the matcher to one file, atomically; the *extra* arrays are stored with it."""
        keys = [[handle, keys.texts(), accepts] for handle, (keys, accepts) in self._interests.items()]
        known = self._ids
        ids = known if isinstance(known, Texts) else Texts.from_strings(each or "" for each in known)
        own = {
            "everything": np.fromiter(self._everything, np.int64),
            "with_subject": np.fromiter(self._with_subject, np.int64),
            "keys": np.frombuffer(json.dumps(keys).encode(), np.uint8),
            **_text_arrays("subjects", self._subjects),
            **_text_arrays("looked_at_again", self._looked_at_again),
            "ids.bytes": ids.arrays()["text_bytes"],
            "ids.start": ids.arrays()["text_start"],
        }
        if self._placed is not None:
            own |= {f"places.{name}": array for name, array in self._placed.arrays().items()}
        arrays = {f"matcher.{name}": array for name, array in own.items()}
        self._content.save(path, extra=arrays | dict(extra or {}))

    @classmethod
    def map(cls, path: Path) -> tuple[Matcher, dict[str, Any]]:
        """Map the file that ``save`` wrote; return a matcher that only matches, and the extra arrays.

        Processes that map one file share one copy in memory.
        """
        content, extra = ContentIndex.map_with(path)
        matcher = cls()
        matcher._content = content
        try:
            matcher._take({name: extra.pop(f"matcher.{name}") for name in _SAVED})
            if "matcher.places.handles" in extra:
                from whimbrel.match.placed import SAVED, Placed  # it loads numba

                placed = {name: extra.pop(f"matcher.places.{name}") for name in SAVED}
                matcher._placed = Placed.of(placed, handles=len(matcher))
        except DAMAGE as error:
            raise CorruptIndexError(str(path), f"not a matcher ({error})") from error
        return matcher, extra

    def _take(self, own: Mapping[str, Any]) -> None:
        """Restore the ids, topic filters and keys of subscriptions from the arrays that ``save`` wrote."""
        self._ids = Texts.of(own["ids.bytes"], own["ids.start"])
        for name in ("everything", "with_subject", "subjects.handles", "looked_at_again.handles"):
            handles = own[name]
            if handles.dtype != np.int64 or (handles.size and not 0 <= handles.min() <= handles.max() < len(self._ids)):
                raise InvalidValueError(name, Phrase("other numbers"), f"handles from 0 to {len(self._ids) - 1}")
        self._everything = dict.fromkeys(own["everything"].tolist())
        self._with_subject = set(own["with_subject"].tolist())
        self._looked_at_again = dict(_pairs("looked_at_again", own))
        self._subjects = dict(_pairs("subjects", own))
        for handle, subject in self._subjects.items():
            self._topics.add(subject, handle)
        for handle, texts, accepts in json.loads(own["keys"].tobytes()):
            whole("handle", handle, 0, len(self._ids) - 1)
            self._interests[handle] = (KeyHashes.parse(texts), bool(accepts))
            self._keys.put(handle, KeyHashes.parse(texts), accept_insecure=bool(accepts))

    # -- ids ---------------------------------------------------------------------------------------------------------

    def id_of(self, handle: int) -> str:
        """Return the id of the subscription with *handle*."""
        found = self._ids[handle]
        if found is None:
            raise InvalidValueError("handle", handle, "one that is in use")
        return found

    def __len__(self) -> int:
        return len(self._ids) if isinstance(self._ids, Texts) else len(self._handles)

    @property
    def content(self) -> ContentIndex:
        """The index of the content filters, for callers that repack or measure it."""
        return self._content
