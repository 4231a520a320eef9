"""Select: one filter over many stored notifications.

Rule: the plain way, by the reference closures and ``topics.matches``. The index is for many filters and one
notification; here it is the other way round.
Rule: a subject filter admits no notification without a subject; ``None`` admits all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from whimbrel.language.ast import Predicate
from whimbrel.language.backends.python import compile_filter
from whimbrel.language.filters import Filter
from whimbrel.match.topics import check_topic_filter, matches
from whimbrel.model.notification import Notification

__all__ = ["select"]


def select(
    filter: Filter | Predicate | None,  # noqa: A002  # the glossary's word; the built-in is not used here
    notifications: Iterable[Notification],
    *,
    subject_filter: str | None = None,
) -> Iterator[Notification]:
    """Return those *notifications*, in their order and as they are asked for, that both filters admit.

    A filter that is ``None`` admits everything. A bad subject filter is refused at once, not at the first notification.
    """
    verdict = filter.verdict if isinstance(filter, Filter) else None if filter is None else compile_filter(filter)
    if subject_filter is not None:
        check_topic_filter(subject_filter)
    return (
        notification
        for notification in notifications
        if _admits(subject_filter, notification.subject)
        and (verdict is None or verdict(notification.attributes) is True)
    )


def _admits(subject_filter: str | None, subject: str | None) -> bool:
    return subject_filter is None or (subject is not None and matches(subject_filter, subject))
