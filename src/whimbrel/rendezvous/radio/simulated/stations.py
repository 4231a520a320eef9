"""Stations: the state of each radio in a baseband, and the happenings that the baseband reports.

Rule: ``Baseband`` has two implementations, event by event and slot by slot, that report the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol, TypeAlias

from whimbrel.rendezvous.radio.simulated.timing import SCAN_INTERVAL_TICKS, Sending

__all__ = ["Baseband", "Collided", "Discovered", "Happening", "Overheard", "PageOver", "Paging", "Station"]


@dataclass(frozen=True, slots=True)
class Discovered:
    """An inquirer received the FHS of a scanner."""

    inquirer: int
    scanner: int


@dataclass(frozen=True, slots=True)
class PageOver:
    """A page was answered, or its time is over."""

    pager: int
    target: int
    is_connected: bool
    answered_by: int | None = None
    """The station that answered in the target's place; ``None``: the target itself, or nobody."""


@dataclass(frozen=True, slots=True)
class Overheard:
    """A station that listens in the target's place, without answering, heard a page to the target."""

    listener: int
    target: int


@dataclass(frozen=True, slots=True)
class Collided:
    """Several stations answered or paged the receiver on one frequency at the same time; none was understood."""

    receiver: int
    senders: tuple[int, ...]


Happening: TypeAlias = Discovered | PageOver | Overheard | Collided


@dataclass(frozen=True, slots=True)
class Paging:
    """A page in progress."""

    target: int
    sending: Sending
    until: int


@dataclass(slots=True, eq=False)
class Station:
    """One radio. Its clock is the tick plus *offset*; its scan windows begin at *phase* of its clock."""

    offset: int
    phase: int
    random: Random
    voice_links: int = 0
    inquiring: Sending | None = None
    paging: Paging | None = None
    is_inquiry_scanning: bool = False
    is_page_scanning: bool = False
    stands_in_for: int | None = None
    """The station whose pages this one listens for, instead of its own."""
    is_silent: bool = False
    """Whether it listens for another station's pages without answering them."""
    answers: int = 0
    """Number of inquiries that it has answered."""

    def channel(self, number: int) -> int:
        """Return the station on whose page channel this station, numbered *number*, listens."""
        return number if self.stands_in_for is None else self.stands_in_for

    def next_window(self, tick: int, *, is_page: bool) -> int:
        """Return the start of the next scan window from *tick* on; page windows lie half-way between the others."""
        phase = self.phase + SCAN_INTERVAL_TICKS // 2 if is_page else self.phase
        return tick + (phase - tick - self.offset) % SCAN_INTERVAL_TICKS


class Baseband(Protocol):
    """Inquiries and pages of many stations."""

    stations: list[Station]

    def __init__(self, is_in_range: Callable[[int, int], bool]) -> None:
        """Create a baseband whose stations hear each other if *is_in_range* is true for them."""
        ...

    def add(self, station: Station) -> int:
        """Add a station and return its number."""
        ...

    def inquire(self, number: int, *, is_on: bool, tick: int) -> None:
        """Begin or end an inquiry."""
        ...

    def set_scans(self, number: int, *, inquiry: bool, page: bool, tick: int) -> None:
        """Begin or end scanning."""
        ...

    def page(self, number: int, target: int, *, estimate: int, timeout: int, tick: int) -> None:
        """Page *target*, whose clock is thought to be the tick plus *estimate*, for *timeout* ticks."""
        ...

    def stop_paging(self, number: int, *, tick: int) -> None:
        """Stop a page."""
        ...

    def advance(self, until: int) -> list[tuple[int, Happening]]:
        """Advance to the tick *until*, and return the happenings before it, in order."""
        ...
