"""Interest: the part of a subscription that the matcher needs; and where a publication was made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from whimbrel.errors import InvalidValueError
from whimbrel.language.filters import Filter
from whimbrel.model.keys import NO_KEYS, KeyHashes
from whimbrel.model.near import Anywhere, Around, Near
from whimbrel.model.place import Place

__all__ = ["Interest", "PublishedAt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interest:
    """One subscription to match: subject filter, content filter, keys and places."""

    filter_text: str | None = None
    subject_filter: str | None = None
    keys: KeyHashes = NO_KEYS
    accept_insecure: bool = True
    near: Near | None = None
    stale_us: int | None = None
    """Age up to which a reported place counts, in microseconds; None: the default."""
    session: str | None = None
    """Session whose devices' places count; None: the subscriber has no known place, so areas do not restrict it."""
    parsed: Filter | None = field(default=None, compare=False, repr=False)
    """The parsed ``filter_text``, if it has been parsed already."""

    def __post_init__(self) -> None:
        if self.session is None and isinstance(self.near, Around):
            raise InvalidValueError("near", str(self.near), "a circle or polygon where no session is given")

    def content(self) -> Filter | None:
        """Return the content filter, or None if there is none.

        Raise ``FilterError`` if its text is not valid as a stored filter.
        """
        if self.parsed is not None or self.filter_text is None:
            return self.parsed
        return Filter(self.filter_text, is_stored=True)

    @property
    def is_placed(self) -> bool:
        """Whether places decide what this subscription receives."""
        if isinstance(self.near, Anywhere):
            return False
        return self.near is not None or self.session is not None


class PublishedAt(NamedTuple):
    """Place, area and time of a publication."""

    place: Place | None
    radius_m: float | None
    """Radius of the area; None: the publication is for everywhere."""
    time: int
