"""The same baseband, tick by tick: the plain reading of the standard, against which the fast one is tested.

Every tick every sender is asked what it sends on, and every listener whether it hears it. Slow, and obviously right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from whimbrel.rendezvous.radio.simulated.baseband import EXCHANGE_TICKS, FHS_TICKS
from whimbrel.rendezvous.radio.simulated.stations import (
    Collided,
    Discovered,
    Happening,
    Overheard,
    PageOver,
    Paging,
    Station,
)
from whimbrel.rendezvous.radio.simulated.timing import (
    BACKOFF_SLOTS,
    INQUIRY_REPETITIONS,
    PAGE_REPETITIONS,
    WINDOW_TICKS,
    Sending,
    scan_frequency,
)

__all__ = ["SlotBaseband"]


@dataclass(slots=True)
class _Ear:
    """What a station listens with: on a frequency from a tick until another, or not yet, or in an exchange."""

    frequency: int = -1
    until: int = -1
    answers: int = 0
    resumes_at: int = -1
    """When a back-off is over."""
    busy_until: int = -1
    heard_at: int = -1
    heard_on: int = -1
    callers: tuple[int, ...] = ()

    @property
    def is_free(self) -> bool:
        """Whether a new window may begin."""
        return self.frequency < 0 and self.resumes_at < 0 and self.busy_until < 0


class SlotBaseband:
    """Inquiries and pages of many stations."""

    def __init__(self, is_in_range: Callable[[int, int], bool]) -> None:
        self.stations: list[Station] = []
        self._is_in_range = is_in_range
        self._inquiry_ears: dict[int, _Ear] = {}
        self._page_ears: dict[int, _Ear] = {}
        self._tick = 0
        self._found: list[tuple[int, Happening]] = []

    def add(self, station: Station) -> int:
        """Add a station and return its number."""
        self.stations.append(station)
        return len(self.stations) - 1

    def inquire(self, number: int, *, is_on: bool, tick: int) -> None:
        """Begin or end an inquiry."""
        station = self.stations[number]
        sending = Sending(station.offset, tick, INQUIRY_REPETITIONS * (1 + station.voice_links))
        station.inquiring = sending if is_on else None

    def set_scans(self, number: int, *, inquiry: bool, page: bool, tick: int) -> None:
        """Begin or end scanning."""
        del tick
        for ears, is_on in ((self._inquiry_ears, inquiry), (self._page_ears, page)):
            if is_on:
                ears.setdefault(number, _Ear())
            else:
                ears.pop(number, None)

    def page(self, number: int, target: int, *, estimate: int, timeout: int, tick: int) -> None:
        """Page *target*, whose clock is thought to be the tick plus *estimate*, for *timeout* ticks."""
        station = self.stations[number]
        sending = Sending(estimate, tick, PAGE_REPETITIONS * (1 + station.voice_links))
        station.paging = Paging(target, sending, tick + timeout)

    def stop_paging(self, number: int, *, tick: int) -> None:
        """Give up a page."""
        del tick
        self.stations[number].paging = None

    def advance(self, until: int) -> list[tuple[int, Happening]]:
        """Return what happens before the tick *until*, in order."""
        while self._tick < until:
            self._one_tick(self._tick)
            self._tick += 1
        found, self._found = self._found, []
        return found

    def _one_tick(self, tick: int) -> None:
        self._end_answers(tick)
        self._end_exchanges(tick)
        self._end_pages(tick)
        for number, ear in self._inquiry_ears.items():
            self._open_window(number, ear, tick, is_page=False)
            callers = self._heard(number, ear, tick, is_page=False)
            if callers:
                ear.busy_until, ear.heard_at, ear.callers = tick + FHS_TICKS, tick, callers
        for number, ear in self._page_ears.items():
            self._open_window(number, ear, tick, is_page=True)
            callers = self._heard(number, ear, tick, is_page=True)
            if callers and self.stations[number].is_silent:
                self._found.append((tick, Overheard(number, self.stations[number].channel(number))))
                ear.frequency = -1
            elif callers:
                ear.heard_on, ear.frequency = ear.frequency, -1
                ear.busy_until, ear.heard_at, ear.callers = tick + EXCHANGE_TICKS, tick, callers

    def _open_window(self, number: int, ear: _Ear, tick: int, *, is_page: bool) -> None:
        station = self.stations[number]
        if ear.frequency >= 0 and ear.busy_until < 0 and tick >= ear.until:
            ear.frequency = -1
        if ear.resumes_at == tick:
            ear.resumes_at = -1
        if ear.is_free and station.next_window(tick, is_page=is_page) == tick:
            ear.until = tick + WINDOW_TICKS
            ear.frequency = scan_frequency(tick + station.offset, ear.answers)

    def _heard(self, listener: int, ear: _Ear, tick: int, *, is_page: bool) -> tuple[int, ...]:
        if ear.frequency < 0 or ear.busy_until >= 0:
            return ()
        return tuple(
            number
            for number, station in enumerate(self.stations)
            if number != listener
            and self._is_in_range(number, listener)
            and self._sent(station, listener, tick, is_page=is_page) == ear.frequency
        )

    def _sent(self, station: Station, listener: int, tick: int, *, is_page: bool) -> int | None:
        if not is_page:
            return None if station.inquiring is None else station.inquiring.frequency(tick)
        paging = station.paging
        channel = self.stations[listener].channel(listener)
        return paging.sending.frequency(tick) if paging is not None and paging.target == channel else None

    def _end_answers(self, tick: int) -> None:
        ending = {number: ear for number, ear in sorted(self._inquiry_ears.items()) if ear.busy_until == tick}
        for inquirer, station in enumerate(self.stations):
            for frequency in sorted({ear.frequency for ear in ending.values()}):
                senders = tuple(
                    number
                    for number, ear in ending.items()
                    if ear.frequency == frequency and inquirer in ear.callers and self._is_in_range(inquirer, number)
                )
                if station.inquiring is not None and len(senders) == 1:
                    self._found.append((tick, Discovered(inquirer, senders[0])))
                elif station.inquiring is not None and senders:
                    self._found.append((tick, Collided(inquirer, senders)))
        for number, ear in ending.items():
            self.stations[number].answers += 1
            ear.busy_until, ear.frequency, ear.answers = -1, -1, ear.answers + 1
            ear.resumes_at = tick + 2 * self.stations[number].random.randint(0, BACKOFF_SLOTS)

    def _end_exchanges(self, tick: int) -> None:
        ending = {number: ear for number, ear in sorted(self._page_ears.items()) if ear.busy_until == tick}
        for number, ear in ending.items():
            channel = self.stations[number].channel(number)
            callers = [each for each in ear.callers if self._target(each) == channel]
            if len(callers) > 1:
                self._found.append((tick, Collided(number, tuple(callers))))
            elif callers and self._is_in_range(callers[0], number):
                answering = tuple(
                    other
                    for other, their in ending.items()
                    if self.stations[other].channel(other) == channel
                    and their.heard_on == ear.heard_on
                    and self._is_in_range(callers[0], other)
                )
                if len(answering) == 1:
                    by = None if number == channel else number
                    self.stations[callers[0]].paging = None
                    self._found.append((tick, PageOver(callers[0], channel, is_connected=True, answered_by=by)))
                elif number == answering[0]:
                    self._found.append((tick, Collided(callers[0], answering)))
            ear.busy_until = -1

    def _end_pages(self, tick: int) -> None:
        for number, station in enumerate(self.stations):
            paging = station.paging
            if paging is None or tick < paging.until:
                continue
            is_answered = any(
                ear.busy_until >= 0
                and number in ear.callers
                and self.stations[listener].channel(listener) == paging.target
                for listener, ear in self._page_ears.items()
            )
            if not is_answered:
                station.paging = None
                self._found.append((tick, PageOver(number, paging.target, is_connected=False)))

    def _target(self, number: int) -> int | None:
        paging = self.stations[number].paging
        return None if paging is None else paging.target
