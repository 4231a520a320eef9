"""The baseband, event by event: computes when inquiries and pages are answered.

An event is the start or the end of a scan window, an ID that is heard in it, the end of a back-off, the end of an
exchange, or the end of a page. Between them nothing is computed: which tick of a window carries an ID on its frequency
follows from the clocks (``Sending.next_on``).

Rule: an operation that begins at a tick counts from that tick; ``advance(until)`` reports the happenings before
*until*.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

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

__all__ = ["EXCHANGE_TICKS", "FHS_TICKS", "EventBaseband"]

FHS_TICKS = 4
"""Ticks from an ID that is heard to the end of the FHS that answers it."""
EXCHANGE_TICKS = 8
"""Ticks of an exchange: page, answer, FHS, answer, in four slots (Figure 2-5)."""


class _Mode(Enum):
    OFF = "off"
    WAITING = "waiting"
    LISTENING = "listening"
    BACKING_OFF = "backing off"
    BUSY = "busy"


@dataclass(slots=True, eq=False)
class _Scan:
    """One station's inquiry scan, or its page scan."""

    number: int
    is_page: bool
    mode: _Mode = _Mode.OFF
    frequency: int = 0
    end: int = 0
    version: int = 0
    heard: int = 0
    answers: int = 0
    """Number of answers to inquiries; after each, the station listens one frequency further on."""
    callers: tuple[int, ...] = ()
    answering: list[int] = field(default_factory=list)
    """Stations that answer the same page at the same time, this one included."""


class EventBaseband:
    """Inquiries and pages of many stations."""

    def __init__(self, is_in_range: Callable[[int, int], bool]) -> None:
        self.stations: list[Station] = []
        self._is_in_range = is_in_range
        self._scans: list[tuple[_Scan, _Scan]] = []
        self._heap: list[tuple[int, int, int, int, int]] = []
        """Tick, number of the station, whether it pages, version, and 0 for a scan or 1 for the end of a page."""
        self._found: list[tuple[int, Happening]] = []
        self._heard_last: dict[int, tuple[int, int, list[int]]] = {}
        """The last page that was heard on each channel: tick, frequency, and the stations that answer it."""

    # -- what stations do ------------------------------------------------------------------------------------------

    def add(self, station: Station) -> int:
        """Add a station and return its number."""
        number = len(self.stations)
        self.stations.append(station)
        self._scans.append((_Scan(number, is_page=False), _Scan(number, is_page=True)))
        return number

    def inquire(self, number: int, *, is_on: bool, tick: int) -> None:
        """Begin or end an inquiry."""
        station = self.stations[number]
        repetitions = INQUIRY_REPETITIONS * (1 + station.voice_links)
        station.inquiring = Sending(station.offset, tick, repetitions) if is_on else None
        self.refresh(tick)

    def set_scans(self, number: int, *, inquiry: bool, page: bool, tick: int) -> None:
        """Begin or end scanning."""
        station = self.stations[number]
        station.is_inquiry_scanning, station.is_page_scanning = inquiry, page
        for scan, is_on in zip(self._scans[number], (inquiry, page), strict=True):
            if is_on and scan.mode is _Mode.OFF:
                scan.answers = 0
                self._wait(scan, tick)
            elif not is_on and scan.mode is not _Mode.OFF:
                is_broken_off = scan.is_page and scan.mode is _Mode.BUSY
                scan.mode = _Mode.OFF
                scan.version += 1
                if is_broken_off:
                    scan.answering.remove(number)
                for caller in scan.callers if is_broken_off else ():
                    self._end_page(caller, tick)

    def page(self, number: int, target: int, *, estimate: int, timeout: int, tick: int) -> None:
        """Page *target*, whose clock is thought to be the tick plus *estimate*, for *timeout* ticks."""
        station = self.stations[number]
        repetitions = PAGE_REPETITIONS * (1 + station.voice_links)
        station.paging = Paging(target, Sending(estimate, tick, repetitions), tick + timeout)
        heapq.heappush(self._heap, (tick + timeout, number, 1, 0, 1))
        self.refresh(tick)

    def stop_paging(self, number: int, *, tick: int) -> None:
        """Stop a page."""
        self.stations[number].paging = None
        self.refresh(tick)

    def refresh(self, tick: int) -> None:
        """Recompute the open windows, after a station began or stopped sending, or moved."""
        for pair in self._scans:
            for scan in pair:
                if scan.mode is _Mode.LISTENING:
                    self._look_ahead(scan, tick)

    # -- time ------------------------------------------------------------------------------------------------------

    @property
    def next_tick(self) -> int | None:
        """When the next event is due; it may turn out to be nothing."""
        if self._found:  # a page that ended because its target stopped listening
            return self._found[0][0]
        return self._heap[0][0] if self._heap else None

    def advance(self, until: int) -> list[tuple[int, Happening]]:
        """Advance to the tick *until*, and return the happenings before it, in order."""
        while self._heap and self._heap[0][0] < until:
            tick, number, is_page, version, is_page_end = heapq.heappop(self._heap)
            if is_page_end:
                self._end_page(number, tick)
                continue
            scan = self._scans[number][is_page]
            if scan.version == version:
                self._step(scan, tick)
        found, self._found = self._found, []
        return found

    # -- scans -----------------------------------------------------------------------------------------------------

    def _at(self, scan: _Scan, tick: int) -> None:
        scan.version += 1
        heapq.heappush(self._heap, (tick, scan.number, int(scan.is_page), scan.version, 0))

    def _wait(self, scan: _Scan, tick: int) -> None:
        scan.mode = _Mode.WAITING
        self._at(scan, self.stations[scan.number].next_window(tick, is_page=scan.is_page))

    def _listen(self, scan: _Scan, tick: int) -> None:
        scan.mode, scan.end = _Mode.LISTENING, tick + WINDOW_TICKS
        scan.frequency = scan_frequency(tick + self.stations[scan.number].offset, scan.answers)
        self._look_ahead(scan, tick)

    def _look_ahead(self, scan: _Scan, tick: int) -> None:
        """Schedule the scan for the next ID heard in this window, or for the window's end."""
        hits = (sending.next_on(scan.frequency, tick, scan.end) for _, sending in self._senders(scan))
        self._at(scan, min((hit for hit in hits if hit is not None), default=scan.end))

    def _senders(self, scan: _Scan) -> Iterator[tuple[int, Sending]]:
        """Yield the stations whose IDs this scan could hear."""
        for number, station in enumerate(self.stations):
            if number == scan.number or not self._is_in_range(number, scan.number):
                continue
            if not scan.is_page and station.inquiring is not None:
                yield number, station.inquiring
            elif scan.is_page and station.paging is not None and station.paging.target == self._channel(scan):
                yield number, station.paging.sending

    def _channel(self, scan: _Scan) -> int:
        """Return the number of the station whose pages *scan* hears."""
        return self.stations[scan.number].channel(scan.number)

    def _step(self, scan: _Scan, tick: int) -> None:
        match scan.mode:
            case _Mode.WAITING:
                self._listen(scan, tick)
            case _Mode.BACKING_OFF:
                self._wait(scan, tick)
            case _Mode.LISTENING:
                callers = tuple(
                    number for number, sending in self._senders(scan) if sending.frequency(tick) == scan.frequency
                )
                if tick >= scan.end:
                    self._wait(scan, tick)
                elif callers:
                    self._hear(scan, tick, callers)
                else:
                    self._look_ahead(scan, tick + 1)
            case _Mode.BUSY if scan.is_page:
                self._end_exchange(scan, tick)
            case _Mode.BUSY:
                self._answer(scan, tick)
            case _Mode.OFF:
                pass

    def _hear(self, scan: _Scan, tick: int, callers: tuple[int, ...]) -> None:
        if scan.is_page and self.stations[scan.number].is_silent:
            self._found.append((tick, Overheard(scan.number, self._channel(scan))))
            self._wait(scan, tick + 1)
            return
        if scan.is_page:
            channel = self._channel(scan)
            heard_at, frequency, answering = self._heard_last.get(channel, (-1, -1, []))
            if (heard_at, frequency) != (tick, scan.frequency):
                answering = []
                self._heard_last[channel] = tick, scan.frequency, answering
            scan.answering = answering
            answering.append(scan.number)
        scan.heard, scan.callers, scan.mode = tick, callers, _Mode.BUSY
        self._at(scan, tick + (EXCHANGE_TICKS if scan.is_page else FHS_TICKS))

    def _answer(self, scan: _Scan, tick: int) -> None:
        """Report the FHS to the senders of the ID, or a collision if another station answered the same ID."""
        rivals = [
            other
            for other, _ in self._scans
            if other.mode is _Mode.BUSY and other.heard == scan.heard and other.frequency == scan.frequency
        ]
        for inquirer in scan.callers:
            heard = [e.number for e in rivals if e.number != inquirer and self._is_in_range(inquirer, e.number)]
            if self.stations[inquirer].inquiring is None or scan.number not in heard:
                continue
            if len(heard) == 1:
                self._found.append((tick, Discovered(inquirer, scan.number)))
            elif scan.number == heard[0]:
                self._found.append((tick, Collided(inquirer, tuple(heard))))
        if scan is rivals[-1]:  # all of them answered in this tick; only now may they go on
            for each in rivals:
                each.mode, each.answers = _Mode.BACKING_OFF, each.answers + 1
                self.stations[each.number].answers += 1
                self._at(each, tick + 2 * self.stations[each.number].random.randint(0, BACKOFF_SLOTS))

    def _end_exchange(self, scan: _Scan, tick: int) -> None:
        channel = self._channel(scan)
        callers = [each for each in scan.callers if self._is_paging(each, channel)]
        if len(callers) > 1:
            self._found.append((tick, Collided(scan.number, tuple(callers))))
        elif callers and self._is_in_range(callers[0], scan.number):
            rivals = tuple(sorted(each for each in scan.answering if self._is_in_range(callers[0], each)))
            if len(rivals) == 1:
                by = None if scan.number == channel else scan.number
                self.stations[callers[0]].paging = None
                self._found.append((tick, PageOver(callers[0], channel, is_connected=True, answered_by=by)))
            elif scan.number == rivals[0]:  # it answers with another: neither is understood
                self._found.append((tick, Collided(callers[0], rivals)))
        self._wait(scan, tick)
        for caller in callers:
            self._end_page(caller, tick)

    def _is_paging(self, number: int, target: int) -> bool:
        paging = self.stations[number].paging
        return paging is not None and paging.target == target

    def _end_page(self, number: int, tick: int) -> None:
        """Report a page whose time is over, unless it is in an exchange, which is completed first."""
        paging = self.stations[number].paging
        if paging is None or tick < paging.until:
            return
        for _, scan in self._scans:
            if scan.mode is _Mode.BUSY and number in scan.callers and self._channel(scan) == paging.target:
                return
        self.stations[number].paging = None
        self._found.append((tick, PageOver(number, paging.target, is_connected=False)))
