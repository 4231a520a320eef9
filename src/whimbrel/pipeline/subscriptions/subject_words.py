"""Words of subjects: those that no subject filter names are all the same to a matcher.

A fleet publishes to a subject for each of its devices, and filters ask for ``car/+``. To match a subject takes Python
microseconds, once for each that is different; so words that no filter names become one word, and few are different.
Rule: a subject has the same levels as before, and the same words wherever a filter names one; which filters admit it
does not change. A word that begins with ``$`` stays: wildcards do not admit it at the beginning (MQTT 5.0, 4.7.2).
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
"""So many times the words of filters are looked at by Arrow as those of subjects are by Python, in the same time."""


class SubjectWords:
    """The words that some subject filters name."""

    def __init__(self, subject_filters: Iterable[str | None]) -> None:
        words = {word for each in subject_filters if each is not None for word in (asked_for(each) or "").split("/")}
        self._words = frozenset(words)
        self._array = pa.array(sorted(words), pa.string())
        other = "other"
        while other in words:
            other += "-"
        self._other = pa.scalar(other)

    def plain(self, subjects: Any) -> Any:  # Arrow arrays
        """Return *subjects* with all words alike that no filter names."""
        coded = subjects.dictionary_encode()
        lists = pc.split_pattern(coded.dictionary, "/")
        words = lists.flatten()
        stays = pc.or_(self._are_named(words), pc.starts_with(words, "$"))
        alike = pc.if_else(stays, words, self._other)
        joined = pc.binary_join(pa.ListArray.from_arrays(_offsets(lists), alike), "/")
        return joined.take(coded.indices)

    def _are_named(self, words: Any) -> Any:
        """Tell which words filters name; Arrow reads all of theirs each time, so for few words Python is faster."""
        if len(words) * _FASTER > len(self._array):
            return pc.is_in(words, self._array)
        return pa.array([word in self._words for word in words.to_pylist()], pa.bool_())


def _offsets(lists: Any) -> Any:
    """Return where lists begin in what ``flatten`` returns."""
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
