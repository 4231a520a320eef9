"""Inputs: everything that can happen to a controller, as its radio reports it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from whimbrel.rendezvous.events import Address

__all__ = [
    "Authenticated",
    "Connected",
    "Disconnected",
    "Found",
    "Input",
    "NotReached",
    "Overheard",
    "Said",
    "Timer",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """A device is connected, on its own page or on ours."""

    address: Address
    is_caller: bool = True
    """Whether the device paged the controller; then it is master until the roles are switched (4.1)."""
    has_layer: bool = True
    """Whether it understands our messages. A device without our layer can be parked, but gets no messages."""
    as_address: Address | None = None
    """The device in whose place its page was answered; ``None``: it paged the controller itself."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A device is disconnected, on purpose or not."""

    address: Address


@dataclass(frozen=True, slots=True)
class NotReached:
    """A device did not answer our page."""

    address: Address


@dataclass(frozen=True, slots=True)
class Said:
    """A connected device sent bytes. A parked device got an active slot to send them, after a poll."""

    address: Address
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The endless inquiry heard a discoverable device; the fields are all that inquiry and page show (2.1.3)."""

    address: Address
    clock_offset: int
    name: str
    device_class: int


@dataclass(frozen=True, slots=True)
class Overheard:
    """Somebody pages the device at *address*, on whose page channel the controller listens (5.4.4)."""

    address: Address


@dataclass(frozen=True, slots=True)
class Authenticated:
    """A dumb device accepted the PIN that it was sent, or refused it (5.4.4)."""

    address: Address
    is_accepted: bool


@dataclass(frozen=True, slots=True)
class Timer:
    """Time has passed."""


Input: TypeAlias = Connected | Disconnected | NotReached | Said | Found | Overheard | Authenticated | Timer
