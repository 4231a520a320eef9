"""Words of subjects: replace the words that no subject filter names by one word, so that few subjects are distinct.

A fleet publishes to one subject per device, while filters say ``car/+``. Matching takes Python microseconds per
distinct subject. A matcher cannot distinguish words that no filter names, so they can be replaced.
Rule: a subject keeps its levels, and each word that a filter names, so the same filters match it. A word that begins
with ``$`` stays too, because wildcards do not match it at the beginning (MQTT 5.0, 4.7.2).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.hold.private import asked_for

__all__ = ["SubjectWords"]

_FASTER = 4
"""Number of filter words that Arrow scans in the time in which Python looks up one subject word."""


class SubjectWords:
    """The words in a set of subject filters."""

    def __init__(self, subject_filters: Iterable[str | None]) -> None:
        words = {word for each in subject_filters if each is not None for word in (asked_for(each) or "").split("/")}
        self._words = frozenset(words)
        self._array = pa.array(sorted(words), pa.string())
        other = "other"
        while other in words:
            other += "-"
        self._other = pa.scalar(other)

    def plain(self, subjects: Any) -> Any:  # Arrow arrays
        """Return *subjects* with every word that no filter names replaced by the same word."""
        coded = subjects.dictionary_encode()
        lists = pc.split_pattern(coded.dictionary, "/")
        words = lists.flatten()
        stays = pc.or_(self._are_named(words), pc.starts_with(words, "$"))
        alike = pc.if_else(stays, words, self._other)
        joined = pc.binary_join(pa.ListArray.from_arrays(_offsets(lists), alike), "/")
        return joined.take(coded.indices)

    def _are_named(self, words: Any) -> Any:
        """Return, as booleans, which of *words* any filter names.

        Arrow scans all words of filters in each call; if *words* are few, Python is faster.
        """
        if len(words) * _FASTER > len(self._array):
            return pc.is_in(words, self._array)
        return pa.array([word in self._words for word in words.to_pylist()], pa.bool_())


def _offsets(lists: Any) -> Any:
    """Return where each list begins and ends in the array of all lists' values."""
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
