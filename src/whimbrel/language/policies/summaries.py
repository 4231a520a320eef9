"""Summaries: count, last, least, greatest and mean of named attributes, per subject, over an interval of time.

An unfinished summary is stored as one manual variable for each ``summarise`` in the text and each subject. So it can be
restored from the decisions in the log, is bounded like all manual variables, and includes withheld notifications.
Rule: no timer. The first notification starts the interval; the first one after the interval triggers the summary, which
includes it.
Rule: a variable that cannot be read (the log may be from another version) is replaced by a new summary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import cbor2

from whimbrel.language.policies.values import EMPTY, Message, Run, seconds
from whimbrel.model.attributes import INT64_MAX, INT64_MIN, Int64, Scalar, integer

__all__ = ["MAX_LAST", "PREFIX", "add_to_summary"]

PREFIX = "summary:"
"""Prefix of variable names that are reserved for summaries."""
MAX_LAST = 256
"""Longest string or opaque value that is stored as an attribute's last value, in characters or bytes."""
_COUNTS = range(1 << 62)


@dataclass(slots=True)
class _Part:
    """Statistics of one attribute."""

    count: int = 0
    numbers: int = 0
    total: float = 0.0
    least: float | None = None
    greatest: float | None = None
    last: Scalar | None = None

    def add(self, value: Scalar | None) -> None:
        """Count one value; skip a missing one. A value that is not a number affects only ``count`` and ``last``."""
        if value is None:
            return
        self.count += 1
        if isinstance(value, int | float):
            number = int(value) if isinstance(value, int) else value
            self.last = number
            if not math.isnan(number):
                self.numbers += 1
                self.total += number
                self.least = number if self.least is None else min(self.least, number)
                self.greatest = number if self.greatest is None else max(self.greatest, number)
        else:
            self.last = value if len(value) <= MAX_LAST else None

    def values(self) -> list[object]:
        return [self.count, self.numbers, self.total, self.least, self.greatest, self.last]


def add_to_summary(run: Run, message: Message, interval: float, names: tuple[str, ...], site: int) -> Message | None:
    """Add the attributes of *message*; return the summary if *interval* seconds have passed since the first message."""
    variable = f"{PREFIX}{site}:{run.arrival.subject}"
    now = int(seconds(run.now))
    started, arrivals, parts = _read(run.state(variable), len(names)) or (now, 0, [_Part() for _ in names])
    arrivals += 1
    for name, part in zip(names, parts, strict=True):
        part.add(run.attribute(message, name))
    if arrivals > 1 and now - started >= interval:
        run.set(variable, None)
        return _message(started, arrivals, names, parts)
    run.set(variable, cbor2.dumps([started, arrivals, [part.values() for part in parts]]))
    return None


def _read(value: Scalar | None, names: int) -> tuple[int, int, list[_Part]] | None:
    if not isinstance(value, bytes):
        return None
    try:
        started, arrivals, listed = cbor2.loads(value)
        parts = [_part(*each) for each in listed]
    except (cbor2.CBORError, ValueError, TypeError, OverflowError, RecursionError):
        return None
    is_fine = _is_number(started) and type(started) is int and type(arrivals) is int and arrivals in _COUNTS
    return (started, arrivals, parts) if is_fine and len(parts) == names else None


def _part(count: Any, numbers: Any, total: Any, least: Any, greatest: Any, last: Any) -> _Part:  # noqa: ANN401, PLR0917 # what CBOR had
    is_fine = type(count) is int and type(numbers) is int and count in _COUNTS and numbers in _COUNTS
    is_fine = is_fine and type(total) is float and all(each is None or _is_number(each) for each in (least, greatest))
    if not is_fine or not (last is None or _is_number(last) or type(last) in {str, bytes}):
        raise ValueError
    return _Part(count, numbers, total, least, greatest, last)


def _is_number(value: Any) -> bool:  # noqa: ANN401 # what CBOR had
    return type(value) is float or (type(value) is int and INT64_MIN <= value <= INT64_MAX)


def _message(started: int, arrivals: int, names: tuple[str, ...], parts: list[_Part]) -> Message:
    found: dict[str, Scalar | None] = {"count": integer(arrivals), "since": Int64(started)}
    for name, part in zip(names, parts, strict=True):
        found[f"{name}.count"] = integer(part.count)
        mean = part.total / part.numbers if part.numbers else None
        for word, value in (("last", part.last), ("least", part.least), ("greatest", part.greatest), ("mean", mean)):
            if value is not None:
                found[f"{name}.{word}"] = integer(value) if isinstance(value, int) else value
    return Message(is_original=False, changes=found, data=EMPTY)
