"""A month of a ward's log, made up: who comes every day, who comes once, what falls silent, and busy hours.

Rule: facts are those that a broker would write: a device that goes keeps its private session until that expires, and
then the session is deleted; whoever is present gives a receipt for what is handed over, and sometimes does not.
Rule: the same seed gives the same log.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

from whimbrel.hold.private import private_session
from whimbrel.log.export import export
from whimbrel.log.writer import LogWriter
from whimbrel.model.device import DeviceState
from whimbrel.model.facts import (
    Fact,
    InterestChanged,
    Mode,
    PresenceChange,
    PresenceChanged,
    Receipt,
    Reported,
    SessionChange,
    SessionChanged,
)
from whimbrel.model.notification import Notification, NotificationId
from whimbrel.model.subscription import InterestChange, Subscription

__all__ = ["CUTS_PER_DAY", "DAY_US", "MonthSizes", "Seen", "visit_of", "write_month"]

START_US = 1_767_225_600_000_000  # 2026-01-01
SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US
DAY_US = 24 * HOUR_US
CUTS_PER_DAY = 3

_HOURS = [1] * 7 + [6, 6] + [3] * 8 + [5, 5] + [2] * 5
"""How busy each hour of a day is."""
_BEDS, _TEAMS, _SUBJECTS_PER_DAY = 30, 6, 20
_HIGH_PULSE = 120
_EXPIRIES_US = (HOUR_US, 12 * HOUR_US, 48 * HOUR_US)


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthSizes:
    """How much there is of it, on each node."""

    days: int = 30
    publications_per_day: int = 1_300
    visitors_per_day: int = 150
    """Devices that come once and never again."""
    residents: int = 30
    """Devices that come every day, nearly."""
    visitors_report: bool = True
    nodes: tuple[str, ...] = ("a", "b")


@dataclass(slots=True)
class Seen:
    """What there was up to the end of a day, all nodes together."""

    facts: int = 0
    devices: int = 0
    subjects: int = 0


def visit_of(device: str) -> int | None:
    """Return the day on which a device came that came once; None of others."""
    kind, _, rest = device.partition("-")
    return int(rest.partition("-")[0]) if kind == "visitor" else None


def write_month(directory: Path, sizes: MonthSizes, *, seed: int) -> tuple[list[dict[str, int]], list[Seen]]:
    """Write the log of a month; return each node's last number by third of a day, and what there was day by day."""
    cuts: list[dict[str, int]] = [{} for _ in range(sizes.days * CUTS_PER_DAY)]
    seen = [Seen() for _ in range(sizes.days)]
    for number, node in enumerate(sizes.nodes):
        ward = _Ward(node, Random(f"{seed}/{node}"), sizes)
        with LogWriter(directory, node, segment_bytes=1 << 20) as log:
            for cut in range(sizes.days * CUTS_PER_DAY):
                first = log.next_seq
                for fact in ward.until(START_US + (cut + 1) * DAY_US // CUTS_PER_DAY):
                    log.append(fact)
                log.settle()
                if log.next_seq > first:
                    cuts[cut][node] = log.next_seq - 1
                if cut == len(cuts) // 2 and not number:
                    export(directory, node)  # one node's first half is Parquet, as in a log that is kept for long
                day = seen[cut // CUTS_PER_DAY]
                if cut % CUTS_PER_DAY == CUTS_PER_DAY - 1:
                    day.facts += log.next_seq - 1
                    day.devices += len(ward.devices)
                    day.subjects = max(day.subjects, len(ward.subjects))
    return cuts, seen


class _Ward:
    """One node: what happens next is in a queue, by time."""

    def __init__(self, node: str, random: Random, sizes: MonthSizes) -> None:
        self._node, self._random, self._sizes = node, random, sizes
        self._queue: list[tuple[int, int, Callable[[int], Iterator[Fact]]]] = []
        self._turn = count()
        self._seq = 0
        self._present: dict[str, set[tuple[str, bool]]] = {}
        """By device that is there: the subject filters it listens to, and whether only to high pulses."""
        self._sessions: dict[str, dict[tuple[str, bool], str]] = {}
        """By device, the session of each of them."""
        self._listening: dict[tuple[str, bool], set[str]] = {}
        self.devices: set[str] = set()
        self.subjects: set[str] = set()
        self._day = 0

    def until(self, end: int) -> Iterator[Fact]:
        """Yield what happens before *end*."""
        while START_US + self._day * DAY_US < end:
            self._plan_day(self._day)
            self._day += 1
        while self._queue and self._queue[0][0] < end:
            at, _, happens = heapq.heappop(self._queue)
            yield from happens(at)

    def _at(self, at: int, happens: Callable[[int], Iterator[Fact]]) -> None:
        heapq.heappush(self._queue, (at, next(self._turn), happens))

    def _number(self) -> dict[str, object]:
        self._seq += 1
        return {"node": self._node, "seq": self._seq}

    # -- a day -------------------------------------------------------------------------------------------------------

    def _plan_day(self, day: int) -> None:
        begin, random = START_US + day * DAY_US, self._random
        for resident in range(self._sizes.residents):
            if not day or random.random() < 6 / 7:
                self._plan_resident(begin, day, resident)
        for visitor in range(self._sizes.visitors_per_day):
            self._plan_visitor(begin, day, f"visitor-{day}-{self._node}-{visitor}")
        for _ in range(self._sizes.publications_per_day):
            self._at(self._busy(begin), partial(self._publish, day))

    def _busy(self, begin: int) -> int:
        """Return a time of a day, more likely one of a busy hour."""
        hour = self._random.choices(range(24), _HOURS)[0]
        return begin + hour * HOUR_US + self._random.randrange(HOUR_US)

    def _plan_resident(self, begin: int, day: int, number: int) -> None:
        random, device = self._random, f"resident-{self._node}-{number}"
        come = begin + 6 * HOUR_US + random.randrange(2 * HOUR_US)
        go = begin + 18 * HOUR_US + random.randrange(2 * HOUR_US)
        own, team = private_session(device), f"team-{number % _TEAMS}"
        wanted = {(f"bed/{(number + step) % _BEDS}/pulse", False): own for step in (0, 7)} | {("bed/#", True): team}
        is_new = device not in self.devices
        if not is_new and day % 7 == number % 7:  # moved to another bed
            self._at(come, lambda at: self._rename(at, own, number))
        self._at(
            come,
            lambda at: self._come(
                at, device, {own: Mode.TAKE, team: Mode.KEEP}, wanted, expiry_us=7 * DAY_US, is_new=is_new
            ),
        )
        for hour in range(8, 18, 2):
            self._at(begin + hour * HOUR_US + random.randrange(HOUR_US), lambda at: self._report(at, device))
        self._at(go, lambda at: self._go(at, device, 7 * DAY_US))
        self.devices.add(device)

    def _plan_visitor(self, begin: int, day: int, device: str) -> None:
        random = self._random
        come = self._busy(begin)
        go = come + random.randrange(10 * 60 * SECOND_US, 2 * HOUR_US)
        expiry_us = random.choice(_EXPIRIES_US)
        session = private_session(device)
        subject_filter = f"visit/{day}/#" if random.random() < 0.1 else self._visit(day)
        wanted = {(subject_filter, False): session}
        self._at(
            come, lambda at: self._come(at, device, {session: Mode.TAKE}, wanted, expiry_us=expiry_us, is_new=True)
        )
        if self._sizes.visitors_report:
            self._at((come + go) // 2, lambda at: self._report(at, device))
            self._at(go - SECOND_US, lambda at: self._report(at, device))
        self._at(go, lambda at: self._go(at, device, expiry_us))
        self._at(go + expiry_us, lambda at: self._expire(at, session))
        self.devices.add(device)

    def _visit(self, day: int) -> str:
        return f"visit/{day}/{self._random.randrange(_SUBJECTS_PER_DAY)}"

    # -- what happens ------------------------------------------------------------------------------------------------

    def _come(
        self,
        at: int,
        device: str,
        sessions: dict[str, Mode],
        wanted: dict[tuple[str, bool], str],
        *,
        expiry_us: int,
        is_new: bool,
    ) -> Iterator[Fact]:
        for session, mode in sessions.items():
            yield PresenceChanged(
                **self._number(),  # type: ignore[arg-type]  # node and seq
                changed_at=at,
                device=device,
                change=PresenceChange.JOINED,
                session=session,
                receipt=mode,
                session_expiry_us=expiry_us,
            )
        if is_new:
            for (subject_filter, is_high), session in wanted.items():
                yield self._subscribe(at, session, subject_filter, is_high=is_high)
        self._sessions[device] = wanted
        self._present[device] = set(wanted)
        for each in wanted:
            self._listening.setdefault(each, set()).add(device)

    def _subscribe(self, at: int, session: str, subject_filter: str, *, is_high: bool) -> InterestChanged:
        subscription = Subscription(
            session=session,
            subject_filter=subject_filter,
            filter_text=f"pulse > {_HIGH_PULSE}" if is_high else None,
            ttl_us=6 * HOUR_US if is_high else None,
            max_held=50,
            qos=1,
        )
        return self._interest(at, InterestChange.ADDED, subscription)

    def _interest(self, at: int, change: InterestChange, subscription: Subscription) -> InterestChanged:
        return InterestChanged(**self._number(), changed_at=at, change=change, subscription=subscription)  # type: ignore[arg-type]

    def _rename(self, at: int, session: str, number: int) -> Iterator[Fact]:
        subject_filter = f"bed/{number % _BEDS}/pulse"
        gone = Subscription(session=session, subject_filter=subject_filter, qos=1)
        yield self._interest(at, InterestChange.REMOVED, gone)
        yield self._subscribe(at, session, subject_filter, is_high=False)

    def _go(self, at: int, device: str, expiry_us: int) -> Iterator[Fact]:
        for each in self._present.pop(device, ()):
            self._listening[each].discard(device)
        yield PresenceChanged(
            **self._number(),  # type: ignore[arg-type]  # node and seq
            changed_at=at,
            device=device,
            change=PresenceChange.DISCONNECTED,
            session_expiry_us=expiry_us,
            sent_seq=self._seq - 1,
        )

    def _expire(self, at: int, session: str) -> Iterator[Fact]:
        yield SessionChanged(**self._number(), changed_at=at, session=session, change=SessionChange.DELETED)  # type: ignore[arg-type]

    def _report(self, at: int, device: str) -> Iterator[Fact]:
        sent = self._random.randrange(40)
        state = DeviceState(device=device, reported_at=at, received=self._random.randint(0, sent), sent=sent)
        yield Reported(**self._number(), state=state)  # type: ignore[arg-type]  # node and seq

    def _publish(self, day: int, at: int) -> Iterator[Fact]:
        random = self._random
        is_bed = random.random() < 0.6
        subject = f"bed/{random.randrange(_BEDS)}/pulse" if is_bed else self._visit(day)
        pulse = random.randint(50, 130)
        number = self._number()
        self.subjects.add(subject)
        yield Notification(
            **number,  # type: ignore[arg-type]  # node and seq
            published_at=at,
            subject=subject,
            publisher=f"sensor-{subject}",
            qos=random.choice((0, 1, 1, 1, 1)),
            attributes={"pulse": pulse},
            body=json.dumps({"pulse": pulse, "of": subject}).encode(),
            expires_at=at + 600 * SECOND_US if random.random() < 0.05 else None,
            deadline_at=at + 2 * SECOND_US if random.random() < 0.2 else None,
        )
        filters = [(subject, False), (f"{subject.rpartition('/')[0]}/#", False)]
        filters += [("bed/#", True)] if is_bed and pulse > _HIGH_PULSE else []
        for each in filters:
            for device in sorted(self._listening.get(each, ())):
                if random.random() < 0.97:
                    self._plan_receipt(at, device, each, self._seq)

    def _plan_receipt(self, at: int, device: str, wanted: tuple[str, bool], seq: int) -> None:
        def happens(at: int) -> Iterator[Fact]:
            if device in self._present:
                yield Receipt(
                    **self._number(),  # type: ignore[arg-type]  # node and seq
                    handed_at=at,
                    session=self._sessions[device][wanted],
                    device=device,
                    notification=NotificationId(self._node, seq),
                )

        self._at(at + int(self._random.expovariate(2) * SECOND_US), happens)
