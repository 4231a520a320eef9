"""Values of the policy language: the operands of expressions, messages and their data, and the record of one run.

Rule: a value is a scalar of the five attribute types, a verdict (``bool``, which counts as 0 and 1), a message, data,
or ``None``: NULL and undefined are the same. No operation raises; an operand that does not fit gives ``None``.
Rule: messages are made for every notification and device, so they are tuples: half the cost of frozen dataclasses.
Rule: a message holds only changed attributes, never the originals, so the policy's length bounds its size.
Rule: a transform is only described here; ``shape`` performs it. A policy cannot read the transformed body.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from whimbrel.model.attributes import Attributes, Int64, Scalar

__all__ = [
    "EMPTY",
    "NO_SCALARS",
    "ORIGINAL",
    "AnyValue",
    "Arrival",
    "Compression",
    "Data",
    "Level",
    "Message",
    "Projection",
    "Run",
    "Transform",
    "level_of",
    "seconds",
    "storable",
    "truth",
    "whole_pixels",
]


class Level(IntEnum):
    """Share of a body to send, by the lower of battery and link; only four levels, so that devices share results."""

    QUARTER = 1
    HALF = 2
    MOST = 3
    WHOLE = 4


class Compression(NamedTuple):
    """A transform to a smaller body.

    An image is reduced to the share *level* and to the size of the display (0: unknown); JSON keeps only the members
    *names*.
    """

    level: Level
    width_px: int = 0
    height_px: int = 0
    pixels: int = 0
    names: tuple[str, ...] = ()


class Projection(NamedTuple):
    """A transform of the data to JSON that has only the members *names*."""

    names: tuple[str, ...]


Transform: TypeAlias = Compression | Projection


class Data(NamedTuple):
    """The data of a message: the original body, or a new text or bytes; and the transforms to apply to it."""

    is_original: bool
    text: bytes | str | None = None
    """New data. None: the original data or, without that, no data, so the attributes are sent. Encoded when sent."""
    transforms: tuple[Transform, ...] = ()


ORIGINAL, EMPTY = Data(is_original=True), Data(is_original=False)


class Message(NamedTuple):
    """A message: its original attributes or none, the changes to them (None: removed), and its data."""

    is_original: bool
    changes: Mapping[str, Scalar | None]
    data: Data

    def with_attribute(self, name: str, value: Scalar | None) -> Message:
        """Return a copy of the message with the attribute *name* set to *value*."""
        return Message(self.is_original, {**self.changes, name: value}, self.data)

    def with_data(self, data: Data) -> Message:
        """Return a copy of the message with other data."""
        return Message(self.is_original, self.changes, data)

    def with_transform(self, transform: Transform) -> Message:
        """Return a copy of the message with *transform* added to the transforms of its data."""
        data = self.data
        return self.with_data(Data(data.is_original, data.text, (*data.transforms, transform)))


AnyValue: TypeAlias = Scalar | Message | Data | None
NO_SCALARS = (Message, Data)
"""A tuple for ``isinstance``; a union would be created on each call."""


_NUMBERS = (int, float)
_LEVELS = (Level.QUARTER, Level.HALF, Level.MOST, Level.WHOLE, Level.WHOLE)


class Arrival(NamedTuple):
    """The arrived notification, with the properties that a policy can read."""

    attributes: Attributes
    subject: str = ""
    body_bytes: int = 0


class Run:
    """One run of a policy: its inputs, the steps counted so far, and the variables that it has read and changed."""

    __slots__ = ("arrival", "automatic", "changed", "compared", "locals", "manual", "now", "read", "spared", "steps")

    def __init__(self, arrival: Arrival, automatic: Attributes, manual: Attributes, now: int) -> None:
        self.arrival, self.automatic, self.manual, self.now = arrival, automatic, manual, now
        self.steps = self.compared = self.spared = 0
        """Counters: steps; compared characters of strings; and the steps that were counted for string functions but not
        needed, because the strings were shorter than the limit."""
        self.read: dict[str, Scalar] = {}
        """Variables that the run read, with the values that it saw; missing variables are left out."""
        self.changed: dict[str, Scalar | None] = {}
        """Manual variables that were set, or removed (None)."""
        self.locals: list[AnyValue]
        """Locals of the compiled policy, which creates them; the interpreter has its own."""

    def device(self, name: str) -> Scalar | None:
        """Return the automatic variable *name* (reported by the device), or None."""
        value = self.automatic.get(name)
        if value is not None:
            self.read[name] = value
        return value

    def state(self, name: str) -> Scalar | None:
        """Return the manual variable *name*, as this run has changed it; None if it does not exist."""
        if name in self.changed:
            return self.changed[name]
        value = self.manual.get(name)
        if value is not None:
            self.read[name] = value
        return value

    def variable(self, name: str) -> Scalar | None:
        """Return the automatic variable *name*; if there is none, the manual variable of that name."""
        value = self.automatic.get(name)
        if value is None:
            return self.state(name)
        self.read[name] = value
        return value

    def set(self, name: str, value: AnyValue) -> None:
        """Set a manual variable (one that policies set); NULL, or a value that cannot be stored, removes it."""
        kept = storable(value)
        if kept is None and name not in self.manual:
            self.changed.pop(name, None)
        else:
            self.changed[name] = kept

    def attribute(self, message: AnyValue, name: str) -> Scalar | None:
        """Return the attribute *name* of *message*; None if it is missing, or if *message* is another value."""
        if not isinstance(message, Message):
            return None
        if name in message.changes:
            return message.changes[name]
        return self.arrival.attributes.get(name) if message.is_original else None


def truth(value: AnyValue) -> bool | None:
    """Return the verdict of *value* as a condition: a number is true unless it is 0, and a verdict stays as it is.

    Return None for NaN and for any other value.
    """
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        return value != 0
    if isinstance(value, float):
        return None if math.isnan(value) else value != 0.0
    return None


def storable(value: AnyValue) -> Scalar | None:
    """Return *value* as stored in an attribute or variable: a verdict as 0 or 1; None for messages and data."""
    if isinstance(value, bool):
        return int(value)
    return None if isinstance(value, NO_SCALARS) else value


def level_of(battery: AnyValue, network: AnyValue) -> Level:
    """Return the share of a body to send, by the lower of *battery* and *network*.

    Shares are in quarters; from 3/4 on, everything is sent. A missing value counts as full.
    """
    least: float = 1.0
    for each in (battery, network):
        if isinstance(each, _NUMBERS) and each < least:  # False for NaN
            least = each
    return _LEVELS[int(max(least, 0.0) * 4)]


def whole_pixels(value: AnyValue) -> int:
    """Return *value* as a number of pixels, or 0 for unknown."""
    if type(value) is int and value > 0:  # the usual case
        return value
    if isinstance(value, bool) or not isinstance(value, _NUMBERS) or not 0 < value < 1 << 62:
        return 0
    return int(value)


def seconds(now: int) -> Int64:
    """Return the time *now* (microseconds) in whole seconds, as ``getTime()`` does."""
    return Int64(now // 1_000_000)
