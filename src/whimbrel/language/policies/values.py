"""Values: what a policy computes with, and what one run of it leaves behind.

Rule: a value is a scalar of the five attribute types, a verdict (``bool``, which counts as 0 and 1), a message, data,
or ``None``: NULL and undefined are the same. No operation raises; what does not fit is ``None``.
Rule: messages are made for every arrival and device, so they are tuples: half the price of frozen dataclasses.
Rule: a message holds what was changed, never the attributes themselves: its size is bounded by the policy's length.
Rule: a transform is described here and made elsewhere (``shape``): a policy cannot look into what comes of it.
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
    "stored",
    "truth",
    "whole_pixels",
]


class Level(IntEnum):
    """How much of a body is sent: the lesser of battery and link, in four steps, so that equal work is shared."""

    QUARTER = 1
    HALF = 2
    MOST = 3
    WHOLE = 4


class Compression(NamedTuple):
    """A smaller body: an image of *level* that fits the display (0: not known), or JSON with *names* alone."""

    level: Level
    width_px: int = 0
    height_px: int = 0
    pixels: int = 0
    names: tuple[str, ...] = ()


class Projection(NamedTuple):
    """JSON with *names* alone."""

    names: tuple[str, ...]


Transform: TypeAlias = Compression | Projection


class Data(NamedTuple):
    """What a message carries: the arrival's body or *text*, and what is to be made of it."""

    is_original: bool
    text: bytes | str | None = None
    """None is no data, for which the attributes are sent; a string is encoded where it is sent, once."""
    transforms: tuple[Transform, ...] = ()


ORIGINAL, EMPTY = Data(is_original=True), Data(is_original=False)


class Message(NamedTuple):
    """A message: the arrival's attributes or none, what was set (None: removed), and its data."""

    is_original: bool
    changes: Mapping[str, Scalar | None]
    data: Data

    def with_attribute(self, name: str, value: Scalar | None) -> Message:
        """Return the message with another value of *name*."""
        return Message(self.is_original, {**self.changes, name: value}, self.data)

    def with_data(self, data: Data) -> Message:
        """Return the message with other data."""
        return Message(self.is_original, self.changes, data)

    def transformed(self, transform: Transform) -> Message:
        """Return the message with data of which *transform* is to be made."""
        data = self.data
        return self.with_data(Data(data.is_original, data.text, (*data.transforms, transform)))


AnyValue: TypeAlias = Scalar | Message | Data | None
NO_SCALARS = (Message, Data)
"""For ``isinstance``, which would make a union anew each time."""


_NUMBERS = (int, float)
_LEVELS = (Level.QUARTER, Level.HALF, Level.MOST, Level.WHOLE, Level.WHOLE)


class Arrival(NamedTuple):
    """What arrived, as far as a policy can see it."""

    attributes: Attributes
    subject: str = ""
    body_bytes: int = 0


class Run:
    """One run: what it may read, what it counted, what it read and what it changed."""

    __slots__ = ("arrival", "automatic", "changed", "compared", "locals", "manual", "now", "read", "spared", "steps")

    def __init__(self, arrival: Arrival, automatic: Attributes, manual: Attributes, now: int) -> None:
        self.arrival, self.automatic, self.manual, self.now = arrival, automatic, manual, now
        self.steps = self.compared = self.spared = 0
        """What it counted: steps, characters of strings that were compared, and of the steps those that string
        functions did not need, because their strings were shorter than they may be."""
        self.read: dict[str, Scalar] = {}
        """Variables that were read and their values then; a missing one is not here."""
        self.changed: dict[str, Scalar | None] = {}
        """Manual variables that were set, or removed (None)."""
        self.locals: list[AnyValue]
        """The compiled policy's, which makes them; the interpreter has its own."""

    def device(self, name: str) -> Scalar | None:
        """Return the automatic variable *name*."""
        value = self.automatic.get(name)
        if value is not None:
            self.read[name] = value
        return value

    def state(self, name: str) -> Scalar | None:
        """Return the manual variable *name*, as this run has set it or as it was."""
        if name in self.changed:
            return self.changed[name]
        value = self.manual.get(name)
        if value is not None:
            self.read[name] = value
        return value

    def variable(self, name: str) -> Scalar | None:
        """Return the automatic variable *name*, else the manual one."""
        value = self.automatic.get(name)
        if value is None:
            return self.state(name)
        self.read[name] = value
        return value

    def set(self, name: str, value: AnyValue) -> None:
        """Set a manual variable; what cannot be stored, as NULL, removes it."""
        kept = stored(value)
        if kept is None and name not in self.manual:
            self.changed.pop(name, None)
        else:
            self.changed[name] = kept

    def attribute(self, message: AnyValue, name: str) -> Scalar | None:
        """Return an attribute of *message*."""
        if not isinstance(message, Message):
            return None
        if name in message.changes:
            return message.changes[name]
        return self.arrival.attributes.get(name) if message.is_original else None


def truth(value: AnyValue) -> bool | None:
    """Return the verdict that *value* is as a condition: a number is true unless it is 0; all else is undefined."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        return value != 0
    if isinstance(value, float):
        return None if math.isnan(value) else value != 0.0
    return None


def stored(value: AnyValue) -> Scalar | None:
    """Return *value* as an attribute or a variable can have it: a verdict as 0 or 1; messages and data cannot."""
    if isinstance(value, bool):
        return int(value)
    return None if isinstance(value, NO_SCALARS) else value


def level_of(battery: AnyValue, network: AnyValue) -> Level:
    """Return how much is sent (R1 to R3): all from three quarters on, else by the lesser; what is missing is full."""
    least: float = 1.0
    for each in (battery, network):
        if isinstance(each, _NUMBERS) and each < least:  # NaN is not
            least = each
    return _LEVELS[int(max(least, 0.0) * 4)]


def whole_pixels(value: AnyValue) -> int:
    """Return *value* as a number of pixels; 0 is not known."""
    if type(value) is int and value > 0:  # nearly always
        return value
    if isinstance(value, bool) or not isinstance(value, _NUMBERS) or not 0 < value < 1 << 62:
        return 0
    return int(value)


def seconds(now: int) -> Int64:
    """Return the time *now* (microseconds) as ``getTime()`` has it."""
    return Int64(now // 1_000_000)
