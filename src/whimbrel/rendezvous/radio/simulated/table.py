"""Table 2.1 of the thesis, measured on the simulated radio: how long inquiry and paging take.

Rule: no number of the table is an input. Two stations have random clocks; one inquires or pages, the other scans.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from whimbrel.rendezvous.radio.simulated.baseband import EventBaseband
from whimbrel.rendezvous.radio.simulated.stations import Station
from whimbrel.rendezvous.radio.simulated.timing import SCAN_INTERVAL_TICKS, to_us

__all__ = ["PRINTED", "Times", "measure_inquiry", "measure_page", "measure_table"]

PRINTED = {
    "inquiry": "0.00125, 3–5, 10.24–30.72",
    "paging": "0.0025, 1.28, 2.56",
    "inquiry and paging": "0.00375, 4.28–5.28 (a slip: 5 + 1.28 is 6.28), 12.8–33.28",
    "inquiry, 0 voice links": "–, –, 10.24 (how long an inquiry lasts: 999 of 1,000 are heard by 3.84)",
    "inquiry, 2 voice links": "–, –, 30.72 (how long an inquiry lasts: 999 of 1,000 are heard by 8.96)",
}
"""The table as it is printed in the thesis, its slips marked.

The longest inquiry in it, 10.24 to 30.72 s, is how long an inquiry lasts: four trains of 256 repetitions, 512 or 768
beside voice links. A scanner that is there is heard sooner, in the second train at the latest: its window comes every
1.28 s, and the train that it listens to has then been sent for 2.56 s (5.12, 7.68 beside voice links).
"""

_CLOCKS = 2**28
_HORIZON_TICKS = 200_000
"""62.5 s: an inquiry that is not answered by then counts as long as this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How long something took, over many trials, in seconds."""

    what: str
    trials: int
    minimum_s: float
    average_s: float
    most_s: float
    """Time within which 999 of 1,000 trials ended."""
    maximum_s: float

    @classmethod
    def of(cls, what: str, times_us: list[int]) -> Times:
        """Summarise *times_us*."""
        ordered = sorted(times_us)
        count = len(ordered)
        return cls(
            what=what,
            trials=count,
            minimum_s=ordered[0] / 1e6,
            average_s=sum(ordered) / count / 1e6,
            most_s=ordered[min(count - 1, count * 999 // 1_000)] / 1e6,
            maximum_s=ordered[-1] / 1e6,
        )


def measure_inquiry(trials: int, random: Random, *, voice_links: int = 0) -> list[int]:
    """Return, for each trial, the microseconds from the start of an inquiry to the answer of the scanner."""
    return [_one(random, voice_links=voice_links, is_page=False) for _ in range(trials)]


def measure_page(trials: int, random: Random, *, is_clock_known: bool = False) -> list[int]:
    """Return, for each trial, the microseconds from the start of a page to the connection."""
    return [_one(random, is_page=True, is_clock_known=is_clock_known) for _ in range(trials)]


def _one(
    random: Random,
    *,
    is_page: bool,
    voice_links: int = 0,
    is_clock_known: bool = False,
) -> int:
    baseband = EventBaseband(lambda _one, _other: True)
    caller = Station(offset=random.randrange(_CLOCKS), phase=0, random=random, voice_links=voice_links)
    scanner = Station(
        offset=random.randrange(_CLOCKS),
        phase=random.randrange(SCAN_INTERVAL_TICKS),
        random=random,
    )
    baseband.add(caller)
    baseband.add(scanner)
    baseband.set_scans(1, inquiry=not is_page, page=is_page, tick=0)
    if is_page:
        estimate = scanner.offset & ~3 | caller.offset & 3 if is_clock_known else random.randrange(_CLOCKS)
        baseband.page(0, 1, estimate=estimate, timeout=_HORIZON_TICKS, tick=0)
    else:
        baseband.inquire(0, is_on=True, tick=0)
    tick = 0
    while tick < _HORIZON_TICKS:
        tick = baseband.next_tick or _HORIZON_TICKS
        for when, _ in baseband.advance(tick + 1):
            return to_us(when)
    return to_us(_HORIZON_TICKS)


def measure_table(trials: int, random: Random) -> list[Times]:
    """Return the rows of Table 2.1, and the cases they are made of."""
    inquiries = [measure_inquiry(trials, random, voice_links=links) for links in range(3)]
    both = [time for times in inquiries for time in times]
    pages = measure_page(len(both), random)
    return [
        Times.of("inquiry", both),
        Times.of("paging", pages),
        Times.of("inquiry and paging", [one + other for one, other in zip(both, pages, strict=True)]),
        *(Times.of(f"inquiry, {links} voice links", times) for links, times in enumerate(inquiries)),
        Times.of("paging, clock known", measure_page(trials, random, is_clock_known=True)),
    ]
