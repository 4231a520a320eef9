"""Timing of inquiry and page, from the Bluetooth baseband specification 1.2, which the thesis cites.

A *tick* is half a slot, 312.5 µs: the period of a device's clock. Hop frequencies are numbered by their place in the
sequence of 32 that inquiry, or the pages of one device, use; the assignment of these to the 79 channels does not matter
for timing.

Rule: an inquirer sends two IDs in each even slot and listens in each odd one: 16 frequencies, a train, in 10 ms. It
repeats a train 256 times and goes on to the other; 512 times beside one voice link, 768 beside two. A pager repeats
128 times. Which 16 are in a train moves by one frequency every 1.28 s, with the clock.
Rule: a scanner listens on one frequency for 11.25 ms every 1.28 s; the frequency moves with its clock.
Rule: a scanner that hears an inquiry answers it after one slot with its FHS, and then waits a random time, up to 1,023
slots, before it listens again, one frequency further on: two that answered the same ID at once collide only once.
(Version 1.1 waited before it answered; then the shortest inquiry could not be the 1.25 ms of Table 2.1.)
Rule: the slots that voice links take from an inquirer are not modelled one by one; the repetitions stand for them.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "BACKOFF_SLOTS",
    "INQUIRY_REPETITIONS",
    "PAGE_REPETITIONS",
    "SCAN_INTERVAL_TICKS",
    "TRAIN_TICKS",
    "WINDOW_TICKS",
    "Sending",
    "scan_frequency",
    "to_ticks",
    "to_us",
]

TRAIN_TICKS = 32
WINDOW_TICKS = 36
SCAN_INTERVAL_TICKS = 4_096
BACKOFF_SLOTS = 1_023
INQUIRY_REPETITIONS, PAGE_REPETITIONS = 256, 128
FREQUENCIES = 32

_PHASE_TICKS = 4_096
_TRAIN_OFFSETS = (24, 8)


def to_us(ticks: int) -> int:
    """Return *ticks* as microseconds, rounded down."""
    return ticks * 625 // 2


def to_ticks(duration_us: int) -> int:
    """Return the first tick that is not before *duration_us*."""
    return -(-duration_us * 2 // 625)


def scan_frequency(clock: int, answers: int = 0) -> int:
    """Return a scanner's frequency: bits 16 to 12 of its clock, plus one for each inquiry that it answered."""
    return ((clock >> 12) + answers) & 31


@dataclass(frozen=True, slots=True)
class Sending:
    """The IDs of an inquirer or a pager: its clock is the tick plus *offset*, and it began at *since*."""

    offset: int
    since: int
    repetitions: int

    def frequency(self, tick: int) -> int | None:
        """Return the frequency of sending at *tick*; ``None`` in the slots in which it listens."""
        clock = tick + self.offset
        if tick < self.since or clock & 2:
            return None
        phase, place = (clock >> 12) & 31, ((clock >> 1) & 14) | (clock & 1)
        return (phase + _TRAIN_OFFSETS[self._train(tick)] + (place - phase) % 16) % FREQUENCIES

    def next_on(self, frequency: int, start: int, end: int) -> int | None:
        """Return the first tick from *start* and before *end* at which *frequency* is sent on."""
        tick = max(start, self.since)
        while tick < end:
            clock = tick + self.offset
            train_ticks = self.repetitions * TRAIN_TICKS
            switch = tick + train_ticks - (tick - self.since) % train_ticks
            stop = min(end, tick + _PHASE_TICKS - clock % _PHASE_TICKS, switch)
            phase = (clock >> 12) & 31
            step = (frequency - phase - _TRAIN_OFFSETS[self._train(tick)]) % FREQUENCIES
            if step < 16:
                place = (phase + step) % 16
                hit = tick + (((place & 14) << 1 | place & 1) - clock) % TRAIN_TICKS
                if hit < stop:
                    return hit
            tick = stop
        return None

    def _train(self, tick: int) -> int:
        return (tick - self.since) // (self.repetitions * TRAIN_TICKS) % 2
