"""Near routes: the subscriptions that hear only publications with a place (``near`` of a circle, polygon or radius).

Rule: they are asked about publications with a place and about no others, so that one subscription with ``near`` costs
nothing where no place is published.
Rule: subject, content and keys are asked here; whether the session is near enough is the hold's to say (rule 20).
"""

from __future__ import annotations

from collections.abc import Callable

from whimbrel.broker.access.publication_keys import Secured
from whimbrel.match.matcher import Interest, Matcher, ReadInterest
from whimbrel.model.attributes import Attributes
from whimbrel.model.near import Anywhere
from whimbrel.model.subscription import Subscription

__all__ = ["NearRoutes", "needs_place"]


def needs_place(subscription: Subscription) -> bool:
    """Tell whether a subscription hears only what has a place."""
    return subscription.near is not None and not isinstance(subscription.near, Anywhere)


class NearRoutes:
    """Subscriptions by number; *make_matcher* gives their index when there is one."""

    def __init__(self, make_matcher: Callable[[], Matcher]) -> None:
        self._make_matcher = make_matcher
        self._matcher: Matcher | None = None
        self._handles: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        """By handle."""

    def __len__(self) -> int:
        return len(self._handles)

    def __contains__(self, number: int) -> bool:
        return number in self._handles

    def put(self, number: int, interest: Interest, read: ReadInterest | None = None) -> None:
        """Add a subscription; a filter that cannot be read raises ``FilterError``."""
        if self._matcher is None:
            self._matcher = self._make_matcher()
        handle = self._matcher.add(str(number), interest, read)
        self._handles[number], self._numbers[handle] = handle, number

    def remove(self, number: int) -> None:
        """Remove a subscription that is there."""
        assert self._matcher is not None
        self._matcher.remove(str(number))
        del self._numbers[self._handles.pop(number)]

    @property
    def unpacked(self) -> int:
        """How many content filters are asked one by one."""
        return 0 if self._matcher is None else self._matcher.content.unpacked

    def settle(self) -> None:
        """Let the matcher make itself at home with what did not change since the last call."""
        if self._matcher is not None:
            self._matcher.content.settle()

    def wanting(self, subject: str, attributes: Attributes, secured: Secured) -> list[int]:
        """Return the numbers of those who want a publication for its subject and content, and may have it."""
        if self._matcher is None or not self._handles:
            return []
        keys, is_free = secured
        found = self._matcher.match_parts(subject, attributes, keys, deliver_insecure=is_free)
        return [self._numbers[handle] for handle in found]
